"""Benchmark our models and others side by side: time, memory, utilisation.

    tokenmixers benchmark --output_dir outputs/benchmark
    tokenmixers benchmark --quick --cells 2 6 --modes inference --output_dir outputs/quick
    tokenmixers benchmark --gpu --output_dir outputs/gpu

All candidates of a group run in this process, and their calls alternate. Candidates with the same weights must have
the same outputs, otherwise there is no report. The experiments, by their numbers in `--cells`:

1. gMLP for images against timm; 2. gMLP-base against g-mlp-pytorch; 3. all base encoders against BERT and ModernBERT
with as many parameters; 4. Synthesizer against T5; 5. texts of real lengths; 6. growth with the length;
10. sentence embeddings of real sentences; 11. one sentence at a time; 12. finetuning. 10 to 12 are against BERTs of
equal shape and of equal operations.

Each row has its floor: the time of its own matrix products alone, and of passing once over what they read and write.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from transformers.utils import logging

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.precision import native_bfloat16
from .benchmarks.arguments import BenchmarkArguments
from .benchmarks.experiments import EXPERIMENTS, PEERS, TOOLS
from .benchmarks.model_comparisons import import_peer
from .benchmarks.results import machine, print_rows, write_results
from .benchmarks.timing import Case, Group, matmul_peaks, measure
from .benchmarks.workloads import read_lengths


def gpu_device() -> torch.device:
    """The device of `--gpu`."""
    if not torch.cuda.is_available():
        raise UserError("--gpu needs a GPU that this PyTorch can use, and torch.cuda.is_available() is false.")
    return torch.device("cuda")


def check_inputs(arguments: BenchmarkArguments) -> list[str]:
    """Look for packages and files before hours of work.

    Returns:
        What is left out for lack of a package: with `--gpu`, whose machine may have no network.
    """
    left_out = []
    for cell in list(arguments.cells):
        package = (PEERS | TOOLS).get(cell)
        if package is None:
            continue
        try:
            import_peer(package, cell)
        except UserError as error:
            if not arguments.gpu:
                raise
            left_out.append(str(error).removeprefix("error: "))
            arguments.cells.remove(cell)
    for file in arguments.length_files:
        read_lengths(file, arguments.tokenizer, arguments.texts)
    return left_out


class Run:
    """The results of a run so far, and the file that they are written to after every group."""

    def __init__(self, output: Path, report: dict[str, Any], arguments: BenchmarkArguments):
        self.output, self.report, self.arguments = output, report, arguments
        self.results: list[dict[str, Any]] = report["results"]
        self.start = time.monotonic()

    def leave_out(self, sentence: str) -> None:
        """Say, and write, what is not measured and why."""
        print(f"LEFT OUT: {sentence}\n")
        self.report.setdefault("left_out", []).append(sentence)
        write_results(self.output, self.report)

    def experiment(self, cell: int, case: Case) -> None:
        """Measure and print all groups of an experiment for a case."""
        torch.manual_seed(0)
        groups, minutes = EXPERIMENTS[cell](case, self.arguments), self.arguments.minutes
        while True:
            if minutes is not None and time.monotonic() - self.start >= 60 * minutes:
                self.leave_out(f"cell {cell}, {case}: groups after {minutes:g} minutes")
                return
            group = None
            try:
                group = next(groups, None)
                if group is None:
                    return
                self.group(cell, case, group)
            except Exception as error:
                # Time on a GPU is short: a failure is reported, and the other groups are measured first.
                if not self.arguments.gpu:
                    raise
                name = group.name if group else "a group that cannot be built"
                self.leave_out(f"cell {cell}, {name}, {case}: {type(error).__name__}: {error}"[:500])
            del group  # and its models, before the next group is built
            if case.compiled:
                torch.compiler.reset()

    def group(self, cell: int, case: Case, group: Group) -> None:
        """Measure and print a group."""
        rows = measure(group, case, self.arguments.rounds)
        self.results += [
            {"cell": cell, "case": str(case), "is_first": index == 0, **row} for index, row in enumerate(rows)
        ]
        set_utilisation(self.results, self.report["matmul_peaks"], self.report["machine"]["threads"])
        print_rows(f"{group.name}; {case}", self.results[-len(rows) :])
        write_results(self.output, self.report)


def set_utilisation(rows: list[dict[str, Any]], peaks: dict[str, dict[str, float]], threads: int) -> None:
    """Set each row's share of the fastest product of its type and number of threads, which no row exceeds.

    Args:
        rows: All results so far. Products of their own shapes may be faster than square ones.
        peaks: Operations per second of the fastest products by type, and by number of threads if it is another;
            `rows` is the fastest of the rows and of their products.
        threads: How many `peaks` was measured with.
    """

    def peaks_of(row: dict[str, Any]) -> dict[str, float]:
        other = "" if row["threads"] == threads else f", threads: {row['threads']}"
        return peaks.setdefault(row["dtype"] + other, {})

    for row in rows:
        found = peaks_of(row)
        rates = (found.get("rows"), row["operations_per_second"], row.get("fastest_product"))
        found["rows"] = max(rate or 0.0 for rate in rates)
    for row in rows:
        rate = row["operations_per_second"]
        row["utilisation"] = rate / max(peaks_of(row).values()) if rate else None


def plan(arguments: BenchmarkArguments, device: torch.device) -> list[tuple[int, Case]]:
    """What is measured, in order: with a limit of time eager mode comes first, since compiling takes most of it."""
    pairs = [
        (cell, Case(mode, getattr(torch, dtype), compiled, device, arguments.compile_layers))
        for cell in arguments.cells
        for mode in arguments.modes
        for dtype in arguments.dtypes
        for compiled in ((False, True) if arguments.compile else (False,))
    ]
    return pairs if arguments.minutes is None else sorted(pairs, key=lambda pair: pair[1].compiled)


def measured_peaks(arguments: BenchmarkArguments, device: torch.device) -> dict[str, dict[str, float]]:
    """Operations per second of the fastest products, by type; also printed."""
    largest = 512 if arguments.quick else 4096 if device.type == "cpu" else 8192
    peaks = {name: matmul_peaks(getattr(torch, name), device, largest) for name in arguments.dtypes}
    for dtype, found in peaks.items():
        print(f"{dtype}: " + ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in found.items()))
    return peaks


# Candidates of a group share code. Beyond PyTorch's limit of graphs for it, the others would silently run uncompiled.
@torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one row of results for every candidate and case.

    Raises:
        UserError: If an argument or a package is missing or refused, or outputs disagree; with `--gpu` when all the
            rest was measured.
        torch._dynamo.exc.FailOnRecompileLimitHit: If a group has more graphs than `recompile_limit`: raise it here.
    """
    (arguments,) = parse_arguments((BenchmarkArguments,), argv)
    output = check_new_folder(arguments.output_dir)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.gpu:
        device = gpu_device()
    asked_for = asdict(arguments)
    left_out = check_inputs(arguments)
    logging.set_verbosity_error()
    if arguments.dtypes is None:
        arguments.dtypes = ["float32", "bfloat16"] if native_bfloat16(device)[0] else ["float32"]
        asked_for["dtypes"] = arguments.dtypes
    facts = machine(device)
    print("; ".join(f"{key}: {value}" for key, value in facts.items()))
    peaks = measured_peaks(arguments, device)
    report = {"arguments": asked_for, "machine": facts, "results": [], "matmul_peaks": peaks}
    run = Run(output, report, arguments)
    for sentence in left_out:
        run.leave_out(sentence)
    for cell, case in plan(arguments, device):
        run.experiment(cell, case)
    if not run.results and "left_out" not in report:
        raise UserError(
            f"--cells {' '.join(map(str, arguments.cells))} measure nothing in --modes {' '.join(arguments.modes)} "
            f"--dtypes {' '.join(arguments.dtypes)}: 12 is training, 10 and 11 are inference."
        )
    print(f"results in {output}")
    if "left_out" in report:
        raise UserError(f"the results in {output} lack what was left out: " + " | ".join(report["left_out"]))
    return run.results


if __name__ == "__main__":
    main()
