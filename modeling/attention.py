"""Softmax attention: written out, and as Transformers' attention interface with a faster way on some processors."""

import math
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from .linear import is_measured_here


#: Heads times keys up to which weights are stored: for each token, 16 kB in bfloat16, and in training for every layer.
STORED_WEIGHTS = 8192
#: Weights from which on that is faster without gradients. With gradients it always is.
FEWEST_WEIGHTS = 32768


def softmax(logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Softmax over the last dimension, in `dtype`. What it reads or writes in half types, it computes in float32."""
    return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, dtype)).to(dtype)


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
        logits = logits.masked_fill(~mask, hidden) if mask.dtype == torch.bool else logits + mask
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
        attention_mask: As in `attention_from_logits`.
        dropout: Rate of dropout on the weights.
        scaling: Factor on the logits.
        position_bias: Added to the logits, broadcastable to them.
        **kwargs: Unused.

    Returns:
        Shape `(batch, queries, heads, head_dim)`, and the weights, `(batch, heads, queries, keys)`.
    """
    logits = (query if scaling == 1 else query * scaling) @ key.transpose(2, 3)
    if position_bias is not None:
        logits = logits + position_bias
    return attention_from_logits(logits, value, attention_mask, dropout)


def sdpa_or_written_out(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float = 1.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' function for `attn_implementation="sdpa"`, or the same written out.

    On AMD processors, PyTorch's kernel multiplies in bfloat16 at half the speed of its matrix products, and at a
    quarter in training. Arguments as in `eager_attention_forward`; no weights are returned.
    """
    if not is_faster_written_out(query, key) or kwargs.get("cache") is not None or "is_causal" in kwargs:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            position_bias=position_bias,
            **kwargs,
        )
    if attention_mask is None and module.is_causal and query.shape[2] > 1:
        attention_mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    output, _ = eager_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, position_bias=position_bias
    )
    return output, None


def is_faster_written_out(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether attention in products and passes over all weights is faster than PyTorch's kernel, which stores none."""
    heads, keys = query.shape[1], key.shape[2]
    return (
        query.dtype == torch.bfloat16
        and is_measured_here(query)
        and statically_known_true(heads * keys <= STORED_WEIGHTS)
        and (torch.is_grad_enabled() or statically_known_true(math.prod(query.shape[:3]) * keys >= FEWEST_WEIGHTS))
    )


#: Transformers' attention functions, with another one for `"sdpa"`.
ALL_ATTENTION_FUNCTIONS = AttentionInterface()
ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_or_written_out
