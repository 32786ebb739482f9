"""The products of linear layers and of spatial projections without waste, with the same results up to rounding.

PyTorch leaves float32 products on x86 to MKL, which is half as fast on AMD processors as oneDNN, PyTorch's library for
convolutions; in bfloat16 it spends a pass over the outputs on the bias. A linear layer is a convolution with kernels
of one point, so both can be had without leaving PyTorch's own operators. MKL multiplies two to four float32 rows at
a fraction of the memory's speed there, and faster from the other side. On every device, activations without gradients
can write over what they read: memory for a model's widest tensor can take longer to get than to fill.

Layers that were replaced, quantised, distributed, offloaded or given hooks are called as they are.
"""

import math
import platform
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from transformers.activations import GELUActivation


#: Rows of a product, or of a matrix that mixes tokens, from which on the convolution was the faster one.
CONVOLUTION_ROWS = {torch.float32: 64, torch.bfloat16: 1536}
#: Rows for matrices of more bytes: oneDNN copies them, and glibc asks the system anew for every larger block.
CONVOLUTION_ROWS_OF_LARGER = {torch.float32: 256, torch.bfloat16: 2048}
CONVOLUTION_BYTES = 32 * 2**20
#: Multiplications for both: smaller products are over before a convolution has begun.
CONVOLUTION_MULTIPLICATIONS = {torch.float32: 12_000_000, torch.bfloat16: 250_000_000}
#: Width from which on swapped products of four rows are not faster; those of two and three always are.
SWAPPED_WIDTH = 2048

_Kind = TypeVar("_Kind", bound=nn.Module)


@cache
def types_for_convolution() -> frozenset[torch.dtype]:
    """The types whose products PyTorch computes slowly on this processor, and faster as convolutions, if any."""
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
    return (
        inputs.numel() * weight.shape[0] >= CONVOLUTION_MULTIPLICATIONS.get(inputs.dtype, float("inf"))
        and rows >= _fewest_rows(inputs, weight)
        and _is_slow_in_mkl(inputs, weight)
        and bool(torch.backends.mkldnn.enabled)
        and reaches_onednn(inputs, images)
    )


