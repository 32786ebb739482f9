"""Which tokens a forward pass computes, at which positions they are, and which tokens they see."""

from typing import NamedTuple

import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig
from transformers.utils import is_tracing

from .caches import cached_lengths
from .input_checks import check_length, check_positions


class TokenLayout(NamedTuple):
    """What token mixing needs to know about a batch. "All tokens" are those in the cache, then the new ones.

    Attributes:
        query_length: Number of new tokens.
        key_length: Number of all tokens.
        new_tokens: The new tokens among all: a slice, or indices with a static cache in use.
        padding_mask: Boolean, true for real tokens, shape `(batch, key_length)`; `None` without padding.
        positions: Positions of all tokens, shape `(batch or 1, key_length)`; `None` for 0, 1, 2, ...
        shifted: Whether positions in a row (or in each of its documents) are 0, 1, 2, ... after left padding. The
            distance between two tokens is then the difference of their indices.
        is_causal: Whether tokens see only themselves and earlier tokens.
        seq_idx: Number of each token's document, shape `(batch, key_length)`: tokens see their own document only.
            `None` if a row is one document.
        attention_mask: For attention: the mask of the attention implementation, which then holds all of this.
    """

    query_length: int
    key_length: int
    new_tokens: slice | torch.Tensor = slice(None)
    padding_mask: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    shifted: bool = False
    is_causal: bool = False
    seq_idx: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None


def token_layout(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache: Cache | None = None,
    seq_idx: torch.Tensor | None = None,
) -> TokenLayout:
    """Make the `TokenLayout` of a forward pass, without its `attention_mask`.

    The first real token of a row has position 0, so that padding on either side does not change the result.

    Args:
        config: Configuration of the encoder or decoder.
        inputs_embeds: New tokens, shape `(batch, length, hidden_size)`.
        attention_mask: Non-zero for real tokens, shape `(batch, all tokens)`; `None` without padding. Ignored if
            `config.mask_padding` is false.
        position_ids: Positions of the new tokens, shape `(batch or 1, length)`; counted if `None`.
        cache: The self-attention cache.
        seq_idx: Number of each token's document, shape `(batch, length)`; `None` if a row is one document. Without a
            mask and tokens in a cache, decoders take it from `position_ids`, as Transformers' decoders do.

    Raises:
        ValueError: If the sequence is too long, a shape is wrong, or `position_ids` contradict the cache.
    """
    batch, length, _ = inputs_embeds.shape
    new_tokens, key_length = _new_tokens(config, inputs_embeds, cache)
    if position_ids is not None:
        check_positions(position_ids, (batch, length), longest_sequence(config))
        if config.is_decoder and seq_idx is None and attention_mask is None and key_length == length:
            seq_idx = _documents(position_ids, batch)
    padding_mask = None
    if attention_mask is not None and getattr(config, "mask_padding", True):
        padding_mask = _padding_mask(attention_mask, inputs_embeds, key_length, cache)
    positions, shifted = position_ids, False
    if seq_idx is not None:
        _check_seq_idx(seq_idx, inputs_embeds, cache)
        if position_ids is None:
            positions, shifted = positions_in_documents(seq_idx), True
    elif position_ids is None or key_length > length:
        if padding_mask is not None and _may_be_left_padded(config, padding_mask):
            index = torch.arange(key_length, device=padding_mask.device)
            positions, shifted = (index - first_token_index(padding_mask)[:, None]).clamp(min=0), True
        else:
            positions = None
        if position_ids is not None:
            positions, shifted = _after_cache(config, position_ids, positions, new_tokens, padding_mask, key_length)
    return TokenLayout(length, key_length, new_tokens, padding_mask, positions, shifted, config.is_decoder, seq_idx)


def first_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Index of each row's first real token, shape `(batch,)`: the number of tokens of left padding."""
    return (attention_mask != 0).long().argmax(dim=-1)


def positions_in_documents(seq_idx: torch.Tensor) -> torch.Tensor:
    """Positions that count from 0 in every document; `seq_idx` and result have the shape `(batch, length)`."""
    index = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def _documents(position_ids: torch.Tensor, batch: int) -> torch.Tensor | None:
    """`seq_idx` of rows whose positions start again in every document; `None` if no row has several."""
    begins = F.pad(position_ids.diff(dim=-1) <= 0, (1, 0)).expand(batch, -1)
    return begins.cumsum(-1) if is_tracing(begins) or bool(begins.any()) else None


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Most tokens of a sequence; `None` if the model has no limit."""
    # The former of Synthesizers, where it may be `None`; models of others may have neither.
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
    if max_length is not None and room > max_length:  # otherwise there is no need to wait for the device
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
        mask = F.pad(mask, (0, key_length - mask.shape[1]))  # of a static cache: hides its unused room, or cuts it off
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


def _may_be_left_padded(config: PreTrainedConfig, padding_mask: torch.Tensor) -> bool:
    if config.image_size is not None:
        return False  # a patch keeps its position whatever is masked
    # A shift does not change Toeplitz weights, so it costs less than waiting for the mask on the device.
    toeplitz = getattr(config, "spatial_weight_type", None) == "toeplitz"
    return toeplitz or is_tracing(padding_mask) or padding_mask.is_meta or not bool(padding_mask[:, 0].all())


def _after_cache(
    config: PreTrainedConfig,
    position_ids: torch.Tensor,
    counted: torch.Tensor | None,
    new_tokens: slice | torch.Tensor,
    padding_mask: torch.Tensor | None,
    key_length: int,
) -> tuple[torch.Tensor | None, bool]:
    """Positions of all tokens when those of the new ones are given, and whether they are shifted."""
    index = torch.arange(key_length, device=position_ids.device)
    known = index[None] if counted is None else counted
    if not hasattr(config, "spatial_weight_type"):
        known = known.expand(max(len(known), len(position_ids)), -1)
        return known.index_copy(1, index[new_tokens], position_ids.expand(len(known), -1).to(known)), False
    expected = known[:, new_tokens]
    same = position_ids == expected
    if padding_mask is not None:
        same = same | ~padding_mask[:, new_tokens]
    if is_tracing(position_ids) or not bool(same.all()):
        raise ValueError(
            "The cache does not hold the positions of its tokens, so `position_ids` must be those that follow from "
            f"`attention_mask`, {expected.tolist()}; got {position_ids.tolist()}. Leave them out."
        )
    return counted, counted is not None
