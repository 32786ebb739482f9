"""Size, latency and accuracy of masked language models in the formats in which they can be served on a CPU.

    python -m tokenmixers.run_scripts.serving_formats --models outputs/quickstart/gmlp --validation_file held_out.txt
    python -m tokenmixers.run_scripts.serving_formats --models gmlp-base amlp-base bert-config/ --length 128

Models take turns within every round, and the medians over the rounds are reported.
"""

import gc
import importlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import MODEL_CARDS, UserError, check_new_folder, install_hint, parse_arguments
from .base.reporting import print_table
from .data.text_corpus import labelled_once, load_files, row_encoder, tokenize
from .run_mlm import MaskingCollator
from .training.language_modeling import SeededCollator, row_losses
from .training.model_card import versions


#: What `--formats` can name.
FORMATS = {
    "float32": "as trained",
    "bfloat16": "half the size",
    "int8": "torchao's",
    "int8-spatial": "that, and the weights that mix tokens rounded to int8 too, for the accuracy only",
    "onnx": "ONNX Runtime",
    "onnx-int8": "ONNX Runtime's dynamic int8",
    "openvino": "OpenVINO, in bfloat16 where the processor has it",
    "openvino-float32": "OpenVINO in float32",
}
#: Which of this package's extras brings what a format imports, and what it imports.
REQUIRED = {
    "int8": ("quantize", "torchao"),
    "int8-spatial": ("quantize", "torchao"),
    "onnx": ("export", "onnx", "onnxruntime", "onnxscript"),
    "onnx-int8": ("export", "onnx", "onnxruntime", "onnxscript"),
    "openvino": ("edge", "openvino"),
    "openvino-float32": ("edge", "openvino"),
}
#: Parts of the names of parameters that mix tokens; they are no linear layers, so that no quantizer takes them.
TOKEN_MIXING = ("spatial_proj.weight", "token_mixing.weight", "components")
Call = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass
class ServingArguments:
    """Which models, in which formats, on what."""

    models: list[str] = field(
        metadata={"help": "Checkpoints, folders with a config.json, or shipped model cards (random weights)."}
    )
    formats: list[str] = field(
        default_factory=lambda: ["float32", "bfloat16", "onnx", "onnx-int8", "openvino"],
        metadata={"help": "What to compare: " + "; ".join(f"{name} ({what})" for name, what in FORMATS.items()) + "."},
    )
    length: int = field(default=128, metadata={"help": "Tokens of a sequence."})
    batch_size: int = field(default=1, metadata={"help": "Sequences at a time."})
    rounds: int = field(default=15, metadata={"help": "Timed calls of each model and format."})
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Text for the perplexity of checkpoints with a tokenizer."}
    )
    max_eval_samples: int = field(default=100, metadata={"help": "Use this many sequences of it only."})
    output_dir: str | None = field(default=None, metadata={"help": "New folder for results.json."})


def folder_of(name: str) -> Path:
    """Where a shipped model card, or a folder, is."""
    return MODEL_CARDS / name if (MODEL_CARDS / name / "config.json").is_file() else Path(name)


def is_configuration(name: str) -> bool:
    """Whether there are no weights of any kind beside a configuration, so that they are random."""
    folder = folder_of(name)
    kinds = ("*.safetensors", "*.bin", "*.pt", "*.index.json")
    return (folder / "config.json").is_file() and not any(list(folder.glob(kind)) for kind in kinds)


def load(name: str) -> PreTrainedModel:
    """A checkpoint, or a model with random weights from a configuration.

    Raises:
        UserError: If there is neither.
    """
    try:
        if is_configuration(name):
            torch.manual_seed(0)
            return AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder_of(name))).eval()
        return AutoModelForMaskedLM.from_pretrained(name).eval()
    except (OSError, ValueError) as error:
        raise UserError(f"no masked language model can be loaded from {name!r}: {error}") from error


