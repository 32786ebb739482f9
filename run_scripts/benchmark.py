"""Our models and others side by side: time, memory and the share of the machine that they use.

    python -m tokenmixers.run_scripts.benchmark --output_dir outputs/benchmark
    python -m tokenmixers.run_scripts.benchmark --quick --cells 2 6 --modes inference --output_dir outputs/quick

All contestants of a group run in this process and take turns. Those with the same weights have to give the same
outputs, or else there is no report. The cells:

1. gMLP for images against timm; 2. gMLP-base against g-mlp-pytorch; 3. all base encoders against BERT and ModernBERT
with as many parameters; 4. Synthesizer against T5; 5. texts of real lengths; 6. growth with the length; 7. start-up;
8. masked language modelling, and what the Trainer adds to it. For what this library chooses between: 9. products of
linear layers by their number of rows; 10. attention by its length.
"""

import csv
import datetime
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from transformers.utils import logging

from ..configuration.configuration_synthesizer import PRESETS
from .base.arguments import UserError, check_new_folder, import_optional, install_hint, parse_arguments
from .base.precision import device_name, native_bfloat16
from .base.reporting import print_table, shown
from .benchmarks.model_comparisons import (
    IMAGE_MODELS,
    Sizes,
    attention_by_length,
    encoders_against_transformers,
    growth,
    images_against_timm,
    products_by_rows,
    sequence_to_sequence,
    start_up,
    text_against_g_mlp_pytorch,
)
from .benchmarks.timing import (
    TOLERANCE,
    Case,
    Group,
    check_agreement,
    compare,
    matmul_peaks,
    profiled,
    take_turns,
)
from .benchmarks.workloads import masked_language_modelling, read_lengths, real_lengths
from .training.model_card import versions


CELLS: dict[int, Callable[[Case, Sizes], Iterator[Group]]] = {
    1: images_against_timm,
    2: text_against_g_mlp_pytorch,
    3: encoders_against_transformers,
    4: sequence_to_sequence,
    5: real_lengths,
    6: growth,
    7: start_up,
    8: masked_language_modelling,
    9: products_by_rows,
    10: attention_by_length,
}
PEERS = {1: "timm", 2: "g-mlp-pytorch"}
"""Distributions that a cell needs beyond our dependencies."""


@dataclass
class BenchmarkArguments:
    """What is measured, and how often."""

    output_dir: str = field(metadata={"help": "New folder for results.json, results.csv and pictures."})
    cells: list[int] = field(
        default_factory=lambda: sorted(CELLS),
        metadata={"help": "; ".join(function.__doc__.split("\n")[0].rstrip(".") for function in CELLS.values())},
    )
    modes: list[str] = field(
        default_factory=lambda: ["inference", "training"], metadata={"help": "inference, training."}
    )
    dtypes: list[str] | None = field(
        default=None, metadata={"help": "float32, bfloat16; the latter only where it is native, by default."}
    )
    compile: bool = field(
        default=False, metadata={"help": "Measure with torch.compile too, decoding with static caches."}
    )
    rounds: int = field(default=15, metadata={"help": "Timed calls of each contestant, after two to warm up."})
    batch_size: int = field(default=4, metadata={"help": "Sequences or images at a time."})
    lengths: list[int] = field(
        default_factory=lambda: [128, 512],
        metadata={"help": "Tokens per text for cells 2 and 3; cells 4, 5 and 8 take the largest."},
    )
    presets: list[str] = field(
        default_factory=lambda: list(PRESETS), metadata={"help": "Synthesizer presets for cells 3 and 4."}
    )
    length_files: list[str] = field(
        default_factory=list,
        metadata={
            "help": "For cell 5: files with a token count, a text, or two texts and a tab between them per line."
        },
    )
    tokenizer: str | None = field(default=None, metadata={"help": "Tokenizer for length_files with texts."})
    texts: int = field(
        default=64, metadata={"help": "For cell 5: how many lines of each file count, and drawn lengths."}
    )
    image_models: list[str] = field(
        default_factory=lambda: list(IMAGE_MODELS), metadata={"help": "gMLP sizes for cell 1: ti16, s16, b16."}
    )
    quick: bool = field(default=False, metadata={"help": "Small models and short texts: does it run?"})

    def __post_init__(self):
        for name, allowed in (
            ("cells", CELLS),
            ("modes", ("inference", "training")),
            ("dtypes", ("float32", "bfloat16")),
            ("presets", PRESETS),
            ("image_models", IMAGE_MODELS),
        ):
            for value in getattr(self, name) or ():
                if value not in allowed:
                    raise UserError(f"--{name} {value} is unknown; there are {', '.join(map(str, allowed))}.")
        for name in ("rounds", "batch_size", "texts", "lengths"):
            value = getattr(self, name)
            if min(value if isinstance(value, list) else [value]) < 1:
                raise UserError(f"--{name} must be at least 1, got {value}.")


