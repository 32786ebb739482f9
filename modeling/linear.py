"""Linear layers on AMD processors.

PyTorch leaves float32 products on x86 to MKL, which is half as fast there as oneDNN, its library for convolutions; in
bfloat16 it spends a pass over the outputs on the bias. A linear layer is a convolution with kernels of one point, so
both can be had without leaving PyTorch's own operators. Everything else is left to the layers themselves: other
processors and devices, other types, graphs, few rows, layers that were replaced or have hooks.
"""

import platform
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import GELUActivation
from transformers.utils import is_tracing


#: Rows of a product, or tokens that a spatial product mixes, from which on the convolution was the faster one.
CONVOLUTION_ROWS = {torch.float32: 256, torch.bfloat16: 1024}
#: Bytes of the largest matrix for it: oneDNN copies it, and larger blocks are fetched from the system anew each time.
CONVOLUTION_BYTES = 32 * 2**20


@cache
def types_for_convolution() -> frozenset[torch.dtype]:
    """The types whose products convolutions can speed up on this processor, if any."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return frozenset()
    cpuinfo = Path("/proc/cpuinfo")
    maker = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else platform.processor()
    if "AuthenticAMD" not in maker:
        return frozenset()
    has_bfloat16 = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return frozenset([torch.float32, torch.bfloat16] if has_bfloat16 else [torch.float32])


@torch.compiler.assume_constant_result
def convolutions_are_faster(dtype: torch.dtype) -> bool:
    """Whether large enough products of this type are."""
    return dtype in types_for_convolution()


def prefers_convolution(inputs: torch.Tensor, weight: torch.Tensor, rows: int) -> bool:
    """Whether a product is faster as a convolution, which is the same up to rounding, gradients included.

    Args:
        inputs: What is multiplied.
        weight: With what, a matrix.
        rows: How many rows `inputs` has, or tokens.
    """
    dtype = inputs.dtype
    return (
        not is_tracing(inputs)  # first, as the rows may be unknown
        and rows >= CONVOLUTION_ROWS.get(dtype, float("inf"))
        and weight.dtype == dtype
        and weight.nbytes <= CONVOLUTION_BYTES
        and inputs.device.type == weight.device.type == "cpu"
        and type(weight) in (torch.Tensor, nn.Parameter)  # not quantised, not distributed
        and convolutions_are_faster(dtype)
        and torch.backends.mkldnn.enabled
        and torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")  # else less precise ones were asked for
        and not torch.is_autocast_enabled("cpu")
    )


def pointwise_convolution(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `torch.nn.functional.linear` computes, as a convolution over one row of pixels whose channels come last."""
    pixels = inputs.reshape(1, 1, -1, weight.shape[1]).permute(0, 3, 1, 2)
    outputs = F.conv2d(pixels, weight[:, :, None, None], bias)
    return outputs.permute(0, 2, 3, 1).reshape(*inputs.shape[:-1], len(weight))


@torch.library.custom_op("tokenmixers::linear", mutates_args=())
def linear_in_graph(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`pointwise_convolution` where it is worth it, for `torch.compile`, which would bring a convolution's channels to
    the front and back again. Without gradients.
    """
    if prefers_convolution(inputs, weight, inputs.numel() // weight.shape[1]):
        return pointwise_convolution(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


@linear_in_graph.register_fake
def _(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return inputs.new_empty((*inputs.shape[:-1], weight.shape[0]))


def linear(layer: nn.Module, inputs: torch.Tensor, activation: nn.Module | None = None) -> torch.Tensor:
    """`activation(layer(inputs))` by the fastest way that gives the same.

    Args:
        layer: A `torch.nn.Linear`, or what PEFT, quantisation or a user put in its place.
        inputs: Shape `(..., layer.in_features)`.
        activation: From Transformers' `ACT2FN`; none if `None`.

    Returns:
        Shape `(..., layer.out_features)`.
    """
    if is_tracing(inputs):
        outputs = _traced(layer, inputs)
        return outputs if activation is None else activation(outputs)
    if is_plain(layer, nn.Linear) and prefers_convolution(inputs, layer.weight, inputs.numel() // layer.in_features):
        outputs = pointwise_convolution(inputs, layer.weight, layer.bias)
    else:
        outputs = layer(inputs)
    if activation is None:
        return outputs
    if is_plain(activation, GELUActivation) and activation.act is F.gelu and may_overwrite(outputs, layer, nn.Linear):
        return torch.ops.aten.gelu_(outputs)
    return activation(outputs)


def _traced(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """In bfloat16 and for gradients the compiler's own products do; exported graphs are for any processor."""
    if (
        torch.compiler.is_dynamo_compiling()
        and not torch.compiler.is_exporting()
        and not torch.is_grad_enabled()
        and type(layer) is nn.Linear
        and inputs.device.type == "cpu"
        and inputs.dtype == layer.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and convolutions_are_faster(torch.float32)
    ):
        return linear_in_graph(inputs.contiguous(), layer.weight, layer.bias)
    return layer(inputs)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module runs `kind.forward` and nothing besides."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks and "forward" not in vars(module) and not _has_any_global_hook()


def may_overwrite(outputs: torch.Tensor, module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether nobody else reads what a call of the module returned: no gradients, no hooks, no graph.

    A second tensor of the model's widest shape can take longer to get from the system than to fill.
    """
    return not torch.is_grad_enabled() and not is_tracing(outputs) and is_plain(module, kind)
