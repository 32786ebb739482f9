"""Export a checkpoint to ONNX and OpenVINO, checked against PyTorch.

    tokenmixers export --model outputs/embeddings --output_dir outputs/embeddings-onnx
    tokenmixers export --model outputs/sst2 --output_dir outputs/sst2-onnx --formats onnx onnx-int8 openvino \
        --validation_file glue/SST-2/dev.tsv --max_quality_loss 0.01

Every task head and sentence embeddings, with any batch size and length. The folder is laid out as Optimum,
sentence-transformers and Transformers.js expect it. It appears when every format has been checked, or not at all.
"""

import shlex
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.new_checkpoint import new_checkpoint
from .base.ranges import check_ranges
from .base.reporting import print_table
from .benchmarks.timing import take_turns
from .exports.formats import FILES, FORMATS, Program, check_packages, size_of, trace, write
from .exports.quality import answered_by, check_quality, check_values, compare, evaluate
from .exports.tasks import ENDINGS, Checkpoint, find_task


#: Timed calls of each format. The formats take turns, with all threads of PyTorch.
ROUNDS = 15


@dataclass
class ExportArguments:
    """What to export, and how good it has to be."""

    model: str = field(metadata={"help": "Checkpoint folder, Hub id or shipped model, e.g. gmlp-minilm."})
    output_dir: str = field(metadata={"help": "New folder for the exported model."})
    formats: list[str] = field(
        default_factory=lambda: ["onnx", "onnx-int8"],
        metadata={
            "help": "; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + ".",
            "choices": list(FORMATS),
        },
    )
    task: str | None = field(
        default=None,
        metadata={"help": "The task; by default the checkpoint's own.", "choices": list(ENDINGS)},
    )
    validation_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Data for the quality of every format, as the command that trains the task reads them; for "
            "images a folder."
        },
    )
    evaluation_arguments: str = field(
        default="",
        metadata={
            "help": "Further arguments of that command as one text, e.g. '--label_column_name class "
            "--max_eval_samples 500'."
        },
    )
    max_quality_loss: float | None = field(
        default=None,
        metadata={"help": "Largest share of the quality in PyTorch that a format may lose, e.g. 0.01; needs data."},
    )

    def __post_init__(self):
        check_ranges(self, ("a share from 0 to 1", "max_quality_loss"))
        if self.max_quality_loss is not None and not self.measures:
            raise UserError("--max_quality_loss needs data to measure the quality on: give --validation_file.")

    @property
    def measures(self) -> bool:
        """Whether there are data to measure quality on."""
        return bool(self.validation_file or self.evaluation_arguments)


def export(arguments: ExportArguments, folder: Path) -> list[dict[str, Any]]:
    """Write and check all formats.

    Returns:
        For every format its file, bytes, largest difference from PyTorch, smallest cosine (see `compare`), median
        milliseconds of one input in the format and in PyTorch, and the metric of the task if measured.
    """
    name, task = arguments.model, arguments.task or find_task(arguments.model)
    data = (arguments.validation_file or [], shlex.split(arguments.evaluation_arguments))
    metric, reference = evaluate(task, name, *data) if arguments.measures else (None, 0.0)
    checkpoint = Checkpoint(name, task)
    batches = checkpoint.batches()
    graph = trace(checkpoint.model, batches[0])
    results: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], Any]] = {"PyTorch": torch.inference_mode()(partial(checkpoint.model, **batches[1]))}
    for kind in dict.fromkeys(arguments.formats):
        path = folder / FILES[kind]
        write(graph, kind, path)
        calls[kind] = partial(Program(path), batches[1])
        difference, cosine = compare(Program(path, float32=True), checkpoint.model, batches)
        check_values(kind, name, difference)
        results.append({"format": kind, "file": FILES[kind], "bytes": size_of(path)})
        results[-1] |= {"difference": difference, "cosine": cosine}
        if metric is not None:
            with answered_by(calls[kind].func, type(checkpoint.model)):
                _, value = evaluate(task, name, *data)
            check_quality(kind, name, metric, reference, value, arguments.max_quality_loss)
            results[-1] |= {"metric": metric, "pytorch": reference, "quality": value}
    seconds = take_turns(calls, ROUNDS, torch.device("cpu"))
    times = {name: 1000 * statistics.median(found) for name, found in seconds.items()}
    for result in results:
        result |= {"milliseconds": times[result["format"]], "pytorch_milliseconds": times["PyTorch"]}
    checkpoint.save(folder, arguments.output_dir)
    if checkpoint.prompt:
        print(f"put {checkpoint.prompt!r} before every text, as {name!r} does: a graph of token ids does not hold it")
    return results


def report(results: list[dict[str, Any]], folder: Path) -> None:
    """Print the results."""
    metric = results[0].get("metric")
    pytorch = results[0]["pytorch_milliseconds"]
    head = ["file", "size", "next to PyTorch", f"one input (PyTorch: {pytorch:.1f} ms)"]
    if metric is not None:
        head.append(f"{metric} (PyTorch: {results[0]['pytorch']:.4g})")
    rows = []
    for result in results:
        if result["format"] != "onnx-int8":
            near = f"difference {result['difference']:.1e}"
        else:  # of logits near 0 the cosine may be -1 where all answers agree: a metric says more
            near = f"cosine {result['cosine']:.4f}" if metric is None else "see the metric"
        row = [result["file"], f"{result['bytes'] / 1e6:,.1f} MB", near]
        row.append(f"{result['milliseconds']:.1f} ms")
        rows.append((*row, f"{result['quality']:.4g}") if metric is not None else tuple(row))
    print_table(tuple(head), rows)
    if metric is None and any(result["format"] == "onnx-int8" for result in results):
        print("int8 rounds, so its values differ: --validation_file measures its quality on your data")
    print(f"exported: {folder}")


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one result for every format."""
    (arguments,) = parse_arguments((ExportArguments,), argv)
    check_packages(arguments.formats)
    output = check_new_folder(arguments.output_dir)
    with new_checkpoint(output) as folder:
        results = export(arguments, folder)
    report(results, output)
    return results


if __name__ == "__main__":
    main()
