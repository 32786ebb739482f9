"""Linear maps between the token grids of two image sizes."""

import torch
from torch.nn import functional as F


def grid_interpolation(
    old_grid: tuple[int, int], new_grid: tuple[int, int], leading_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear maps between token grids of two image sizes (bicubic, antialiased).

    A token-mixing matrix `W` of the old grid becomes `rows @ W @ columns` on the new one. The rows of both maps sum to
    one, so a filter's response to a constant input, the sum of its weights, stays the same.

    Args:
        old_grid: Rows and columns of patches of the old weights.
        new_grid: Rows and columns of patches of the new weights.
        leading_tokens: Number of tokens before the patches (class token), which are not interpolated.

    Returns:
        `rows`, shape `(new tokens, old tokens)`, and `columns`, shape `(old tokens, new tokens)`, in float64.
    """
    return _interpolation(old_grid, new_grid, leading_tokens), _interpolation(new_grid, old_grid, leading_tokens)


def _interpolation(source: tuple[int, int], target: tuple[int, int], leading_tokens: int) -> torch.Tensor:
    impulses = torch.eye(source[0] * source[1], dtype=torch.float64).unflatten(1, source)[:, None]
    responses = F.interpolate(impulses, size=target, mode="bicubic", antialias=True, align_corners=False)
    return torch.block_diag(torch.eye(leading_tokens, dtype=torch.float64), responses.flatten(1).T)
