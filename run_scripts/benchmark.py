"""Benchmark our models and others side by side: time, memory, utilisation.

    tokenmixers benchmark --output_dir outputs/benchmark
    tokenmixers benchmark --quick --cells 2 6 --modes inference --output_dir outputs/quick

All candidates of a group run in this process, and their calls alternate. Candidates with the same weights must have
the same outputs, otherwise there is no report. The experiments, by their numbers in `--cells`:

1. gMLP for images against timm; 2. gMLP-base against g-mlp-pytorch; 3. all base encoders against BERT and ModernBERT
with as many parameters; 4. Synthesizer against T5; 5. texts of real lengths; 6. growth with the length; 7. start-up;
8. masked language modelling, and the overhead of the Trainer; 9. our models with and without kernels.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch._dynamo
from transformers.utils import logging

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.precision import native_bfloat16
from .benchmarks.experiments import EXPERIMENTS, PEERS, BenchmarkArguments
from .benchmarks.model_comparisons import (
    Sizes,
)
from .benchmarks.results import machine, plot_results, print_rows, write_results
from .benchmarks.timing import (
    Case,
    matmul_peaks,
    measure,
)
from .benchmarks.workloads import read_lengths


def sizes_of(arguments: BenchmarkArguments) -> Sizes:
    """How much is measured."""
    sizes = Sizes(
        arguments.batch_size,
        arguments.presets,
        arguments.length_files,
        arguments.tokenizer,
        arguments.texts,
        arguments.image_models,
        text_lengths=tuple(sorted(arguments.lengths)),
    )
    return sizes.quick() if arguments.quick else sizes


def cases_of(arguments: BenchmarkArguments, device: torch.device) -> list[Case]:
    """Every combination of mode, type and compilation."""
    return [
        Case(mode, getattr(torch, dtype), compiled, device)
        for mode in arguments.modes
        for dtype in arguments.dtypes
        for compiled in ((False, True) if arguments.compile else (False,))
    ]


def check_inputs(arguments: BenchmarkArguments) -> None:
    """Look for packages and files before hours of work.

    Raises:
        UserError: If one is missing.
    """
    for cell in arguments.cells:
        if cell in PEERS:
            import_optional(PEERS[cell].replace("-", "_"), "bench", f"--cells {cell}")
    for file in arguments.length_files:
        read_lengths(file, arguments.tokenizer, arguments.texts)


def run_experiment(
    cell: int, case: Case, sizes: Sizes, rounds: int, peak: float, save: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Measure and print all groups of an experiment.

    Args:
        cell: Number of the experiment.
        case: How the candidates run.
        sizes: How much is measured.
        rounds: Timed calls of each candidate.
        peak: Operations per second of the fastest matrix product of this type.
        save: Called with the results so far after every group: a later group may fail.

    Returns:
        One row for each candidate.
    """
    torch.manual_seed(0)
    results = []
    for group in EXPERIMENTS[cell](case, sizes):
        rows = measure(group, case, rounds, peak)
        print_rows(f"{group.name}; {case}", rows)
        if any(row["utilisation"] and row["utilisation"] > 1 for row in rows):
            print("Faster than the fastest product: that was measured on a busy machine. Measure all again.\n")
        results += [{"cell": cell, "case": str(case), "is_first": index == 0, **row} for index, row in enumerate(rows)]
        save(results)
        del group  # and its models, before the next group is built
        if case.compiled:
            torch.compiler.reset()
    return results


# Candidates of a group share code. Beyond PyTorch's limit of graphs for it, the others would silently run uncompiled.
@torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one row of results for every candidate and case.

    Raises:
        UserError: If an argument or a package is missing or refused, or outputs disagree.
        torch._dynamo.exc.FailOnRecompileLimitHit: If a group has more graphs than `recompile_limit`: raise it here.
    """
    (arguments,) = parse_arguments((BenchmarkArguments,), argv)
    output = check_new_folder(arguments.output_dir)
    check_inputs(arguments)
    logging.set_verbosity_error()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.dtypes is None:
        arguments.dtypes = ["float32", "bfloat16"] if native_bfloat16(device)[0] else ["float32"]
    largest = 512 if arguments.quick else 4096
    peaks = {name: matmul_peaks(getattr(torch, name), device, largest) for name in arguments.dtypes}
    report = {"arguments": asdict(arguments), "machine": machine(device), "results": []}
    report["matmul_peaks"] = peaks
    print("; ".join(f"{key}: {value}" for key, value in report["machine"].items()))
    for dtype, found in peaks.items():
        print(f"{dtype}: " + ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in found.items()))
    sizes = sizes_of(arguments)
    for cell in arguments.cells:
        for case in cases_of(arguments, device):

            def save(rows: list[dict[str, Any]]) -> None:
                write_results(output, {**report, "results": report["results"] + rows})

            peak = max(peaks[str(case.dtype).removeprefix("torch.")].values())
            rows = run_experiment(cell, case, sizes, arguments.rounds, peak, save)
            report["results"] += rows
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
