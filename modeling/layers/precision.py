"""Dtypes under autocast and in half-precision models."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of matrix products under autocast; `None` without autocast."""
    # Autocast does not support the meta device.
    enabled = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else None


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Context that disables autocast."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def cast_once(tensor: torch.Tensor) -> torch.Tensor:
    """Under autocast, cast a tensor that several matrix products, or all rows of one, read to their dtype."""
    dtype = autocast_dtype(tensor.device)
    return tensor if dtype is None or tensor.dtype == torch.float64 else tensor.to(dtype)


def widen_for(linear: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Cast `inputs` to the dtype of a layer's weight if that is wider than the model's (`_keep_in_fp32_modules`)."""
    dtype = getattr(getattr(linear, "weight", None), "dtype", torch.int8)  # quantized layers have none
    is_wider = dtype.is_floating_point and dtype.itemsize > inputs.element_size()
    return inputs.to(dtype) if is_wider and autocast_dtype(inputs.device) is None else inputs  # autocast casts back
