"""Detect `torch.export`."""

import torch


def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`, which in PyTorch 2.11 is also true in graphs of `torch.compile`."""
    return torch.compiler.is_exporting() and getattr(torch.compiler, "_is_exporting_flag", True)