def machine(device: torch.device) -> dict[str, Any]:
    """Where, when and with what versions."""
    peers = {}
    for package in PEERS.values():
        try:
            peers[package] = version(package)
        except PackageNotFoundError:
            peers[package] = None
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "peers": peers,
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


def measure(group: Group, case: Case, rounds: int, peak: float) -> list[dict[str, Any]]:
    """One row of results for each contestant.

    Args:
        group: The contestants, compared with the first of them.
        case: How they run.
        rounds: Timed calls of each.
        peak: Operations per second that the machine can do in this type.

    Raises:
        UserError: If outputs disagree.
    """
    differences = check_agreement(group.contestants, TOLERANCE[case.dtype])
    calls = {contestant.name: contestant.call for contestant in group.contestants}
    summaries = compare(take_turns(calls, rounds, case.device))
    rows = []
    for contestant in group.contestants:
        summary = summaries[contestant.name]
        seconds = summary["milliseconds"] / 1000
        peak_bytes, shares = profiled(contestant.call, case.device) if contestant.is_profiled else (None, {})
        rows.append(
            {
                "group": group.name,
                "model": contestant.name,
                "mode": case.mode,
                "dtype": str(case.dtype).removeprefix("torch."),
                "compiled": case.compiled,
                **group.facts,
                **summary,
                "difference": differences.get(contestant.name),
                "per_second": contestant.items / seconds if contestant.items else None,
                "peak_bytes": peak_bytes,
                "operators": {name: round(share, 4) for name, share in islice(shares.items(), 10)},
                "utilisation": contestant.flops / seconds / peak if contestant.flops else None,
                **contestant.facts,
            }
        )
    return rows


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
        "differs",
        "cache kB",
        "M parameters",
    )
    table = [
        (
            row["model"],
            f"{row['milliseconds']:,.1f}",
            f"{row['milliseconds_q1']:,.1f}-{row['milliseconds_q3']:,.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_q1']:.2f}-{row['ratio_q3']:.2f}",
            shown(row["per_second"], "{:,.1f}"),
            shown(row["peak_bytes"], "{:,.1f}", 1e-6),
            shown(row["utilisation"], "{:.0%}"),
            shown(row["difference"], "{:.0e}"),
            shown(row.get("cache_bytes"), "{:,.1f}", 1e-3),
            shown(row.get("parameters"), "{:,.1f}", 1e-6),
        )
        for row in rows
    ]
    print_table(head, table)


def crossover(rows: Sequence[dict[str, Any]], contestant: str = "Toeplitz, Fourier") -> int | None:
    """The length from which on a contestant is faster than the first of its group, `None` if there is none.

    Args:
        rows: Results of one case, of groups that differ in `length`.
        contestant: Its name.
    """
    start = None
    for row in sorted((row for row in rows if row["model"] == contestant), key=lambda row: row["length"]):
        if row["ratio"] <= 1:
            start = None
        elif start is None:
            start = row["length"]
    return start


