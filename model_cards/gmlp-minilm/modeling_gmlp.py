# Part of tokenmixers 0.1.0, generated from modeling/modeling_gmlp.py; not used where that package is imported.
# Licensed under the Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

from collections.abc import Callable
import functools
import inspect
from typing import Any, NamedTuple, TYPE_CHECKING

from torch import nn
import torch
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel, initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast, BaseModelOutputWithPoolingAndCrossAttentions, MaskedLMOutput, MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput, SequenceClassifierOutput, TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, is_tracing
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_gmlp import GMLPConfig


# --- modeling/inputs/caches.py
CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the cache in arguments and outputs of the installed Transformers: `past_key_values` before 5.24."""


def accept_past_key_values(function: Callable) -> Callable:
    """Let a `forward` accept `cache` under its older name too. Its signature has `CACHE_NAME`."""

    @functools.wraps(function)
    def wrapper(*args: Any, past_key_values: Cache | None = None, **kwargs: Any) -> Any:
        if past_key_values is None:
            return function(*args, **kwargs)
        return function(*args, cache=past_key_values, **kwargs)  # `TypeError` if both are given

    parameters = inspect.signature(function).parameters.values()
    named = [each.replace(name=CACHE_NAME) if each.name == "cache" else each for each in parameters]
    wrapper.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return wrapper


def cached_lengths(cache: Cache | None, length: int, device: torch.device) -> tuple[int | torch.Tensor, int]:
    """Number of tokens in a cache, and number of tokens that it returns after an update with `length` more tokens."""
    if cache is None:
        return 0, length
    past_length = cache.get_seq_length()
    if isinstance(past_length, torch.Tensor):
        past_length = past_length.to(device, copy=True)
    return past_length, cache.get_mask_sizes(length, 0)[0]


def update_cache_without_keys(cache: Cache, states: torch.Tensor, layer_idx: int) -> torch.Tensor:
    """Store one tensor as both keys and values without a copy: `layer.values` is `layer.keys` after each update."""
    layers: list[Any] = cache.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    layer_class = cache.layer_class_to_replicate if layer is None else type(layer)
    was_initialized = layer is not None and layer.is_initialized
    values = states
    if layer_class is DynamicLayer:
        values = states[..., :0]  # nothing to append
        if was_initialized:
            layers[layer_idx].values = layers[layer_idx].keys[..., :0]
    states = cache.update(states, values, layer_idx)[0]
    if layer_class is DynamicLayer or (layer_class is StaticLayer and not was_initialized):
        layers[layer_idx].values = layers[layer_idx].keys
    return states


# --- modeling/inputs/input_checks.py
def check_length(length: int, max_length: int) -> None:
    """Raise `ValueError` for a sequence that is longer than the model's weights."""
    if length > max_length:
        raise ValueError(
            f"The sequence has {length} tokens, but the model's weights cover `max_position_embeddings={max_length}`. "
            f"Truncate the input (tokenizer arguments `truncation=True, max_length={max_length}`), split it, generate "
            "fewer tokens (`max_new_tokens`), or extend the model with `model.resize_position_embeddings(length)`."
        )


def embed_text(
    embeddings: Any,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    hidden_size: int,
    prefix: str = "",
) -> torch.Tensor:
    """Return the embeddings of a text, which is given as ids or as embeddings.

    Values are not checked, because reading them would synchronize with the GPU and break graphs.
    """
    if input_ids is None and inputs_embeds is not None:
        _check_embeds(f"{prefix}inputs_embeds", inputs_embeds, hidden_size)
        return inputs_embeds
    if input_ids is not None and inputs_embeds is None:
        name = f"{prefix}input_ids"
        check_integers(name, input_ids)
        fits = input_ids.ndim == 2 and input_ids.shape[1] > 0
        _require_shape(name, input_ids, fits, "(batch, length) with a length of at least 1")
        return embed(embeddings, input_ids, name)
    raise ValueError(f"Give either `{prefix}input_ids` or `{prefix}inputs_embeds`, and not both.")


def _check_embeds(name: str, embeds: Any, hidden_size: int) -> None:
    if not isinstance(embeds, torch.Tensor) or not embeds.is_floating_point():
        raise ValueError(f"`{name}` must be a tensor of floating point numbers, got {_kind(embeds)}.")
    fits = embeds.ndim == 3 and embeds.shape[2] == hidden_size and embeds.shape[1] > 0
    _require_shape(name, embeds, fits, "(batch, length, hidden_size={}) with a length of at least 1", hidden_size)


def check_integers(name: str, tensor: Any) -> None:
    """Raise `ValueError` unless the value is an int64 or int32 tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`{name}` must be a tensor of int64 or int32, got {_kind(tensor)}.")


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _require_shape(name: str, tensor: torch.Tensor, fits: bool, expected: str, *sizes: int) -> None:
    if not fits:  # formatted only then, because a size in a string becomes a constant for `torch.compile`
        raise ValueError(f"`{name}` has shape {tuple(tensor.shape)}, expected {expected.format(*sizes)}.")


def embed(embeddings: Any, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Look up the embeddings of ids."""
    try:
        return embeddings(ids)
    except IndexError as error:
        most = embeddings.num_embeddings - 1
        raise IndexError(
            f"`{name}` must be from 0 to {most}, as there are {most + 1} embeddings; got ids from {ids.min()} to "
            f"{ids.max()}. Use the model's own tokenizer, or `model.resize_token_embeddings(len(tokenizer))`."
        ) from error


