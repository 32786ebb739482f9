"""Results of the benchmark: the machine, tables, files and pictures."""

import csv
import datetime
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo

from ..base.optional_packages import install_hint
from ..base.precision import device_name, native_bfloat16
from ..base.reporting import format_optional, print_table, versions
from .experiments import GROWTH, PEERS, TOOLS


if TYPE_CHECKING:  # an optional package
    from matplotlib.figure import Figure


def machine(device: torch.device) -> dict[str, Any]:
    """Date, versions, device and settings of the machine."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "peers": {package: _version(package) for package in PEERS.values()},
        "tools": {package: _version(package) for package in TOOLS.values()},
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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The results of a group as a table."""
    unit = f"{rows[0].get('unit', 'tokens')}/s"
    head = (
        title,
        "ms",
        "quartiles",
        "first / this",
        "quartiles",
        unit,
        "MB",
        "of peak",
        "floor",
        "differs",
        "cache kB",
        "M parameters",
        "compiling, s",
    )
    table = [
        (
            row["model"],
            f"{row['milliseconds']:,.1f}",
            f"{row['milliseconds_q1']:,.1f}-{row['milliseconds_q3']:,.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_q1']:.2f}-{row['ratio_q3']:.2f}",
            format_optional(row["per_second"], "{:,.1f}"),
            format_optional(row["peak_bytes"], "{:,.1f}", 1e-6),
            format_optional(row["utilisation"], "{:.0%}"),
            format_optional(row.get("floor"), "{:.0%}"),
            format_optional(row["difference"], "{:.0e}"),
            format_optional(row.get("cache_bytes"), "{:,.1f}", 1e-3),
            format_optional(row.get("parameters"), "{:,.1f}", 1e-6),
            format_optional(row.get("compile_seconds"), "{:,.1f}"),
        )
        for row in rows
    ]
    print_table(head, table)


def write_results(output: Path, report: dict[str, Any]) -> None:
    """Write `results.json`, and its rows as `results.csv`."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    columns = list(dict.fromkeys(key for row in report["results"] for key in row))
    with (output / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in report["results"]:
            writer.writerow(
                {key: json.dumps(value) if isinstance(value, dict) else value for key, value in row.items()}
            )


def plot_results(output: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a plot for each experiment: ratios of times, or times and memory by length for growing lengths."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no pictures: matplotlib is missing ({install_hint('plot')})")
        return
    for cell in sorted({row["cell"] for row in rows}):
        found = [row for row in rows if row["cell"] == cell]
        figure = Figure(layout="constrained")
        if cell == GROWTH:
            _plot_growth(figure, found)
        else:
            _plot_ratios(figure, [row for row in found if not row["is_first"]][::-1])
        figure.savefig(output / f"cell_{cell}.png", dpi=120)


def _plot_growth(figure: "Figure", rows: Sequence[dict[str, Any]]) -> None:
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(f"{row['model']}, {row['case']}", []).append(row)
    figure.set_size_inches(10, 4.5)
    keys, labels = ("milliseconds", "peak_bytes"), ("milliseconds", "peak memory, bytes")
    for axis, key, label in zip(figure.subplots(1, 2), keys, labels, strict=True):
        for name, points in curves.items():
            lengths = [point["length"] for point in points]
            axis.loglog(lengths, [point[key] for point in points], marker="o", markersize=3, label=name)
        axis.set(xlabel="tokens", ylabel=label)
    axis.legend(fontsize="x-small")


def _plot_ratios(figure: "Figure", rows: Sequence[dict[str, Any]]) -> None:
    figure.set_size_inches(9, 1 + 0.22 * len(rows))
    axis = figure.subplots()
    for index, row in enumerate(rows):
        axis.plot([row["ratio_q1"], row["ratio_q3"]], [index, index], color="tab:blue")
        axis.plot(row["ratio"], index, "o", color="tab:blue", markersize=4)
    labels = [f"{row['group']}, {row['case']}: {row['model']}" for row in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize="x-small")
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("time of the first of the group / time of this (below 1: the first is faster)")
