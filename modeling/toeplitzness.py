"""Measure how close a token-mixing matrix is to a Toeplitz matrix."""

import torch


def toeplitz_projection(matrix: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
    """The nearest Toeplitz matrix in the least-squares sense: each entry becomes the mean of its diagonal.

    Args:
        matrix: Shape `(n, n)`.
        grid: For tokens in `rows * columns = n` patches: average over all pairs of tokens with the same row and column
            offsets (block Toeplitz with Toeplitz blocks, i.e. a convolution over the image).

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
    """Share of the variance of a matrix's entries that the means of its diagonals explain.

    `1 - |W - T|^2 / |W - mean(W)|^2` with T = `toeplitz_projection(W)`: 1 for a Toeplitz matrix; about
    `2 / (n + 1)` for independent random entries, so close to 0 for all but small matrices.

    Args:
        matrix: Shape `(n, n)`, real.
        grid: As in `toeplitz_projection`.

    Returns:
        A number in [0, 1]; 1 for a constant matrix.
    """
    matrix = matrix.detach().cpu().double()  # MPS has no float64
    variation = (matrix - matrix.mean()).square().sum()
    residual = (matrix - toeplitz_projection(matrix, grid)).square().sum()
    return 1.0 if variation == 0 else float(1 - residual / variation)
