"""Stochastic depth (arXiv 1603.09382)."""

import torch
from torch import nn


class DropPath(nn.Module):
    """During training, drops an example's residual branch with probability `drop_prob` and scales up the others."""

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        """Shapes: `branch` and result `(batch, ...)`."""
        if self.drop_prob == 0 or not self.training:
            return branch
        keep_prob = 1 - self.drop_prob
        kept = torch.empty((branch.shape[0],) + (1,) * (branch.ndim - 1), dtype=branch.dtype, device=branch.device)
        return branch * kept.bernoulli_(keep_prob) / keep_prob