def write_results(output: Path, report: dict[str, Any]) -> None:
    """`results.json`, and its rows as `results.csv`."""
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
    """A picture for each cell: how many times as long as each contestant ours took; for growth the times."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no pictures: matplotlib is missing ({install_hint('plot')})")
        return
    for cell in sorted({row["cell"] for row in rows}):
        found = [row for row in rows if row["cell"] == cell]
        if cell == 6:
            curves: dict[str, list[dict[str, Any]]] = {}
            for row in found:
                curves.setdefault(f"{row['model']}, {row['case']}", []).append(row)
            figure = Figure(figsize=(10, 4.5), layout="constrained")
            for axis, key, label in zip(
                figure.subplots(1, 2),
                ("milliseconds", "peak_bytes"),
                ("milliseconds", "peak memory, bytes"),
                strict=True,
            ):
                for name, points in curves.items():
                    lengths = [point["length"] for point in points]
                    axis.loglog(lengths, [point[key] for point in points], marker="o", markersize=3, label=name)
                axis.set(xlabel="tokens", ylabel=label)
            axis.legend(fontsize="x-small")
        else:
            others = [row for row in found if not row["is_first"]][::-1]
            figure = Figure(figsize=(9, 1 + 0.22 * len(others)), layout="constrained")
            axis = figure.subplots()
            for index, row in enumerate(others):
                axis.plot([row["ratio_q1"], row["ratio_q3"]], [index, index], color="tab:blue")
                axis.plot(row["ratio"], index, "o", color="tab:blue", markersize=4)
            labels = [f"{row['group']}, {row['case']}: {row['model']}" for row in others]
            axis.set_yticks(range(len(others)), labels, fontsize="x-small")
            axis.axvline(1, color="grey", linewidth=0.8)
            axis.set_xlabel("time of the first of the group / time of this (below 1: the first is faster)")
        figure.savefig(output / f"cell_{cell}.png", dpi=120)


# Contestants of one group share code. Past PyTorch's limit of graphs for it, the rest would run without any, unseen.
@torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one row of results for every contestant and case.

    Raises:
        UserError: If an argument or a package is missing or refused, or outputs disagree.
        torch._dynamo.exc.FailOnRecompileLimitHit: If a group has more graphs than `recompile_limit`, which then is to
            be raised here.
    """
    (arguments,) = parse_arguments((BenchmarkArguments,), argv)
    output = check_new_folder(arguments.output_dir)
    for cell in arguments.cells:  # before hours of work
        if cell in PEERS:
            import_optional(PEERS[cell].replace("-", "_"), "bench", f"--cells {cell}")
    for file in arguments.length_files:
        read_lengths(file, arguments.tokenizer, arguments.texts)
    logging.set_verbosity_error()
    sizes = Sizes(
        arguments.batch_size,
        arguments.presets,
        arguments.length_files,
        arguments.tokenizer,
        arguments.texts,
        arguments.image_models,
        text_lengths=tuple(sorted(arguments.lengths)),
    )
    sizes = sizes.quick() if arguments.quick else sizes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.dtypes is None:
        arguments.dtypes = ["float32", "bfloat16"] if native_bfloat16(device)[0] else ["float32"]
    dtypes = [getattr(torch, name) for name in arguments.dtypes]
    peaks = {dtype: matmul_peaks(dtype, device, 512 if arguments.quick else 4096) for dtype in dtypes}
    report = {"arguments": asdict(arguments), "machine": machine(device), "results": []}
    report["matmul_peaks"] = {str(dtype).removeprefix("torch."): found for dtype, found in peaks.items()}
    report["fourier_from"] = {}
    print("; ".join(f"{key}: {value}" for key, value in report["machine"].items()))
    for dtype, found in report["matmul_peaks"].items():
        print(f"{dtype}: " + ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in found.items()))
    cases = [
        Case(mode, dtype, compiled, device)
        for mode in arguments.modes
        for dtype in dtypes
        for compiled in ((False, True) if arguments.compile else (False,))
    ]
    for cell in arguments.cells:
        for case in cases:
            torch.manual_seed(0)
            found = []
            for group in CELLS[cell](case, sizes):
                rows = measure(group, case, arguments.rounds, max(peaks[case.dtype].values()))
                print_rows(f"{group.name}; {case}", rows)
                if any(row["utilisation"] and row["utilisation"] > 1 for row in rows):
                    print("Faster than the fastest product: that was measured on a busy machine. Measure all again.\n")
                found += [
                    {"cell": cell, "case": str(case), "is_first": index == 0, **row} for index, row in enumerate(rows)
                ]
                write_results(output, {**report, "results": report["results"] + found})  # kept if a later group fails
                del group
                if case.compiled:
                    torch.compiler.reset()
            report["results"] += found
            if cell == 6:
                length = report["fourier_from"][str(case)] = crossover(found)
                print(f"Fourier transforms, {case}: faster {f'from {length} tokens on' if length else 'nowhere'}")
                write_results(output, report)
    if not report["results"]:
        raise UserError(
            f"--cells {' '.join(map(str, arguments.cells))} measure nothing in --modes {' '.join(arguments.modes)} "
            f"--dtypes {' '.join(arguments.dtypes)}: 7 is inference in float32, and 8 is training."
        )
    plot_results(output, report["results"])
    print(f"results in {output}")
    return report["results"]


if __name__ == "__main__":
    main()
