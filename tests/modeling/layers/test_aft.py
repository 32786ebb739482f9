"""One matrix product for the batch against the plain form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers.modeling.inputs.attention_maps import visible_keys
from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.layers.aft import aft_attention, aft_by_layout, aft_weights, scaled_exp
from tokenmixers.modeling.layers.synthetic_logits import OffsetLogits


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}


def inputs(batch: int, length: int, count: int, dtype: torch.dtype, seed: int):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    logits = OffsetLogits(2, 9).to(dtype)
    with torch.no_grad():
        logits.weight.copy_(2 * draw(17, 2))
        logits.first.copy_(draw(2))
    shares = draw(batch, 2, length, count).softmax(-1) if count > 1 else None
    return logits, draw(batch, 2, length, count), draw(batch, 2, length, 4), shares


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@given(data=st.data())
def test_the_product_for_the_batch_equals_the_weights_of_each_sample(dtype, data):
    length, count = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 3]))
    lengths = data.draw(st.lists(st.integers(0, length), min_size=1, max_size=4))
    logits, scores, values, shares = inputs(len(lengths), length, count, dtype, data.draw(st.integers(0, 99)))
    index, left = torch.arange(length), data.draw(st.booleans())
    keep = torch.tensor(lengths)[:, None]
    mask = (index >= length - keep) if left else index < keep
    positions = (index - (length - keep)).clamp(min=0) if left else None
    layout = TokenLayout(length, length, padding_mask=mask, positions=positions, shifted=left)
    weights = aft_weights(logits(layout), scores, shares, visible_keys(layout, mask.device))
    expected = (weights.double() @ values.double()).transpose(1, 2)
    found = aft_by_layout(logits, scores, values, shares, layout)
    assert found.dtype == dtype and found.isfinite().all()
    torch.testing.assert_close(found[mask].double(), expected[mask], atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    assert not found[~mask.any(1)].any() and not expected[~mask.any(1)].any()  # rows of padding only


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_large_numbers_give_finite_results(dtype):
    """As a softmax of the sums while one is within 80 of the sum of the maxima; beyond that finite."""
    for w, s, exact in (((80, 0), (-80, 0), True), ((0, -79), (-200, 0), True), ((80, -80), (-80, 80), False)):
        offsets = torch.tensor([w], dtype=dtype).expand(2, 2)[None, None]
        scores = torch.tensor(s, dtype=dtype)[None, None, :, None]
        values = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype)[None, None]
        found = aft_attention(scaled_exp(offsets[0], -1), scores, values, None, None)[0, :, 0].double()
        assert found.isfinite().all() and ((found >= 0) & (found <= 1)).all()
        if exact:
            expected = (torch.tensor(w, dtype=torch.float64) + torch.tensor(s)).softmax(0).expand(2, 2)
            torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)


def test_offsets_that_no_text_of_the_batch_has_change_nothing():
    logits, scores, values, _ = inputs(2, 5, 1, torch.float32, 1)
    layout = TokenLayout(5, 5)
    expected = (aft_weights(logits(layout), scores, None, None) @ values).transpose(1, 2)
    with torch.no_grad():
        logits.weight[:4] = logits.weight[-4:] = 300
    torch.testing.assert_close(aft_by_layout(logits, scores, values, None, layout), expected)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1), (torch.float32, 1e-12)], ids=str)
def test_gradients_are_those_of_the_plain_form(dtype, size):
    """Small ones too: on many processors numbers below the normal ones of float32 are slow, and they are rough."""
    logits, scores, values, shares = inputs(3, 7, 3, dtype, 1)
    mask = torch.arange(7) < torch.tensor([7, 3, 1])[:, None]
    layout = TokenLayout(7, 7, padding_mask=mask)
    tensors = [tensor.requires_grad_() for tensor in (scores, values, shares)] + [*logits.parameters()]
    plain = (aft_weights(logits(layout), scores, shares, visible_keys(layout, mask.device)) @ values).transpose(1, 2)
    weight = size * torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weight).sum(), tensors)
    found = torch.autograd.grad((aft_by_layout(logits, scores, values, shares, layout) * weight).sum(), tensors)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours / size, theirs / size)
