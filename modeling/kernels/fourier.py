"""Toeplitz products with Fourier transforms, in time O(n log n) and memory O(n), for long sequences.

Reference: `SpatialProjection.forward` in `layers/spatial_gating_unit.py`.
"""

from collections.abc import Callable, Mapping

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

from ..inputs.token_layout import TokenLayout
from ..layers.spatial_gating_unit import SpatialProjection
from .conditions import is_compiled_for_cpu, is_in_graph
from .measurement import REFERENCE, choice, measure


#: Lengths at which both methods are timed. A sequence uses the faster method of the longest length that it reaches.
LENGTHS = (1024, 2048, 4096)


def applies(module: SpatialProjection) -> bool:
    """Whether sequences can be long enough on this processor. The first call measures."""
    if module.weight_type != "toeplitz":
        return False
    gains = [measure(_name(length), _comparison(length)) for length in LENGTHS if length <= module.max_length]
    return any(gains)


def forward(self: SpatialProjection, hidden_states: torch.Tensor, layout: TokenLayout | None = None) -> torch.Tensor:
    """`SpatialProjection.forward`, without building the matrix if all tokens of long rows are computed.

    Graphs use this only if all their lengths are long enough. Exported programs use the matrix, because many runtimes
    have no Fourier transforms.
    """
    may_convolve = (
        self.weight_type == "toeplitz"
        and hidden_states.device.type == "cpu"
        and (is_compiled_for_cpu(hidden_states) or not is_in_graph(hidden_states))
        and _is_whole(layout)
    )
    if may_convolve:
        # A static cache has unused slots.
        tokens = hidden_states if layout is None else hidden_states[:, layout.new_tokens]
        if _is_long(tokens):
            positions = None if layout is None else layout.positions
            bias = self.bias[: tokens.shape[1]] if positions is None else self.bias[positions]
            if layout is not None and layout.padding_mask is not None:  # no matrix has columns to set to zero
                tokens = tokens * layout.padding_mask[:, :, None].to(tokens.dtype)
            return convolve(self, tokens, bias)
    return type(self).forward(self, hidden_states, layout)


def _is_whole(layout: TokenLayout | None) -> bool:
    """Whether each row is one document and is computed whole, so that weights depend only on distances."""
    return layout is None or (layout.is_shared and layout.counts_positions and layout.is_whole)


def _is_long(hidden_states: torch.Tensor) -> bool:
    # Products in half precision are faster.
    factor = 2 if product_dtype(hidden_states).itemsize < 4 else 1
    known = [length for length in LENGTHS if statically_known_true(hidden_states.shape[1] >= factor * length)]
    return bool(known) and choice(_name(known[-1])) != REFERENCE


def product_dtype(hidden_states: torch.Tensor) -> torch.dtype:
    """Dtype of a matrix product with `hidden_states`, considering autocast."""
    if torch.is_autocast_enabled("cpu") and hidden_states.dtype != torch.float64:
        return torch.get_autocast_dtype("cpu")
    return hidden_states.dtype


def convolve(projection: SpatialProjection, hidden_states: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `W Z + b` for all tokens by the convolution theorem, in at least float32.

    The rounding error of every token is relative to the largest value of its row, including later tokens of a causal
    row.

    Args:
        projection: Holds the diagonals of `W`.
        hidden_states: Shape `(batch, length, channels)`.
        bias: Shape `(length,)` or `(batch, length)`.

    Returns:
        Shape of `hidden_states`.
    """
    length, max_length, dtype = hidden_states.shape[1], projection.max_length, product_dtype(hidden_states)
    precise = torch.promote_types(dtype, torch.float32)
    diagonals = projection.weight[max_length - length : max_length + length - 1].to(precise)
    if projection.is_causal:
        diagonals = F.pad(diagonals[:length], (0, length - 1))
    # FFT size >= 2 * length - 1 avoids wrap-around in the part that is kept; small prime factors are fast. A graph for
    # many lengths uses a size that is large enough for all.
    powers = (1 << bits for bits in range((2 * max_length - 2).bit_length() + 1))
    sizes = [eighths * power // 8 for power in powers for eighths in (5, 6, 7, 8)]
    size = next((size for size in sizes if statically_known_true(size >= 2 * length - 1)), sizes[-1])
    kernel = torch.fft.rfft(diagonals.flip(0), size)
    product = kernel[:, None] * torch.fft.rfft(hidden_states.to(precise), size, dim=1)
    mixed = torch.fft.irfft(product, size, dim=1).narrow(1, length - 1, length)
    return (mixed + bias[..., None]).to(dtype)


def _name(length: int) -> str:
    return f"Toeplitz product, {length} tokens"


def _comparison(length: int) -> Callable[[], Mapping[str, Callable[[], object]]]:
    def alternatives() -> Mapping[str, Callable[[], object]]:
        projection = SpatialProjection(length, "toeplitz").requires_grad_(False)
        # `accelerate.init_empty_weights` creates parameters without memory.
        projection = projection.to_empty(device="cpu").to(torch.float32)
        for parameter in projection.parameters():
            parameter.fill_(1.0)
        inputs = torch.ones(1, length, 32, dtype=torch.float32)
        return {
            REFERENCE: lambda: SpatialProjection.forward(projection, inputs),
            "fourier": lambda: convolve(projection, inputs, projection.bias),
        }

    return alternatives