def check_token_types(token_type_ids: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """Raise `ValueError` unless there is an integer per token, for each row or for all rows."""
    check_integers("token_type_ids", token_type_ids)
    batch, length = inputs_embeds.shape[:2]
    fits = tuple(token_type_ids.shape) in ((batch, length), (1, length))
    _require_shape("token_type_ids", token_type_ids, fits, "({}, {})", batch, length)


def check_positions(position_ids: torch.Tensor, shape: tuple[int, int], max_length: int | None) -> None:
    """Raise `ValueError` for positions of a wrong shape or dtype, or (on a CPU) outside the model's range."""
    check_integers("position_ids", position_ids)
    fits = tuple(position_ids.shape) in (shape, (1, shape[1]))
    _require_shape("position_ids", position_ids, fits, "({}, {})", *shape)
    if position_ids.device.type != "cpu" or is_tracing(position_ids):
        return
    low, high = (int(position) for position in position_ids.aminmax())
    if low < 0 or (max_length is not None and high >= max_length):
        limit = "0 on" if max_length is None else f"0 to {max_length - 1}, below `max_position_embeddings`"
        raise ValueError(f"`position_ids` must be from {limit}; got positions from {low} to {high}.")


def check_cache(cache: Any) -> None:
    """Raise `ValueError` unless the value is `None` or a cache."""
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"`{CACHE_NAME}` must be a cache of Transformers, e.g. `DynamicCache`, got {_kind(cache)}.")


def check_full_mask(mask: torch.Tensor, batch: int, length: int) -> None:
    """Raise `ValueError` for a four-dimensional mask that is not for `length` tokens without a cache."""
    fits = mask.shape[0] in (1, batch) and tuple(mask.shape[2:]) == (length, length)
    _require_shape("attention_mask", mask, fits, "({0} or 1, heads or 1, {1}, {1})", batch, length)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"A mask of pairs must be boolean or floating point, to add to logits; got {mask.dtype}.")


def check_choices(*inputs: torch.Tensor | None) -> None:
    """Raise `ValueError` for multiple choice inputs without a dimension for the choices."""
    for tensor in inputs:
        if tensor is not None:
            fits = tensor.ndim >= 3 and tensor.shape[1] > 0
            _require_shape("input_ids or inputs_embeds", tensor, fits, "(batch, choices, length, ...)")


def check_modality(config: PreTrainedConfig, pixel_values: torch.Tensor | None, *text: torch.Tensor | None) -> None:
    """Raise `ValueError` for images if `config.image_size` is `None`, otherwise for text or missing images."""
    if config.image_size is None and pixel_values is not None:
        raise ValueError("`pixel_values` need a model with `config.image_size`, which is `None` here.")
    if config.image_size is not None and (pixel_values is None or any(tensor is not None for tensor in text)):
        raise ValueError("A model with `config.image_size` set takes `pixel_values`, and no text inputs.")


# --- modeling/heads/losses.py
IGNORED_LABEL = -100
"""Label that losses ignore, as in Transformers."""
Items = torch.Tensor | float | None


def loss_divisor(
    count: torch.Tensor | int, num_items_in_batch: Items = None, device: torch.device | None = None
) -> torch.Tensor | float:
    """The divisor of a sum of losses, which is never 0."""
    items = count if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        items = items.to(device=getattr(count, "device", device))
    return items + (items == 0)


