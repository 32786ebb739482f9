"""The spatial gating unit against a slow reference: an einsum over a matrix written out with loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.layers.spatial_gating_unit import SpatialGatingUnit, SpatialProjection
from tokenmixers.modeling.layers.synthetic_logits import RandomLogits
from tokenmixers.modeling.layers.token_mixing import TokenMixingMLP


WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
MAX_LENGTH = 9
WIDTH = 12


@pytest.fixture(scope="module")
def slow(spatial_matrix):
    """`slow(unit, inputs, real, ids)`: the unit's output with real tokens `real` at the positions `ids`, by row."""

    def compute(unit, inputs, real, ids):
        rows = []
        for row, row_real, row_ids in zip(inputs, real, ids, strict=True):
            passed, gate = row[:, : WIDTH // 2], row[:, WIDTH // 2 :]
            centred = gate - gate.mean(-1, keepdim=True)
            gate = centred / (centred.square().mean(-1, keepdim=True) + unit.norm.eps).sqrt()
            gate = (gate * unit.norm.weight + unit.norm.bias) * row_real.to(gate.dtype)[:, None]
            matrix = spatial_matrix(unit.spatial_proj, row_ids.tolist())
            bias = torch.stack([unit.spatial_proj.bias[i] for i in row_ids])
            rows.append(passed * (torch.einsum("ij,jc->ic", matrix, gate) + bias[:, None]))
        return torch.stack(rows)

    return compute


def _assert_same_forward_and_gradients(unit, inputs, fast, slow):
    torch.testing.assert_close(fast, slow)
    direction = torch.randn(fast.shape, dtype=fast.dtype)
    leaves = {"inputs": inputs, **dict(unit.named_parameters())}
    gradients = [
        torch.autograd.grad((out * direction).sum(), list(leaves.values()), retain_graph=True) for out in (fast, slow)
    ]
    for name, one, other in zip(leaves, *gradients, strict=True):
        assert one.abs().sum() > 0, name
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


def _layouts(length, **known):
    """Without and with the index of diagonals, which models for short sequences give."""
    layout, index = TokenLayout(length, length, **known), torch.arange(length)
    return layout, layout._replace(diagonal_index=(length - 1) + index - index[:, None])


def _unit(weight_type, randomise, is_causal=False):
    unit = SpatialGatingUnit(WIDTH, MAX_LENGTH, weight_type, layer_norm_eps=1e-3, is_causal=is_causal)
    return randomise(unit).double()


@WEIGHT_TYPES
@given(batch=st.integers(1, 3), length=st.integers(1, MAX_LENGTH))
def test_equals_the_reference(weight_type, randomise, slow, batch, length):
    unit = _unit(weight_type, randomise)
    inputs = torch.randn(batch, length, WIDTH, dtype=torch.double, requires_grad=True)
    ids = torch.arange(length).expand(batch, length)
    reference = slow(unit, inputs, torch.ones(batch, length), ids)
    _assert_same_forward_and_gradients(unit, inputs, unit(inputs), reference)


@WEIGHT_TYPES
@given(
    real=st.integers(1, MAX_LENGTH).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=3)
    )
)
def test_equals_the_reference_with_any_mask(weight_type, randomise, slow, real):
    real = torch.tensor(real)
    real[:, 0] = True
    unit = _unit(weight_type, randomise)
    inputs = torch.randn(*real.shape, WIDTH, dtype=torch.double, requires_grad=True)
    reference = slow(unit, inputs, real, torch.arange(real.shape[1]).expand(real.shape))
    for layout in _layouts(real.shape[1], padding_mask=real):
        _assert_same_forward_and_gradients(unit, inputs, unit(inputs, layout), reference)


@WEIGHT_TYPES
@given(data=st.data(), length=st.integers(1, MAX_LENGTH))
def test_equals_the_reference_at_shifted_positions(weight_type, randomise, slow, data, length):
    """Left padding: row `b` starts `padding[b]` tokens late, and its positions count from there."""
    padding = torch.tensor(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=3)))
    shifted = torch.arange(length) - padding[:, None]
    real, ids = shifted >= 0, shifted.clamp(min=0)
    unit = _unit(weight_type, randomise)
    inputs = torch.randn(*real.shape, WIDTH, dtype=torch.double, requires_grad=True)
    reference = slow(unit, inputs, real, ids)
    for layout in _layouts(length, padding_mask=real, positions=ids, shifted=True):
        fast = unit(inputs, layout)
        _assert_same_forward_and_gradients(unit, inputs, fast[real], reference[real])


@WEIGHT_TYPES
@given(data=st.data(), batch=st.integers(1, 3), length=st.integers(1, MAX_LENGTH + 3))
def test_equals_the_reference_at_free_positions(weight_type, randomise, slow, data, batch, length):
    """Any positions, repeated ones too, as for packed or permuted sequences."""
    row = st.lists(st.integers(0, MAX_LENGTH - 1), min_size=length, max_size=length)
    ids = torch.tensor(data.draw(st.lists(row, min_size=batch, max_size=batch)))
    unit = _unit(weight_type, randomise)
    inputs = torch.randn(batch, length, WIDTH, dtype=torch.double, requires_grad=True)
    fast = unit(inputs, TokenLayout(length, length, positions=ids))
    _assert_same_forward_and_gradients(unit, inputs, fast, slow(unit, inputs, torch.ones(batch, length), ids))


@WEIGHT_TYPES
@pytest.mark.parametrize("length", [1, 4, MAX_LENGTH])
def test_the_matrix_is_the_definition_entry_by_entry(weight_type, length, randomise, spatial_matrix):
    projection = randomise(SpatialProjection(MAX_LENGTH, weight_type))
    for layout in (None, *_layouts(length)):
        assert torch.equal(projection.matrix(length, layout), spatial_matrix(projection, list(range(length))))


