"""Root mean square normalisation (arXiv 1910.07467), as in T5."""

import torch
from torch import nn


class SynthesizerRMSNorm(nn.Module):
    """T5's norm: divides by the root mean square, computed in at least float32, and scales, without mean and bias."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        mean_square = hidden_states.square().mean(dim=-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(mean_square + self.eps)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states
