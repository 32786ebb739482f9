"""The spatial gating unit of "Pay Attention to MLPs" (arXiv 2105.08050), section 2.1 and Appendix C."""

import torch
from torch import nn
from torch.nn import functional as F

from ..inputs.token_layout import TokenLayout
from .precision import cast_once


class SpatialProjection(nn.Module):
    """Linear layer over the tokens, shared by all channels: `f(Z) = W Z + b` (equation 4).

    Args:
        max_length: Maximum sequence length `n`.
        weight_type: `"full"`: `weight` holds W, shape `(n, n)`, row = output token. `"toeplitz"`: `weight` holds the
            `2n - 1` diagonals, `W[i, j] = weight[n - 1 + j - i]`, so its last entries are for tokens on the right.
        is_causal: Whether to use only the lower triangle of W, so that tokens see themselves and earlier tokens.

    Shapes:
        input and output `(batch, length, channels)` with `length <= n`; `bias` `(n,)`, one number per output token.
    """

    def __init__(self, max_length: int, weight_type: str, is_causal: bool = False):
        super().__init__()
        self.max_length = max_length
        self.weight_type = weight_type
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1 if weight_type == "toeplitz" else (max_length,) * 2))
        self.bias = nn.Parameter(torch.ones(max_length))

    def matrix(self, length: int, layout: TokenLayout | None = None) -> torch.Tensor:
        """The weights from all `length` tokens to the new tokens (to all tokens without `layout`).

        Returns:
            Shape `(new tokens, all tokens)`, preceded by a dimension `batch` (or 1) if rows may differ.
        """
        layout = TokenLayout(length, length, slice(None)) if layout is None else layout
        matrix = self._weights(layout)
        visible = layout._replace(is_causal=self.is_causal).visible(matrix.device)
        matrix = matrix if visible is None else matrix.masked_fill(~visible, 0)  # smaller than the input
        if layout.full_mask is None:
            return matrix
        if layout.full_mask.shape[1] != 1:
            shape = tuple(layout.full_mask.shape)
            raise ValueError(f"Spatial gating has no heads: a mask of shape {shape} is not (batch, 1, queries, keys).")
        mask = layout.full_mask[:, 0]
        # What is added to the logit of a softmax is a factor of the weight.
        return matrix.masked_fill(~mask, 0) if mask.dtype == torch.bool else matrix * mask.exp().to(matrix)

    def _weights(self, layout: TokenLayout) -> torch.Tensor:
        """The entries of W for each new token and each token, by their positions."""
        length, new_tokens, positions = layout.key_length, layout.new_tokens, layout.positions
        if self.weight_type == "full":
            if positions is None:
                return self.weight[layout.rows, :length]
            return self.weight[positions[:, new_tokens, None], positions[:, None, :]]
        if layout.diagonal_index is None and not (layout.is_whole and layout.counts_positions):
            return self.weight[self.max_length - 1 + layout.distances(self.weight.device)]
        diagonals = self.weight[self.max_length - length : self.max_length + length - 1]
        if layout.diagonal_index is not None:  # one operator; unlike that of `weight[index]`, its gradient has no sort
            return diagonals.expand(layout.query_length, -1).gather(1, layout.diagonal_index)
        # Appendix C: rows of 2 * length numbers, read in steps of one less, shift by one. `unfold` is not dynamic.
        rows = F.pad(diagonals, (0, 1)).expand(length, 2 * length).reshape(-1)
        return rows[: length * (2 * length - 1)].view(length, 2 * length - 1)[:, length - 1 :].contiguous()

    def forward(self, hidden_states: torch.Tensor, layout: TokenLayout | None = None) -> torch.Tensor:
        """Mix all tokens, those in the cache first, into the new tokens (into all tokens without `layout`)."""
        if layout is None:
            # The slice is given because PyTorch 2.11 cannot compile it as a default.
            layout = TokenLayout(hidden_states.shape[1], hidden_states.shape[1], slice(None))
        length, positions = layout.key_length, layout.positions
        hidden_states = hidden_states[:, :length]  # without the unused slots of a static cache
        bias = self.bias[layout.rows if positions is None else positions[:, layout.new_tokens], None]
        matrix = cast_once(self.matrix(length, layout)).expand(hidden_states.shape[0], -1, -1)
        return torch.baddbmm(bias, matrix, hidden_states)

    @torch.no_grad()
    def to_full(self) -> None:
        """Store all `n * n` weights; outputs do not change."""
        self.weight = nn.Parameter(self.matrix(self.max_length).clone(), requires_grad=self.weight.requires_grad)
        self.weight_type = "full"

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New weights are zero, new biases one, as at initialization."""
        shift = max_length - self.max_length
        grow = (shift, shift) if self.weight_type == "toeplitz" else (0, shift, 0, shift)
        self._replace(F.pad(self.weight, grow), F.pad(self.bias, (0, shift), value=1.0))

    @torch.no_grad()
    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Replace full weights `W` by `rows W columns`, and `b` by `rows b`; see `grid_interpolation`."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)  # MPS has no float64
        rows, columns = (matrix.to(dtype).to(self.weight.device) for matrix in (rows, columns))
        weight = rows @ self.weight.to(dtype) @ columns
        self._replace(weight.to(self.weight.dtype), (rows @ self.bias.to(rows.dtype)).to(self.bias.dtype))

    def _replace(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        self.max_length = len(bias)

    def extra_repr(self) -> str:
        return f"max_length={self.max_length}, weight_type={self.weight_type!r}"


class SpatialGatingUnit(nn.Module):
    """The gate s(Z) of Table 3, with `f` a `SpatialProjection`.

    | `gate_type`        | result                            | at the start, with W near 0 and b = 1 |
    |--------------------|-----------------------------------|---------------------------------------|
    | `"split"`          | `Z1 * f(norm(Z2))`, [Z1, Z2] = Z  | Z1                                    |
    | `"linear"`         | `f(norm(Z))`                      | 1                                     |
    | `"additive"`       | `Z + f(norm(Z))`                  | Z + 1                                 |
    | `"multiplicative"` | `Z * f(norm(Z))`                  | Z                                     |

    Args:
        intermediate_size: Width of the input; the output has half of it for `"split"`, and all of it otherwise.
        max_length: Maximum sequence length.
        weight_type: `"toeplitz"` or `"full"`, see `SpatialProjection`.
        layer_norm_eps: Epsilon of the norm over the channels that `f` mixes.
        gate_type: A row of the table.
        is_causal: Whether tokens see only themselves and earlier tokens.
    """

    def __init__(
        self,
        intermediate_size: int,
        max_length: int,
        weight_type: str,
        layer_norm_eps: float,
        gate_type: str = "split",
        is_causal: bool = False,
    ):
        super().__init__()
        self.gate_type = gate_type
        width = intermediate_size // 2 if gate_type == "split" else intermediate_size
        self.norm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.spatial_proj = SpatialProjection(max_length, weight_type, is_causal)

    def _split(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`[Z1, Z2] = Z`, or Z twice."""
        return hidden_states.chunk(2, dim=-1) if self.gate_type == "split" else (hidden_states, hidden_states)

    def gate_inputs(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The inputs of `f`: the normalised channels to mix; argument as in `forward`."""
        return self.norm(self._split(hidden_states)[1])

    def forward(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout | None = None,
        tiny_attention: torch.Tensor | None = None,
        gate_inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Gate.

        Args:
            hidden_states: New tokens, shape `(batch, length, intermediate_size)`.
            layout: Positions and visibility of the tokens. Padding has zero weights, so it adds exactly zero.
            tiny_attention: Added to `f` in aMLP; shape of the result.
            gate_inputs: With a cache, the results of `gate_inputs` for all tokens.

        Returns:
            Shape `(batch, length, intermediate_size / 2)` for `"split"`, else `(batch, length, intermediate_size)`.
        """
        passed, gate = self._split(hidden_states)  # only once, because each split is a pass over the gradients
        if gate_inputs is None:
            gate_inputs = self.norm(gate)
        gate = self.spatial_proj(gate_inputs, layout)
        if tiny_attention is not None:
            gate = gate + tiny_attention
        if self.gate_type == "linear":
            return gate
        return passed + gate if self.gate_type == "additive" else passed * gate
