"""The gates of Table 3 of the paper and the storage of their spatial weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmixers import GMLPConfig, GMLPForMaskedLM, GMLPModel
from tokenmixers.modeling.layers.spatial_gating_unit import SpatialGatingUnit, SpatialProjection


GATE_TYPES = ["split", "linear", "additive", "multiplicative"]


def layer_norm(vector, weight, bias, eps):
    centred = vector - vector.mean()
    return centred / (centred.square().mean() + eps).sqrt() * weight + bias


def gate_with_loops(unit, hidden_states):
    """s(Z) token by token and channel by channel, with the Toeplitz weight read entry by entry."""
    batch, length, channels = hidden_states.shape
    half = channels // 2 if unit.gate_type == "split" else 0
    width, projection = channels - half, unit.spatial_proj
    result = torch.zeros(batch, length, width)
    for example in range(batch):
        normed = [
            layer_norm(token[half:], unit.norm.weight, unit.norm.bias, unit.norm.eps)
            for token in hidden_states[example]
        ]
        for i in range(length):
            mixed = projection.bias[i] * torch.ones(width)
            for j in range(length):
                toeplitz = projection.weight_type == "toeplitz"
                weight = projection.weight[projection.max_length - 1 + j - i] if toeplitz else projection.weight[i, j]
                mixed = mixed + weight * normed[j]
            passed = hidden_states[example, i, :width]
            result[example, i] = {
                "split": passed * mixed,
                "linear": mixed,
                "additive": passed + mixed,
                "multiplicative": passed * mixed,
            }[unit.gate_type]
    return result


@pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
@pytest.mark.parametrize("gate_type", GATE_TYPES)
@settings(max_examples=8, deadline=None)
@given(max_length=st.integers(1, 6), data=st.data(), channels=st.sampled_from([2, 4, 6]), seed=st.integers(0, 99))
def test_gate_equals_the_formula(gate_type, weight_type, max_length, data, channels, seed):
    length = data.draw(st.integers(1, max_length))
    torch.manual_seed(seed)
    unit = SpatialGatingUnit(channels, max_length, weight_type, 1e-5, gate_type)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.normal_()
        hidden_states = torch.randn(2, length, channels)
        torch.testing.assert_close(unit(hidden_states), gate_with_loops(unit, hidden_states), atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("gate_type", GATE_TYPES)
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_padding_changes_nothing(gate_type, padding_side, randomise):
    config = GMLPConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        max_position_embeddings=9,
        gate_type=gate_type,
    )
    model = randomise(GMLPModel(config)).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    alone = model(ids).last_hidden_state
    where = (3, 0) if padding_side == "left" else (0, 3)
    mask = torch.nn.functional.pad(torch.ones_like(ids), where)
    padded = model(torch.nn.functional.pad(ids, where, value=7), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(padded[:, mask[0] == 1], alone, atol=1e-5, rtol=1e-5)


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
