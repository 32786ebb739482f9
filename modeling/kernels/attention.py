"""Softmax attention in bfloat16 as matrix products, where these are faster than PyTorch's CPU kernel.

Reference: Transformers' function for `attn_implementation="sdpa"`; the products are those of
`layers/attention.py`. Logits are rounded to bfloat16, as with `"eager"`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..layers.attention import eager_attention_forward
from ..mixins.attention_interface import UsesAttentionInterface
from .conditions import is_compiled_for_cpu, is_in_graph
from .measurement import REFERENCE, choice, measure


#: Minimum number of attention weights (batch x heads x queries x keys) to compute them by products.
FEWEST_WEIGHTS = 2**15
#: Maximum number of attention weights that a layer stores for the backward pass: 32 MiB.
MOST_WEIGHTS = 2**24
#: Maximum number computed at once without gradients, because larger memory blocks are not reused.
WEIGHTS_AT_ONCE = 2**22
_Tensor = TypeVar("_Tensor", torch.Tensor, torch.Tensor | None)
COMPARISON = "attention in bfloat16, not causal, 12 heads, 256 tokens"
#: The backward pass of PyTorch's kernel can be slow where its forward pass is fast.
COMPARISON_WITH_GRADIENTS = "attention in bfloat16 with gradients, not causal, 12 heads, 4 x 64 tokens"


def applies(module: nn.Module) -> bool:
    """Whether products are faster on this processor, with or without gradients. The first call measures."""
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    forward = measure(COMPARISON, lambda: _alternatives(1, 12, 256, 64))
    return measure(COMPARISON_WITH_GRADIENTS, lambda: _alternatives(4, 12, 64, 32, with_gradients=True)) or forward


def attention_function(self: UsesAttentionInterface) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    """The module's method of this name, with `products_or_sdpa` in place of Transformers' `"sdpa"`."""
    function = type(self).attention_function(self)
    return products_or_sdpa if function is sdpa_attention_forward else function


def products_or_sdpa(
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
    """Attention by matrix products or by PyTorch's kernel; arguments of `sdpa_attention_forward`."""
    length = query.shape[2]
    is_causal = bool(module.is_causal) if is_causal is None else is_causal
    hides_later_tokens = attention_mask is None and length > 1 and is_causal
    has_additive_mask = attention_mask is not None and attention_mask.dtype != torch.bool
    samples = _samples_at_once(query, key.shape[2], dropout)
    is_special = has_additive_mask or kwargs.get("output_attentions") or kwargs.get("cache") is not None
    # A checkpointed layer with dropout, which computes without gradients first, draws the same numbers both times.
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    has_gradients = dropout > 0 or trains
    compared = COMPARISON_WITH_GRADIENTS if has_gradients else COMPARISON
    if is_special or choice(compared) == REFERENCE or not _takes_products(query, key.shape[2], samples):
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
    if hides_later_tokens:
        # Further keys are unused slots of a static cache.
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
        attention_mask = query.new_ones(1, 1, length, length, dtype=torch.bool).tril()
    parts = [slice(None)]
    if samples < query.shape[0]:
        parts = [slice(start, start + samples) for start in range(0, query.shape[0], samples)]
    outputs = []
    for part in parts:
        output, _ = eager_attention_forward(
            module,
            _rows(query, part),
            _rows(key, part),
            _rows(value, part),
            _rows(attention_mask, part),
            dropout,
            scaling,
            _rows(position_bias, part),
        )
        outputs.append(output)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if attention_mask is not None and not hides_later_tokens and position_bias is None:
        # Queries that see nothing get zeros, like in PyTorch's kernel; with a bias they get the mean.
        output = output * attention_mask.any(dim=-1, keepdim=True).transpose(1, 2)
    return output, None


def _rows(tensor: _Tensor, part: slice) -> _Tensor:
    return tensor if tensor is None or tensor.shape[0] == 1 else tensor[part]


def _takes_products(query: torch.Tensor, keys: int, samples: int) -> bool:
    if query.dtype != torch.bfloat16 or query.device.type != "cpu":
        return False
    if is_in_graph(query) and not is_compiled_for_cpu(query):
        return False
    if not _is_sdpa_unrestricted():
        return False
    of_a_sample = math.prod(query.shape[1:3]) * keys
    return statically_known_true(query.shape[0] * of_a_sample >= FEWEST_WEIGHTS) and statically_known_true(
        samples * of_a_sample <= MOST_WEIGHTS
    )


@torch.compiler.assume_constant_result
def _is_sdpa_unrestricted() -> bool:
    """Whether PyTorch would use the kernel that products were compared with; `sdpa_kernel` can forbid it."""
    return bool(torch.backends.cuda.flash_sdp_enabled() and torch.backends.mkldnn.enabled)


def _samples_at_once(query: torch.Tensor, keys: int, dropout: float) -> int:
    """Number of samples to compute at once: all if weights are stored for the backward pass, or with dropout.

    A checkpointed layer runs with and without gradients and must draw the same random numbers both times.
    """
    batch, *of_a_sample = query.shape[:3]
    if torch.is_grad_enabled() or is_in_graph(query) or dropout > 0:
        return batch
    return min(batch, max(1, WEIGHTS_AT_ONCE // max(1, math.prod(of_a_sample) * keys)))


def _alternatives(*shape: int, with_gradients: bool = False) -> Mapping[str, Callable[[], object]]:
    tensors = torch.ones(3, *shape, dtype=torch.bfloat16, requires_grad=with_gradients)

    def run(attend: Callable[..., tuple[torch.Tensor, Any]]) -> None:
        output, _ = attend(nn.Identity(), *tensors, None, scaling=1.0, is_causal=False)
        if with_gradients:
            output.sum().backward()

    return {REFERENCE: lambda: run(sdpa_attention_forward), "products": lambda: run(eager_attention_forward)}
