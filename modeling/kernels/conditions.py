"""Conditions under which a kernel may replace its reference."""

from typing import Any

import torch
from torch import nn

from ..inputs.exporting import is_exporting


def is_in_graph(tensor: torch.Tensor) -> bool:
    """Whether `torch.compile`, `torch.export`, `torch.jit.trace` or `torch.func` record operations."""
    return (
        type(tensor) is not torch.Tensor
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def is_compiled_for_cpu(tensor: torch.Tensor) -> bool:
    """Whether `torch.compile` builds a graph for this processor; exported programs may run on others."""
    return torch.compiler.is_dynamo_compiling() and not is_exporting() and tensor.device.type == "cpu"


def is_dense_cpu_float32(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a product is between ordinary float32 matrices in CPU memory.

    False for quantised, distributed or sparse weights, under autocast, and if less precise (faster) float32 products
    were requested.
    """
    return (
        inputs.dtype == weight.dtype == torch.float32
        and type(weight) in (torch.Tensor, nn.Parameter)
        and inputs.device.type == weight.device.type == "cpu"
        and weight.layout == inputs.layout == torch.strided
        and not torch.is_autocast_enabled("cpu")
        and is_float32_exact()
    )


@torch.compiler.assume_constant_result
def is_float32_exact() -> bool:
    """Whether oneDNN may be used and less precise float32 products were not requested."""
    mkldnn: Any = torch.backends.mkldnn  # some of its attributes are created at import
    if not mkldnn.enabled:
        return False
    return {mkldnn.matmul.fp32_precision, mkldnn.conv.fp32_precision} <= {"none", "ieee"}
