import pytest
import torch

from tokenmixers import GMLPConfig, GMLPModel
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies.measures import MEASURES, check_measures, measure


@pytest.fixture
def folder(tmp_path):
    """A run of 6 steps whose spatial weights are random after step 3, and Toeplitz matrices in the end."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 20}
    model = GMLPModel(GMLPConfig(**sizes, max_position_embeddings=40, spatial_weight_type="full"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.layers:
            layer.sgu.spatial_proj.weight.normal_(generator=generator)
        model.save_pretrained(tmp_path / "checkpoint-3")
        for layer in model.layers:
            layer.sgu.spatial_proj.weight.copy_(torch.arange(40.0)[:, None] - torch.arange(40.0))
    model.save_pretrained(tmp_path)
    return tmp_path


def test_the_measures_at_every_checkpoint(folder):
    found = measure(list(MEASURES), folder, 6)
    (first, random), (last, end) = found["toeplitzness"]
    assert (first, last) == (3, 6)
    assert end == pytest.approx(1.0)
    # Independent entries: n diagonals' means explain about 2 / (n + 1) of the variance.
    assert random == pytest.approx(2 / 41, abs=0.02)
    controls = [value for _, value in found["toeplitzness_of_random_matrices"]]
    assert controls[0] == controls[1] == pytest.approx(2 / 41, abs=0.02)


def test_unknown_measures_are_refused(folder):
    with pytest.raises(UserError, match="there is no measure 'beauty'; there are toeplitzness, "):
        check_measures(["toeplitzness", "beauty"])
    assert measure([], folder, 6) == {}