def is_counted(labels: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """Mask of the labels that the loss counts: all except -100 or `kwargs["ignore_index"]`."""
    return labels != kwargs.get("ignore_index", IGNORED_LABEL)


def with_loss_divisor(labels: torch.Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add `num_items_in_batch`, by which Transformers' losses divide, to `kwargs`."""
    count = is_counted(labels, kwargs).sum()
    return {**kwargs, "num_items_in_batch": loss_divisor(count, kwargs.get("num_items_in_batch"))}


def label_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Items = None) -> torch.Tensor:
    """Mean cross entropy over labelled rows, computed in at least float32."""
    logits, labels = at_least_float32(logits), labels.to(logits.device)
    if labels.is_floating_point() and labels.shape == logits.shape:
        total = F.cross_entropy(logits, labels.to(logits.dtype), reduction="sum")
        return total * labels.shape[-1] / loss_divisor(labels.numel(), num_items_in_batch, total.device)
    labels = labels.view(-1).long()
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return total / loss_divisor((labels != IGNORED_LABEL).sum(), num_items_in_batch)


def classification_loss(
    labels: torch.Tensor,
    pooled_logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: Items = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Loss of a sequence or image classifier, used instead of Transformers' `ForSequenceClassificationLoss`.

    The latter divides by `num_items_in_batch` only for single labels, and does not support soft labels.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.long, torch.int):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    if config.problem_type == "single_label_classification":
        return label_cross_entropy(pooled_logits, labels, num_items_in_batch)
    logits = at_least_float32(pooled_logits)
    labels = labels.to(logits).reshape(logits.shape)
    if config.problem_type == "regression":
        total = F.mse_loss(logits, labels, reduction="sum")
        return total / loss_divisor(labels.numel(), num_items_in_batch, total.device)
    counted = labels != IGNORED_LABEL
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return losses.where(counted, 0).sum() / loss_divisor(counted.sum(), num_items_in_batch)


def answer_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor,
    end_positions: torch.Tensor,
    num_items_in_batch: Items = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Mean of the cross entropies of answer starts and answer ends, each over those that lie in the sequence."""
    is_pair = isinstance(num_items_in_batch, torch.Tensor) and num_items_in_batch.shape[-1:] == (2,)
    items = num_items_in_batch.unbind(-1) if is_pair else (num_items_in_batch,) * 2  # type: ignore[union-attr]
    positions = [position_labels(values, start_logits.shape[1]) for values in (start_positions, end_positions)]
    start, end = map(label_cross_entropy, (start_logits, end_logits), positions, items)
    return (start + end) / 2


def position_labels(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Start or end positions as labels of shape `(batch,)`, with -100 for positions outside of `length` tokens."""
    positions = positions.view(-1)
    return positions.where((positions >= 0) & (positions < length), IGNORED_LABEL)


def at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    """Convert to float32, unless the tensor is float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# --- modeling/inputs/token_layout.py
_READ_AT_ONCE = ("cpu",)  # devices
_SHORTEST_WITHOUT_INDEX = 1024  # such sequences may be mixed by Fourier transforms, in less memory


class TokenLayout(NamedTuple):
    """All that token mixing needs to know about a batch. "All tokens" are those in the cache, then the new ones."""

    query_length: int
    key_length: int
    new_tokens: slice | torch.Tensor = slice(None)
    padding_mask: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    shifted: bool = False
    is_causal: bool = False
    seq_idx: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    diagonal_index: torch.Tensor | None = None
    offset_rows: torch.Tensor | None = None
    full_mask: torch.Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether all queries of a row see the same tokens, but for causal order."""
        return self.seq_idx is None and self.full_mask is None

    @property
    def counts_positions(self) -> bool:
        """Whether the distance between two tokens of a document is the difference of their indices."""
        return self.positions is None or self.shifted

    @property
    def is_whole(self) -> bool:
        """Whether all tokens are new (the cache is empty)."""
        return isinstance(self.new_tokens, slice) and self.query_length == self.key_length

    @property
    def rows(self) -> slice | torch.Tensor:
        """`new_tokens` as indices of parameters that are longer than the sequence."""
        return slice(self.key_length) if self.is_whole else self.new_tokens

    @property
    def past_length(self) -> int:
        """Number of tokens in the cache; `new_tokens` must be a slice."""
        assert isinstance(self.new_tokens, slice)
        return 0 if self.new_tokens.start is None else self.new_tokens.start

    def query_index(self, device: torch.device) -> torch.Tensor:
        """Index of the new tokens among all, shape `(query_length,)`."""
        if isinstance(self.new_tokens, torch.Tensor):
            return self.new_tokens
        return torch.arange(self.query_length, device=device) + self.past_length

    def query_positions(self, device: torch.device) -> torch.Tensor:
        """Positions of the new tokens, shape `(query_length,)`, or `(batch or 1, query_length)` if not 0, 1, 2, ..."""
        return self.query_index(device) if self.positions is None else self.positions[:, self.new_tokens]

    def distances(self, device: torch.device) -> torch.Tensor:
        """Position of each token minus that of each new token, shape `(batch or 1, query_length, key_length)`."""
        if self.positions is None or self.shifted:
            return (torch.arange(self.key_length, device=device) - self.query_index(device)[:, None])[None]
        return self.positions[:, None, :] - self.positions[:, self.new_tokens, None]

    def causal_order(self, device: torch.device) -> torch.Tensor | None:
        """Boolean mask of the tokens up to each new one, `(query_length, key_length)`; `None` if these are all."""
        one_query = isinstance(self.new_tokens, slice) and self.key_length == self.past_length + 1
        if not self.is_causal or one_query:
            return None
        return torch.arange(self.key_length, device=device) <= self.query_index(device)[:, None]

    def visible(self, device: torch.device) -> torch.Tensor | None:
        """Boolean mask of the tokens that each new token can see: causal order, padding and documents."""
        mask = self.causal_order(device)
        if self.padding_mask is not None:
            real = self.padding_mask[:, None, :]
            mask = real if mask is None else real & mask
        if self.seq_idx is not None:
            own_document = self.seq_idx[:, self.new_tokens, None] == self.seq_idx[:, None, :]
            mask = own_document if mask is None else own_document & mask
        return mask

    def at(self, position_ids: torch.Tensor, are_fixed: bool) -> "TokenLayout":
        """The layout with given positions of the new tokens, shape `(batch or 1, query_length)`."""
        if self.query_length == self.key_length:
            return self._replace(positions=position_ids, shifted=False)
        index = torch.arange(self.key_length, device=position_ids.device)
        counted = index[None] if self.positions is None else self.positions
        if not are_fixed:
            counted = counted.expand(max(len(counted), len(position_ids)), -1)
            given = position_ids.expand(len(counted), -1).to(counted)
            return self._replace(positions=counted.index_copy(1, index[self.new_tokens], given), shifted=False)
        expected = counted[:, self.new_tokens]
        same = position_ids == expected
        if self.padding_mask is not None:
            same = same | ~self.padding_mask[:, self.new_tokens]
        if is_tracing(position_ids) or not bool(same.all()):
            raise ValueError(
                "The cache does not hold the positions of its tokens, so `position_ids` must be those that follow "
                f"from `attention_mask`, {expected.tolist()}; got {position_ids.tolist()}. Leave them out."
            )
        return self


def token_layout(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache: Cache | None = None,
    seq_idx: torch.Tensor | None = None,
) -> TokenLayout:
    """Make the `TokenLayout` of a forward pass, without its `attention_mask`.

    The first real token of a row has position 0, so padding on either side does not change the result.
    """
    batch, length, _ = inputs_embeds.shape
    new_tokens, key_length = _new_tokens(config, inputs_embeds, cache)
    is_toeplitz = getattr(config, "spatial_weight_type", None) == "toeplitz"
    if position_ids is not None:
        check_positions(position_ids, (batch, length), longest_sequence(config))
        if config.is_decoder and seq_idx is None and attention_mask is None and key_length == length:
            seq_idx = _documents(position_ids, batch)
    padding_mask, full_mask, left_padded = None, None, False
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 4:
        if cache is None:  # otherwise there may be room for more
            check_full_mask(attention_mask, batch, length)
        if seq_idx is not None:
            raise ValueError("Give `seq_idx` or an `attention_mask` of four dimensions, and not both.")
        full_mask = attention_mask[..., :key_length].to(inputs_embeds.device)
    elif attention_mask is not None and getattr(config, "mask_padding", True):
        padding_mask = _padding_mask(attention_mask, inputs_embeds, key_length, cache)
        is_padded, left_padded = _sides_with_padding(padding_mask, config.image_size is None, is_toeplitz)
        padding_mask = padding_mask if is_padded else None
    positions = None
    if seq_idx is not None:
        _check_seq_idx(seq_idx, inputs_embeds, cache)
        positions = positions_in_documents(seq_idx)
    elif padding_mask is not None and left_padded:
        index = torch.arange(key_length, device=padding_mask.device)
        positions = (index - first_token_index(padding_mask)[:, None]).clamp(min=0)
    shifted = positions is not None
    layout = TokenLayout(length, key_length, new_tokens, padding_mask, positions, shifted, config.is_decoder, seq_idx)
    layout = layout if position_ids is None else layout.at(position_ids, hasattr(config, "spatial_weight_type"))
    if is_toeplitz and config.max_position_embeddings < _SHORTEST_WITHOUT_INDEX and layout.counts_positions:
        layout = layout._replace(diagonal_index=layout.distances(inputs_embeds.device)[0] + (key_length - 1))
    return layout._replace(full_mask=full_mask)


def first_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Index of each row's first real token, shape `(batch,)`, i.e. the amount of left padding."""
    return (attention_mask != 0).long().argmax(dim=-1)


def positions_in_documents(seq_idx: torch.Tensor) -> torch.Tensor:
    """Positions that start at 0 in every document; `seq_idx` and the result have shape `(batch, length)`."""
    index = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def _documents(position_ids: torch.Tensor, batch: int) -> torch.Tensor | None:
    """`seq_idx` of rows whose positions restart in every document; `None` if no row has several documents."""
    begins = F.pad(position_ids.diff(dim=-1) <= 0, (1, 0)).expand(batch, -1)
    return begins.cumsum(-1) if is_tracing(begins) or bool(begins.any()) else None


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Maximum sequence length; `None` if the model has no limit."""
    # Synthesizers have the first, which may be `None`; other models may have neither.
    return getattr(config, "max_sequence_length", getattr(config, "max_position_embeddings", None))


def _new_tokens(
    config: PreTrainedConfig, inputs_embeds: torch.Tensor, cache: Cache | None
) -> tuple[slice | torch.Tensor, int]:
    """`TokenLayout.new_tokens` and `TokenLayout.key_length`."""
    length = inputs_embeds.shape[1]
    past_length, room = cached_lengths(cache, length, inputs_embeds.device)
    max_length = longest_sequence(config)
    if isinstance(past_length, int):
        key_length = past_length + length
        if max_length is not None:
            check_length(key_length, max_length)
        return slice(None) if cache is None else slice(past_length, past_length + length), key_length
    if max_length is not None and room > max_length:  # otherwise there is no need to synchronize
        check_length(room if is_tracing(inputs_embeds) else int(past_length) + length, max_length)
        room = max_length
    return past_length + torch.arange(length, device=inputs_embeds.device), room


def _padding_mask(
    attention_mask: torch.Tensor, inputs_embeds: torch.Tensor, key_length: int, cache: Cache | None
) -> torch.Tensor:
    batch, length, _ = inputs_embeds.shape
    if not isinstance(attention_mask, torch.Tensor):
        raise ValueError(f"`attention_mask` must be a tensor, got a {type(attention_mask).__name__}.")
    mask = attention_mask.to(inputs_embeds.device) != 0
    if cache is not None and cache.is_compileable:
        mask = F.pad(mask, (0, key_length - mask.shape[1]))  # hides or cuts off unused slots of a static cache
    if mask.shape != (batch, key_length):
        raise ValueError(
            f"`attention_mask` has shape {tuple(mask.shape)}, expected {(batch, key_length)}: one number per token, "
            f"{'those in the cache included, ' if key_length > length else ''}1 for real tokens and 0 for padding."
        )
    return mask


def _check_seq_idx(seq_idx: torch.Tensor, inputs_embeds: torch.Tensor, cache: Cache | None) -> None:
    expected = tuple(inputs_embeds.shape[:2])
    if seq_idx.shape != expected:
        raise ValueError(f"`seq_idx` has shape {tuple(seq_idx.shape)}, expected {expected}: one number per token.")
    if cache is not None and cache.get_seq_length():
        raise ValueError("`seq_idx` is for whole rows: it cannot be given with tokens in a cache.")


def _sides_with_padding(padding_mask: torch.Tensor, may_shift: bool, is_toeplitz: bool) -> tuple[bool, bool]:
    """Whether there is padding, and whether some is on the left; true if this is unknown."""
    # Synchronize with a GPU only if positions matter: masks do not shift patches, a shift keeps Toeplitz weights.
    would_wait = padding_mask.device.type not in _READ_AT_ONCE and (is_toeplitz or not may_shift)
    if would_wait or is_tracing(padding_mask) or padding_mask.is_meta or torch._C._are_functorch_transforms_active():
        return True, may_shift
    full = int(padding_mask.all().int() + padding_mask[:, 0].all().int())  # 1: padding on the right only
    return full < 2, full == 0 and may_shift


# --- modeling/heads/pooling.py
def pool(states: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector per sequence, shape `(batch, hidden_size)`."""
    if attention_mask is not None and attention_mask.ndim == 4:
        if pooling != "cls":
            raise ValueError(f"`classifier_pooling` {pooling!r} needs an `attention_mask` of shape (batch, length).")
        attention_mask = None
    if pooling == "normalized_mean":  # half precision has no 1e-12
        return F.normalize(pool(states, attention_mask, "mean"), dim=-1, eps=1e-6) * states.shape[-1] ** 0.5
    if attention_mask is None:
        return states[:, 0] if pooling == "cls" else states.mean(dim=1)
    if pooling == "cls":
        rows = torch.arange(states.shape[0], device=states.device)
        return states[rows, first_token_index(attention_mask).to(states.device)]
    weights = (attention_mask != 0)[:, :, None].to(states)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def pool_patches(states: torch.Tensor, attention_mask: torch.Tensor | None, model: Any) -> torch.Tensor:
    """One vector per image: the class token after ViT's pre-logits layer, or a mean if the model has no such layer."""
    if (pre_logits := getattr(model, "pooler", None)) is None:
        return pool(states, attention_mask, model.config.classifier_pooling)
    return torch.tanh(pre_logits(states[:, 0]))


# --- modeling/heads/task_head.py
if TYPE_CHECKING:
    from transformers import PreTrainedModel as ModelMixin
else:
    ModelMixin = object


def require(condition: bool, model: nn.Module, wanted: str) -> None:
    """Raise `ValueError` if a model's configuration is not as `wanted`."""
    if not condition:
        raise ValueError(f"{type(model).__name__} needs a configuration with {wanted}.")


class TaskHead(ModelMixin):
    """A head, created by `_build_head`, on the base model `self.model`."""

    backbone_class: type[nn.Module]
    reads_images = False
    is_decoder = False
    accepts_loss_kwargs = True  # `Trainer` passes `num_items_in_batch`

    def __init__(self, config: PreTrainedConfig):
        kind = "a decoder" if self.is_decoder else "an encoder"
        require(config.is_decoder == self.is_decoder, self, f"`is_decoder={self.is_decoder}`, {kind}")
        size = "`image_size` set, e.g. to 224" if self.reads_images else "`image_size=None`, for text"
        require((config.image_size is not None) == self.reads_images, self, f"{size}; got {config.image_size}")
        super().__init__(config)
        self.model = self.backbone_class(config)
        self._build_head(config)
        self.post_init()

    def _build_head(self, config: PreTrainedConfig) -> None:
        """Create the head's own modules."""
        raise NotImplementedError


# --- modeling/heads/classification.py
class ClassificationHead(TaskHead):
    """Dropout and a linear layer with `num_scores` outputs, by default `config.num_labels`."""

    num_scores: int | None = None

    def _build_head(self, config: PreTrainedConfig) -> None:
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate)
        self.num_labels = config.num_labels
        self.classifier = nn.Linear(config.hidden_size, self.num_scores or config.num_labels)  # type: ignore[arg-type]  # 2 by default


