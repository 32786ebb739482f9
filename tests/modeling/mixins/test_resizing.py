import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers import GMLPConfig, GMLPForImageClassification, GMLPForMaskedLM


@given(weight_type=st.sampled_from(["toeplitz", "full"]), new=st.integers(1, 20), data=st.data())
def test_text_that_fits_both_lengths_is_answered_alike(tiny_config, randomise, weight_type, new, data):
    model = randomise(GMLPForMaskedLM(tiny_config(spatial_weight_type=weight_type))).eval()
    input_ids = torch.randint(37, (2, data.draw(st.integers(1, min(new, 11)))))
    before = model(input_ids).logits
    model.resize_position_embeddings(new)
    assert model.config.max_position_embeddings == new
    torch.testing.assert_close(model(input_ids).logits, before)
    assert model(torch.randint(37, (1, new))).logits.isfinite().all()


def smoothing(grid, spread):
    """A filter that averages over the picture around each patch, `spread` in units of the picture's side."""
    places = torch.cartesian_prod(*((torch.arange(n, dtype=torch.double) + 0.5) / n for n in grid))
    weights = torch.exp(-torch.cdist(places, places).square() / (2 * spread**2))
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("new_size", [32, 12])
def test_a_resampled_filter_does_the_analogous_thing(pooling, new_size):
    """An average over part of the picture stays that average, whatever the number of patches."""
    config = GMLPConfig(
        hidden_size=6,
        intermediate_size=8,
        num_hidden_layers=1,
        image_size=20,
        patch_size=2,
        spatial_weight_type="full",
        classifier_pooling=pooling,
    )
    model = GMLPForImageClassification(config)
    projection = model.model.layers[0].sgu.spatial_proj
    token = int(pooling == "cls")
    with torch.no_grad():
        projection.weight.zero_()
        projection.weight[token:, token:] = smoothing((10, 10), 0.2)
        projection.weight[:token, :token] = 3.0
        projection.bias[token:] = 0.5
    model.resize_position_embeddings(new_size)
    side = new_size // 2
    assert (model.config.image_size, projection.max_length) == (new_size, side * side + token)
    assert model(torch.randn(1, 3, new_size, new_size)).logits.shape == (1, 2)

    picture = torch.linspace(-1, 1, side)[:, None].cos() * torch.linspace(0, 2, side)[None].sin()
    found = projection.weight[token:, token:].detach() @ picture.flatten()
    expected = smoothing((side, side), 0.2).float() @ picture.flatten()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.03)
    torch.testing.assert_close(projection.weight[token:, token:].sum(-1), torch.ones(side * side))
    torch.testing.assert_close(projection.bias[token:], torch.full((side * side,), 0.5))
    assert (projection.weight[:token, :token] == 3).all()


def test_impossible_sizes_are_refused(tiny_config):
    model = GMLPForMaskedLM(tiny_config())
    for length in (0, -1, 2.5, (4, 4), None):
        with pytest.raises(ValueError, match=f"positive integer, got {re.escape(repr(length))}"):
            model.resize_position_embeddings(length)
    images = {"hidden_size": 6, "intermediate_size": 8, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    with pytest.raises(ValueError, match="to_full_spatial_weights"):
        GMLPForImageClassification(GMLPConfig(**images, spatial_weight_type="toeplitz")).resize_position_embeddings(32)
    with pytest.raises(ValueError, match="got 30"):
        GMLPForImageClassification(GMLPConfig(**images)).resize_position_embeddings(30)
