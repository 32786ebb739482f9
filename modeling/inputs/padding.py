"""What padding and positions mean to models whose token mixing is a learned matrix."""

import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig
from transformers.utils import is_tracing

from ..layers.spatial_gating_unit import TokenPositions
from .caches import cached_lengths


def check_length(length: int, max_length: int, weights: str = "spatial weights") -> None:
    """Refuse a sequence for which there are no spatial weights (or other `weights`, in words).

    Raises:
        ValueError: If `length` exceeds `max_length`.
    """
    if length > max_length:
        raise ValueError(
            f"The sequence has {length} tokens, but the model's {weights} cover "
            f"`max_position_embeddings={max_length}`. Truncate the input (tokenizer arguments `truncation=True, "
            f"max_length={max_length}`), split it, generate fewer tokens (`max_new_tokens`), or give the model room "
            "with `model.resize_position_embeddings(length)`."
        )


def first_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Index of each row's first real token, shape `(batch,)`: the number of tokens of left padding."""
    return (attention_mask != 0).long().argmax(dim=-1)


def positions_in_documents(seq_idx: torch.Tensor) -> torch.Tensor:
    """Positions that count from 0 in every document of a packed row.

    Args:
        seq_idx: Number of each token's document, shape `(batch, length)`; tokens of a document stand together.

    Returns:
        Shape `(batch, length)`.
    """
    index = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def check_seq_idx(seq_idx: torch.Tensor, hidden_states: torch.Tensor, past_key_values: Cache | None) -> None:
    """Refuse document numbers that do not fit.

    Raises:
        ValueError: If the shape is wrong, or there is a cache.
    """
    if seq_idx.shape != hidden_states.shape[:2]:
        raise ValueError(
            f"`seq_idx` has shape {tuple(seq_idx.shape)}, expected {tuple(hidden_states.shape[:2])}: the number of "
            "each token's document."
        )
    if past_key_values is not None and past_key_values.get_seq_length():
        raise ValueError("`seq_idx` is for whole rows: it cannot be given with tokens in a cache.")


def padding_and_positions(
    config: PreTrainedConfig,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.LongTensor | None = None,
    past_key_values: Cache | None = None,
    seq_idx: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, TokenPositions | None]:
    """Turn a model's inputs into what its spatial weights need.

    The first real token of a row takes position 0, so that a row gives the same result with padding on either side,
    at any padded length.

    Args:
        config: Configuration with `mask_padding`, `max_position_embeddings` and `spatial_weight_type`.
        hidden_states: Shape `(batch, length, channels)`.
        attention_mask: Shape `(batch, length)`, tokens in a cache included, non-zero for real tokens; `None` if there
            is no padding.
        position_ids: Shape `(batch or 1, length)`; taken from the mask when `None`. With tokens in a cache they have
            to be those that the mask gives.
        past_key_values: The cache.
        seq_idx: Number of each token's document, shape `(batch, length)`; `None` if a row is one document.

    Returns:
        The mask in the dtype of `hidden_states`, shape `(batch, length, 1)`, and the positions, those of the tokens in
        the cache first. `None` stands for "no padding" and for "positions 0, 1, 2, ...".

    Raises:
        ValueError: If the sequence is too long, the shapes do not match, or `position_ids` contradict the cache.
    """
    batch, length, _ = hidden_states.shape
    outputs, key_length = _outputs(config, hidden_states, past_key_values)
    if position_ids is not None and position_ids.shape not in ((batch, length), (1, length)):
        raise ValueError(f"`position_ids` has shape {tuple(position_ids.shape)}, expected {(batch, length)}.")
    mask = attention_mask if config.mask_padding else None
    if mask is not None and past_key_values is not None and past_key_values.is_compileable:
        mask = F.pad(mask, (0, key_length - mask.shape[1]))  # cuts, if the cache has more room than is in use
    if mask is not None and mask.shape != (batch, key_length):
        raise ValueError(
            f"`attention_mask` has shape {tuple(mask.shape)}, expected {(batch, key_length)}: one number per token, "
            f"{'those in the cache included, ' if key_length > length else ''}1 for real tokens and 0 for padding."
        )
    padding_mask = None if mask is None else mask[:, outputs, None].to(hidden_states.dtype)
    if seq_idx is not None:
        check_seq_idx(seq_idx, hidden_states, past_key_values)
        if position_ids is None:
            return padding_mask, TokenPositions(positions_in_documents(seq_idx), True, outputs, seq_idx)
        return padding_mask, TokenPositions(position_ids.expand(batch, length), False, outputs, seq_idx)
    if position_ids is not None and key_length == length:
        return padding_mask, TokenPositions(position_ids.expand(batch, length), False, outputs)
    ids = None
    reads_text = getattr(config, "image_size", None) is None  # a patch keeps its place whatever is masked
    if mask is not None and reads_text and _may_be_left_padded(config, mask):
        ids = torch.arange(key_length, device=mask.device) - first_token_index(mask)[:, None]
        ids = ids.clamp(min=0)
    if position_ids is not None:
        counted = torch.arange(key_length, device=position_ids.device)[None] if ids is None else ids
        _check_positions(position_ids, counted[:, outputs], padding_mask)
    if ids is None and past_key_values is None:
        return padding_mask, None
    return padding_mask, TokenPositions(ids, ids is not None, outputs)


def _outputs(
    config: PreTrainedConfig, hidden_states: torch.Tensor, past_key_values: Cache | None
) -> tuple[slice | torch.Tensor, int]:
    """Which tokens are new, and up to how many there may be with those in the cache."""
    length, max_length = hidden_states.shape[1], config.max_position_embeddings
    past_length, room = cached_lengths(past_key_values, length, hidden_states.device)
    if isinstance(past_length, int):
        check_length(past_length + length, max_length)
        outputs = slice(None) if past_key_values is None else slice(past_length, past_length + length)
        return outputs, past_length + length
    if room > max_length:  # else there is no need to wait for the device
        check_length(room if is_tracing(hidden_states) else int(past_length) + length, max_length)
    return past_length + torch.arange(length, device=hidden_states.device), min(room, max_length)


def _check_positions(given: torch.Tensor, counted: torch.Tensor, padding_mask: torch.Tensor | None) -> None:
    same = given == counted
    if padding_mask is not None:
        same = same | (padding_mask[:, :, 0] == 0)
    if is_tracing(given) or not bool(same.all()):
        raise ValueError(
            "With tokens in a cache, whose positions they do not tell, `position_ids` can only be those that "
            f"`attention_mask` gives, {counted.tolist()}; got {given.tolist()}. Leave them out."
        )


def _may_be_left_padded(config: PreTrainedConfig, attention_mask: torch.Tensor) -> bool:
    # With Toeplitz weights a shift costs next to nothing (it only selects biases), so there the values on the device
    # need not be awaited; a full matrix must be gathered per row, which is worth finding out about.
    if config.spatial_weight_type == "toeplitz" or is_tracing(attention_mask) or attention_mask.is_meta:
        return True
    return not bool((attention_mask[:, 0] != 0).all())
