"""What padding and positions mean to models whose token mixing is a learned matrix."""

import torch
from transformers import PreTrainedConfig
from transformers.utils import is_tracing

from .spatial_gating_unit import TokenPositions


def check_length(length: int, max_length: int, weights: str = "spatial weights") -> None:
    """Refuse a sequence for which there are no spatial weights (or other `weights`, in words).

    Raises:
        ValueError: If `length` exceeds `max_length`.
    """
    if length > max_length:
        raise ValueError(
            f"The sequence has {length} tokens, but the model's {weights} cover "
            f"`max_position_embeddings={max_length}`. Truncate the input (tokenizer arguments `truncation=True, "
            f"max_length={max_length}`), split it, or use a model with a larger `max_position_embeddings`."
        )


def first_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Index of each row's first real token, shape `(batch,)`: the number of tokens of left padding."""
    return (attention_mask != 0).long().argmax(dim=-1)


def padding_and_positions(
    config: PreTrainedConfig,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.LongTensor | None = None,
    past_length: int = 0,
) -> tuple[torch.Tensor | None, TokenPositions | None]:
    """Turn a model's inputs into what its spatial weights need.

    The first real token of a row takes position 0, so that a row gives the same result with padding on either side,
    at any padded length.

    Args:
        config: Configuration with `mask_padding`, `max_position_embeddings` and `spatial_weight_type`.
        hidden_states: Shape `(batch, length, channels)`.
        attention_mask: Shape `(batch, past_length + length)`, non-zero for real tokens; `None` if there is no padding.
        position_ids: Shape `(batch or 1, length)`; taken from the mask when `None`.
        past_length: Number of tokens in the cache.

    Returns:
        The mask in the dtype of `hidden_states`, shape `(batch, length, 1)`, and the positions, those of the tokens in
        the cache first. `None` stands for "no padding" and for "positions 0, 1, 2, ...".

    Raises:
        ValueError: If the sequence is too long or the shapes do not match.
    """
    batch, length, _ = hidden_states.shape
    key_length = past_length + length
    check_length(key_length, config.max_position_embeddings)
    positions = None
    if position_ids is not None:
        if past_length:
            raise ValueError(
                "`position_ids` cannot be given together with earlier tokens in a cache, whose positions they do not "
                "tell. Leave them out: positions are counted from `attention_mask`."
            )
        if position_ids.shape not in ((batch, length), (1, length)):
            raise ValueError(f"`position_ids` has shape {tuple(position_ids.shape)}, expected {(batch, length)}.")
        positions = TokenPositions(position_ids.expand(batch, length), shifted=False)
    if attention_mask is None or not config.mask_padding:
        return None, positions
    if attention_mask.shape != (batch, key_length):
        raise ValueError(
            f"`attention_mask` has shape {tuple(attention_mask.shape)}, expected {(batch, key_length)}: one number "
            f"per token{', those in the cache included' if past_length else ''}, 1 for real tokens and 0 for padding."
        )
    reads_text = getattr(config, "image_size", None) is None  # a patch keeps its place whatever is masked
    if positions is None and reads_text and _may_be_left_padded(config, attention_mask):
        indices = torch.arange(key_length, device=attention_mask.device) - first_token_index(attention_mask)[:, None]
        positions = TokenPositions(indices.clamp(min=0), shifted=True)
    return attention_mask[:, past_length:, None].to(hidden_states.dtype), positions


def _may_be_left_padded(config: PreTrainedConfig, attention_mask: torch.Tensor) -> bool:
    # With Toeplitz weights a shift costs next to nothing (it only selects biases), so there the values on the device
    # need not be awaited; a full matrix must be gathered per row, which is worth finding out about.
    if config.spatial_weight_type == "toeplitz" or is_tracing(attention_mask) or attention_mask.is_meta:
        return True
    return not bool((attention_mask[:, 0] != 0).all())
