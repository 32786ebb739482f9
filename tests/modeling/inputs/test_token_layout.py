"""Exact padding: a sentence gives the same numbers alone, padded on either side, among others, at any length."""

import functools

import pytest
import torch
from accelerate.utils import send_to_device
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers import GMLPForMaskedLM, GMLPModel
from tokenmixers.modeling.inputs.token_layout import token_layout
from tokenmixers.modeling.kernels import fourier


WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])


@pytest.fixture(scope="module")
def build(tiny_config, randomise):
    @functools.cache
    def model(weight_type, **changes):
        return randomise(GMLPModel(tiny_config(spatial_weight_type=weight_type, type_vocab_size=2, **changes))).eval()

    return model


def _batch(pad, layout):
    lengths, padded, offsets = layout
    sentences = [torch.randint(37, (length,)) for length in lengths]
    input_ids, mask = pad(sentences, padded, offsets)
    segments = torch.randint(2, mask.shape)
    return input_ids, mask, segments


@WEIGHT_TYPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
def test_real_tokens_do_not_depend_on_padding(weight_type, dtype, build, pad, padded_layouts, data):
    model = build(weight_type).to(dtype)
    input_ids, mask, segments = _batch(pad, data.draw(padded_layouts()))
    together = model(input_ids, mask, segments, output_hidden_states=True).hidden_states
    for row, real in enumerate(mask.bool()):
        alone = model(input_ids[row : row + 1, real], None, segments[row : row + 1, real], output_hidden_states=True)
        for ours, theirs in zip(together, alone.hidden_states, strict=True):
            torch.testing.assert_close(ours[row, real], theirs[0])


@WEIGHT_TYPES
@given(data=st.data())
def test_gradients_do_not_depend_on_padding(weight_type, build, pad, padded_layouts, data):
    model = build(weight_type).double()
    input_ids, mask, segments = _batch(pad, data.draw(padded_layouts()))
    direction = torch.randn(*mask.shape, 10, dtype=torch.double)

    def gradients(loss):
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    real = mask.bool()
    together = gradients((model(input_ids, mask, segments).last_hidden_state * direction)[real].sum())
    alone = sum(
        (
            model(input_ids[row : row + 1, kept], None, segments[row : row + 1, kept]).last_hidden_state
            * direction[row, kept]
        ).sum()
        for row, kept in enumerate(real)
    )
    for (name, _), ours, theirs in zip(model.named_parameters(), together, gradients(alone), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")


@WEIGHT_TYPES
@given(data=st.data())
def test_padding_gets_no_gradient(weight_type, build, pad, padded_layouts, data):
    model = build(weight_type).double()
    _, mask, segments = _batch(pad, data.draw(padded_layouts()))
    embeddings = torch.randn(*mask.shape, 10, dtype=torch.double, requires_grad=True)
    outputs = model(attention_mask=mask, token_type_ids=segments, inputs_embeds=embeddings).last_hidden_state
    (gradient,) = torch.autograd.grad(outputs[mask.bool()].square().sum(), embeddings)
    assert not gradient[mask == 0].any()
    # The final norm makes the sum of squares of its output blind to scale, not to direction.
    assert gradient[mask == 1].any()


@pytest.mark.slow
@WEIGHT_TYPES
def test_the_traced_model_is_exact_too(weight_type, build, pad, padded_layouts):
    """Traced, the values of the mask are unknown, so `full` weights take the path for free positions throughout."""
    model = build(weight_type).float()
    torch.compiler.reset()
    traced = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)

    # Sizes of one are left out: PyTorch compiles each of them apart.
    @given(layout=padded_layouts(min_rows=2, min_padded=2))
    def check(layout):
        input_ids, mask, segments = _batch(pad, layout)
        outputs = traced(input_ids, mask, segments).last_hidden_state
        expected = model(input_ids, mask, segments).last_hidden_state
        torch.testing.assert_close(outputs[mask.bool()], expected[mask.bool()])

    check()


@WEIGHT_TYPES
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_masks_of_any_type(weight_type, dtype, build):
    model = build(weight_type).float()
    input_ids, mask = torch.randint(37, (2, 6)), torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
    expected = model(input_ids, mask).last_hidden_state
    assert torch.equal(model(input_ids, mask.to(dtype)).last_hidden_state, expected)


@WEIGHT_TYPES
def test_a_mask_of_ones_is_no_mask(weight_type, build):
    model = build(weight_type).float()
    input_ids = torch.randint(37, (2, 6))
    expected = model(input_ids).last_hidden_state
    torch.testing.assert_close(model(input_ids, torch.ones_like(input_ids)).last_hidden_state, expected)


