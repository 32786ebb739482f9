"""The spatial gating unit of "Pay Attention to MLPs" (arXiv 2105.08050), section 2.1 and Appendix C."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class TokenPositions(NamedTuple):
    """Positions of the tokens of a batch in the spatial weights, where they are not simply 0, 1, 2, ...

    Attributes:
        ids: Positions, shape `(batch, length)`, integers in `[0, max_length)`.
        shifted: Whether each row of `ids` is `0, 1, 2, ...` moved by one offset (left padding). A Toeplitz matrix
            depends on distances alone, so such rows can use it unchanged.
    """

    ids: torch.Tensor
    shifted: bool


class SpatialProjection(nn.Module):
    """Linear map over the tokens, shared by all channels: `f(Z) = W Z + b` (equation 4).

    Args:
        max_length: Longest sequence `n`.
        weight_type: `"full"`: `weight` holds W, shape `(n, n)`, row = output token. `"toeplitz"`: `weight` holds the
            `2n - 1` diagonals, with `W[i, j] = weight[n - 1 + j - i]`, so the last entries look to the right.

    Shapes:
        input and output `(batch, length, channels)` with `length <= n`; `bias` is `(n,)`, one number per output token.
    """

    def __init__(self, max_length: int, weight_type: str):
        super().__init__()
        self.max_length = max_length
        self.weight_type = weight_type
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1 if weight_type == "toeplitz" else (max_length,) * 2))
        self.bias = nn.Parameter(torch.ones(max_length))

    def matrix(self, length: int, positions: TokenPositions | None = None) -> torch.Tensor:
        """The spatial weights in use, shape `(length, length)`, or `(batch, length, length)` for free positions."""
        toeplitz = self.weight_type == "toeplitz"
        if positions is not None and not (toeplitz and positions.shifted):
            rows, columns = positions.ids[:, :, None], positions.ids[:, None, :]
            return self.weight[self.max_length - 1 + columns - rows] if toeplitz else self.weight[rows, columns]
        if toeplitz:
            diagonals = self.weight[self.max_length - length : self.max_length + length - 1]
            # Appendix C: rows of 2 * length numbers, read in steps of one less, move by one number per row. Unlike
            # `unfold`, these operations take lengths that change under `torch.compile` and `torch.export`.
            rows = F.pad(diagonals, (0, 1)).expand(length, 2 * length).reshape(-1)
            return rows[: length * (2 * length - 1)].view(length, 2 * length - 1)[:, length - 1 :]
        return self.weight[:length, :length]

    def forward(self, hidden_states: torch.Tensor, positions: TokenPositions | None = None) -> torch.Tensor:
        """Mix tokens; `positions` as given by the model, `None` for 0, 1, 2, ..."""
        batch, length, _ = hidden_states.shape
        bias = self.bias[:length] if positions is None else self.bias[positions.ids]
        return torch.baddbmm(
            bias[..., None], self.matrix(length, positions).expand(batch, length, length), hidden_states
        )

    def extra_repr(self) -> str:
        return f"max_length={self.max_length}, weight_type={self.weight_type!r}"


class SpatialGatingUnit(nn.Module):
    """Splits the channels in halves `u, v` and returns `u * f(norm(v))`, with `f` a `SpatialProjection`.

    With `W` near zero and `b` one, as at the start of training, it passes `u` through.

    Args:
        intermediate_size: Input width; the output has half of it.
        max_length: Longest sequence.
        weight_type: `"toeplitz"` or `"full"`, see `SpatialProjection`.
        layer_norm_eps: Epsilon of the norm over the channels of `v`.
    """

    def __init__(self, intermediate_size: int, max_length: int, weight_type: str, layer_norm_eps: float):
        super().__init__()
        self.norm = nn.LayerNorm(intermediate_size // 2, eps=layer_norm_eps)
        self.spatial_proj = SpatialProjection(max_length, weight_type)

    def forward(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None = None,
        positions: TokenPositions | None = None,
    ) -> torch.Tensor:
        """Gate.

        Args:
            hidden_states: Shape `(batch, length, intermediate_size)`.
            padding_mask: Shape `(batch, length, 1)`, one for real tokens and zero for padding. It acts on `v` after
                the norm, so that padding adds exactly nothing to any token.
            positions: Positions of the tokens, `None` for 0, 1, 2, ...

        Returns:
            Shape `(batch, length, intermediate_size / 2)`.
        """
        passed, gate = hidden_states.chunk(2, dim=-1)
        gate = self.norm(gate)
        if padding_mask is not None:
            gate = gate * padding_mask.to(gate.dtype)
        return passed * self.spatial_proj(gate, positions)
