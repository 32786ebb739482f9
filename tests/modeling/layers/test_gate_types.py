"""The gates of Table 3 of the paper and the storage of their spatial weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmixers import GMLPConfig, GMLPForMaskedLM, GMLPModel
from tokenmixers.modeling.layers.spatial_gating_unit import SpatialProjection


GATE_TYPES = ["split", "linear", "additive", "multiplicative"]


@pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
@pytest.mark.parametrize("gate_type", GATE_TYPES)
def test_a_new_gate_does_what_the_paper_says(gate_type, weight_type):
    config = GMLPConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        max_position_embeddings=5,
        gate_type=gate_type,
        spatial_weight_type=weight_type,
    )
    unit = GMLPModel(config).layers[1].sgu
    hidden_states = torch.randn(3, 5, 12)
    expected = {
        "split": hidden_states[..., :6],
        "linear": torch.ones(3, 5, 12),
        "additive": hidden_states + 1,
        "multiplicative": hidden_states,
    }[gate_type]
    torch.testing.assert_close(unit(hidden_states), expected, atol=1e-4, rtol=1e-4)
    assert unit.spatial_proj.weight.abs().max() > 0


@pytest.mark.parametrize("gate_type", GATE_TYPES[1:])
def test_unsplit_gates_take_odd_sizes_and_need_the_papers_number_of_parameters(gate_type):
    config = GMLPConfig(num_hidden_layers=36, intermediate_size=2048, max_position_embeddings=128, gate_type=gate_type)
    with torch.device("meta"):
        model = GMLPForMaskedLM(config)
    # Table 3 prints 92M; the vocabulary bias is not counted there.
    assert model.num_parameters() - model.lm_head.bias.numel() == 92_172_764
    assert GMLPConfig(intermediate_size=7, gate_type=gate_type).gate_size == 7


@settings(max_examples=15, deadline=None)
@given(max_length=st.integers(1, 12), data=st.data())
def test_toeplitz_weights_convert_to_full_ones_exactly(max_length, data):
    length = data.draw(st.integers(1, max_length))
    projection = SpatialProjection(max_length, "toeplitz")
    torch.nn.init.normal_(projection.weight)
    torch.nn.init.normal_(projection.bias)
    diagonals = projection.weight.tolist()
    hidden_states = torch.randn(2, length, 3)
    before = projection(hidden_states)
    projection.to_full()
    assert projection.weight.tolist() == [
        [diagonals[max_length - 1 + j - i] for j in range(max_length)] for i in range(max_length)
    ]
    torch.testing.assert_close(projection(hidden_states), before)
    assert projection.weight.is_contiguous()
    assert projection.weight.requires_grad


def test_a_converted_model_saves_and_trains_full_weights(tmp_path, randomise):
    config = GMLPConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, max_position_embeddings=6
    )
    model = randomise(GMLPForMaskedLM(config)).eval()
    ids = torch.randint(0, 11, (2, 5))
    before = model(ids).logits
    model.to_full_spatial_weights()
    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    assert loaded.config.spatial_weight_type == "full"
    torch.testing.assert_close(loaded(ids).logits, before, atol=1e-5, rtol=1e-5)
    loaded(ids, labels=ids).loss.backward()
    gradient = loaded.model.layers[0].sgu.spatial_proj.weight.grad
    assert gradient.shape == (6, 6)
    assert gradient[0, 1] != gradient[1, 2]  # no longer one number per diagonal
