"""Softmax attention written out, and where it stands in for PyTorch's kernel."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .linear import is_in_graph, is_measured_here


#: Weights of a call, over batch, heads, queries and keys, from which on it is faster to write attention out. With
#: gradients it always is written out: only a few thousand weights are slower then.
FEWEST_WEIGHTS = 32768
#: The same for single queries, as in decoding, for which the kernel takes longer per weight.
FEWEST_WEIGHTS_OF_ONE_QUERY = 1024
#: Weights up to which they are stored: 32 MiB in bfloat16; in training for every layer, three times with dropout.
MOST_WEIGHTS = 2**24
#: Weights, of whole samples, that are computed at once where nothing keeps them: memory of this size is used again,
#: where larger blocks may be asked of the system anew, which takes longer than the kernel.
WEIGHTS_AT_ONCE = 2**22

_Part = TypeVar("_Part", torch.Tensor, torch.Tensor | None)


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


def fastest(attend: Callable) -> Callable:
    """What is faster than Transformers' function for `attn_implementation="sdpa"`; other functions as they are."""
    return sdpa_or_written_out if attend is sdpa_attention_forward else attend


def sdpa_or_written_out(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float = 1.0,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' function for `attn_implementation="sdpa"`, or attention written out where that is faster.

    On the AMD processor that this was measured with, two cores of an EPYC, PyTorch's kernel is slower in bfloat16 than
    the products that it consists of, most of all backwards. As with `"eager"`, logits are rounded to bfloat16 then.
    Arguments as in `eager_attention_forward`; `is_causal`, by default that of the module, says whether tokens see only
    those before where there is no mask.
    """
    length = query.shape[2]
    hides_later = attention_mask is None and length > 1 and (module.is_causal if is_causal is None else is_causal)
    has_additive_mask = attention_mask is not None and attention_mask.dtype != torch.bool
    if (
        has_additive_mask
        or kwargs.get("cache") is not None
        or kwargs.get("output_attentions")
        or not is_faster_written_out(query, length if hides_later else key.shape[2], dropout)
    ):
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            position_bias=position_bias,
            is_causal=is_causal,
            **kwargs,
        )
    if hides_later:
        # Keys beyond are empty places of a static cache.
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
        attention_mask = query.new_ones(1, 1, length, length, dtype=torch.bool).tril()
    samples = _samples_at_once(query, key.shape[2], dropout)
    if samples == query.shape[0]:
        output, _ = eager_attention_forward(module, query, key, value, attention_mask, dropout, scaling, position_bias)
    else:
        pieces = [slice(start, start + samples) for start in range(0, query.shape[0], samples)]
        output = torch.cat(
            [
                eager_attention_forward(
                    module,
                    _rows(query, piece),
                    _rows(key, piece),
                    _rows(value, piece),
                    _rows(attention_mask, piece),
                    dropout,
                    scaling,
                    _rows(position_bias, piece),
                )[0]
                for piece in pieces
            ]
        )
    if attention_mask is not None and not hides_later and position_bias is None:
        # The kernel's zeros for queries that see nothing; with a bias, Transformers gives them the mean as well.
        output = output * attention_mask.any(dim=-1, keepdim=True).transpose(1, 2)
    return output, None


def is_faster_written_out(query: torch.Tensor, keys: int, dropout: float = 0.0) -> bool:
    """Whether attention in products and passes over all weights is faster than PyTorch's kernel, which stores none.

    In graphs of unknown lengths it is not known to be. With dropout the answer is that with gradients: a checkpointed
    layer runs without and with them, and has to draw the same random numbers.
    """
    if query.dtype != torch.bfloat16 or not is_measured_here(query) or not _is_kernel_allowed():
        return False
    stored_weights = _samples_at_once(query, keys, dropout) * math.prod(query.shape[1:3]) * keys
    if not statically_known_true(stored_weights <= MOST_WEIGHTS):
        return False
    fewest = FEWEST_WEIGHTS_OF_ONE_QUERY if statically_known_true(query.shape[2] == 1) else FEWEST_WEIGHTS
    num_weights = math.prod(query.shape[:3]) * keys
    return torch.is_grad_enabled() or dropout > 0 or statically_known_true(num_weights >= fewest)


def _samples_at_once(query: torch.Tensor, keys: int, dropout: float) -> int:
    """How many samples to attend for at a time: all where their weights are kept for a backward pass, in graphs, and
    with dropout, as in `is_faster_written_out`.
    """
    batch, *of_a_sample = query.shape[:3]
    if torch.is_grad_enabled() or is_in_graph(query) or dropout > 0:
        return batch
    return min(batch, max(1, WEIGHTS_AT_ONCE // max(1, math.prod(of_a_sample) * keys)))


def _rows(part: _Part, piece: slice) -> _Part:
    return part if part is None or part.shape[0] == 1 else part[piece]


@torch.compiler.assume_constant_result
def _is_kernel_allowed() -> bool:
    """Whether PyTorch would take its kernel for CPUs, unless `torch.nn.attention.sdpa_kernel` says otherwise."""
    return bool(torch.backends.cuda.flash_sdp_enabled() and torch.backends.mkldnn.enabled)
