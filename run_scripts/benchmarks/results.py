"""Results of the benchmark: the machine, tables and files."""

import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from ..base.precision import device_name, native_bfloat16
from ..base.reporting import format_optional, installed_version, print_table, versions
from .experiments import PEERS, TOOLS


#: Figures of printed tables: title, key of a row, format and factor.
FIGURES = (
    ("MB", "peak_bytes", "{:,.1f}", 1e-6),
    ("of peak", "utilisation", "{:.0%}", 1.0),
    ("floor", "floor", "{:.0%}", 1.0),
    ("differs", "difference", "{:.0e}", 1.0),
    ("cache kB", "cache_bytes", "{:,.1f}", 1e-3),
    ("M parameters", "parameters", "{:,.1f}", 1e-6),
    ("compiling, s", "compile_seconds", "{:,.1f}", 1.0),
)


def machine(device: torch.device) -> dict[str, Any]:
    """Date, versions, device and settings of the machine."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
        if "model name" in facts:
            processor = facts["model name"]
        if "cpu family" in facts:  # virtual machines call several generations of a processor by one name
            processor += f" (family {facts['cpu family']}, model {facts['model']})"
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "peers": {package: installed_version(package) for package in PEERS.values()},
        "tools": {package: installed_version(package) for package in TOOLS.values()},
        "device": device.type,
        "processor": processor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "accelerator": None if device.type == "cpu" else device_name(device),
        "bfloat16": native_bfloat16(device)[0],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "allocator": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
    }


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The results of a group as a table."""
    figures = ((f"{rows[0].get('unit', 'tokens')}/s", "per_second", "{:,.1f}", 1.0), *FIGURES)
    head = (title, "ms", "quartiles", "first / this", "quartiles", *(name for name, *_ in figures))
    table = [
        (
            row["model"],
            f"{row['milliseconds']:,.1f}",
            f"{row['milliseconds_q1']:,.1f}-{row['milliseconds_q3']:,.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_q1']:.2f}-{row['ratio_q3']:.2f}",
            *(format_optional(row.get(key), form, scale) for _, key, form, scale in figures),
        )
        for row in rows
    ]
    print_table(head, table)


def write_results(output: Path, report: dict[str, Any]) -> None:
    """Write `results.json`."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
