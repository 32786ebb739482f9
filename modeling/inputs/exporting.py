"""Whether a graph is made for `torch.export`."""

import torch


def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`. In PyTorch 2.11, that is also true in the graphs of `torch.compile`."""
    return torch.compiler.is_exporting() and getattr(torch.compiler, "_is_exporting_flag", True)
