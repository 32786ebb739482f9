"""Other sequence lengths and image sizes for learned token-mixing weights, and the Toeplitz structure of those."""

from typing import Protocol

import torch
from torch.nn import functional as F

from ..layers.spatial_gating_unit import SpatialProjection
from .typing import ModelMixin


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


def toeplitz_projection(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
    """The nearest Toeplitz matrix in the least-squares sense: each entry becomes the mean of its diagonal.

    Args:
        matrix: Shape `(n, n)`.
        grid: For tokens in `rows * columns = n` patches: average over all pairs of tokens that are the same number of
            rows and of columns apart (block Toeplitz with Toeplitz blocks: a convolution over the picture).

    Returns:
        Shape `(n, n)`.

    Raises:
        ValueError: If the matrix is not square or the grid does not have `n` patches.
    """
    size = matrix.shape[0]
    rows, columns = (1, size) if grid is None else grid
    if matrix.shape != (size, size) or rows * columns != size:
        raise ValueError(f"Expected a square matrix over {rows} x {columns} tokens, got shape {tuple(matrix.shape)}.")
    token = torch.arange(size, device=matrix.device)
    row, column = token // columns, token % columns
    offset = (row[None] - row[:, None] + rows - 1) * (2 * columns - 1) + column[None] - column[:, None] + columns - 1
    offset = offset.flatten()
    sums = matrix.new_zeros((2 * rows - 1) * (2 * columns - 1)).index_add(0, offset, matrix.flatten())
    return (sums / offset.bincount(minlength=len(sums)).clamp(min=1))[offset].view(size, size)


def toeplitzness(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> float:
    """How Toeplitz-like a matrix is: the share of the variance of its entries that its diagonals' means explain.

    `1 - |W - T|^2 / |W - mean(W)|^2` with T = `toeplitz_projection(W)`: 1 for a Toeplitz matrix; about
    `2 / (n + 1)` for independent random entries, so close to 0 for all but small matrices.

    Args:
        matrix: Shape `(n, n)`, real.
        grid: As in `toeplitz_projection`.

    Returns:
        A number in [0, 1]; 1 for a constant matrix.
    """
    matrix = matrix.detach().double()
    variation = (matrix - matrix.mean()).square().sum()
    residual = (matrix - toeplitz_projection(matrix, grid)).square().sum()
    return 1.0 if variation == 0 else float(1 - residual / variation)


class TokenMixing(Protocol):
    """A module whose learned weights belong to positions."""

    def set_max_length(self, max_length: int) -> None:
        """Cover sequences of another length."""

    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Cover another grid of patches, see `grid_interpolation`."""


class ResizableTokens(ModelMixin):
    """Mixin for `PreTrainedModel`s whose token mixing is a learned matrix: another maximum length or image size.

    `_token_mixing_module` is the class of the modules that hold such matrices.
    """

    _token_mixing_module: type[TokenMixing]

    def resize_position_embeddings(self, new_num_position_embeddings: int | tuple[int, int]) -> None:
        """Fit the token-mixing weights to another maximum length or image size, keeping what they have learned.

        Text: a longer maximum length adds weights that are zero (and biases as at the start of training), a shorter
        one drops those of the last tokens; outputs for sequences that fit both stay the same. Images: the weights are
        resampled over both token axes, see `grid_interpolation`; the class token's stay. Do this before creating an
        optimizer.

        Args:
            new_num_position_embeddings: For text the new `max_position_embeddings`; for images the new image size in
                pixels, one number or (height, width).

        Raises:
            ValueError: If the number is not positive, the image size is no multiple of the patch size, or an image
                model has Toeplitz weights (call `to_full_spatial_weights` first).
        """
        config = self.config
        mixing_modules = self.get_position_embeddings()
        if config.image_size is None:
            if not isinstance(new_num_position_embeddings, int) or new_num_position_embeddings < 1:
                raise ValueError(
                    f"The new maximum length must be a positive integer, got {new_num_position_embeddings!r}."
                )
            for module in mixing_modules:
                module.set_max_length(new_num_position_embeddings)
            config.max_position_embeddings = new_num_position_embeddings
            return
        if config.spatial_weight_type == "toeplitz":
            raise ValueError(
                "Toeplitz spatial weights cannot be resampled over a grid of patches, as the result is not Toeplitz. "
                "Call `model.to_full_spatial_weights()` first."
            )
        old_grid = config.patch_grid
        config.set_image_size(new_num_position_embeddings)
        rows, columns = grid_interpolation(old_grid, config.patch_grid, int(config.use_class_token))
        for module in mixing_modules:
            module.resample(rows, columns)

    def get_position_embeddings(self) -> tuple[TokenMixing, ...]:  # type: ignore[override]  # no embeddings
        """The modules that hold the token-mixing weights, which know positions instead of position embeddings."""
        return tuple(module for module in self.modules() if isinstance(module, self._token_mixing_module))

    def to_full_spatial_weights(self) -> None:
        """Store every spatial weight as a full matrix from now on; outputs stay the same. Full ones are left alone.

        Training then need not keep the matrices Toeplitz. Do this before creating an optimizer.
        """
        if self.config.spatial_weight_type == "full":
            return
        for module in self.modules():
            if isinstance(module, SpatialProjection):
                module.to_full()
        self.config.spatial_weight_type = "full"
