"""Compute `torch.nn.Linear` with oneDNN where MKL, PyTorch's library for float32 products, is slower.

PyTorch has two suitable oneDNN primitives: the inner product, without gradients, for few rows (decoding), and the 1x1
convolution for many rows. Graphs of `torch.compile` call the convolution as one operator, because the compiler would
otherwise move the channels to the front and back.

Reference: `torch.nn.Linear.forward`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

from .conditions import is_compiled_for_cpu, is_dense_cpu_float32, is_float32_exact, is_in_graph
from .measurement import REFERENCE, choice, measure


#: Minimum number of weights of a layer; in smaller layers, checks and calls take as long as the product.
FEWEST_WEIGHTS = 400_000
#: Minimum number of rows for the convolution; fewer rows use the inner product.
MANY_ROWS = 64
#: Minimum number of multiplications for the convolution.
FEWEST_MULTIPLICATIONS = 25_000_000
#: Names of the comparisons.
FEW, MANY, TRAINING = "linear, 4 rows", "linear, 256 rows", "linear, 256 rows, with gradients"


def applies(module: nn.Linear) -> bool:
    """Whether the layer is large enough and oneDNN is faster on this processor. The first call measures."""
    if module.weight.numel() < FEWEST_WEIGHTS or not torch.backends.mkldnn.is_available() or not is_float32_exact():
        return False
    gains = [measure(name, alternatives) for name, alternatives in COMPARISONS.items()]
    return any(gains)


def forward(self: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """`torch.nn.Linear.forward`: `inputs @ weight.T + bias`, shape `(..., out_features)`."""
    weight, bias = self.weight, self.bias
    if is_compiled_for_cpu(inputs):
        if _takes_operator(inputs, weight):
            return linear_in_graph(inputs.contiguous(), weight, bias)
    elif not is_in_graph(inputs):
        return linear(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear` with the fastest primitive; same arguments."""
    rows = math.prod(inputs.shape[:-1])
    name = choice(_comparison_for(rows)) if rows > 1 else REFERENCE
    if name == REFERENCE or not is_dense_cpu_float32(inputs, weight):
        return F.linear(inputs, weight, bias)
    if rows >= MANY_ROWS:
        return (convolution if _is_large(rows, weight) else F.linear)(inputs, weight, bias)
    # The inner product supports neither backward nor forward derivatives.
    has_derivatives = torch.is_grad_enabled() or forward_ad._current_level >= 0
    return (F.linear if has_derivatives else inner_product)(inputs, weight, bias)


def _is_large(rows: int, weight: torch.Tensor) -> bool:
    return rows >= MANY_ROWS and rows * weight.numel() >= FEWEST_MULTIPLICATIONS


def _comparison_for(rows: int) -> str:
    if rows < MANY_ROWS:
        return FEW
    return TRAINING if torch.is_grad_enabled() else MANY


def inner_product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear` as oneDNN's inner product, without gradients."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def convolution(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear` as a 1x1 convolution over one line of pixels."""
    # With a single thread, PyTorch uses oneDNN only for batches of 16.
    rows = math.prod(inputs.shape[:-1])
    images = 16 if torch.get_num_threads() == 1 and rows % 16 == 0 else 1
    outputs = F.conv2d(_pixels(inputs, images), weight[:, :, None, None], bias)
    return outputs.permute(0, 2, 3, 1).reshape(*inputs.shape[:-1], weight.shape[0])


def _pixels(vectors: torch.Tensor, images: int) -> torch.Tensor:
    """View `(..., channels)` as `(images, channels, 1, pixels)` with channels last in memory."""
    return vectors.reshape(images, 1, -1, vectors.shape[-1]).permute(0, 3, 1, 2)


# --- graphs of torch.compile -------------------------------------------------------------------------------------


def _takes_operator(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    rows = math.prod(inputs.shape[:-1])  # may be unknown
    return (
        choice(_comparison_for(MANY_ROWS)) != REFERENCE
        and not statically_known_true(rows * weight.numel() < FEWEST_MULTIPLICATIONS)
        and is_dense_cpu_float32(inputs, weight)
        and not _is_transformed()
    )


@torch.compiler.assume_constant_result
def _is_transformed() -> bool:
    """Whether this runs inside `torch.func.grad` or a similar transform, which do not support custom operators."""
    return torch._C._are_functorch_transforms_active()


@torch.library.custom_op("tokenmixers::linear", mutates_args=(), device_types="cpu")
def linear_in_graph(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`linear` for graphs, whose number of rows may be unknown when they are compiled."""
    is_large = _is_large(math.prod(inputs.shape[:-1]), weight)
    return (convolution if is_large else F.linear)(inputs, weight, bias)


