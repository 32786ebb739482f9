"""Toeplitz products by Fourier transforms, against the matrix."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.kernels import fourier, use_kernels
from tokenmixers.modeling.layers.spatial_gating_unit import SpatialProjection


MAX_LENGTH, CHANNELS = 9, 5


@pytest.fixture
def convolved(every_kernel, monkeypatch):
    """Lengths of the rows that were transformed; all of four tokens or more are."""
    lengths = []

    def convolve(projection, hidden_states, bias, function=fourier.convolve):
        lengths.append(hidden_states.shape[1])
        return function(projection, hidden_states, bias)

    monkeypatch.setattr(fourier, "convolve", convolve)
    monkeypatch.setattr(fourier, "LENGTHS", (4, 8))
    return lengths


def random_projection(max_length=MAX_LENGTH, is_causal=False, dtype=torch.double):
    torch.manual_seed(0)
    projection = SpatialProjection(max_length, "toeplitz", is_causal).to(dtype)
    for weight in projection.parameters():
        torch.nn.init.normal_(weight)
    return projection


def projections(is_causal=False, dtype=torch.double):
    """A projection with the kernel, and the same without."""
    reference = random_projection(MAX_LENGTH, is_causal, dtype)
    bound = copy.deepcopy(reference)
    use_kernels(bound)
    assert "forward" in bound.__dict__
    return bound, reference


def left_padded(length):
    """The layout of two rows, the second with one token of padding before it."""
    positions = (torch.arange(length) - torch.tensor([[0], [1]])).clamp(min=0)
    return TokenLayout(length, length, positions=positions, shifted=True)


def check_values_and_gradients(pair, inputs, layout=None):
    found = []
    for projection in pair:
        leaf = inputs.clone().requires_grad_()
        outputs = projection(leaf, layout)
        (outputs * torch.linspace(-1, 1, outputs.numel()).view(outputs.shape).to(outputs)).sum().backward()
        found.append([outputs, leaf.grad, projection.weight.grad, projection.bias.grad])
        projection.zero_grad()
    assert_close(*found)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_values_and_gradients(convolved, is_causal, padded):
    pair = projections(is_causal)
    for length in range(1, MAX_LENGTH + 1):
        inputs = torch.randn(2, length, CHANNELS, dtype=torch.double)
        check_values_and_gradients(pair, inputs, left_padded(length) if padded else None)
    assert convolved == [4, 5, 6, 7, 8, 9]


@given(length=st.integers(4, 300), dtype=st.sampled_from([torch.float32, torch.double, torch.bfloat16]))
def test_rounding(length, dtype):
    rounded = random_projection(max_length=300).to(dtype)
    inputs = torch.randn(1, length, 2, dtype=torch.double).to(dtype)
    expected = copy.deepcopy(rounded).double()(inputs.double())
    found = fourier.convolve(rounded, inputs, rounded.bias[:length])
    assert found.dtype == dtype
    # Random weights add up to numbers of the size of the root of their number.
    unit = {torch.float32: 1e-6, torch.double: 1e-14, torch.bfloat16: 1e-2}[dtype]
    assert (found.double() - expected).abs().max() < 4 * unit * length**0.5


def test_later_tokens_of_causal_rows_leave_rounding_errors_only(convolved):
    pair = projections(is_causal=True)
    inputs = torch.randn(1, 8, CHANNELS, dtype=torch.double)
    inputs[:, -1] *= 1e4
    check_values_and_gradients(pair, inputs)


def test_the_first_tokens_of_a_static_cache(convolved):
    """The cache has more room than there are tokens, and the projection gets all of it."""
    bound, reference = projections(is_causal=True)
    inputs = torch.randn(2, MAX_LENGTH, CHANNELS, dtype=torch.double)
    layout = TokenLayout(6, 6, new_tokens=slice(0, 6), is_causal=True)
    assert_close(bound(inputs, layout), reference(inputs, layout))
    assert convolved == [6]


@pytest.mark.parametrize(
    "layout",
    [
        TokenLayout(6, 6, positions=torch.tensor([[0, 2, 4, 1, 3, 5]])),
        TokenLayout(
            6, 6, positions=torch.tensor([[0, 1, 2, 0, 1, 2]]), shifted=True, seq_idx=torch.arange(6)[None] // 3
        ),
        TokenLayout(2, 6, new_tokens=slice(4, 6)),
        TokenLayout(2, 6, new_tokens=torch.tensor([4, 5])),
    ],
    ids=["free positions", "documents", "cache", "static cache"],
)
def test_other_rows_have_the_matrix(convolved, layout):
    check_values_and_gradients(projections(), torch.randn(2, 6, CHANNELS, dtype=torch.double), layout)
    assert not convolved


def test_products_of_half_types_take_the_matrix_longer(convolved):
    bound, reference = projections(dtype=torch.bfloat16)
    for length in (7, 8):
        inputs = torch.randn(1, length, CHANNELS).bfloat16()
        assert_close(bound(inputs), reference(inputs), rtol=0.02, atol=0.1)
    assert convolved == [8]
    bound, reference = projections(dtype=torch.float32)
    inputs = torch.randn(1, 4, CHANNELS)
    assert_close(bound(inputs), reference(inputs))
    assert convolved == [8, 4]


def test_autocast(convolved):
    bound, reference = projections(dtype=torch.float32)
    inputs = torch.randn(2, 9, CHANNELS)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = bound(inputs), reference(inputs)
        assert bound.double()(inputs.double()).dtype == torch.double
    assert found.dtype == expected.dtype == torch.bfloat16
    assert convolved == [9, 9]
    assert_close(found, expected, rtol=0.02, atol=0.1)


def test_rows_without_weights_are_refused(convolved):
    bound, _ = projections()
    with pytest.raises(RuntimeError):
        bound(torch.randn(2, MAX_LENGTH + 1, CHANNELS, dtype=torch.double))


@pytest.mark.parametrize("lengths", [[7], [6, 9, 7]], ids=["one length", "long lengths"])
def test_compiled(convolved, lengths, monkeypatch):
    bound, reference = projections()
    torch.compiler.reset()
    graph = torch.compile(bound, backend="aot_eager", fullgraph=True)
    for length in lengths:
        inputs, layout = torch.randn(2, length, CHANNELS, dtype=torch.double), left_padded(length)
        expected = reference(inputs, layout)
        if len(lengths) > 1:
            torch._dynamo.mark_dynamic(inputs, 1, min=6, max=MAX_LENGTH)
            torch._dynamo.mark_dynamic(layout.positions, 1, min=6, max=MAX_LENGTH)
        with monkeypatch.context() as patched:
            patched.setattr(SpatialProjection, "matrix", None)  # whoever calls it fails
            assert_close(graph(inputs, layout), expected)


@pytest.mark.parametrize("way", ["compiled for any length", "exported", "exported strictly", "traced"])
def test_graphs_of_any_length_and_exported_ones_have_the_matrix(convolved, way):
    bound, reference = projections()
    inputs = torch.randn(2, 7, CHANNELS, dtype=torch.double)
    torch.compiler.reset()
    if way == "traced":
        graph = torch.jit.trace(bound, inputs, check_trace=False)
    elif "exported" in way:
        graph = torch.export.export(bound, (inputs,), strict="strictly" in way).module()
    else:
        graph = torch.compile(bound, backend="aot_eager", fullgraph=True, dynamic=True)
    assert_close(graph(inputs), reference(inputs))
    assert not convolved