class SequenceClassificationHead(ClassificationHead):
    """Predicts one label (or several, or a number) per sequence from the pooled output."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_function = classification_loss

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)`, *optional*):
            Class indices in `[0, num_labels)`; numbers if `num_labels == 1` (mean squared error); or one 0/1 number
            per label, shape `(batch_size, num_labels)`, for `problem_type="multi_label_classification"`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        pooled = pool(outputs.last_hidden_state, attention_mask, self.config.classifier_pooling)
        logits, loss = self.classifier(self.dropout(pooled)), None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class TokenClassificationHead(ClassificationHead):
    """Predicts one label per token."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_type = "ForTokenClassification"  # independent of a subclass's name

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Class indices in `[0, num_labels)`; -100 is ignored by the loss.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, seq_idx=seq_idx, return_dict=True, **kwargs)
        logits, loss = self.classifier(self.dropout(outputs.last_hidden_state)), None
        if labels is not None:
            counted = with_loss_divisor(labels, kwargs)
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **counted)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class MultipleChoiceHead(ClassificationHead):
    """Predicts one score per choice, where each choice is a sequence."""

    num_scores = 1

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_function = label_cross_entropy

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`):
            Token ids; the other inputs have the same leading dimensions.
        attention_mask (`torch.Tensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            1 for real tokens, 0 for padding.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Segment ids.
        position_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Positions of the tokens.
        inputs_embeds (`torch.FloatTensor` of shape `(batch_size, num_choices, sequence_length, hidden_size)`):
            Embeddings instead of `input_ids`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the correct choice, in `[0, num_choices)`.
        """
        check_choices(input_ids, inputs_embeds)
        tensors = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in tensors]
        outputs = self.model(*flat, return_dict=True, **kwargs)
        pooled = pool(outputs.last_hidden_state, flat[1], self.config.classifier_pooling)
        num_choices = next(tensor.shape[1] for tensor in (input_ids, inputs_embeds) if tensor is not None)
        logits, loss = self.classifier(self.dropout(pooled)).view(-1, num_choices), None
        if labels is not None:
            loss = self.loss_function(logits, labels, kwargs.get("num_items_in_batch"))
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)


# --- modeling/heads/language_modeling.py
class _LanguageModelingHead(TaskHead):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=not self.is_decoder)
        self.loss_type = "ForCausalLM" if self.is_decoder else "ForMaskedLM"  # independent of a subclass's name

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary; families that scale their outputs override this."""
        return self.lm_head(hidden_states)


