"""Exact padding: a sentence gives the same numbers alone, padded on either side, among others, at any length."""

from typing import get_args

import pytest
import torch
from accelerate.utils import send_to_device
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.modeling.inputs.token_layout import token_layout
from tokenmixers.modeling.kernels import fourier


MIXERS = get_args(TokenMixer)
WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
#: Models that no test with a formula of their own gives such rows. Layers of HybridBert share what depends on padding.
MODELS = [
    *(("GMLPModel", {"spatial_weight_type": weights}) for weights in ("toeplitz", "full")),
    *(("GMLPModel", {"gate_type": gate}) for gate in ("linear", "additive", "multiplicative")),
    ("AMLPModel", {"spatial_weight_type": "toeplitz"}),
    ("AMLPModel", {"spatial_weight_type": "full", "attn_implementation": "eager"}),
    *(("HybridBertModel", {"token_mixers": names}) for names in (["full_attention"], ["amlp"], list(MIXERS))),
]


def _batch(pad, layout):
    lengths, padded, offsets = layout
    sentences = [torch.randint(37, (length,)) for length in lengths]
    input_ids, mask = pad(sentences, padded, offsets)
    segments = torch.randint(2, mask.shape)
    return input_ids, mask, segments


@pytest.mark.parametrize(("name", "changes"), MODELS)
@given(data=st.data())
def test_real_tokens_do_not_depend_on_padding(name, changes, tiny_model, pad, padded_layouts, data):
    model = tiny_model(name, type_vocab_size=2, **changes)
    input_ids, mask, segments = _batch(pad, data.draw(padded_layouts()))
    together = model(input_ids, mask, segments, output_hidden_states=True).hidden_states
    for row, real in enumerate(mask.bool()):
        alone = model(input_ids[row : row + 1, real], None, segments[row : row + 1, real], output_hidden_states=True)
        for ours, theirs in zip(together, alone.hidden_states, strict=True):
            torch.testing.assert_close(ours[row, real], theirs[0], rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@WEIGHT_TYPES
def test_the_traced_model_is_exact_too(weight_type, tiny_model, pad, padded_layouts):
    """Traced, the values of the mask are unknown, so `full` weights take the path for free positions throughout."""
    model = tiny_model("GMLPModel", spatial_weight_type=weight_type, type_vocab_size=2)
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


IDS, MASK = torch.arange(12).view(2, 6), torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_masks_of_any_type(dtype, tiny_model):
    model = tiny_model("GMLPModel")
    assert torch.equal(model(IDS, MASK.to(dtype))[0], model(IDS, MASK)[0])


@pytest.mark.parametrize("family", ["GMLP", "AMLP", "MLPMixer", "Synthesizer", "HybridBert"])
def test_a_row_of_padding_alone_is_finite_and_disturbs_nobody(family, tiny_model):
    model, mask = tiny_model(f"{family}Model"), torch.tensor([[0] * 6, [0] * 2 + [1] * 4])
    outputs = model(IDS, mask).last_hidden_state
    assert outputs.isfinite().all()
    torch.testing.assert_close(outputs[1, 2:], model(IDS[1:, 2:]).last_hidden_state[0])


@pytest.mark.parametrize(("name", "changes"), [MODELS[0], MODELS[1], ("AMLPModel", {}), ("MLPMixerModel", {})])
def test_the_papers_protocol_does_not_mask(name, changes, tiny_model):
    """With `mask_padding=False` the padding takes part, as in the paper: the mask changes nothing at all."""
    seen = tiny_model(name, mask_padding=False, **changes)
    assert torch.equal(seen(IDS, MASK)[0], seen(IDS)[0])
    difference = tiny_model(name, **changes)(IDS, MASK)[0] - seen(IDS)[0]
    assert difference[MASK.bool()].abs().max() > 1e-3


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