def _fewest_rows(inputs: torch.Tensor, weight: torch.Tensor) -> float:
    """Rows from which on a convolution can be faster; in graphs, where it is unknown, as if the weight were small."""
    is_larger = statically_known_true(math.prod(weight.shape) > CONVOLUTION_BYTES // inputs.element_size())
    return (CONVOLUTION_ROWS_OF_LARGER if is_larger else CONVOLUTION_ROWS).get(inputs.dtype, float("inf"))


def _is_slow_in_mkl(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether PyTorch's own product of these has a faster equal; autocast would mean other types than theirs."""
    return (
        inputs.device.type == "cpu"
        and is_dense(weight, inputs.dtype)
        and _is_type_for_convolution(inputs.dtype)
        and _is_float32_exact()
        and not torch.is_autocast_enabled("cpu")
    )


@torch.compiler.assume_constant_result
def _is_float32_exact() -> bool:
    """Less precise products, where somebody asked for them, are faster."""
    mkldnn: Any = torch.backends.mkldnn  # some of its attributes are made when it is imported
    return {mkldnn.matmul.fp32_precision, mkldnn.conv.fp32_precision} <= {"none", "ieee"}


def _has_few_rows(inputs: torch.Tensor, weight: torch.Tensor, rows: int) -> bool:
    """Whether these are float32 rows without gradients of which MKL, where it is slow, has a faster product: that of
    `weight` and their transpose. In graphs their number can be unknown.
    """
    return (
        inputs.dtype == torch.float32
        and not torch.is_grad_enabled()
        and statically_known_true(rows > 1)
        and statically_known_true(rows <= (4 if weight.shape[1] < SWAPPED_WIDTH else 3))
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


def _pixels(vectors: torch.Tensor, images: int) -> torch.Tensor:
    """Lines of pixels whose channels come last in memory, `(images, channels, 1, pixels)`, from `(..., channels)`."""
    return vectors.reshape(images, 1, -1, vectors.shape[-1]).permute(0, 3, 1, 2)


def pointwise_convolution(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `torch.nn.functional.linear` computes, as a convolution over lines of pixels whose channels come last."""
    pixels = _pixels(inputs, images_for(inputs.shape[:-1].numel()))
    outputs = F.conv2d(pixels, weight[:, :, None, None], bias)
    return outputs.permute(0, 2, 3, 1).reshape(*inputs.shape[:-1], len(weight))


def swapped_product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `torch.nn.functional.linear` computes, as the product of `weight` and the transposed inputs."""
    columns = inputs.reshape(math.prod(inputs.shape[:-1]), inputs.shape[-1]).T
    outputs = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return outputs.T.contiguous().view(*inputs.shape[:-1], weight.shape[0])


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = inputs.shape[:-1].numel()
    # Also in training, where the graph's operator calls this: its backward pass is its own.
    if _has_few_rows(inputs, weight, rows) and _is_slow_in_mkl(inputs, weight):
        return swapped_product(inputs, weight, bias)
    # In bfloat16 the bias is all there is to gain, and backward passes lose more.
    has_gain = inputs.dtype == torch.float32 or (bias is not None and not torch.is_grad_enabled())
    if has_gain and prefers_convolution(inputs, weight, rows, images_for(rows)):
        return pointwise_convolution(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def _spatial_product(inputs: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # In bfloat16 convolutions are not faster.
    if inputs.dtype == torch.float32 and prefers_convolution(inputs, matrix, len(matrix), len(inputs)):
        if bias is None or bias.dim() == 1:
            return F.conv1d(inputs, matrix[:, :, None], bias)
        return F.conv1d(inputs, matrix[:, :, None]).add_(bias[..., None])
    matrices = matrix.expand(len(inputs), -1, -1)
    return matrices.bmm(inputs) if bias is None else torch.baddbmm(bias[..., None], matrices, inputs)


def _multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_spatial: bool) -> torch.Tensor:
    return _spatial_product(inputs, weight, bias) if is_spatial else _product(inputs, weight, bias)


def _multiply_and_activate(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_spatial: bool, has_gelu: bool
) -> torch.Tensor:
    outputs = _multiply(inputs, weight, bias, is_spatial)
    return torch.ops.aten.gelu_(outputs) if has_gelu else outputs


def _shape(tensor: torch.Tensor, size: int, is_spatial: bool) -> tuple[int, ...]:
    """The tensor's shape with another number of tokens or channels."""
    return (tensor.shape[0], size, tensor.shape[2]) if is_spatial else (*tensor.shape[:-1], size)


def _inputs_gradient(gradients: torch.Tensor, weight: torch.Tensor, is_spatial: bool) -> torch.Tensor:
    inputs = gradients.new_empty(_shape(gradients, weight.shape[1], is_spatial))  # whose shape alone is read
    with torch.autocast("cpu", enabled=False):
        found = _convolution_backward(gradients, inputs, weight, is_spatial, [True, False, False])
        if found is None:
            return weight.T @ gradients if is_spatial else gradients @ weight
    return (found[0] if is_spatial else found[0].permute(0, 2, 3, 1)).reshape(inputs.shape)


def _weight_gradient(
    gradients: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, is_spatial: bool
) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        found = _convolution_backward(gradients, inputs, weight, is_spatial, [False, True, False])
        if found is not None:
            return found[1].reshape(weight.shape)
        if is_spatial:
            return (gradients @ inputs.mT).sum(0)
        return gradients.reshape(-1, weight.shape[0]).T @ inputs.reshape(-1, weight.shape[1])


def _convolution_backward(
    gradients: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, is_spatial: bool, needed: list[bool]
) -> tuple[Any, ...] | None:
    """Gradients of the convolution for its pixels, weight and bias, `None` in place of those that are not `needed`;
    nothing but `None` where it is not the faster one.
    """
    rows = weight.shape[0] if is_spatial else inputs.shape[:-1].numel()
    images = inputs.shape[0] if is_spatial else images_for(rows)
    if not prefers_convolution(inputs, weight, rows, images):
        return None
    pixels = [part[:, :, None] if is_spatial else _pixels(part, images) for part in (gradients, inputs)]
    geometry = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
    return torch.ops.aten.convolution_backward(
        *pixels, weight[:, :, None, None], bias_sizes=None, transposed=False, output_mask=needed, **geometry
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.is_spatial = inputs[3]
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (inputs, weight), (for_inputs, for_weight, for_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
    gradients, is_spatial = gradients.contiguous(), ctx.is_spatial
    outputs = gradients.mT if is_spatial else gradients
    # For second derivatives (`create_graph=True`): the operators have none, what is in them has.
    needs_second = torch.is_grad_enabled()
    of_inputs = _inputs_gradient if needs_second else inputs_gradient_in_graph
    of_weight = _weight_gradient if needs_second else weight_gradient_in_graph
    return (
        of_inputs(gradients, weight, is_spatial) if for_inputs else None,
        of_weight(gradients, inputs, weight, is_spatial) if for_weight else None,
        outputs.reshape(-1, weight.shape[0]).sum(0) if for_bias else None,
        None,
    )


def _gelu(inputs: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu(inputs)


def _gelu_gradient(gradients: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(gradients, inputs)


def _gelu_backward(ctx: Any, gradients: torch.Tensor) -> torch.Tensor:
    of_inputs = _gelu_gradient if torch.is_grad_enabled() else gelu_gradient_in_graph
    return of_inputs(gradients.contiguous(), *ctx.saved_tensors)


# A checkpoint brings its own copy of this module, which must not replace the operators of another one; and compiled
# graphs that PyTorch keeps on disk know operators by their names alone, so those of another version need others.
_VERSION = zlib.crc32(__spec__.loader.get_data(__file__))  # type: ignore[union-attr]  # files have a loader
_OPERATOR = f"product_{re.sub(r'[^0-9a-zA-Z]', '_', __name__)}_{_VERSION:08x}"


def _operator(
    suffix: str,
    function: Callable,
    fake: Callable,
    backward: Callable | None = None,
    setup_context: Callable | None = None,
) -> torch._ops.OpOverload:
    """An operator for graphs. One of `torch.library.custom_op` has so much Python around it that, with the processor's
    caches full of other things, calling it takes as long as a small product.
    """
    name = f"{_OPERATOR}{suffix}"
    if not hasattr(torch.ops.tokenmixers, name):  # else this module ran before, with the same functions
        qualified = f"tokenmixers::{name}"
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(qualified, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(qualified, "cpu", function)
        torch.library.register_fake(qualified, fake)
        if backward:
            torch.library.register_autograd(qualified, backward, setup_context=setup_context)
    return getattr(torch.ops.tokenmixers, name).default


#: What `linear` or `spatial_product` compute without gradients. `torch.compile` would bring the channels of a
#: convolution to the front and back again.
inference_in_graph = _operator(
    "_inference",
    _multiply_and_activate,
    lambda inputs, weight, bias, is_spatial, has_gelu: inputs.new_empty(_shape(inputs, weight.shape[0], is_spatial)),
)
#: The same with gradients, which cost time also where nobody wants them.
product_in_graph = _operator(
    "",
    _multiply,
    lambda inputs, weight, bias, is_spatial: inputs.new_empty(_shape(inputs, weight.shape[0], is_spatial)),
    _backward,
    _keep_for_backward,
)
#: The gradient for the inputs of `product_in_graph`.
inputs_gradient_in_graph = _operator(
    "_inputs_gradient",
    _inputs_gradient,
    lambda gradients, weight, is_spatial: gradients.new_empty(_shape(gradients, weight.shape[1], is_spatial)),
)
#: The gradient for the weight of `product_in_graph`.
weight_gradient_in_graph = _operator(
    "_weight_gradient",
    _weight_gradient,
    lambda gradients, inputs, weight, is_spatial: weight.new_empty(weight.shape),
)
#: GELU in bfloat16, where that of `torch.compile` is the slower one.
gelu_in_graph = _operator(
    "_gelu",
    _gelu,
    torch.empty_like,
    _gelu_backward,
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
#: The gradient for the inputs of `gelu_in_graph`.
gelu_gradient_in_graph = _operator(
    "_gelu_gradient", _gelu_gradient, lambda gradients, inputs: torch.empty_like(gradients)
)


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
    elif is_in_graph(inputs):
        return _linear_in_graph(layer, inputs, activation, is_gelu)
    else:
        outputs = _product(inputs, layer.weight, layer.bias)
    if is_gelu and may_overwrite(outputs, layer, nn.Linear):
        return torch.ops.aten.gelu_(outputs)
    return _activated(outputs, activation, is_gelu)


def _linear_in_graph(
    layer: nn.Linear, inputs: torch.Tensor, activation: nn.Module | None, is_gelu: bool
) -> torch.Tensor:
    rows = math.prod(inputs.shape[:-1])
    if _is_compiled_for_convolution(inputs, layer.weight, layer.bias, rows):
        product = (inputs.contiguous(), layer.weight, layer.bias, False)
        if is_gelu and not torch.is_grad_enabled():
            return inference_in_graph(*product, True)
        outputs = _product_in_graph(*product)
    elif (
        _is_compiled_here(inputs)
        and _is_slow_in_mkl(inputs, layer.weight)
        and _has_few_rows(inputs, layer.weight, rows)
    ):
        outputs = swapped_product(inputs, layer.weight, layer.bias)
    else:
        outputs = layer(inputs)
    return _activated(outputs, activation, is_gelu)


def _activated(outputs: torch.Tensor, activation: nn.Module | None, is_gelu: bool) -> torch.Tensor:
    # In float32 it pays more that the compiler's GELU can be a part of what follows, but in a product for inference.
    if is_gelu and outputs.dtype == torch.bfloat16 and _is_compiled_here(outputs):
        return gelu_in_graph(outputs.contiguous())
    return outputs if activation is None else activation(outputs)


def _product_in_graph(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_spatial: bool
) -> torch.Tensor:
    if torch.is_grad_enabled():
        return product_in_graph(inputs, weight, bias, is_spatial)
    return inference_in_graph(inputs, weight, bias, is_spatial, False)


def spatial_product(inputs: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`matrix @ inputs + bias[..., None]` by the fastest way that gives the same.

    Args:
        inputs: Shape `(batch, tokens, channels)`.
        matrix: Shape `(outputs, tokens)`.
        bias: Shape `(outputs,)` or `(batch, outputs)`.

    Returns:
        Shape `(batch, outputs, channels)`.
    """
    if not is_in_graph(inputs):
        return _spatial_product(inputs, matrix, bias)
    if _is_compiled_for_convolution(inputs, matrix, None, matrix.shape[0]):
        is_shared = bias.dim() == 1
        outputs = _product_in_graph(inputs.contiguous(), matrix, bias if is_shared else None, True)
        return outputs if is_shared else outputs + bias[..., None]
    return torch.baddbmm(bias[..., None], matrix.expand(inputs.shape[0], -1, -1), inputs)


def is_measured_here(tensor: torch.Tensor) -> bool:
    """Whether ways to compute with this were compared on this processor, and the choice is not to be kept for others,
    as in exported programs.
    """
    if is_in_graph(tensor):
        return _is_compiled_here(tensor)
    return tensor.device.type == "cpu" and _is_type_for_convolution(tensor.dtype)


def _is_compiled_here(tensor: torch.Tensor) -> bool:
    """Whether this graph is for this processor, and for a type that our operators were measured with."""
    return is_compiled_for_cpu(tensor) and not _is_transformed() and _is_type_for_convolution(tensor.dtype)


def is_compiled_for_cpu(tensor: torch.Tensor) -> bool:
    """Whether this graph is for a processor of this kind, not a program that is exported or traced for others."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and torch.compiler.is_dynamo_compiling()
        and not torch.compiler.is_exporting()
    )


@torch.compiler.assume_constant_result
def _is_transformed() -> bool:
    """Whether this is inside of `torch.func.grad` and the like, which do not take operators with a backward pass."""
    return torch._C._are_functorch_transforms_active()


def _is_compiled_for_convolution(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> bool:
    """Whether a graph profits from `product_in_graph` or `inference_in_graph`: with gradients in float32 alone, as
    `_product`, and not where it is known that `prefers_convolution` would refuse.
    """
    has_gain = inputs.dtype == torch.float32 or (bias is not None and not torch.is_grad_enabled())
    return (
        has_gain
        and _is_compiled_here(inputs)
        and _is_slow_in_mkl(inputs, weight)
        and not statically_known_true(rows < _fewest_rows(inputs, weight))
        and not statically_known_true(inputs.numel() * weight.shape[0] < CONVOLUTION_MULTIPLICATIONS[inputs.dtype])
    )


def is_in_graph(tensor: torch.Tensor) -> bool:
    """What Transformers' `is_tracing` says, stream capture aside, without taking as long as a small product."""
    return type(tensor) is not torch.Tensor or torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_plain(module: nn.Module | None, kind: type[_Kind]) -> TypeGuard[_Kind]:
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
    """Whether nobody else reads what a call of the module returned: no gradients, hooks, graph or `torch.func`."""
    return (
        not torch.is_grad_enabled()
        and not is_in_graph(outputs)
        and not torch._C._are_functorch_transforms_active()
        and is_plain(module, kind)
    )
