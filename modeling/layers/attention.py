"""Softmax attention, from logits and from queries and keys."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def softmax(logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Softmax over the last dimension, computed in float32 (or float64) and returned in `dtype`."""
    # In bfloat16 the operator itself does that, and what it stores for the backward pass has float32's range.
    is_bfloat16 = logits.dtype == dtype == torch.bfloat16
    exact_dtype = dtype if is_bfloat16 else torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=exact_dtype).to(dtype)


def attention_from_logits(
    logits: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, dropout: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over keys, times values, with a map of weights per sample.

    Args:
        logits: Shape `(batch or 1, heads, queries, keys)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        mask: Broadcastable to the logits, boolean (true is visible) or additive; `None` if all is visible.
        dropout: Rate of dropout on the weights.

    Returns:
        Shape `(batch, queries, heads, head_dim)`, and the weights.
    """
    if mask is not None:
        hidden = torch.finfo(logits.dtype).min
        # Of `where`, layers store the mask that they share; `masked_fill` would store its inverse in each of them.
        logits = torch.where(mask, logits, hidden) if mask.dtype == torch.bool else logits + mask
    weights = softmax(logits, values.dtype).expand(values.shape[0], -1, -1, -1)
    return (F.dropout(weights, dropout) @ values).transpose(1, 2), weights


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
    """Attention written out, for `attn_implementation="eager"`: the one that returns weights.

    Args:
        module: Unused.
        query: Shape `(batch, heads, queries, head_dim)`.
        key: Shape `(batch, heads, keys, head_dim)`.
        value: In the shape of `key`.
        attention_mask: Boolean (true is visible) or additive, shape `(batch or 1, heads or 1, queries or 1, keys)`;
            `None` if all is visible.
        dropout: Rate of dropout on the weights.
        scaling: Factor on the logits.
        position_bias: Added to the logits, shape `(batch or 1, heads or 1, queries or 1, keys)`.
        **kwargs: Unused.

    Returns:
        Shape `(batch, queries, heads, head_dim)`, and the weights, `(batch, heads, queries, keys)`.
    """
    logits = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    if position_bias is not None:
        logits = logits + position_bias
    return attention_from_logits(logits, value, attention_mask, dropout)