@WEIGHT_TYPES
def test_a_row_of_padding_alone_is_finite_and_disturbs_nobody(weight_type, build):
    model = build(weight_type).float()
    input_ids, mask = torch.randint(37, (2, 6)), torch.tensor([[0] * 6, [0] * 2 + [1] * 4])
    outputs = model(input_ids, mask).last_hidden_state
    assert outputs.isfinite().all()
    torch.testing.assert_close(outputs[1, 2:], model(input_ids[1:, 2:]).last_hidden_state[0])


@WEIGHT_TYPES
@given(data=st.data())
def test_the_papers_protocol_does_not_mask(weight_type, build, pad, padded_layouts, data):
    """With `mask_padding=False` the padding takes part, as in the paper: the mask changes nothing at all."""
    model, masked = build(weight_type, mask_padding=False), build(weight_type)
    input_ids, mask, segments = _batch(pad, data.draw(padded_layouts()))
    outputs = model(input_ids, mask, segments).last_hidden_state
    assert torch.equal(outputs, model(input_ids, None, segments).last_hidden_state)
    torch.testing.assert_close(outputs, masked.float()(input_ids, None, segments).last_hidden_state)


@WEIGHT_TYPES
def test_the_papers_protocol_sees_the_padding(weight_type, build):
    """The counterpart: without masking, what stands in the padding does matter, so the switch is not idle."""
    model = build(weight_type, mask_padding=False)
    input_ids, mask = torch.randint(1, 37, (1, 6)), torch.tensor([[1, 1, 1, 1, 0, 0]])
    other = torch.where(mask.bool(), input_ids, 0)
    difference = model(input_ids, mask).last_hidden_state - model(other, mask).last_hidden_state
    assert difference[0, :4].abs().max() > 1e-3


@WEIGHT_TYPES
def test_a_shorter_batch_costs_less(weight_type, tiny_config):
    """By PyTorch's own count: channel projections shrink with the length, spatial ones with its square."""
    from torch.utils.flop_counter import FlopCounterMode

    model = GMLPForMaskedLM(tiny_config(max_position_embeddings=64, spatial_weight_type=weight_type))

    def operations(length):
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(2, length, dtype=torch.long), torch.ones(2, length, dtype=torch.long))
        return counter.get_total_flops()

    for length in (1, 16, 33, 64):
        # Two operations per multiplication and addition; two rows, two layers, sizes 10, 14 and 37.
        per_layer = length * 10 * 14 + length * length * 7 + length * 7 * 10
        assert operations(length) == 2 * 2 * (2 * per_layer + length * 10 * 37)


@given(data=st.data())
def test_positions_count_from_the_first_real_token(tiny_config, pad, padded_layouts, data):
    lengths, padded, offsets = data.draw(padded_layouts())
    _, mask = pad([torch.zeros(length, dtype=torch.long) for length in lengths], padded, offsets)
    for weight_type in ("toeplitz", "full"):
        config = tiny_config(spatial_weight_type=weight_type)
        layout = token_layout(config, torch.zeros(*mask.shape, 3), mask)
        assert mask.all() if layout.padding_mask is None else torch.equal(layout.padding_mask, mask.bool())
        if layout.positions is None:
            assert not any(offsets)
            continue
        assert layout.shifted
        for ids, length, offset in zip(layout.positions.tolist(), lengths, offsets, strict=True):
            assert ids[offset : offset + length] == list(range(length))
            assert all(0 <= position < 11 for position in ids)


def test_layouts_of_long_sequences_do_not_grow_with_the_square(tiny_config):
    """The kernel for long sequences promises memory that grows with the length."""
    config = tiny_config(max_position_embeddings=fourier.LENGTHS[0])
    layout = token_layout(config, torch.zeros(1, 1000, 4), torch.arange(1000)[None] > 5)
    assert sum(value.numel() for value in layout if isinstance(value, torch.Tensor)) < 10 * 1000


@pytest.mark.parametrize("seq_idx", [None, torch.tensor([[0, 0, 1], [0, 1, 1]])])
def test_accelerate_moves_a_layout_to_another_device(tiny_config, seq_idx):
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    layout = token_layout(tiny_config(is_decoder=True), torch.zeros(2, 3, 4), mask, seq_idx=seq_idx)
    moved = send_to_device({"layout": layout}, "meta")["layout"]
    assert type(moved) is type(layout)
    for value, other in zip(layout, moved, strict=True):
        assert other.device.type == "meta" if isinstance(value, torch.Tensor) else other == value
