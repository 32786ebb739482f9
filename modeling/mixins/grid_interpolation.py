"""Linear maps between the token grids of two image sizes."""

import torch
from torch.nn import functional as F


def grid_interpolation(
    old_grid: tuple[int, int], new_grid: tuple[int, int], leading_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear maps between token grids of two image sizes (bicubic, antialiased).

    A token-mixing matrix `W` of the old grid becomes `rows @ W @ columns` on the new one: take the new input tokens
    to the old grid, mix them there, take the output tokens to the new grid. Both maps have rows that sum to one, so
    the sum of a filter's weights over the input tokens, which is its answer to a constant input, is kept exactly; a
    single weight shrinks as the number of input tokens grows. Filters keep their extent relative to the picture.

    Args:
        old_grid: Rows and columns of patches now.
        new_grid: Rows and columns of patches wanted.
        leading_tokens: Number of tokens before the patches that are no part of the grid (class token); kept as is.

    Returns:
        `rows`, shape `(new tokens, old tokens)`, and `columns`, shape `(old tokens, new tokens)`, in float64.
    """
    return _interpolation(old_grid, new_grid, leading_tokens), _interpolation(new_grid, old_grid, leading_tokens)


def _interpolation(source: tuple[int, int], target: tuple[int, int], leading_tokens: int) -> torch.Tensor:
    impulses = torch.eye(source[0] * source[1], dtype=torch.float64).unflatten(1, source)[:, None]
    responses = F.interpolate(impulses, size=target, mode="bicubic", antialias=True, align_corners=False)
    return torch.block_diag(torch.eye(leading_tokens, dtype=torch.float64), responses.flatten(1).T)
