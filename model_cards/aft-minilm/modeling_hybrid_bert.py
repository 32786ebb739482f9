# Part of tokenmixers 0.1.0, generated from modeling/modeling_hybrid_bert.py; not used where that package is imported.
# Licensed under the Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
import functools
import inspect
from typing import Any, NamedTuple, TYPE_CHECKING

from torch import nn
import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig, PreTrainedModel, initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicLayer, StaticLayer
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, packed_sequence_mask_function
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput, BaseModelOutputWithPast, MaskedLMOutput, MultipleChoiceModelOutput, QuestionAnsweringModelOutput,
    SequenceClassifierOutput, TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, is_tracing
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_hybrid_bert import HybridBertConfig


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


# --- modeling/inputs/attention_maps.py
def visible_keys(layout: TokenLayout, device: torch.device) -> torch.Tensor | None:
    """`layout.visible` with a dimension for the heads, `(batch or 1, 1, queries or 1, keys)`; or its `full_mask`."""
    if layout.full_mask is not None:
        return layout.full_mask
    visible = layout.visible(device)
    if visible is None:
        return None
    return visible[None, None] if visible.ndim == 2 else visible[:, None]


def move_padding_right(layout: TokenLayout) -> tuple[TokenLayout, tuple[torch.Tensor, torch.Tensor] | None]:
    """The layout with left padding moved to the right, so that positions are 0, 1, 2, ... in all rows."""
    if layout.padding_mask is None or not layout.shifted or not layout.is_whole:
        return layout, None
    length, place = layout.key_length, torch.arange(layout.key_length, device=layout.padding_mask.device)
    first = first_token_index(layout.padding_mask)[:, None]
    # Without `%`, which the ONNX exporter does not support for dynamic lengths.
    index = torch.where(place + first < length, place + first, place + first - length)
    back = torch.where(place >= first, place - first, place - first + length)
    padding_mask = layout.padding_mask.gather(1, index)
    return layout._replace(positions=None, shifted=False, padding_mask=padding_mask, offset_rows=None), (index, back)