@pytest.mark.parametrize("layout", _layouts(600))
def test_gradients_of_half_precision_weights_are_precise_sums(layout):
    """In bfloat16, adding ones one by one would stop at 256."""
    projection = SpatialProjection(700, "toeplitz").to(torch.bfloat16)
    projection.matrix(600, layout).backward(torch.ones(600, 600, dtype=torch.bfloat16))
    counts = 600 - torch.arange(-699, 700).abs()  # entries of each diagonal
    torch.testing.assert_close(projection.weight.grad, counts.clamp(min=0).to(torch.bfloat16))


@pytest.mark.parametrize(
    "layer",
    [
        SpatialProjection(MAX_LENGTH, "full"),
        TokenMixingMLP(MAX_LENGTH, 5, "gelu"),
        lambda _: RandomLogits(2, MAX_LENGTH)(TokenLayout(MAX_LENGTH, MAX_LENGTH)),
    ],
)
def test_parameters_of_the_input_s_length_are_not_sliced(layer):
    """The gradient of a slice is two more passes, even of one that takes everything."""
    output = layer(torch.randn(2, MAX_LENGTH, WIDTH))
    nodes, found = {output.grad_fn}, set()
    while nodes:
        node = nodes.pop()
        found.add(node.name())
        nodes |= {following for following, _ in node.next_functions if following is not None}
    assert "torch::autograd::AccumulateGrad" in found and "SliceBackward0" not in found


def test_toeplitz_weights_end_with_what_lies_to_the_right():
    """`w = (-4, ..., 4)` makes `W[i, j] = j - i`: the last entry is the weight of the furthest token on the right."""
    projection = SpatialProjection(5, "toeplitz")
    with torch.no_grad():
        projection.weight.copy_(torch.arange(-4, 5))
    assert projection.matrix(3).tolist() == [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    assert projection.matrix(5)[0, 4] == projection.weight[-1] == 4


def test_number_of_parameters():
    assert {k: tuple(p.shape) for k, p in SpatialProjection(7, "toeplitz").named_parameters()} == {
        "weight": (13,),
        "bias": (7,),
    }
    assert {k: tuple(p.shape) for k, p in SpatialProjection(7, "full").named_parameters()} == {
        "weight": (7, 7),
        "bias": (7,),
    }


@WEIGHT_TYPES
def test_starts_by_passing_the_first_half_through(weight_type, tiny_config):
    """Section 2.1: near-zero `W` and `b = 1`, as the model initialises them."""
    from tokenmixers import GMLPModel

    model = GMLPModel(tiny_config(spatial_weight_type=weight_type, max_position_embeddings=101))
    for layer in model.layers:
        projection = layer.sgu.spatial_proj
        assert torch.equal(projection.bias, torch.ones(101))
        assert 0.8e-6 < projection.weight.std() < 1.2e-6
        inputs = torch.randn(2, 101, 14)
        torch.testing.assert_close(layer.sgu(inputs), inputs[..., :7], rtol=1e-3, atol=0)


@WEIGHT_TYPES
def test_initial_deviation_can_be_chosen(weight_type, tiny_config):
    from tokenmixers import GMLPModel

    config = tiny_config(spatial_weight_type=weight_type, max_position_embeddings=200, spatial_initializer_range=0.5)
    weights = torch.cat([layer.sgu.spatial_proj.weight.flatten() for layer in GMLPModel(config).layers])
    assert 0.45 < weights.std() < 0.55


@WEIGHT_TYPES
@given(length=st.integers(2, MAX_LENGTH), data=st.data())
def test_padding_adds_exactly_nothing(weight_type, randomise, length, data):
    """Whatever stands in a masked token, no other token's output changes in a single bit."""
    unit = _unit(weight_type, randomise)
    masked = data.draw(st.integers(1, length - 1))
    mask = torch.ones(1, length, dtype=torch.bool)
    mask[0, masked] = False
    layout = TokenLayout(length, length, padding_mask=mask)
    inputs = torch.randn(1, length, WIDTH, dtype=torch.double)
    other = inputs.clone()
    other[0, masked] = 1e3 * torch.randn(WIDTH, dtype=torch.double)
    keep = [i for i in range(length) if i != masked]
    assert torch.equal(unit(inputs, layout)[:, keep], unit(other, layout)[:, keep])


@WEIGHT_TYPES
def test_the_second_half_is_what_gets_mixed(weight_type, randomise):
    """Changing `u` at one token changes that token alone; changing `v` there changes every token."""
    unit = _unit(weight_type, randomise)
    inputs = torch.randn(1, 5, WIDTH, dtype=torch.double)
    changed_tokens = []
    for half in (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)):
        other = inputs.clone()
        other[0, 2, half] = torch.randn(WIDTH // 2, dtype=torch.double)
        changed_tokens.append((unit(inputs) != unit(other)).any(-1)[0].tolist())
    assert changed_tokens == [[False, False, True, False, False], [True] * 5]


def test_the_norm_has_the_epsilon_it_was_given():
    unit = SpatialGatingUnit(4, 3, "full", layer_norm_eps=0.25)
    torch.nn.init.eye_(unit.spatial_proj.weight)
    torch.nn.init.zeros_(unit.spatial_proj.bias)
    inputs = torch.tensor([[[1.0, 1.0, 3.0, 7.0]]])
    expected = F.layer_norm(inputs[..., 2:], (2,), eps=0.25)
    torch.testing.assert_close(unit(inputs), expected)
    assert expected[0, 0, 1] == pytest.approx(2 / 4.25**0.5)