class MaskedLMHead(_LanguageModelingHead):
    """Masked language modelling: a linear layer to the vocabulary with a bias, whose weight is tied to the embeddings.

    With `config.sparse_prediction`, training steps (training mode, labels given) compute logits only for the tokens to
    predict and return `logits=None`. The loss is the same with less time and memory.
    """

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the number of each token's document.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, seq_idx=seq_idx, return_dict=True, **kwargs)
        hidden_states, loss = outputs.last_hidden_state, None
        targets: torch.Tensor | None = labels
        sparse = self.config.sparse_prediction and self.training and labels is not None
        if labels is not None and sparse:
            targets = labels.flatten().to(hidden_states.device)
            # This synchronizes once, to count them; a boolean index would do so for each tensor.
            to_predict = is_counted(targets, kwargs).nonzero().squeeze(1)
            hidden_states = hidden_states.flatten(0, 1).index_select(0, to_predict)
            targets = targets.index_select(0, to_predict)
        logits = self.compute_logits(hidden_states)
        if targets is not None:
            counted = with_loss_divisor(targets, kwargs)
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=self.config.vocab_size, **counted)
        return MaskedLMOutput(loss, None if sparse else logits, outputs.hidden_states, outputs.attentions)


# --- modeling/heads/question_answering.py
class QuestionAnsweringHead(TaskHead):
    """Predicts start and end scores of an answer span for every token."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.loss_function = answer_loss

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        kwargs.pop("labels", None)  # counted by the Trainer, see `answer_loss`
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits, loss = self.qa_outputs(outputs.last_hidden_state), None
        is_padding = attention_mask is not None and attention_mask.ndim == 2
        if is_padding and getattr(self.config, "mask_padding", True):
            # Answers do not lie in padding, and the softmax over tokens must not depend on its length.
            padding = attention_mask[:, :, None].to(logits.device) == 0  # type: ignore[index]  # not `None`
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start, end = logits.unbind(dim=-1)
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)


# --- modeling/layers/drop_path.py
class DropPath(nn.Module):
    """During training, drops an example's residual branch with probability `drop_prob` and scales up the others."""

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        """Shapes: `branch` and result `(batch, ...)`."""
        if self.drop_prob == 0 or not self.training:
            return branch
        keep_prob = 1 - self.drop_prob
        kept = torch.empty((branch.shape[0],) + (1,) * (branch.ndim - 1), dtype=branch.dtype, device=branch.device)
        return branch * kept.bernoulli_(keep_prob) / keep_prob


