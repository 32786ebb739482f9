"""Masked language models in the formats in which they can be served on a CPU."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError, report_unreadable
from ..base.sequence_limits import longest_sequence
from ..base.shipped_files import MODEL_CARDS
from ..base.trained_model import load_trained
from ..exports import formats
from ..metrics import load_metric
from ..training.language_modeling import row_losses


#: Value of `--formats` -> its description.
FORMATS = {
    "float32": "as trained",
    "bfloat16": "half the size",
    "int8": "torchao's",
    "int8-spatial": "the same with token mixing weights rounded to int8, for the accuracy only",
    **formats.FORMATS,
    "openvino-float32": "OpenVINO that computes in float32",
}

#: Parts of the names of token mixing weights, which are no linear layers, so that quantizers leave them out.
TOKEN_MIXING = ("spatial_proj.weight", "token_mixing.weight", "components")

Inputs = dict[str, torch.Tensor]
Call = Callable[[Inputs], torch.Tensor]


def folder_of(name: str) -> Path:
    """The folder itself, or that of a shipped configuration."""
    shipped = MODEL_CARDS / name
    return shipped if (shipped / "config.json").is_file() and not Path(name).is_dir() else Path(name)


def is_configuration(name: str) -> bool:
    """Whether there is a configuration without weights of any format, so that they will be random."""
    folder = folder_of(name)
    kinds = ("*.safetensors", "*.bin", "*.pt", "*.index.json")
    return (folder / "config.json").is_file() and not any(list(folder.glob(kind)) for kind in kinds)


def load(name: str) -> PreTrainedModel:
    """A checkpoint, or a model with random weights from a configuration, in float32.

    Raises:
        UserError: If there is neither, or the checkpoint is no masked language model.
    """
    if not is_configuration(name):
        return load_trained(AutoModelForMaskedLM, name).float()  # ONNX Runtime lacks operators in bfloat16
    with report_unreadable(name):
        torch.manual_seed(0)
        return AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder_of(name))).float().eval()


def default_length(names: Iterable[str]) -> int:
    """128 tokens, or the most that all models take.

    Raises:
        UserError: If a configuration cannot be loaded.
    """
    length = 128
    for name in names:
        with report_unreadable(name):
            config = AutoConfig.from_pretrained(folder_of(name) if is_configuration(name) else name)
        length = min(length, longest_sequence(config) or length)
    return length


def _torch_call(model: PreTrainedModel) -> Call:
    def call(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            return model(**inputs).logits.float()

    return call


def _exported(model: PreTrainedModel, path: Path, kind: str) -> Call:
    ids = torch.randint(5, model.config.vocab_size, (2, 8))
    graph = formats.trace(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    formats.write(graph, exported_format(kind), path)
    program = formats.Program(path, float32=kind == "openvino-float32")
    return lambda inputs: program(inputs)["logits"]


def exported_format(kind: str) -> str:
    """The format of `tokenmixers export`, without the precision in which OpenVINO computes."""
    return kind.removesuffix("-float32") if kind not in formats.FORMATS else kind


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
    """The token mixing matrices or Toeplitz filters, which int8 formats do not quantize.

    Raises:
        UserError: If there are none, as in a model whose attention has linear layers only.
    """
    linear = {
        id(weight) for layer in model.modules() if type(layer) is torch.nn.Linear for weight in layer.parameters()
    }
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())  # fixed random logits are buffers
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
    """Symmetric rounding to int8 with a scale per row, in place."""
    scale = weights.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
    weights.copy_((weights / scale).round() * scale)


def prepare(model: PreTrainedModel, kind: str, folder: Path) -> tuple[Call, int]:
    """Convert a model to a format.

    Args:
        model: The model in float32.
        kind: A key of `FORMATS`.
        folder: Where to save it.

    Returns:
        A function from inputs to logits, and the size on disk in bytes.
    """
    target = folder / kind
    if kind in ("float32", "bfloat16"):
        model = model.to(getattr(torch, kind))
        model.save_pretrained(target)
        call = _torch_call(model)
    elif kind in ("int8", "int8-spatial"):
        model.save_pretrained(folder / "source")
        call = _quantized(folder / "source", target, kind == "int8-spatial")
    else:
        path = target / Path(formats.FILES[exported_format(kind)]).name
        return _exported(model, path, kind), formats.size_of(path)
    weights = (".safetensors", ".bin")
    return call, sum(path.stat().st_size for path in target.iterdir() if path.suffix in weights)


def perplexity_of(call: Call, rows: list[dict[str, torch.Tensor]]) -> float:
    """Perplexity at the masked tokens."""
    losses, counts = [], []
    for row in rows:
        inputs = {key: row[key] for key in ("input_ids", "attention_mask")}
        losses.append(row_losses(call(inputs), row["labels"]).sum().item())
        counts.append(int((row["labels"] != IGNORED_LABEL).sum()))
    return load_metric("token_perplexity").compute(predictions=losses, references=counts)["perplexity"]
