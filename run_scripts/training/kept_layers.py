"""Students that start with some of a teacher's layers, such as a BERT of the layers 0, 2 and 5 of another."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...modeling.conversion.bert import hybrid_from_bert
from ...modeling.modeling_hybrid_bert import HybridBertModel
from ..base.errors import UserError


def dropout_rates(config: PreTrainedConfig) -> dict[str, float]:
    """The dropout rates of a configuration that are above 0, without a classifier's."""
    fields = config.to_dict().items()
    return {
        name: value
        for name, value in fields
        if "drop" in name and "classifier" not in name and isinstance(value, float) and value > 0
    }


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """A model of some of the layers of another, in the given order, with the same embeddings and other parts.

    Args:
        model: A model with one list of layers, as long as its configuration says. It is not changed.
        kept: Indices of layers, from 0.

    Returns:
        The model, float32. Fields of the configuration with a value per layer, such as `layer_types`, are cut too.

    Raises:
        UserError: If there is no such list, an index is unknown or given twice, or a layer has other parts than its
            new place needs, as in T5, whose first layer has the position biases.
    """
    name, count = _list_of_layers(model)
    _check_layers(kept, count)
    config = type(model.config)(**_fields(model.config, kept, count))
    config._attn_implementation = model.config._attn_implementation
    layers = type(model)(config).get_submodule(name)  # made anew: a layer may know its place
    for layer, index in zip(layers, kept, strict=True):
        try:
            layer.load_state_dict(model.get_submodule(name)[index].state_dict())
        except RuntimeError as error:
            raise UserError(
                f"--keep_layers {' '.join(map(str, kept))}: layer {index} of the teacher ({model.config.model_type}) "
                f"has other parts than its new place needs: {' '.join(str(error).split())}"
            ) from error
    student = copy.deepcopy(model).float()
    student.set_submodule(name, layers)
    for module in student.modules():
        if isinstance(getattr(module, "config", None), type(config)):
            module.config = config
    return student


def mix_layers(
    model: PreTrainedModel,
    kept: Sequence[int],
    layer_types: Sequence[str],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> HybridBertModel:
    """A model of some of the layers of a BERT, with other token mixing in some of them; see `hybrid_from_bert`.

    Args:
        model: The BERT. It is not changed.
        kept: Indices of layers, from 0.
        layer_types: Their token mixing.
        texts: Texts to measure attention on.
        tokenizer: The BERT's.
        max_length: Number of tokens to which texts are cut.

    Raises:
        UserError: If an index is unknown or given twice, a type is unknown, or the model is not a BERT.
    """
    _check_layers(kept, _list_of_layers(model)[1])
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    texts = sorted(texts, key=len)  # batches of like length
    parts = (texts[start : start + 32] for start in range(0, len(texts), 32))
    try:
        return hybrid_from_bert(model, kept, layer_types, (tokenizer(part, **options) for part in parts))
    except ValueError as error:
        raise UserError(f"--layer_types: {error}") from error


def _check_layers(kept: Sequence[int], count: int) -> None:
    if unknown := [index for index in kept if not 0 <= index < count]:
        raise UserError(f"--keep_layers {unknown[0]}: the teacher has the layers 0 to {count - 1}.")
    if len({*kept}) < len(kept):
        raise UserError(f"--keep_layers {' '.join(map(str, kept))} names a layer twice: give each layer once.")


def _list_of_layers(model: PreTrainedModel) -> tuple[str, int]:
    """The name and length of a model's list of layers."""
    count = getattr(model.config, "num_hidden_layers", None)
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    lists = [name for name in lists if len(model.get_submodule(name)) == count]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise UserError(
            f"--keep_layers: the teacher ({model.config.model_type}) has no list of layers, or several: give an "
            "encoder such as BERT, or a student by --config_name."
        )
    return outer[0], int(count)


def _fields(config: PreTrainedConfig, kept: Sequence[int], count: int) -> dict[str, Any]:
    """The fields of the configuration of a model of the kept layers."""
    fields = config.to_dict()
    depth = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == count and name != "architectures":
            fields[name] = [value[index] for index in kept]
    return fields | {depth: len(kept), "dtype": torch.float32}
