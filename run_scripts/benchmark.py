"""Benchmark our models and others side by side: time, memory, utilisation.

    python -m tokenmixers.run_scripts.benchmark --output_dir outputs/benchmark
    python -m tokenmixers.run_scripts.benchmark --quick --cells 2 6 --modes inference --output_dir outputs/quick

All contestants of a group run in this process and take turns. Those with the same weights have to give the same
outputs, or else there is no report. The cells:

1. gMLP for images against timm; 2. gMLP-base against g-mlp-pytorch; 3. all base encoders against BERT and ModernBERT
with as many parameters; 4. Synthesizer against T5; 5. texts of real lengths; 6. growth with the length; 7. start-up;
8. masked language modelling, and what the Trainer adds to it. For what this library chooses between: 9. products of
linear layers by their number of rows; 10. attention by its length.
"""

from dataclasses import asdict
from typing import Any

import torch
import torch._dynamo
from transformers.utils import logging

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.precision import native_bfloat16
from .benchmarks.experiments import CELLS, PEERS, BenchmarkArguments
from .benchmarks.model_comparisons import (
    Sizes,
)
from .benchmarks.results import crossover, machine, plot_results, print_rows, write_results
from .benchmarks.timing import (
    Case,
    matmul_peaks,
    measure,
)
from .benchmarks.workloads import read_lengths


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
