"""The spatial gating unit of "Pay Attention to MLPs" (arXiv 2105.08050), section 2.1 and Appendix C."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class TokenPositions(NamedTuple):
    """Positions of the tokens of a batch in the spatial weights, and which of the tokens are asked for.

    Attributes:
        ids: Positions, shape `(batch, length)`, integers in `[0, max_length)`; `None` for 0, 1, 2, ...
        shifted: Whether each row of `ids` is `0, 1, 2, ...` moved by one offset (left padding), or by one for each of
            its documents. A Toeplitz matrix depends on distances alone, so such rows can use it unchanged.
        outputs: Which tokens to compute, if others come from a cache: consecutive ones, as a slice, or as their
            indices where those are known to the device alone.
        seq_idx: Number of the document that each token belongs to, shape `(batch, length)`: tokens see their own
            alone. `None` if a row is one document.
    """

    ids: torch.Tensor | None = None
    shifted: bool = False
    outputs: slice | torch.Tensor = slice(None)
    seq_idx: torch.Tensor | None = None


class SpatialProjection(nn.Module):
    """Linear map over the tokens, shared by all channels: `f(Z) = W Z + b` (equation 4).

    Args:
        max_length: Longest sequence `n`.
        weight_type: `"full"`: `weight` holds W, shape `(n, n)`, row = output token. `"toeplitz"`: `weight` holds the
            `2n - 1` diagonals, with `W[i, j] = weight[n - 1 + j - i]`, so the last entries look to the right.
        is_causal: Use the lower triangle of W alone: tokens see themselves and those before.

    Shapes:
        input and output `(batch, length, channels)` with `length <= n`; `bias` is `(n,)`, one number per output token.
    """

    def __init__(self, max_length: int, weight_type: str, is_causal: bool = False):
        super().__init__()
        self.max_length = max_length
        self.weight_type = weight_type
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1 if weight_type == "toeplitz" else (max_length,) * 2))
        self.bias = nn.Parameter(torch.ones(max_length))

    def matrix(self, length: int, positions: TokenPositions | None = None) -> torch.Tensor:
        """The spatial weights in use, from `length` tokens to those asked for (all, without `positions`).

        Returns:
            Shape `(outputs, length)`, or `(batch, outputs, length)` for free positions or several documents in a row.
        """
        positions = TokenPositions() if positions is None else positions
        matrix = self._rows(length, *positions[:3])
        if self.is_causal:
            tokens = torch.arange(length, device=matrix.device)
            matrix = matrix.masked_fill(tokens > tokens[positions.outputs, None], 0.0)
        if positions.seq_idx is not None:
            other_document = positions.seq_idx[:, positions.outputs, None] != positions.seq_idx[:, None, :]
            matrix = matrix.masked_fill(other_document, 0.0)
        return matrix

    def _rows(
        self, length: int, ids: torch.Tensor | None, shifted: bool, outputs: slice | torch.Tensor
    ) -> torch.Tensor:
        toeplitz = self.weight_type == "toeplitz"
        if ids is not None and not (toeplitz and shifted):
            rows, columns = ids[:, outputs, None], ids[:, None, :]
            return self.weight[self.max_length - 1 + columns - rows] if toeplitz else self.weight[rows, columns]
        if not toeplitz:
            return self.weight[:length, :length][outputs]
        if isinstance(outputs, slice) and not outputs.start:
            diagonals = self.weight[self.max_length - length : self.max_length + length - 1]
            # Appendix C: rows of 2 * length numbers, read in steps of one less, move by one number per row. Unlike
            # `unfold`, these take lengths that change under `torch.compile` and `torch.export`; `contiguous`
            # keeps Inductor from taking the strides of the first batch for those of all.
            rows = F.pad(diagonals, (0, 1)).expand(length, 2 * length).reshape(-1)
            return rows[: length * (2 * length - 1)].view(length, 2 * length - 1)[:, length - 1 :].contiguous()
        tokens = torch.arange(length, device=self.weight.device)
        return self.weight[self.max_length - 1 + tokens - tokens[outputs, None]]

    def forward(self, hidden_states: torch.Tensor, positions: TokenPositions | None = None) -> torch.Tensor:
        """Mix tokens: all of `hidden_states`, those from a cache first, into those that `positions` asks for."""
        ids, _, outputs, _ = TokenPositions() if positions is None else positions
        # A static cache has room for tokens that are still to come.
        hidden_states = hidden_states[:, : outputs.stop if isinstance(outputs, slice) else self.max_length]
        length = hidden_states.shape[1]
        bias = self.bias[:length][outputs] if ids is None else self.bias[ids[:, outputs]]
        matrix = self.matrix(length, positions).expand(hidden_states.shape[0], -1, -1)
        return torch.baddbmm(bias[..., None], matrix, hidden_states)

    @torch.no_grad()
    def to_full(self) -> None:
        """Store all `n * n` weights from now on; the outputs stay the same. Nothing happens to full weights."""
        self.weight = nn.Parameter(self.matrix(self.max_length).clone(), requires_grad=self.weight.requires_grad)
        self.weight_type = "full"

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Cover sequences up to `max_length`, keeping the weights between the leading tokens.

        New weights are zero and new biases one, as at the start of training. Outputs for sequences that fit both
        lengths stay the same.
        """
        shift = max_length - self.max_length
        grow = (shift, shift) if self.weight_type == "toeplitz" else (0, shift, 0, shift)
        self._replace(F.pad(self.weight, grow), F.pad(self.bias, (0, shift), value=1.0))

    @torch.no_grad()
    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Replace full weights `W` by `rows W columns`, and `b` by `rows b`, e.g. for another image size.

        Args:
            rows: Shape `(new n, n)`: new output tokens from the old ones.
            columns: Shape `(n, new n)`: old input tokens from the new ones.
        """
        rows, columns = rows.to(self.weight.device), columns.to(self.weight.device)
        weight = rows @ self.weight.to(rows.dtype) @ columns
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
        intermediate_size: Input width; the output has half of it for `"split"`, all of it otherwise.
        max_length: Longest sequence.
        weight_type: `"toeplitz"` or `"full"`, see `SpatialProjection`.
        layer_norm_eps: Epsilon of the norm over the channels that `f` mixes.
        gate_type: See above.
        is_causal: Whether tokens see only themselves and those before.
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
        self.norm = nn.LayerNorm(
            intermediate_size // 2 if gate_type == "split" else intermediate_size, eps=layer_norm_eps
        )
        self.spatial_proj = SpatialProjection(max_length, weight_type, is_causal)

    def gate_inputs(self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        """What `f` reads: the channels to mix, normalised, zero at padding; arguments as in `forward`."""
        gate = hidden_states.chunk(2, dim=-1)[1] if self.gate_type == "split" else hidden_states
        gate = self.norm(gate)
        return gate if padding_mask is None else gate * padding_mask.to(gate.dtype)

    def forward(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None = None,
        positions: TokenPositions | None = None,
        tiny_attention: torch.Tensor | None = None,
        gate_inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Gate.

        Args:
            hidden_states: Shape `(batch, length, intermediate_size)`.
            padding_mask: Shape `(batch, length, 1)`, one for real tokens and zero for padding. It acts on the input of
                `f` after the norm, so that padding adds exactly nothing to any token.
            positions: Positions of the tokens, those in a cache first; `None` for 0, 1, 2, ...
            tiny_attention: What aMLP adds to `f`, in the shape of the result.
            gate_inputs: With a cache, what the method of this name gave for all tokens, those in the cache first.

        Returns:
            Shape `(batch, length, intermediate_size / 2)` for `"split"`, else `(batch, length, intermediate_size)`.
        """
        passed = hidden_states.chunk(2, dim=-1)[0] if self.gate_type == "split" else hidden_states
        if gate_inputs is None:
            gate_inputs = self.gate_inputs(hidden_states, padding_mask)
        gate = self.spatial_proj(gate_inputs, positions)
        if tiny_attention is not None:
            gate = gate + tiny_attention
        if self.gate_type == "linear":
            return gate
        return passed + gate if self.gate_type == "additive" else passed * gate

    def extra_repr(self) -> str:
        return f"gate_type={self.gate_type!r}"
