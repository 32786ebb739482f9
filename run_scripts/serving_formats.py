"""Measure size, latency and perplexity of masked language models in serving formats.

    tokenmixers serving_formats --models outputs/quickstart/gmlp --formats float32 bfloat16
    tokenmixers serving_formats --models outputs/gmlp outputs/amlp --formats float32 int8 --validation_file texts.txt
    tokenmixers serving_formats --models gmlp-base amlp-base bert-config/ --formats float32 onnx --length 128

The calls of all models alternate. Times are medians over the rounds.
"""

import gc
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError, report_unreadable
from .base.optional_packages import import_optional
from .base.ranges import check_ranges
from .base.reporting import print_table, versions
from .base.sequence_limits import longest_sequence
from .benchmarks.serving_formats import (
    FORMATS,
    Call,
    Inputs,
    default_length,
    exported_format,
    is_configuration,
    load,
    perplexity_of,
    prepare,
)
from .benchmarks.timing import take_turns
from .data.collators import precompute_labels
from .data.loading import limited
from .data.masking import MaskingCollator
from .data.packing import row_encoder, tokenize
from .data.row_seeds import SeededCollator
from .data.text_corpus import load_texts
from .exports.formats import FORMATS as EXPORTED
from .exports.formats import check_packages


@dataclass
class ServingArguments:
    """Which models, in which formats, on what."""

    models: list[str] = field(
        metadata={"help": "Checkpoints, folders with a config.json, or shipped configurations (random weights)."}
    )
    formats: list[str] = field(
        default_factory=lambda: ["float32", "bfloat16", "onnx", "onnx-int8", "openvino"],
        metadata={"help": "What to compare: " + "; ".join(f"{name} ({what})" for name, what in FORMATS.items()) + "."},
    )
    length: int | None = field(
        default=None, metadata={"help": "Tokens of a sequence; by default 128, or the most that all models take."}
    )
    batch_size: int = field(default=1, metadata={"help": "Sequences at a time."})
    rounds: int = field(default=15, metadata={"help": "Timed calls of each model and format."})
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Text for the perplexity of checkpoints with a tokenizer."}
    )
    max_eval_samples: int = field(default=100, metadata={"help": "Use this many sequences of it only."})
    output_dir: str | None = field(default=None, metadata={"help": "New folder for results.json."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "length batch_size rounds max_eval_samples"))


def masked_sequences(name: str, arguments: ServingArguments) -> Iterator[dict[str, torch.Tensor]]:
    """Sequences of the validation text with masks, the same for every format."""
    with report_unreadable(name):
        tokenizer = AutoTokenizer.from_pretrained(name)
    text = load_texts(arguments.validation_file, "text", "validation")
    length = min(arguments.length, tokenizer.model_max_length)
    rows = tokenize(text, row_encoder(tokenizer, length, pack=True))
    collator = SeededCollator(MaskingCollator(tokenizer), 0)
    for row in precompute_labels(limited(rows, arguments.max_eval_samples), collator):
        ids = torch.tensor([row["input_ids"]])
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([row["labels"]])}


def check_choices(arguments: ServingArguments) -> None:
    """Check models and formats, and that the packages of all formats are installed.

    Raises:
        UserError: If a format is unknown or lacks a package, or a model or format is given twice.
    """
    for kind in arguments.formats:
        if kind not in FORMATS:
            raise UserError(f"--formats {kind!r} is unknown; there are {', '.join(FORMATS)}.")
    for name, values in (("models", arguments.models), ("formats", arguments.formats)):
        twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
        if twice:
            raise UserError(f"--{name} has {twice[0]!r} twice: give each once.")
    check_packages(kind for kind in map(exported_format, arguments.formats) if kind in EXPORTED)
    if torchao := [kind for kind in arguments.formats if kind in ("int8", "int8-spatial")]:
        import_optional("torchao", "quantize", f"the format {torchao[0]!r}")


def prepare_model(name: str, kind: str, folder: Path, arguments: ServingArguments) -> tuple[Call, Inputs, dict]:
    """Convert a model to a format.

    Returns:
        The model as a function, inputs to time it with, and its result without the time.

    Raises:
        UserError: If the model does not take so many tokens.
    """
    model = load(name)
    longest = longest_sequence(model.config)
    if longest is not None and arguments.length > longest:
        raise UserError(f"--length {arguments.length} does not fit {name!r}, which takes {longest} tokens.")
    call, size = prepare(model, kind, folder)
    result = {"model": name, "format": kind, "parameters": model.num_parameters(), "bytes": size}
    result["random_weights"] = is_configuration(name)
    on_the_hub = not Path(name).is_dir() and not result["random_weights"]
    if arguments.validation_file and (on_the_hub or (Path(name) / "tokenizer_config.json").is_file()):
        result["perplexity"] = perplexity_of(call, list(masked_sequences(name, arguments)))
    ids = torch.randint(5, model.config.vocab_size, (arguments.batch_size, arguments.length))
    return call, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, result


def time_calls(calls: Sequence[tuple[Call, Inputs]], rounds: int) -> list[float]:
    """Median milliseconds of each call. The calls alternate, after some rounds to warm up."""
    named = {str(number): partial(call, inputs) for number, (call, inputs) in enumerate(calls)}
    seconds = take_turns(named, rounds, torch.device("cpu"))
    return [1000 * statistics.median(times) for times in seconds.values()]


def report(results: list[dict[str, Any]], arguments: ServingArguments, output: Path | None) -> None:
    """Print the results, and write them to `results.json`."""
    rows = [
        (
            Path(result["model"]).name + ", random weights" * result["random_weights"] + f", {result['format']}",
            f"{result['bytes'] / 1e6:,.1f} MB",
            f"{result['milliseconds']:,.1f} ms",
            f"{result['perplexity']:.2f}" if "perplexity" in result else "",
        )
        for result in results
    ]
    used = versions(torch.device("cpu"))
    print(f"batch {arguments.batch_size}, {arguments.length} tokens, {torch.get_num_threads()} threads; {used}")
    print_table(("model, format", "size", "latency", "perplexity"), rows)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        content = {"arguments": asdict(arguments), "versions": used, "results": results}
        (output / "results.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one result for every model and format."""
    (arguments,) = parse_arguments((ServingArguments,), argv)
    check_choices(arguments)
    logging.set_verbosity_error()
    output = check_new_folder(arguments.output_dir) if arguments.output_dir else None
    arguments.length = default_length(arguments.models) if arguments.length is None else arguments.length
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in arguments.formats:
            calls = []
            for index, name in enumerate(arguments.models):
                call, inputs, result = prepare_model(name, kind, Path(temporary) / str(index), arguments)
                calls.append((call, inputs))
                results.append(result)
            milliseconds = time_calls(calls, arguments.rounds)
            for result, median in zip(results[-len(calls) :], milliseconds, strict=True):
                result["milliseconds"] = median
            del calls, call  # and the models, before the next format
            gc.collect()
    report(results, arguments, output)
    return results


if __name__ == "__main__":
    main()
