"""The eight feed-forward layers of "GLU Variants Improve Transformer" (arXiv 2002.05202, section 2)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .precision import cast_once, widen_for


def _linear(hidden_states: torch.Tensor) -> torch.Tensor:
    return hidden_states


# Type -> (activation of the first projection, whether a second, linear projection multiplies it).
FEED_FORWARD_TYPES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "relu": (F.relu, False),
    "gelu": (F.gelu, False),
    "swish": (F.silu, False),
    "glu": (torch.sigmoid, True),
    "bilinear": (_linear, True),
    "reglu": (F.relu, True),
    "geglu": (F.gelu, True),
    "swiglu": (F.silu, True),
}


def parameter_matched_width(width: int, feed_forward_type: str) -> int:
    """Width that gives a gated layer as many parameters as an ungated layer (section 3.1 of the paper).

    Gated layers have three matrices instead of two, so they get two thirds of the width: 3072 becomes 2048. Widths
    that are not divisible by three are rounded down.

    Args:
        width: Width of the ungated layer.
        feed_forward_type: A key of `FEED_FORWARD_TYPES`.

    Returns:
        `width` for ungated types, `2 * width // 3` for gated ones.

    Raises:
        ValueError: If the type is unknown.
    """
    _check_type(feed_forward_type)
    return 2 * width // 3 if FEED_FORWARD_TYPES[feed_forward_type][1] else width


def _check_type(feed_forward_type: str) -> None:
    if feed_forward_type not in FEED_FORWARD_TYPES:
        raise ValueError(f"`feed_forward_type={feed_forward_type!r}` is not one of {', '.join(FEED_FORWARD_TYPES)}.")


class FeedForward(nn.Module):
    """`act(x W1) W2`, or `(act(x W) * x V) W2` for the gated types. No biases.

    In the paper's letters, `gate_proj` is W, `up_proj` is V (W1 in the ungated types) and `down_proj` is W2. The
    activation acts on the W branch: ReLU, exact GELU, Swish with beta 1, sigmoid (GLU) or nothing (bilinear).

    Args:
        hidden_size: Width of input and output.
        intermediate_size: Width inside.
        feed_forward_type: `"relu"`, `"gelu"`, `"swish"`, `"glu"`, `"bilinear"`, `"reglu"`, `"geglu"` or `"swiglu"`.
        dropout: Dropout rate for the input of the last matrix.
        gelu_approximate: `"none"`, or `"tanh"` for the approximation of T5 v1.1.

    Raises:
        ValueError: If the type is unknown.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        feed_forward_type: str,
        dropout: float = 0.0,
        gelu_approximate: str = "none",
    ):
        super().__init__()
        _check_type(feed_forward_type)
        self.feed_forward_type = feed_forward_type
        self.activation, self.is_gated = FEED_FORWARD_TYPES[feed_forward_type]
        if self.activation is F.gelu:
            self.activation = partial(F.gelu, approximate=gelu_approximate)
        if self.is_gated:
            self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `(..., hidden_size)` to `(..., hidden_size)`."""
        if self.is_gated:
            hidden_states = cast_once(hidden_states)
            intermediate = self.activation(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        else:
            intermediate = self.activation(self.up_proj(hidden_states))
        # Float16 models keep the last matrix in float32, because its sums overflow in T5.
        return self.down_proj(widen_for(self.down_proj, self.dropout(intermediate)))

    def extra_repr(self) -> str:
        return f"feed_forward_type={self.feed_forward_type!r}"