@linear_in_graph.register_fake
def _(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return inputs.new_empty(*inputs.shape[:-1], weight.shape[0])


@torch.library.custom_op("tokenmixers::linear_backward", mutates_args=(), device_types="cpu")
def linear_backward_in_graph(
    gradients: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, for_inputs: bool, for_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `linear_in_graph` with respect to inputs and weight; empty where not needed."""
    rows = math.prod(inputs.shape[:-1])
    if not _is_large(rows, weight):
        return (
            gradients @ weight if for_inputs else inputs.new_empty(0),
            gradients.flatten(0, -2).T @ inputs.flatten(0, -2) if for_weight else weight.new_empty(0),
        )
    geometry = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
    of_inputs, of_weight, _ = torch.ops.aten.convolution_backward(
        _pixels(gradients, 1),
        _pixels(inputs, 1),
        weight[:, :, None, None],
        bias_sizes=None,
        transposed=False,
        output_mask=[for_inputs, for_weight, False],
        **geometry,
    )
    return (
        of_inputs.permute(0, 2, 3, 1).reshape(inputs.shape) if for_inputs else inputs.new_empty(0),
        of_weight.reshape(weight.shape) if for_weight else weight.new_empty(0),
    )


@linear_backward_in_graph.register_fake
def _(
    gradients: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, for_inputs: bool, for_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        inputs.new_empty(inputs.shape if for_inputs else 0),
        weight.new_empty(weight.shape if for_weight else 0),
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (inputs, weight), (for_inputs, for_weight, for_bias) = ctx.saved_tensors, ctx.needs_input_grad
    if torch.is_grad_enabled():  # for second derivatives, which the operator does not support
        of_inputs, of_weight = gradients @ weight, gradients.flatten(0, -2).T @ inputs.flatten(0, -2)
    else:
        of_inputs, of_weight = linear_backward_in_graph(gradients.contiguous(), inputs, weight, for_inputs, for_weight)
    return (
        of_inputs if for_inputs else None,
        of_weight if for_weight else None,
        gradients.flatten(0, -2).sum(0) if for_bias else None,
    )


linear_in_graph.register_autograd(_backward, setup_context=_keep_for_backward)


# --- what is measured --------------------------------------------------------------------------------------------


def _comparison(
    rows: int, primitive: Callable[..., torch.Tensor], has_gradients: bool
) -> Callable[[], Mapping[str, Callable[[], None]]]:
    def alternatives() -> Mapping[str, Callable[[], None]]:
        vectors = torch.ones(rows, 768, dtype=torch.float32, requires_grad=has_gradients)
        # Products of few rows take as long as reading the weights, which in a model are not in the processor's caches.
        copies = 8 if rows < MANY_ROWS else 1
        weights = torch.ones(copies, 2304, 768, dtype=torch.float32, requires_grad=has_gradients)
        bias, gradients = torch.ones(2304, dtype=torch.float32), torch.ones(rows, 2304, dtype=torch.float32)

        def run(product: Callable[..., torch.Tensor]) -> None:
            with torch.set_grad_enabled(has_gradients):
                for weight in weights:
                    found = product(vectors, weight, bias)
                    if has_gradients:
                        torch.autograd.grad(found, (vectors, weight), gradients)

        return {REFERENCE: partial(run, F.linear), primitive.__name__: partial(run, primitive)}

    return alternatives


COMPARISONS = {
    FEW: _comparison(4, inner_product, has_gradients=False),
    MANY: _comparison(256, convolution, has_gradients=False),
    TRAINING: _comparison(256, convolution, has_gradients=True),
}
