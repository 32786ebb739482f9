"""Softmax attention, from logits or from queries and keys."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..inputs.attention_maps import move_padding_right, take_tokens, visible_keys
from ..inputs.token_layout import TokenLayout
from .precision import no_autocast


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
    """Softmax over keys, times values, with an attention map per sample.

    Args:
        logits: Shape `(batch or 1, heads, queries, keys)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        mask: Broadcastable to the logits, boolean (true is visible) or additive; `None` if all keys are visible.
        dropout: Rate of dropout on the weights.

    Returns:
        Shape `(batch, queries, heads, head_dim)`, and the weights.
    """
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

    Args:
        logits: Shape `(1, heads, queries, keys)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        padding_mask: Boolean, true for real keys, shape `(batch, keys)`; `None` without padding.
        causal_order: Boolean, true for visible keys, shape `(queries, keys)`; `None` if all are visible.
        dropout: Dropout rate for keys.

    Returns:
        Shape `(batch, queries, heads, head_dim)`; zeros for queries that see nothing.
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
    """`shared_attention` after left padding is moved to the right.

    Args:
        logits: Returns the logits of a layout, shape `(batch or 1, heads, queries, keys)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        layout: Positions and visibility of the tokens, which rows share except for padding and given positions.
        dropout: Dropout rate for keys.

    Returns:
        Shape `(batch, queries, heads, head_dim)`.
    """
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
    """Attention in plain PyTorch, for `attn_implementation="eager"`, which returns weights.

    Args:
        module: Unused.
        query: Shape `(batch, heads, queries, head_dim)`.
        key: Shape `(batch, heads, keys, head_dim)`.
        value: Shape of `key`.
        attention_mask: Boolean (true is visible) or additive, shape `(batch or 1, heads or 1, queries or 1, keys)`;
            `None` if all keys are visible.
        dropout: Rate of dropout on the weights.
        scaling: Factor for the logits.
        position_bias: Added to the logits, shape `(batch or 1, heads or 1, queries or 1, keys)`.
        **kwargs: Unused.

    Returns:
        Shape `(batch, queries, heads, head_dim)`, and the weights, `(batch, heads, queries, keys)`.
    """
    logits = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    if position_bias is not None:
        logits = logits + position_bias
    return attention_from_logits(logits, value, attention_mask, dropout)
