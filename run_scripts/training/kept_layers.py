"""Students that start with some of a teacher's layers, such as a BERT of the layers 0, 2 and 5 of another."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

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
    if len(layers) != len(kept):
        raise UserError(
            f"--keep_layers: the layers of the teacher ({model.config.model_type}) share weights in groups: give "
            "an encoder such as BERT, or a student by --config_name."
        )
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


@torch.no_grad()
def narrow_feed_forwards(model: PreTrainedModel, width: Any, batches: Iterable[BatchEncoding]) -> PreTrainedModel:
    """A model whose feed-forward layers have only the most important of their units.

    A unit is important if its activation varies over the tokens of the texts, and its output weights are large: the
    product of its standard deviation and their norm. The mean of what the others gave is added to the output's bias.

    Args:
        model: An encoder with `intermediate_size` or `hidden_dim` in its configuration, with all its layers. It is not
            changed.
        width: Number of units that each layer keeps.
        batches: Texts to measure activations on, from `read_batches`.

    Returns:
        The model, float32, in evaluation mode.

    Raises:
        UserError: If such layers cannot be found, or `width` is not from 1 to the number of their units.
    """
    student = copy.deepcopy(model).float().eval()
    field = "intermediate_size" if hasattr(model.config, "intermediate_size") else "hidden_dim"  # DistilBERT's name
    units = getattr(model.config, field, None)
    layers = student.get_submodule(_list_of_layers(student)[0])
    linear = [[part for part in layer.modules() if isinstance(part, nn.Linear)] for layer in layers]
    inner = [[part for part in parts if part.out_features == units] for parts in linear]
    outer = [[part for part in parts if part.in_features == units] for parts in linear]
    ambiguous = units in (model.config.hidden_size, 3 * model.config.hidden_size)  # as wide as parts of attention
    if ambiguous or not all(inner) or any(len(parts) != 1 for parts in outer):
        raise UserError(
            f"--config_overrides intermediate_size={width} is for a teacher with feed-forward layers as in BERT, "
            f"which were not found in this one ({model.config.model_type}): leave it out."
        )
    if type(width) is not int or not 0 < width <= units:
        raise UserError(
            f"--config_overrides intermediate_size={width}: the teacher's feed-forward layers have {units} units: "
            f"give 1 to {units}."
        )
    means, deviations = _activations(student, [last for (last,) in outer], batches)
    for parts, (last,), mean, deviation in zip(inner, outer, means, deviations, strict=True):
        kept = (deviation * last.weight.norm(dim=0)).topk(width).indices.sort().values
        for part in parts:
            part.weight, part.out_features = nn.Parameter(part.weight[kept]), width
            if part.bias is not None:
                part.bias = nn.Parameter(part.bias[kept])
        if last.bias is not None:
            last.bias += last.weight @ mean.index_fill(0, kept, 0)
        last.weight, last.in_features = nn.Parameter(last.weight[:, kept]), width
    setattr(student.config, field, width)
    return student


def _activations(
    model: PreTrainedModel, parts: Sequence[nn.Module], batches: Iterable[BatchEncoding]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the inputs of some parts over all tokens, `(parts, units)` each."""
    sums: dict[nn.Module, list[torch.Tensor]] = {part: [] for part in parts}

    def record(part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        values = inputs[0][real].double()
        sums[part].append(
            torch.stack([torch.ones_like(values[0]) * len(values), values.sum(0), values.square().sum(0)])
        )

    hooks = [part.register_forward_pre_hook(record) for part in parts]
    for batch in batches:
        real = batch["attention_mask"].bool()
        model(**batch)
    for hook in hooks:
        hook.remove()
    count, total, squares = torch.stack([torch.stack(found).sum(0) for found in sums.values()]).unbind(dim=1)
    mean = total / count
    return mean.float(), (squares / count - mean**2).clamp(min=0).sqrt().float()


def read_batches(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Iterator[BatchEncoding]:
    """Batches of texts of like length, to measure a model on."""
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    texts = sorted(texts, key=len)
    for start in range(0, len(texts), 32):
        yield tokenizer(texts[start : start + 32], **options)


def mix_layers(
    model: PreTrainedModel,
    kept: Sequence[int],
    token_mixers: Sequence[str],
    batches: Iterable[BatchEncoding],
    **fields: Any,
) -> HybridBertModel:
    """A model of some of the layers of a BERT, with other token mixing in some of them; see `hybrid_from_bert`.

    Args:
        model: The BERT. It is not changed.
        kept: Indices of layers, from 0.
        token_mixers: Their token mixing.
        batches: Texts to measure attention on, from `read_batches`.
        fields: Fields of the new layers, such as `num_mean_queries`.

    Raises:
        UserError: If an index is unknown or given twice, a type is unknown, or the model is not a BERT.
    """
    _check_layers(kept, _list_of_layers(model)[1])
    try:
        return hybrid_from_bert(model, kept, token_mixers, batches, **fields)
    except ValueError as error:
        raise UserError(f"--token_mixers: {error}") from error


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