def _torch_call(model: PreTrainedModel) -> Call:
    def call(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            return model(**inputs).logits.float()

    return call


def _exported(model: PreTrainedModel, folder: Path, kind: str) -> Call:
    from transformers.exporters.auto import AutoHfExporter
    from transformers.exporters.configs import OnnxConfig, OpenVINOConfig

    if kind == "onnx-int8":
        from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

        config = OnnxConfig(dynamic=True, quantizer=OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig()))
    else:
        config = OnnxConfig(dynamic=True) if kind == "onnx" else OpenVINOConfig(dynamic=True)
    ids = torch.randint(5, model.config.vocab_size, (2, 8))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exported = AutoHfExporter.from_config(config).export(model, inputs, config=config)
    exported.save_pretrained(folder)
    if kind == "openvino-float32":  # by itself it computes in bfloat16 where the processor does
        exported.to(config={"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: torch.as_tensor(exported(**inputs)["logits"]).float()


def _quantized(folder: Path, target: Path, spatial: bool) -> Call:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from transformers import TorchAoConfig

    model = AutoModelForMaskedLM.from_pretrained(
        folder, quantization_config=TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
    ).eval()
    model.save_pretrained(target)
    if spatial:
        for tensor in token_mixing_weights(model):
            round_to_int8(tensor)
    return _torch_call(model)


def token_mixing_weights(model: PreTrainedModel) -> list[torch.Tensor]:
    """The matrices, or Toeplitz filters, that mix tokens and that int8 formats leave as they are.

    Raises:
        UserError: If there are none: the model's attention is linear layers alone.
    """
    linear = {
        id(weight) for layer in model.modules() if type(layer) is torch.nn.Linear for weight in layer.parameters()
    }
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())  # fixed random maps are buffers
    found = [
        tensor
        for name, tensor in tensors
        if any(part in name for part in TOKEN_MIXING)
        and tensor.is_floating_point()
        and id(tensor) not in linear
        and type(tensor) in (torch.nn.Parameter, torch.Tensor)  # others are int8 already
    ]
    if not found:
        raise UserError(
            f"int8-spatial: {type(model).__name__} mixes tokens by linear layers alone: int8 has rounded "
            "them already, leave this format out."
        )
    return found


@torch.no_grad()
def round_to_int8(weights: torch.Tensor) -> None:
    """Round to 255 steps between the largest magnitude of each row and its negative, in place."""
    scale = weights.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
    weights.copy_((weights / scale).round() * scale)


def prepare(model: PreTrainedModel, kind: str, folder: Path) -> tuple[Call, int]:
    """A model in a format, as a function of its inputs, and its size on disk in bytes."""
    target = folder / kind
    if kind in ("float32", "bfloat16"):
        model = model.to(getattr(torch, kind))
        model.save_pretrained(target)
        call = _torch_call(model)
    elif kind in ("int8", "int8-spatial"):
        model.save_pretrained(folder / "source")
        call = _quantized(folder / "source", target, kind == "int8-spatial")
    else:
        call = _exported(model, target, kind)
    weights = (".safetensors", ".onnx", ".data", ".bin", ".xml")
    return call, sum(path.stat().st_size for path in target.iterdir() if path.suffix in weights)


def questions(name: str, arguments: ServingArguments) -> Iterator[dict[str, torch.Tensor]]:
    """Masked sequences of the validation text, the same for every format."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    text = load_files(arguments.validation_file).select_columns(["text"])
    length = min(arguments.length, tokenizer.model_max_length)
    rows = tokenize(text, row_encoder(tokenizer, length, pack=True))
    collator = SeededCollator(MaskingCollator(tokenizer), 0)
    for row in labelled_once(rows.take(min(len(rows), arguments.max_eval_samples)), collator):
        ids = torch.tensor([row["input_ids"]])
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([row["labels"]])}


def perplexity_of(call: Call, rows: list[dict[str, torch.Tensor]]) -> float:
    """Perplexity at the masked tokens."""
    losses, asked = 0.0, 0
    for row in rows:
        inputs = {key: row[key] for key in ("input_ids", "attention_mask")}
        losses += row_losses(call(inputs), row["labels"]).sum().item()
        asked += int((row["labels"] != -100).sum())
    return float(torch.tensor(losses / asked).exp())


def check_choices(arguments: ServingArguments) -> None:
    """Refuse what cannot be compared.

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
    for kind in arguments.formats:
        extra, *modules = REQUIRED.get(kind, ("",))
        if extra in ("export", "edge") and Version(transformers_version) < Version("5.23"):
            raise UserError(f"the format {kind!r} needs Transformers 5.23, and this is {transformers_version}.")
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"the format {kind!r}: {error}; {install_hint(extra)}, or leave it out.") from error


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns one result for every model and format."""
    (arguments,) = parse_arguments((ServingArguments,), argv)
    check_choices(arguments)
    logging.set_verbosity_error()
    output = check_new_folder(arguments.output_dir) if arguments.output_dir else None
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in arguments.formats:
            calls, timings = {}, {}
            for index, name in enumerate(arguments.models):
                model = load(name)
                longest = getattr(model.config, "max_position_embeddings", None) or arguments.length
                if arguments.length > longest:
                    raise UserError(
                        f"--length {arguments.length} does not fit {name!r}, which takes {longest} tokens."
                    )
                calls[name], size = prepare(model, kind, Path(temporary) / str(index))
                result = {"model": name, "format": kind, "parameters": model.num_parameters(), "bytes": size}
                result["random_weights"] = is_configuration(name)
                if arguments.validation_file and (Path(name) / "tokenizer_config.json").is_file():
                    result["perplexity"] = perplexity_of(calls[name], list(questions(name, arguments)))
                vocab_size = model.config.vocab_size
                ids = torch.randint(5, vocab_size, (arguments.batch_size, arguments.length))
                timings[name] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, []
                results.append(result)
            for round_number in range(-2, arguments.rounds):  # two to warm up
                for name, call in calls.items():
                    inputs, seconds = timings[name]
                    start = time.perf_counter()
                    call(inputs)
                    if round_number >= 0:
                        seconds.append(time.perf_counter() - start)
            for result in results[-len(arguments.models) :]:
                result["milliseconds"] = 1000 * statistics.median(timings[result["model"]][1])
            del calls
            gc.collect()
    rows = [
        (
            Path(result["model"]).name + ", random weights" * result["random_weights"] + f", {result['format']}",
            f"{result['bytes'] / 1e6:,.1f} MB",
            f"{result['milliseconds']:,.1f} ms",
            f"{result['perplexity']:.2f}" if "perplexity" in result else "",
        )
        for result in results
    ]
    print(f"batch {arguments.batch_size}, {arguments.length} tokens, {torch.get_num_threads()} threads; {versions()}")
    print_table(("model, format", "size", "latency", "perplexity"), rows)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        report = {"arguments": asdict(arguments), "versions": versions(), "results": results}
        (output / "results.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