def take_tokens(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The tokens of `(batch, tokens, ...)` at `index`, `(batch, tokens)`: whole rows, faster than `gather`."""
    batch, length = index.shape
    rows = index + length * torch.arange(batch, device=index.device)[:, None]
    return tensor.flatten(0, 1).index_select(0, rows.flatten()).view_as(tensor)


# --- modeling/inputs/attention_masks.py
def with_interface_mask(
    layout: TokenLayout,
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
) -> TokenLayout:
    """Add the mask for `config._attn_implementation` to a layout; arguments as in `token_layout`, which has made it."""
    if layout.padding_mask is None and layout.full_mask is None:
        attention_mask = None
    inputs = config, inputs_embeds, attention_mask
    documents: dict[str, Any] = {}
    if layout.seq_idx is not None:
        if "flash" in config._attn_implementation:
            raise ValueError(
                f"Packed documents (`seq_idx`) are not possible with attn_implementation="
                f"{config._attn_implementation!r}, which has no mask for them: use 'sdpa' or 'flex_attention'."
            )
        documents["and_mask_function"] = packed_sequence_mask_function(layout.seq_idx)
    mask: Any
    if config.is_decoder:
        mask = create_causal_mask(*inputs, cache, **documents)
    else:
        mask = create_bidirectional_mask(*inputs, **documents)
    return layout._replace(attention_mask=mask)


# --- modeling/inputs/exporting.py
def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`, which in PyTorch 2.11 is also true in graphs of `torch.compile`."""
    return torch.compiler.is_exporting() and getattr(torch.compiler, "_is_exporting_flag", True)


# --- modeling/inputs/entries_by_position.py
def first_entries(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """The first `length` entries along a dimension that is as long or longer."""
    if not is_exporting():
        # Unlike `narrow`, a tuple of indices drops slices that take everything, and the passes of their gradients.
        return tensor[(slice(None),) * dim + (slice(length),)]
    # A slice is contiguous only if it is the whole tensor, so an exported program would reject the maximum length.
    return tensor.index_select(dim, torch.arange(length, device=tensor.device))


def offset_entries(table: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Entries of `(2N - 1, ...)` for the offsets within a layout; all of them for given positions, and in a graph."""
    if _has_all_offsets(layout):
        return table
    return table.narrow(0, len(table) // 2 + 1 - layout.key_length, 2 * layout.key_length - 1)


def offset_rows(layout: TokenLayout, max_length: int, device: torch.device) -> torch.Tensor:
    """The row of each pair of tokens in `offset_entries` of `max_length` N, and the one after these for the first key."""
    reach = max_length if _has_all_offsets(layout) else layout.key_length
    positions = torch.arange(layout.key_length, device=device)[None] if layout.positions is None else layout.positions
    return torch.where(positions[:, None] == 0, 2 * reach - 1, layout.distances(device) + (reach - 1))


def _has_all_offsets(layout: TokenLayout) -> bool:
    """Whether entries of all offsets are looked up: what is computed from all is a constant of a graph."""
    return layout.positions is not None or is_exporting()


def resized(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """`tensor`, truncated along `dim` or extended by copies of its last entry."""
    index = torch.arange(length, device=tensor.device).clamp(max=tensor.shape[dim] - 1)
    return tensor.detach().index_select(dim, index)


# --- modeling/layers/precision.py
def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of matrix products under autocast; `None` without autocast."""
    # Autocast does not support the meta device.
    enabled = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else None


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Context that disables autocast."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def cast_once(tensor: torch.Tensor) -> torch.Tensor:
    """Under autocast, cast a tensor that several matrix products, or all rows of one, read to their dtype."""
    dtype = autocast_dtype(tensor.device)
    return tensor if dtype is None or tensor.dtype == torch.float64 else tensor.to(dtype)


# --- modeling/layers/attention.py
def split_heads(projected: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Map `(batch, tokens, heads * head_dim)` to `(batch, heads, tokens, head_dim)`."""
    return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def softmax(logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Softmax over the last dimension, computed in float32 (or float64) and returned in `dtype`."""
    # In bfloat16 the operator already computes in float32, and stores less for the backward pass.
    is_bfloat16 = logits.dtype == dtype == torch.bfloat16
    exact_dtype = dtype if is_bfloat16 else torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=exact_dtype).to(dtype)


def attention_from_logits(
    logits: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, dropout: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over keys, times values, with an attention map per sample."""
    if mask is not None:
        hidden = torch.finfo(logits.dtype).min
        # `where` saves the mask, which layers share, for the backward pass; `masked_fill` would save a copy per layer.
        logits = torch.where(mask, logits, hidden) if mask.dtype == torch.bool else logits + mask
    weights = softmax(logits, values.dtype).expand(values.shape[0], -1, -1, -1)
    return (F.dropout(weights, dropout) @ values).transpose(1, 2), weights


def shared_attention(
    logits: torch.Tensor,
    values: torch.Tensor,
    padding_mask: torch.Tensor | None,
    causal_order: torch.Tensor | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attention from logits that all samples share: `(E (m * V)) / (E m)` with `E = exp(logits)` and key mask `m`.

    It computes one matrix product per head for the whole batch and no queries x keys tensor per sample. The result is
    exact up to rounding if some visible logit is within 115 of the row's largest one; smaller logits are raised to
    that limit. Dropout acts on keys, i.e. on columns of the weights, as in the authors' code.
    """
    batch, num_heads, num_keys, head_dim = values.shape
    dtype = values.dtype
    # With padding, the range of float16 is too small for E, even under autocast: its smallest number is e^-17.
    work_dtype = torch.float32 if dtype == torch.float16 and padding_mask is not None else dtype
    exact_dtype = torch.promote_types(dtype, torch.float32)
    logits = logits[0]
    if causal_order is not None:
        logits = logits.masked_fill(~causal_order, -torch.inf)
    if padding_mask is None:
        weights, total = softmax(logits, work_dtype), None
    else:
        logits = logits.to(exact_dtype)
        # The row's largest number is scaled to e^30, because padding may hide the large numbers, and the smallest
        # normal float32 is e^-87.
        peak = logits.detach().amax(dim=-1, keepdim=True)
        weights = (logits - peak).clamp(min=-115).add(30).exp()
        if causal_order is not None:
            weights = weights.masked_fill(~causal_order, 0)
        weights = weights.to(work_dtype)
        key_mask = padding_mask.to(work_dtype)
        with no_autocast(values.device):
            total = (weights.to(exact_dtype) @ key_mask.T.to(exact_dtype)).permute(2, 1, 0)[..., None]
        values = torch.where(padding_mask[:, None, :, None], values, 0)  # twice as fast as `masked_fill`
    if dropout:
        values = F.dropout(values.new_ones(batch, num_heads, num_keys, 1), dropout) * values
    values = values.to(work_dtype)
    with no_autocast(values.device):
        if logits.shape[-2] == 1:  # in decoding, reordering the values would take most of the time
            output = (weights @ values).transpose(1, 2)
        else:
            columns = values.permute(1, 2, 0, 3).reshape(num_heads, num_keys, batch * head_dim)
            output = (weights @ columns).view(num_heads, -1, batch, head_dim).permute(2, 1, 0, 3)
    output = output.contiguous()  # now, so that the division below can be in place in this order
    if total is not None:
        total = total.clamp(min=torch.finfo(torch.float32).tiny)
        output = output / total if torch.is_grad_enabled() else output.div_(total)
    return output.to(dtype)


def shared_attention_by_layout(
    logits: Callable[[TokenLayout], torch.Tensor], values: torch.Tensor, layout: TokenLayout, dropout: float = 0.0
) -> torch.Tensor:
    """`shared_attention` after left padding is moved to the right."""
    layout, moves = move_padding_right(layout)
    if moves is not None:
        values = take_tokens(values.transpose(1, 2), moves[0]).transpose(1, 2)
    found = logits(layout)
    if found.shape[0] > 1:  # positions differ between rows: given ones, or decoding after left padding
        return attention_from_logits(found, values, visible_keys(layout, values.device), dropout)[0]
    order = layout.causal_order(values.device)
    output = shared_attention(found, values, layout.padding_mask, order, dropout)
    return output if moves is None else take_tokens(output, moves[1])


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float = 1.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in plain PyTorch, for `attn_implementation="eager"`, which returns weights."""
    logits = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    if position_bias is not None:
        logits = logits + position_bias
    return attention_from_logits(logits, value, attention_mask, dropout)


# --- modeling/layers/synthetic_logits.py
Resize = Callable[[torch.Tensor, int], torch.Tensor]
"""Returns a tensor with another length along a position dimension."""


def resized_parameter(parameter: torch.Tensor, resize: Resize, *dims: int) -> nn.Parameter:
    """A parameter with other lengths along some dimensions; a frozen one stays frozen."""
    is_trained = parameter.requires_grad
    for dim in dims:
        parameter = resize(parameter, dim)
    return nn.Parameter(parameter, requires_grad=is_trained)


class OffsetLogits(nn.Module):
    """A logit per head and offset between two tokens, and one per head for the first token as key."""

    def __init__(self, num_heads: int, max_length: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1, num_heads))
        self.first = nn.Parameter(torch.zeros(num_heads))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        return self.entries(self.table(layout), layout)

    def table(self, layout: TokenLayout) -> torch.Tensor:
        """The logits of offsets below L, see `offset_entries`, and last that of the first token, `(2L, heads)`."""
        return torch.cat([offset_entries(self.weight, layout), self.first[None]])

    def entries(self, table: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """Numbers in the order of `table`, `(2L, heads)`, as a map of shape `(batch or 1, heads, queries, keys)`."""
        rows = layout.offset_rows
        if rows is None:
            rows = offset_rows(layout, self.weight.shape[0] // 2 + 1, table.device)
        return F.embedding(rows, table).permute(0, 3, 1, 2)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        before, after = self.weight[: len(self.weight) // 2 + 1].flip(0), self.weight[len(self.weight) // 2 :]
        weight = torch.cat([resize(before, 0).flip(0)[:-1], resize(after, 0)])
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)


class _DenseFirstLayer(nn.Module):
    """`ReLU(W1 x + b1)`, split into heads; or the ReLU of the query (see `dense_first_layer`)."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.head_dim = config.head_dim
        if config.dense_first_layer == "own":
            width = config.num_attention_heads * config.head_dim
            self.first_proj: nn.Linear | None = nn.Linear(config.hidden_size, width, bias=config.dense_bias)
        else:
            self.first_proj = None

    def forward(self, hidden_states: torch.Tensor, queries: torch.Tensor | None) -> torch.Tensor:
        if self.first_proj is None:
            return F.relu(queries)  # type: ignore[arg-type]  # not `None` in this case
        return split_heads(F.relu(self.first_proj(hidden_states)), self.head_dim)


class PerHeadLinear(nn.Module):
    """One linear layer per head (or one for all): `weight`, `(heads or 1, outputs, head_dim)`."""

    def __init__(self, config: PreTrainedConfig, outputs: int):
        super().__init__()
        num_maps = 1 if config.dense_shared_across_heads else config.num_attention_heads
        self.weight = nn.Parameter(torch.zeros(num_maps, outputs, config.head_dim))
        self.bias = nn.Parameter(torch.zeros(num_maps, outputs)) if config.dense_bias else None

    def forward(self, inputs: torch.Tensor, outputs: int | None = None) -> torch.Tensor:
        """Map `(batch, heads, tokens, head_dim)` to `(batch, heads, tokens, outputs)`, using the first `outputs`."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        if outputs is not None:
            weight = first_entries(weight, 1, outputs)
            bias = None if bias is None else first_entries(bias, 1, outputs)
        if bias is None:
            return inputs @ weight.transpose(1, 2)
        batch, heads = inputs.shape[:2]
        weights, biases = weight.transpose(1, 2).expand(heads, -1, -1), bias[:, None].expand(heads, -1, -1)
        rows = [tensor.repeat(batch, 1, 1) for tensor in (biases, weights)]
        return torch.baddbmm(rows[0], inputs.flatten(0, 1), rows[1]).unflatten(0, (batch, heads))

    def resize(self, resize: Resize) -> None:
        """Change the number of outputs."""
        self.weight = resized_parameter(self.weight, resize, 1)
        if self.bias is not None:
            self.bias = resized_parameter(self.bias, resize, 1)


class DenseLogits(nn.Module):
    """Computes a row of logits from each token alone: `W2 ReLU(W1 x + b1) + b2`; output j is for key j."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.first = _DenseFirstLayer(config)
        self.second = PerHeadLinear(config, config.max_position_embeddings)

    def forward(
        self, layout: TokenLayout, hidden_states: torch.Tensor, queries: torch.Tensor | None = None
    ) -> torch.Tensor:
        first = self.first(hidden_states, queries)
        if layout.positions is None:
            return self.second(first, layout.key_length)
        # A user's positions may exceed the number of tokens.
        logits = self.second(first, layout.key_length if layout.shifted else None)
        return _columns(logits, layout.positions)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        self.second.resize(resize)


def _columns(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Entries of `(batch, heads, queries, outputs)` at `columns`, `(batch or 1, keys)`."""
    batch, heads, queries, _ = logits.shape
    return logits.gather(-1, columns[:, None, None, :].expand(batch, heads, queries, -1))


# --- modeling/layers/aft.py
def aft_weights(
    offsets: torch.Tensor, scores: torch.Tensor, mixture: torch.Tensor | None, mask: torch.Tensor | None
) -> torch.Tensor:
    """Weights of each sample: `sum_m p_im exp(w_ij + s_jm) / sum_j exp(w_ij + s_jm)` (after equation 2)."""
    exact_dtype = torch.promote_types(scores.dtype, torch.float32)
    logits = offsets.to(exact_dtype)[:, :, None] + scores.to(exact_dtype).mT[:, :, :, None]
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask[:, :, None], torch.finfo(exact_dtype).min)
    elif mask is not None:
        logits = logits + mask[:, :, None]
    weights = logits.softmax(dim=-1)
    if mixture is None:
        weights = weights.squeeze(2)
    else:
        weights = (mixture.to(exact_dtype).movedim(-1, 2)[..., None] * weights).sum(dim=2)
    return weights.masked_fill(~mask, 0) if mask is not None and mask.dtype == torch.bool else weights


def aft_attention(
    weights: torch.Tensor,
    scores: torch.Tensor,
    values: torch.Tensor,
    mixture: torch.Tensor | None,
    padding_mask: torch.Tensor | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """`aft_weights` times values, with exp(w) for the whole batch: `(E (t * V)) / (E t)`, E = exp(w), t = exp(s).

    For M = 1 both products have one matrix E for the whole batch. For M > 1 the weights of a sample are
    `E * ((p / (E t)) t^T)`. The result is exact up to rounding if the sum of some visible offset and score
    is within 80 of the sum of their maxima; smaller ones are raised to 105 below their maximum, and the result is
    finite. Dropout acts on keys, as in `shared_attention`.
    """
    batch, num_heads, num_keys, _ = values.shape
    dtype = values.dtype
    work_dtype = torch.float32 if dtype == torch.float16 else dtype  # whose range is too small for E
    weights = weights.to(work_dtype)
    # Heads and keys come first, as in the products.
    real = None if padding_mask is None else padding_mask.T[:, :, None]
    factors = scaled_exp(scores.permute(1, 2, 0, 3), 1, real).to(work_dtype).contiguous()
    columns = values.to(work_dtype).permute(1, 2, 0, 3)
    if dropout:
        columns = F.dropout(values.new_ones(num_heads, num_keys, batch, 1), dropout) * columns
    tiny = torch.finfo(torch.float32).tiny
    with no_autocast(values.device):
        totals = (weights @ factors.flatten(2)).clamp(min=tiny)
        if mixture is not None:
            # A map per sample has fewer numbers than M results per token, unless texts are long.
            totals = totals.unflatten(-1, (batch, -1)).permute(2, 0, 1, 3)
            weights = weights * ((mixture.to(work_dtype) / totals) @ factors.permute(2, 0, 3, 1))
            return (weights @ columns.permute(2, 0, 1, 3)).transpose(1, 2).to(dtype)
        mixed = (weights @ (factors * columns).flatten(2)).unflatten(-1, (batch, -1))
        return (mixed / totals[..., None]).permute(2, 1, 0, 3).to(dtype)


def scaled_exp(logits: torch.Tensor, dim: int, visible: torch.Tensor | None = None) -> torch.Tensor:
    """`exp` with the largest visible number scaled to e^20, and the others no further than 105 below; 0 if hidden."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shown = logits.detach()
    if visible is not None:
        shown = shown.masked_fill(~visible, torch.finfo(logits.dtype).min)
    scaled = (logits - (shown.amax(dim=dim, keepdim=True) - 20)).clamp(min=-85, max=20).exp()
    return scaled if visible is None else scaled.masked_fill(~visible, 0)


def aft_by_layout(
    logits: OffsetLogits,
    scores: torch.Tensor,
    values: torch.Tensor,
    mixture: torch.Tensor | None,
    layout: TokenLayout,
    dropout: float = 0.0,
) -> torch.Tensor:
    """`aft_attention` after left padding is moved to the right; the other arguments and the result as there.

    Rows share `layout` except for padding and given positions. E is looked up in exp of the offsets' logits, whose
    maxima are those of a head, over the offsets within the layout, and over all offsets in an exported graph.
    """
    layout, moves = move_padding_right(layout)
    if moves is not None:
        moved = (scores, values) if mixture is None else (scores, values, mixture)
        scores, values, *rest = (take_tokens(x.transpose(1, 2), moves[0]).transpose(1, 2) for x in moved)
        mixture = rest[0] if rest else None
    one_sample = values.shape[0] == 1 and mixture is None and not dropout
    if one_sample or (layout.positions is not None and len(layout.positions) > 1):
        # A map of its own for one sample takes the fewest operators. Positions may differ between rows.
        weights = aft_weights(logits(layout), scores, mixture, visible_keys(layout, values.device)).to(values.dtype)
        output = (F.dropout(weights, dropout) @ values).transpose(1, 2)
    else:
        weights = logits.entries(scaled_exp(logits.table(layout), 0), layout).squeeze(0)
        output = aft_attention(weights, scores, values, mixture, layout.padding_mask, dropout)
    return output if moves is None else take_tokens(output, moves[1])


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


# --- modeling/mixins/attention_interface.py
class UsesAttentionInterface:
    """Mixin for attention modules with a `config`."""

    config: PreTrainedConfig

    def attention_function(self) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
        """Attention function for the configuration's `attn_implementation`."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)


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


# --- modeling/modeling_amlp.py
class AMLPAttention(UsesAttentionInterface, nn.Module):
    """Tiny attention (Figure 6): one small head on the normalised block input, projected to the gate's width."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.attention_size
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_causal = config.is_decoder
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.gate_size)

    def project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Map `(batch, length, hidden_size)` to queries, keys and values, `(batch, 1, length, attention_size)`."""
        query, key, value = self.qkv_proj(hidden_states)[:, None].chunk(3, dim=-1)
        return query, key, value

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend."""
        attended, weights = self.attention_function()(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(attended.flatten(2)), weights


class AMLPLayer(GMLPLayer):
    """One aMLP block: a gMLP block whose gate is the sum of the spatial projection and tiny attention (Figure 6)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__(config, layer_idx)
        self.attention = AMLPAttention(config)

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
        hidden_states = cast_once(self.norm(hidden_states))
        query, key, value = self.attention.project(hidden_states)
        hidden_states = self.activation(self.proj_in(hidden_states))
        gates = None
        if cache is not None:
            # Transformers' caches expect one update per layer, so keys and values are concatenated.
            gates = self.sgu.gate_inputs(hidden_states)[:, None]
            gates = gates.to(key.dtype)  # GPUs normalise in float32 under autocast, but a cache has one dtype
            gates, both = cache.update(gates, torch.cat([key, value], dim=-1), self.layer_idx)
            gates, (key, value) = gates[:, 0], both.chunk(2, dim=-1)
        attention_mask = None if layout is None else layout.attention_mask
        tiny_attention, _ = self.attention(query, key, value, attention_mask, **kwargs)
        hidden_states = self.sgu(hidden_states, layout, tiny_attention, gates)
        return residual + self.drop_path(self.dropout(self.proj_out(hidden_states)))


# --- modeling/modeling_hybrid_bert.py
class HybridBertAttention(UsesAttentionInterface, nn.Module):
    """BERT's self-attention (`full_attention`), by Transformers' attention interface."""

    def __init__(self, config: HybridBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_causal = False
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens."""
        hidden_states = cast_once(hidden_states)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (split_heads(project(hidden_states), self.head_dim) for project in projections)
        attended, weights = self.attention_function()(
            self,
            query,
            key,
            value,
            layout.attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(attended.flatten(2)), weights


LOGITS: dict[str, Callable[[HybridBertConfig], OffsetLogits | DenseLogits]] = {
    "random_synthesizer": lambda c: OffsetLogits(c.num_attention_heads, c.max_position_embeddings),
    "dense_synthesizer": DenseLogits,
}
"""Layer type -> the logits that stand in the place of queries times keys, created from the configuration."""


class HybridBertSynthesizer(nn.Module):
    """`softmax(B) V` with logits B other than queries times keys (Synthesizer, arXiv 2005.00743, section 3).

    Logits that do not depend on the input need one matrix product for the whole batch, see `shared_attention`.
    `"eager"`, which returns the weights, computes them for every sample.
    """

    def __init__(self, config: HybridBertConfig, token_mixer: str):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.dropout = config.attention_probs_dropout_prob
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.logits = LOGITS[token_mixer](config)
        self.is_shared = not isinstance(self.logits, DenseLogits)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens; arguments and results as in `HybridBertAttention`."""
        hidden_states = cast_once(hidden_states)
        values = split_heads(self.v_proj(hidden_states), self.head_dim)
        dropout = self.dropout if self.training else 0.0
        eager = self.config._attn_implementation == "eager"
        if self.is_shared and not eager and layout.is_shared:
            mixed, weights = shared_attention_by_layout(self.logits, values, layout, dropout), None
        else:
            logits = self.logits(layout, hidden_states=hidden_states)
            mixed, weights = attention_from_logits(logits, values, visible_keys(layout, values.device), dropout)
        return self.o_proj(mixed.flatten(2)), weights if eager else None

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New logits are copies of those of the farthest tokens."""
        self.logits.resize(partial(resized, length=max_length))


class HybridBertGate(nn.Linear):
    """A linear map that starts at zero."""


class HybridBertAFT(nn.Module):
    """An Attention Free Transformer with a score per head and key (`aft`; arXiv 2105.14103, equation 2).

    Head h gives token i `g_i sum_m p_im sum_j exp(w_ij + s_jm) v_j / sum_j exp(w_ij + s_jm)`. The logits w depend on
    the offset j - i, the scores s of M mean queries on the state of token j, and their shares p, a softmax over m, on
    that of token i. The gate `g_i = 2 sigmoid(x_i W + b)` is 1 at the start, and without `config.aft_gate` always.

    With one mean query this needs one matrix product for the whole batch, see `aft_attention`. `"eager"` returns the
    weights, which it computes for every sample.
    """

    def __init__(self, config: HybridBertConfig):
        super().__init__()
        heads, scores = config.num_attention_heads, config.num_attention_heads * config.num_mean_queries
        self.config = config
        self.head_dim = config.head_dim
        self.dropout = config.attention_probs_dropout_prob
        self.num_mean_queries = config.num_mean_queries
        self.score_proj = nn.Linear(config.hidden_size, scores, bias=False)
        self.share_proj = nn.Linear(config.hidden_size, scores) if config.num_mean_queries > 1 else None
        self.gate_proj = HybridBertGate(config.hidden_size, heads) if config.aft_gate else None
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.logits = OffsetLogits(heads, config.max_position_embeddings)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens; arguments and results as in `HybridBertAttention`."""
        hidden_states = cast_once(hidden_states)
        values = split_heads(self.v_proj(hidden_states), self.head_dim)
        scores, shares = split_heads(self.score_proj(hidden_states), self.num_mean_queries), None
        if self.share_proj is not None:
            shares = softmax(split_heads(self.share_proj(hidden_states), self.num_mean_queries), values.dtype)
        dropout = self.dropout if self.training else 0.0
        eager = self.config._attn_implementation == "eager"
        if eager or not layout.is_shared:
            weights = aft_weights(self.logits(layout), scores, shares, visible_keys(layout, values.device))
            weights = weights.to(values.dtype)
            mixed = (F.dropout(weights, dropout) @ values).transpose(1, 2)
        else:
            mixed = aft_by_layout(self.logits, scores, values, shares, layout, dropout)
        if self.gate_proj is not None:
            mixed = mixed * (2 * self.gate_proj(hidden_states).sigmoid())[..., None]
        return self.o_proj(mixed.flatten(2)), weights if eager else None

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New logits are copies of those of the farthest tokens."""
        self.logits.resize(partial(resized, length=max_length))


MIXERS: dict[str, Callable[[HybridBertConfig], nn.Module]] = {
    "full_attention": HybridBertAttention,
    "aft": HybridBertAFT,
    **{name: partial(HybridBertSynthesizer, token_mixer=name) for name in LOGITS},
}
"""Token mixer -> its module in a layer of BERT."""


class HybridBertLayer(GradientCheckpointingLayer):
    """A layer of BERT: a token mixer and a feed-forward layer, each with a residual and a norm."""

    def __init__(self, config: HybridBertConfig, layer_idx: int = 0):
        super().__init__()
        self.self_attn = MIXERS[config.token_mixers[layer_idx]](config)  # type: ignore[index]  # `__post_init__` sets it
        self.self_attn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Unpack[TransformersKwargs]
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape."""
        mixed, _ = self.self_attn(hidden_states, layout, **kwargs)
        hidden_states = self.self_attn_norm(self.dropout(mixed) + hidden_states)
        mixed = self.proj_out(self.activation(self.proj_in(hidden_states)))
        return self.mlp_norm(self.dropout(mixed) + hidden_states)


BLOCKS: dict[str, type[nn.Module]] = {"gmlp": GMLPLayer, "amlp": AMLPLayer}
"""Layer type -> the block in the place of a whole layer of BERT."""


class HybridBertPositions(nn.Embedding):
    """Learned position embeddings."""

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New positions are copies of the last."""
        self.weight = resized_parameter(self.weight, partial(resized, length=max_length), 0)
        self.num_embeddings = max_length


class HybridBertPreTrainedModel(PackageFeatures, ResizableTokens):
    """Base class of all models: initialization and supported features."""

    config: HybridBertConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["HybridBertLayer", "GMLPLayer", "AMLPLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_seq_idx = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": [HybridBertLayer, GMLPLayer],
        "attentions": [HybridBertAttention, HybridBertSynthesizer, HybridBertAFT, AMLPAttention],
    }
    _token_mixing_module = (SpatialProjection, HybridBertSynthesizer, HybridBertAFT, HybridBertPositions)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as it is: the configuration follows its layers, some of which may have been removed."""
        types = [layer.token_mixer for layer in self.base_model.layers]  # type: ignore[union-attr]
        self.config.token_mixers, self.config.num_hidden_layers = types, len(types)
        has_norm = not isinstance(self.base_model.norm, nn.Identity)
        self.config.final_norm = None if has_norm == (types[-1] in BLOCKS) else has_norm
        super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)
        elif isinstance(module, OffsetLogits | PerHeadLinear):
            init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, OffsetLogits):
            init.normal_(module.first, std=self.config.initializer_range)
        elif isinstance(module, PerHeadLinear) and module.bias is not None:
            init.zeros_(module.bias)
        elif isinstance(module, HybridBertGate):
            init.zeros_(module.weight)


class HybridBertModel(HybridBertPreTrainedModel):
    """The encoder: BERT's embeddings, the layers that `config.token_mixers` names, and a norm after a last MLP block.

    `output_attentions` gives the weights of those layers that have any.
    """

    def __init__(self, config: HybridBertConfig):
        super().__init__(config)
        config.validate_token_mixers()  # fields may have changed after the configuration was created
        width, types = config.hidden_size, config.token_mixers or []
        self.embed_tokens = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.embed_positions = HybridBertPositions(config.max_position_embeddings, width)
        self.embed_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers: Any = [BLOCKS.get(name, HybridBertLayer)(config, i) for i, name in enumerate(types)]
        for layer, name in zip(layers, types, strict=True):
            layer.token_mixer = name
        self.layers = nn.ModuleList(layers)
        has_norm = types[-1] in BLOCKS if config.final_norm is None else config.final_norm
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if has_norm else nn.Identity()
        self.has_attention = not {"full_attention", "amlp"}.isdisjoint(types)
        self.has_offsets = not {"aft", "random_synthesizer"}.isdisjoint(types)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document. Tokens see their own document only, and
            positions start at 0 in each document.
        """
        embeds = embed_text(self.embed_tokens, input_ids, inputs_embeds, self.config.hidden_size)
        layout, moves = token_layout(self.config, embeds, attention_mask, position_ids, None, seq_idx), None
        types: torch.Tensor | None = token_type_ids
        if self.has_offsets and is_exporting() and not self._returns_states(kwargs):
            # A graph has to move left padding always: once, and not in every layer.
            layout, moves = move_padding_right(layout)
        if moves is not None:
            embeds, attention_mask = take_tokens(embeds, moves[0]), layout.padding_mask
            types = None if types is None else types.gather(1, moves[0])
        if self.has_offsets:  # all layers share the rows
            rows = offset_rows(layout, self.config.max_position_embeddings, embeds.device)
            layout = layout._replace(offset_rows=rows)
        if self.has_attention:
            layout = with_interface_mask(layout, self.config, embeds, attention_mask, None)
        hidden_states = self.dropout(self.embed_norm(self._with_added_embeddings(embeds, types, layout)))
        for layer in self.layers:
            hidden_states = layer(hidden_states, layout=layout, **kwargs)
        hidden_states = self.norm(hidden_states)
        return BaseModelOutput(hidden_states if moves is None else take_tokens(hidden_states, moves[1]))

    def _returns_states(self, kwargs: Mapping[str, Any]) -> bool:
        names = (f"output_{name}" for name in self._can_record_outputs)
        return any(kwargs.get(name, getattr(self.config, name, False)) for name in names)

    def _with_added_embeddings(
        self, embeds: torch.Tensor, token_type_ids: torch.Tensor | None, layout: TokenLayout
    ) -> torch.Tensor:
        if self.config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = torch.zeros(1, embeds.shape[1], dtype=torch.long, device=embeds.device)
            check_token_types(token_type_ids, embeds)
            types = embed(self.token_type_embeddings, token_type_ids, "token_type_ids")
            embeds = embeds + types.to(embeds.device)  # a `device_map` may split them
        return embeds + self.embed_positions(layout.query_positions(embeds.device)).to(embeds.device)


class HybridBertForMaskedLM(MaskedLMHead, HybridBertPreTrainedModel):
    """The encoder with a language modelling head, tied to the embeddings by default."""

    backbone_class = HybridBertModel


class HybridBertForSequenceClassification(SequenceClassificationHead, HybridBertPreTrainedModel):
    """The encoder with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = HybridBertModel


class HybridBertForTokenClassification(TokenClassificationHead, HybridBertPreTrainedModel):
    """The encoder with a classification head on every token, e.g. for named entities."""

    backbone_class = HybridBertModel


class HybridBertForMultipleChoice(MultipleChoiceHead, HybridBertPreTrainedModel):
    """The encoder with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = HybridBertModel


class HybridBertForQuestionAnswering(QuestionAnsweringHead, HybridBertPreTrainedModel):
    """The encoder with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = HybridBertModel
