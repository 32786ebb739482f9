"""Types of numbers under autocast, and in models of half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type of matrix products under autocast; `None` without."""
    # Autocast knows no meta device.
    enabled = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else None


def no_autocast(device: torch.device) -> AbstractContextManager:
    """A context without autocast."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def cast_once(tensor: torch.Tensor) -> torch.Tensor:
    """Under autocast, the tensor in the type of matrix products: for what several of them read, or all rows of one."""
    dtype = autocast_dtype(tensor.device)
    return tensor if dtype is None or tensor.dtype == torch.float64 else tensor.to(dtype)


def widen_for(linear: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs` in the type of a layer's weight, if that is kept wider than the model (`_keep_in_fp32_modules`)."""
    dtype = getattr(getattr(linear, "weight", None), "dtype", torch.int8)  # none if quantized
    is_wider = dtype.is_floating_point and dtype.itemsize > inputs.element_size()
    return inputs.to(dtype) if is_wider and autocast_dtype(inputs.device) is None else inputs  # autocast casts back
