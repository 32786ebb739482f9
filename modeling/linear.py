"""The products of linear layers without waste, with the same results up to rounding.

PyTorch leaves float32 products on x86 to MKL, which is half as fast on AMD processors as oneDNN, PyTorch's library for
convolutions; in bfloat16 it spends a pass over the outputs on the bias. A linear layer is a convolution with kernels
of one point, so both can be had without leaving PyTorch's own operators. On every device, activations without
gradients can write over what they read: memory for a model's widest tensor can take longer to get than to fill.

Layers that were replaced, quantised, distributed, offloaded or given hooks are called as they are.
"""

import platform
import re
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from transformers.activations import GELUActivation
from transformers.utils import is_tracing


#: Rows of a product, or of a matrix that mixes tokens, from which on the convolution was the faster one.
CONVOLUTION_ROWS = {torch.float32: 256, torch.bfloat16: 1024}
#: Bytes of the largest matrix for it: oneDNN copies it, and glibc asks the system anew for every larger block.
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
def _is_type_for_convolution(dtype: torch.dtype) -> bool:
    return dtype in types_for_convolution()


def prefers_convolution(inputs: torch.Tensor, weight: torch.Tensor, rows: int, images: int) -> bool:
    """Whether a product is faster as a convolution. Not to be asked in graphs, whose rows may be unknown.

    Args:
        inputs: What is multiplied.
        weight: With what, a matrix.
        rows: How many rows `inputs` has, or `weight` where that mixes tokens.
        images: The convolution's batch.
    """
    dtype, backends = inputs.dtype, torch.backends
    return (
        rows >= CONVOLUTION_ROWS.get(dtype, float("inf"))
        and inputs.device.type == "cpu"
        and is_dense(weight, dtype)
        and weight.nbytes <= CONVOLUTION_BYTES
        and _is_type_for_convolution(dtype)
        and backends.mkldnn.enabled
        and reaches_onednn(inputs, images)
        # Less precise products, where somebody asked for them, are faster.
        and {backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision} <= {"none", "ieee"}
        and not torch.is_autocast_enabled("cpu")
    )


def reaches_onednn(inputs: torch.Tensor, images: int) -> bool:
    """Whether PyTorch leaves a convolution of one point to oneDNN. In float32 it keeps some of them, by its own rules
    for single threads and single images.
    """
    several_threads, several_images = torch.get_num_threads() > 1, images > 1
    is_large = (images >= 16 or several_threads) and (several_images or inputs.numel() > 20480)
    return is_large or inputs.dtype != torch.float32


def is_dense(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether this is a matrix in the memory of the processor, not quantised, distributed or sparse."""
    is_ordinary = type(weight) in (torch.Tensor, nn.Parameter) and weight.layout == torch.strided
    return is_ordinary and weight.dtype == dtype and weight.device.type == "cpu"


def images_for(rows: int) -> int:
    """Into how many images to divide rows. One thread gets to oneDNN with 16 alone; for several, one is faster."""
    return 16 if torch.get_num_threads() == 1 and rows % 16 == 0 else 1


def pointwise_convolution(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `torch.nn.functional.linear` computes, as a convolution over lines of pixels whose channels come last."""
    rows = inputs.shape[:-1].numel()
    images = images_for(rows)
    pixels = inputs.reshape(images, 1, rows // images, weight.shape[1]).permute(0, 3, 1, 2)
    outputs = F.conv2d(pixels, weight[:, :, None, None], bias)
    return outputs.permute(0, 2, 3, 1).reshape(*inputs.shape[:-1], len(weight))


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = inputs.shape[:-1].numel()
    # In bfloat16 the bias is all there is to gain, and backward passes lose more.
    has_gain = inputs.dtype == torch.float32 or (bias is not None and not torch.is_grad_enabled())
    if has_gain and prefers_convolution(inputs, weight, rows, images_for(rows)):
        return pointwise_convolution(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


# A checkpoint brings its own copy of this module, which must not replace the operator of another one.
@torch.library.custom_op(f"tokenmixers::linear_{re.sub(r'[^0-9a-zA-Z]', '_', __name__)}", mutates_args=())
def linear_in_graph(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_gelu: bool
) -> torch.Tensor:
    """`torch.nn.functional.linear` and GELU or nothing, without gradients, for graphs: `torch.compile` would bring the
    channels of a convolution to the front and back again, and its GELU is the slower one in bfloat16.
    """
    outputs = _product(inputs, weight, bias)
    return torch.ops.aten.gelu_(outputs) if is_gelu else outputs


@linear_in_graph.register_fake
def _(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_gelu: bool) -> torch.Tensor:
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
    is_gelu = is_plain(activation, GELUActivation) and getattr(activation, "act", None) is F.gelu
    if not is_plain(layer, nn.Linear):
        outputs = layer(inputs)
    elif not is_in_graph(inputs):
        outputs = _product(inputs, layer.weight, layer.bias)
    elif _is_compiled_for_convolution(inputs, layer.bias) and is_dense(layer.weight, inputs.dtype):
        # In float32 it pays more that the compiler's GELU can be a part of what follows.
        is_gelu = is_gelu and inputs.dtype != torch.float32
        outputs = linear_in_graph(inputs.contiguous(), layer.weight, layer.bias, is_gelu)
        return outputs if is_gelu or activation is None else activation(outputs)
    else:
        outputs = layer(inputs)
    if is_gelu and may_overwrite(outputs, layer, nn.Linear):
        return torch.ops.aten.gelu_(outputs)
    return outputs if activation is None else activation(outputs)


def _is_compiled_for_convolution(inputs: torch.Tensor, bias: torch.Tensor | None) -> bool:
    # For gradients the compiler's own products do, as in `_product`; exported graphs are for any processor.
    return (
        inputs.device.type == "cpu"
        and (inputs.dtype == torch.float32 or bias is not None)
        and torch.compiler.is_dynamo_compiling()
        and not torch.compiler.is_exporting()
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _is_type_for_convolution(inputs.dtype)
    )


def is_in_graph(tensor: torch.Tensor) -> bool:
    """What Transformers' `is_tracing` says, stream capture aside, without taking as long as a small product."""
    return type(tensor) is not torch.Tensor or torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_plain(module: nn.Module | None, kind: type[nn.Module]) -> bool:
    """Whether a call of the module runs `kind.forward` and nothing besides."""
    return (
        type(module) is kind
        and "forward" not in module.__dict__
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and not getattr(torch_module, "_has_any_global_hook", _unknown)()
    )


def _unknown() -> bool:
    return True


def may_overwrite(outputs: torch.Tensor, module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether nobody else reads what a call of the module returned: no gradients, no hooks, no graph."""
    return (
        not torch.is_grad_enabled()
        and type(outputs) is torch.Tensor
        and not is_tracing(outputs)
        and is_plain(module, kind)
    )