# --- modeling/layers/patch_embeddings.py
class PatchEmbeddings(nn.Module):
    """Linear embeddings of non-overlapping square patches, after a learned class token if `config.use_class_token`."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config = config
        side = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=side, stride=side)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size)) if config.use_class_token else None

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Map images `(batch, num_channels, height, width)` to `(batch, tokens, hidden_size)`, patches row by row."""
        rows, columns = self.config.patch_grid
        side = self.config.patch_size
        channels, height, width = self.config.num_channels, rows * side, columns * side
        if not isinstance(pixel_values, torch.Tensor) or not pixel_values.is_floating_point():
            kind = getattr(pixel_values, "dtype", type(pixel_values).__name__)
            raise ValueError(
                f"`pixel_values` must be a tensor of floating point numbers, got {kind}: normalise images."
            )
        if pixel_values.ndim != 4 or pixel_values.shape[1:] != (channels, height, width):
            raise ValueError(
                f"`pixel_values` has shape {tuple(pixel_values.shape)}, expected (batch, {channels} channels, height "
                f"{height}, width {width}). Resize the images, or fit the model to another image size with "
                "`model.resize_position_embeddings((height, width))`."
            )
        patches = self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2)
        if self.cls_token is None:
            return patches
        return torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1)


# --- modeling/layers/precision.py
def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of matrix products under autocast; `None` without autocast."""
    # Autocast does not support the meta device.
    enabled = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else None


def cast_once(tensor: torch.Tensor) -> torch.Tensor:
    """Under autocast, cast a tensor that several matrix products, or all rows of one, read to their dtype."""
    dtype = autocast_dtype(tensor.device)
    return tensor if dtype is None or tensor.dtype == torch.float64 else tensor.to(dtype)


# --- modeling/layers/spatial_gating_unit.py
class SpatialProjection(nn.Module):
    """Linear layer over the tokens, shared by all channels: `f(Z) = W Z + b` (equation 4)."""

    def __init__(self, max_length: int, weight_type: str, is_causal: bool = False):
        super().__init__()
        self.max_length = max_length
        self.weight_type = weight_type
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1 if weight_type == "toeplitz" else (max_length,) * 2))
        self.bias = nn.Parameter(torch.ones(max_length))

    def matrix(self, length: int, layout: TokenLayout | None = None) -> torch.Tensor:
        """The weights from all `length` tokens to the new tokens (to all tokens without `layout`)."""
        layout = TokenLayout(length, length, slice(None)) if layout is None else layout
        matrix = self._weights(layout)
        visible = layout._replace(is_causal=self.is_causal).visible(matrix.device)
        matrix = matrix if visible is None else matrix.masked_fill(~visible, 0)  # smaller than the input
        if layout.full_mask is None:
            return matrix
        if layout.full_mask.shape[1] != 1:
            shape = tuple(layout.full_mask.shape)
            raise ValueError(f"Spatial gating has no heads: a mask of shape {shape} is not (batch, 1, queries, keys).")
        mask = layout.full_mask[:, 0]
        # What is added to the logit of a softmax is a factor of the weight.
        return matrix.masked_fill(~mask, 0) if mask.dtype == torch.bool else matrix * mask.exp().to(matrix)

    def _weights(self, layout: TokenLayout) -> torch.Tensor:
        """The entries of W for each new token and each token, by their positions."""
        length, new_tokens, positions = layout.key_length, layout.new_tokens, layout.positions
        if self.weight_type == "full":
            if positions is None:
                return self.weight[layout.rows, :length]
            return self.weight[positions[:, new_tokens, None], positions[:, None, :]]
        if layout.diagonal_index is None and not (layout.is_whole and layout.counts_positions):
            return self.weight[self.max_length - 1 + layout.distances(self.weight.device)]
        diagonals = self.weight[self.max_length - length : self.max_length + length - 1]
        if layout.diagonal_index is not None:  # one operator; unlike that of `weight[index]`, its gradient has no sort
            return diagonals.expand(layout.query_length, -1).gather(1, layout.diagonal_index)
        # Appendix C: rows of 2 * length numbers, read in steps of one less, shift by one. `unfold` is not dynamic.
        rows = F.pad(diagonals, (0, 1)).expand(length, 2 * length).reshape(-1)
        return rows[: length * (2 * length - 1)].view(length, 2 * length - 1)[:, length - 1 :].contiguous()

    def forward(self, hidden_states: torch.Tensor, layout: TokenLayout | None = None) -> torch.Tensor:
        """Mix all tokens, those in the cache first, into the new tokens (into all tokens without `layout`)."""
        if layout is None:
            # The slice is given because PyTorch 2.11 cannot compile it as a default.
            layout = TokenLayout(hidden_states.shape[1], hidden_states.shape[1], slice(None))
        length, positions = layout.key_length, layout.positions
        hidden_states = hidden_states[:, :length]  # without the unused slots of a static cache
        bias = self.bias[layout.rows if positions is None else positions[:, layout.new_tokens], None]
        matrix = cast_once(self.matrix(length, layout)).expand(hidden_states.shape[0], -1, -1)
        return torch.baddbmm(bias, matrix, hidden_states)

    @torch.no_grad()
    def to_full(self) -> None:
        """Store all `n * n` weights; outputs do not change."""
        self.weight = nn.Parameter(self.matrix(self.max_length).clone(), requires_grad=self.weight.requires_grad)
        self.weight_type = "full"

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New weights are zero, new biases one, as at initialization."""
        shift = max_length - self.max_length
        grow = (shift, shift) if self.weight_type == "toeplitz" else (0, shift, 0, shift)
        self._replace(F.pad(self.weight, grow), F.pad(self.bias, (0, shift), value=1.0))

    @torch.no_grad()
    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Replace full weights `W` by `rows W columns`, and `b` by `rows b`; see `grid_interpolation`."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)  # MPS has no float64
        rows, columns = (matrix.to(dtype).to(self.weight.device) for matrix in (rows, columns))
        weight = rows @ self.weight.to(dtype) @ columns
        self._replace(weight.to(self.weight.dtype), (rows @ self.bias.to(rows.dtype)).to(self.bias.dtype))

    def _replace(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        self.max_length = len(bias)

    def extra_repr(self) -> str:
        return f"max_length={self.max_length}, weight_type={self.weight_type!r}"


class SpatialGatingUnit(nn.Module):
    """The gate s(Z) of Table 3, with `f` a `SpatialProjection`.

    | `gate_type`        | result                            | at the start, with W near 0 and b = 1 |
    |--------------------|-----------------------------------|---------------------------------------|
    | `"split"`          | `Z1 * f(norm(Z2))`, [Z1, Z2] = Z  | Z1                                    |
    | `"linear"`         | `f(norm(Z))`                      | 1                                     |
    | `"additive"`       | `Z + f(norm(Z))`                  | Z + 1                                 |
    | `"multiplicative"` | `Z * f(norm(Z))`                  | Z                                     |
    """

    def __init__(
        self,
        intermediate_size: int,
        max_length: int,
        weight_type: str,
        layer_norm_eps: float,
        gate_type: str = "split",
        is_causal: bool = False,
    ):
        super().__init__()
        self.gate_type = gate_type
        width = intermediate_size // 2 if gate_type == "split" else intermediate_size
        self.norm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.spatial_proj = SpatialProjection(max_length, weight_type, is_causal)

    def _split(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`[Z1, Z2] = Z`, or Z twice."""
        return hidden_states.chunk(2, dim=-1) if self.gate_type == "split" else (hidden_states, hidden_states)

    def gate_inputs(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The inputs of `f`: the normalised channels to mix; argument as in `forward`."""
        return self.norm(self._split(hidden_states)[1])

    def forward(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout | None = None,
        tiny_attention: torch.Tensor | None = None,
        gate_inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Gate."""
        passed, gate = self._split(hidden_states)  # only once, because each split is a pass over the gradients
        if gate_inputs is None:
            gate_inputs = self.norm(gate)
        gate = self.spatial_proj(gate_inputs, layout)
        if tiny_attention is not None:
            gate = gate + tiny_attention
        if self.gate_type == "linear":
            return gate
        return passed + gate if self.gate_type == "additive" else passed * gate


# --- modeling/mixins/checkpoint_features.py
class PackageFeatures(PreTrainedModel):
    """A `PreTrainedModel` whose class is registered, so that Transformers saves its code and `auto_map` again."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save like `PreTrainedModel.save_pretrained`."""
        own = type(self)
        if own.__module__.startswith("torch."):  # derived by `fully_shard`; Transformers would save PyTorch's code
            base = next(base for base in own.__mro__ if not base.__module__.startswith("torch."))
            own.__module__, own.__name__ = base.__module__, base.__name__
        entries = getattr(self.config, "auto_map", {}).items()
        names = [name for name, entry in entries if str(entry).endswith(f".{own.__name__}")]
        if names and self._auto_class is None:
            self.register_for_auto_class(names[0])
        super().save_pretrained(*args, **kwargs)


# --- modeling/mixins/grid_interpolation.py
def grid_interpolation(
    old_grid: tuple[int, int], new_grid: tuple[int, int], leading_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear maps between token grids of two image sizes (bicubic, antialiased).

    A token-mixing matrix `W` of the old grid becomes `rows @ W @ columns` on the new one. The rows of both maps sum to
    one, so a filter's response to a constant input, the sum of its weights, stays the same.
    """
    return _interpolation(old_grid, new_grid, leading_tokens), _interpolation(new_grid, old_grid, leading_tokens)


def _interpolation(source: tuple[int, int], target: tuple[int, int], leading_tokens: int) -> torch.Tensor:
    impulses = torch.eye(source[0] * source[1], dtype=torch.float64).unflatten(1, source)[:, None]
    responses = F.interpolate(impulses, size=target, mode="bicubic", antialias=True, align_corners=False)
    return torch.block_diag(torch.eye(leading_tokens, dtype=torch.float64), responses.flatten(1).T)


# --- modeling/mixins/resizing.py
class ResizableTokens(PreTrainedModel):
    """A `PreTrainedModel` that mixes tokens with learned matrices, in `_token_mixing_module`."""

    _token_mixing_module: type[nn.Module] | tuple[type[nn.Module], ...]

    def resize_position_embeddings(self, new_num_position_embeddings: int | tuple[int, int]) -> None:
        """Adapt the token-mixing weights to another maximum length or image size. Call before creating an optimizer.

        Text: outputs for sequences that fit both lengths stay the same. New spatial weights are zero, new biases have
        their initial values, others are copies of the outermost ones. Images: `grid_interpolation` over both axes.
        """
        config, modules = self.config, self.get_position_embeddings()
        if config.image_size is None:
            if not isinstance(new_num_position_embeddings, int) or new_num_position_embeddings < 1:
                raise ValueError(f"The new length must be a positive integer, got {new_num_position_embeddings!r}.")
            for module in modules:
                module.set_max_length(new_num_position_embeddings)
            config.max_position_embeddings = new_num_position_embeddings
            return
        if config.spatial_weight_type == "toeplitz":
            raise ValueError(
                "Toeplitz spatial weights cannot be interpolated over a grid of patches, because the result is not "
                "Toeplitz. Call `model.to_full_spatial_weights()` first."
            )
        old_grid = config.patch_grid
        config.set_image_size(new_num_position_embeddings)
        rows, columns = grid_interpolation(old_grid, config.patch_grid, int(config.use_class_token))
        for module in modules:
            module.resample(rows, columns)

    def get_position_embeddings(self) -> tuple[Any, ...]:
        """The modules with the token-mixing weights, which replace position embeddings."""
        return tuple(module for module in self.modules() if isinstance(module, self._token_mixing_module))

    def to_full_spatial_weights(self) -> None:
        """Store spatial weights as full matrices; outputs do not change. Call before creating an optimizer.

        Training then no longer keeps the matrices Toeplitz.
        """
        if self.config.spatial_weight_type == "toeplitz":
            for module in self.modules():
                if isinstance(module, SpatialProjection):
                    module.to_full()
        self.config.spatial_weight_type = "full"


# --- modeling/modeling_gmlp.py
class GMLPLayer(GradientCheckpointingLayer):
    """One gMLP block (Figure 1): norm, channel expansion, activation, spatial gating unit, projection, residual."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.sgu = SpatialGatingUnit(
            config.intermediate_size,
            config.max_position_embeddings,
            config.spatial_weight_type,
            config.gate_layer_norm_eps,
            config.gate_type,
            config.is_decoder,
        )
        self.proj_out = nn.Linear(config.gate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(config.drop_path_rate)

    @accept_past_key_values
    def forward(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape."""
        residual = hidden_states
        hidden_states = self.activation(self.proj_in(self.norm(hidden_states)))
        gates = None
        if cache is not None:
            gates = self.sgu.gate_inputs(hidden_states)[:, None]
            gates = update_cache_without_keys(cache, gates, self.layer_idx)[:, 0]
        hidden_states = self.sgu(hidden_states, layout, gate_inputs=gates)
        return residual + self.drop_path(self.dropout(self.proj_out(hidden_states)))


class GMLPPreTrainedModel(PackageFeatures, ResizableTokens):
    """Base class of all gMLP models: initialization and supported features."""

    config: GMLPConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _can_record_outputs = {"hidden_states": GMLPLayer}
    _can_compile_fullgraph = True
    _token_mixing_module: type[nn.Module] | tuple[type[nn.Module], ...] = SpatialProjection
    _supports_seq_idx = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)
        elif isinstance(module, PatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)


class GMLPModel(GMLPPreTrainedModel):
    """The gMLP encoder, or decoder: token or patch embeddings, blocks, final norm.

    Spatial weights replace position embeddings. For images, `pooler_output` is the input of the classifier, shape
    `(batch, hidden_size)`: the class token after ViT's pre-logits layer, or the mean of the patches.
    """

    layer_class: type[nn.Module] = GMLPLayer

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        if config.image_size is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
            if config.type_vocab_size:
                self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        else:
            config.set_image_size(config.image_size)  # it may have changed after the configuration was created
            self.main_input_name = "pixel_values"
            self.input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too
            self._input_embed_layer = "embed_patches"
            self.embed_patches = PatchEmbeddings(config)
            if config.use_class_token:
                self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers = [self.layer_class(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document. Tokens see their own document only, and
            positions start at 0 in each document.
        attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            1 for real tokens, 0 for padding; includes the tokens in the cache. For images: one number for the class
            token, if there is one, and for each patch; patches with 0 do not change the others.
        """
        check_modality(self.config, pixel_values, input_ids, token_type_ids, position_ids, inputs_embeds, seq_idx)
        if pixel_values is None:
            hidden_states = self._embed_text(input_ids, token_type_ids, inputs_embeds)
        else:
            hidden_states = self.embed_patches(pixel_values)
        check_cache(cache)
        if not self.config.is_decoder:
            cache = None
        elif cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        layout = self._token_layout(hidden_states, attention_mask, position_ids, cache, seq_idx)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers[: self.config.num_hidden_layers]:  # fewer in self-speculative decoding
            hidden_states = layer(hidden_states, layout=layout, **{CACHE_NAME: cache}, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None
        if pixel_values is not None:
            pooled = pool_patches(hidden_states, attention_mask, self)
        return BaseModelOutputWithPoolingAndCrossAttentions(hidden_states, pooled, None, cache)

    def _token_layout(self, hidden_states: torch.Tensor, *inputs: Any) -> TokenLayout:
        """Create the layout for all layers; `inputs` as in `token_layout`."""
        return token_layout(self.config, hidden_states, *inputs)

    def _embed_text(
        self, input_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        embeddings = getattr(self, "embed_tokens", None)
        hidden_states = embed_text(embeddings, input_ids, inputs_embeds, self.config.hidden_size)
        if self.config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = torch.zeros(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
            check_token_types(token_type_ids, hidden_states)
            hidden_states = hidden_states + embed(self.token_type_embeddings, token_type_ids, "token_type_ids")
        return hidden_states


class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
    """gMLP with a language modelling head, tied to the embeddings by default."""

    backbone_class = GMLPModel


class GMLPForSequenceClassification(SequenceClassificationHead, GMLPPreTrainedModel):
    """gMLP with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = GMLPModel


class GMLPForTokenClassification(TokenClassificationHead, GMLPPreTrainedModel):
    """gMLP with a classification head on every token, e.g. for named entities."""

    backbone_class = GMLPModel


class GMLPForMultipleChoice(MultipleChoiceHead, GMLPPreTrainedModel):
    """gMLP with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = GMLPModel


class GMLPForQuestionAnswering(QuestionAnsweringHead, GMLPPreTrainedModel):
    """gMLP with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = GMLPModel
