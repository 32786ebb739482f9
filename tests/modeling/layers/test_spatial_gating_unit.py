"""The gates of Table 3 against a slow reference: an einsum over a matrix written out with loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.layers.spatial_gating_unit import SpatialGatingUnit, SpatialProjection
from tokenmixers.modeling.layers.synthetic_logits import RandomLogits
from tokenmixers.modeling.layers.token_mixing import TokenMixingMLP


GATE_TYPES = ["split", "linear", "additive", "multiplicative"]
WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
MAX_LENGTH = 9
WIDTH, EPSILON = 12, 1e-3


@pytest.fixture(scope="module")
def slow(spatial_matrix):
    """`slow(unit, inputs, real, ids)`: the unit's output with real tokens `real` at the positions `ids`, by row."""

    def compute(unit, inputs, real, ids):
        rows = []
        for row, row_real, row_ids in zip(inputs, real, ids, strict=True):
            passed, gate = row.chunk(2, dim=-1) if unit.gate_type == "split" else (row, row)
            centred = gate - gate.mean(-1, keepdim=True)
            gate = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
            gate = (gate * unit.norm.weight + unit.norm.bias) * row_real.to(gate.dtype)[:, None]
            matrix = spatial_matrix(unit.spatial_proj, row_ids.tolist())
            bias = torch.stack([unit.spatial_proj.bias[i] for i in row_ids])
            mixed = torch.einsum("ij,jc->ic", matrix, gate) + bias[:, None]
            rows.append({"linear": mixed, "additive": passed + mixed}.get(unit.gate_type, passed * mixed))
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


def _unit(weight_type, randomise, gate_type="split"):
    return randomise(SpatialGatingUnit(WIDTH, MAX_LENGTH, weight_type, EPSILON, gate_type)).double()


@WEIGHT_TYPES
@pytest.mark.parametrize("gate_type", GATE_TYPES)
@given(
    real=st.integers(1, MAX_LENGTH).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=3)
    )
)
def test_equals_the_reference_with_any_mask_and_without(gate_type, weight_type, randomise, slow, real):
    real = torch.tensor(real)
    real[:, 0] = True
    unit, ids = _unit(weight_type, randomise, gate_type), torch.arange(real.shape[1]).expand(real.shape)
    inputs = torch.randn(*real.shape, WIDTH, dtype=torch.double, requires_grad=True)
    _assert_same_forward_and_gradients(unit, inputs, unit(inputs), slow(unit, inputs, torch.ones(real.shape), ids))
    reference = slow(unit, inputs, real, ids)
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
