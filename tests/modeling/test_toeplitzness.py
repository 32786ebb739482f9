import pytest
import torch

from tokenmixers.modeling.layers.spatial_gating_unit import SpatialProjection
from tokenmixers.modeling.toeplitzness import toeplitz_projection, toeplitzness


def test_toeplitzness_by_hand():
    toeplitz = SpatialProjection(7, "toeplitz")
    torch.nn.init.normal_(toeplitz.weight)
    assert toeplitzness(toeplitz.matrix(7)) == pytest.approx(1)
    # Diagonal means: 0 (corner), 2.5, 5/3... of [[1, 2], [3, 6]]: 3.5 twice, 2, 3; variation about the mean 3 is 14.
    matrix = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert toeplitzness(matrix) == pytest.approx(1 - (2.5**2 + 2.5**2) / 14)
    assert toeplitzness(torch.randn(200, 200)) < 0.05


@pytest.mark.parametrize("grid", [None, (1, 6), (6, 1), (2, 3), (3, 2)])
def test_projection_is_the_mean_over_pairs_of_the_same_offset(grid):
    matrix = torch.randn(6, 6)
    rows, columns = grid or (1, 6)
    sums, counts = {}, {}

    def offset(i, j):
        return j // columns - i // columns, j % columns - i % columns

    for i in range(6):
        for j in range(6):
            sums[offset(i, j)] = sums.get(offset(i, j), 0.0) + matrix[i, j].item()
            counts[offset(i, j)] = counts.get(offset(i, j), 0) + 1
    expected = [[sums[offset(i, j)] / counts[offset(i, j)] for j in range(6)] for i in range(6)]
    torch.testing.assert_close(toeplitz_projection(matrix, grid), torch.tensor(expected))
    assert len(sums) == (2 * rows - 1) * (2 * columns - 1)


def test_matrices_and_grids_that_do_not_fit_are_refused():
    assert toeplitzness(torch.full((3, 3), 2.0)) == 1.0
    for shape, grid in (((2, 3), None), ((6, 6), (2, 2))):
        with pytest.raises(ValueError, match=r"Expected a square matrix over \d x \d tokens, got shape"):
            toeplitz_projection(torch.ones(shape), grid)
