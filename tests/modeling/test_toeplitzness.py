import pytest
import torch

from tokenmixers.modeling.layers.spatial_gating_unit import SpatialProjection
from tokenmixers.modeling.toeplitzness import toeplitzness


def test_toeplitzness_by_hand():
    toeplitz = SpatialProjection(7, "toeplitz")
    torch.nn.init.normal_(toeplitz.weight)
    assert toeplitzness(toeplitz.matrix(7)) == pytest.approx(1)
    # Diagonal means: 0 (corner), 2.5, 5/3... of [[1, 2], [3, 6]]: 3.5 twice, 2, 3; variation about the mean 3 is 14.
    matrix = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert toeplitzness(matrix) == pytest.approx(1 - (2.5**2 + 2.5**2) / 14)
    assert toeplitzness(torch.randn(200, 200)) < 0.05
