"""The token mixing of MLP-Mixer (arXiv 2105.01601), section 2."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from ..inputs.entries_by_position import resampled
from ..inputs.token_layout import TokenLayout
from .precision import cast_once


class TokenMixingMLP(nn.Module):
    """Two linear layers over the tokens with an activation between them, shared by all channels.

    Shorter sequences use the leading columns of `weight_in` and the leading rows of `weight_out`.

    Args:
        max_length: Maximum sequence length `n`.
        token_mixing_size: Width between the two layers.
        hidden_act: Name of the activation.

    Shapes:
        input and output `(batch, length, channels)` with `length <= n`; `weight_in` is `(token_mixing_size, n)`,
        `weight_out` `(n, token_mixing_size)`.
    """

    def __init__(self, max_length: int, token_mixing_size: int, hidden_act: str):
        super().__init__()
        self.weight_in = nn.Parameter(torch.zeros(token_mixing_size, max_length))
        self.bias_in = nn.Parameter(torch.zeros(token_mixing_size))
        self.weight_out = nn.Parameter(torch.zeros(max_length, token_mixing_size))
        self.bias_out = nn.Parameter(torch.zeros(max_length))
        self.activation = ACT2FN[hidden_act]

    def forward(self, hidden_states: torch.Tensor, layout: TokenLayout | None = None) -> torch.Tensor:
        """Mix tokens at the positions of `layout`, or at 0, 1, 2, ... Padding gets zero weights."""
        batch, length, _ = hidden_states.shape
        # With a second index PyTorch drops a slice that takes everything, whose gradient would be two more passes.
        chosen = slice(length) if layout is None or layout.positions is None else layout.positions
        weight_in, weight_out = cast_once(self.weight_in.mT[chosen, :].mT), cast_once(self.weight_out[chosen, :])
        if layout is not None and layout.padding_mask is not None:
            weight_in = weight_in.masked_fill(~layout.padding_mask[:, None, :], 0)
        weight_in, weight_out = weight_in.expand(batch, -1, -1), weight_out.expand(batch, -1, -1)
        mixed = self.activation(torch.baddbmm(self.bias_in[:, None], weight_in, hidden_states))
        return torch.baddbmm(self.bias_out[chosen, None], weight_out, mixed)

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New weights are zero, so outputs for sequences that fit both stay the same."""
        grow = max_length - len(self.bias_out)
        self._replace(
            F.pad(self.weight_in, (0, grow)), F.pad(self.weight_out, (0, 0, 0, grow)), F.pad(self.bias_out, (0, grow))
        )

    @torch.no_grad()
    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Adapt the weights to another image size by interpolating input and output tokens.

        Args:
            rows: Shape `(new n, n)`.
            columns: Shape `(n, new n)`.
        """
        weight_out, bias_out = resampled(self.weight_out, 0, rows), resampled(self.bias_out, 0, rows)
        self._replace(resampled(self.weight_in, 1, columns.mT), weight_out, bias_out)

    def _replace(self, weight_in: torch.Tensor, weight_out: torch.Tensor, bias_out: torch.Tensor) -> None:
        for name, value in (("weight_in", weight_in), ("weight_out", weight_out), ("bias_out", bias_out)):
            setattr(self, name, nn.Parameter(value, requires_grad=getattr(self, name).requires_grad))
