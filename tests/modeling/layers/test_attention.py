"""Softmax attention against the formula."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from tokenmixers import SynthesizerConfig, SynthesizerModel
from tokenmixers.modeling.layers.attention import eager_attention_forward, softmax


@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 6),
    more_keys=st.integers(0, 3),
    mask=st.sampled_from([None, "boolean", "additive"]),
    has_bias=st.booleans(),
    scaling=st.sampled_from([1.0, 0.3]),
)
def test_written_out_is_the_formula(batch, heads, queries, more_keys, mask, has_bias, scaling):
    keys = queries + more_keys
    query, key, value = (torch.randn(batch, heads, length, 4).double() for length in (queries, keys, keys))
    shape = (batch, 1, queries, keys)
    visible = (torch.rand(shape) > 0.4).index_fill(3, torch.tensor([0]), True)
    bias = torch.randn(1, heads, *shape[2:], dtype=torch.double) if has_bias else None
    given_mask = {"boolean": visible, "additive": torch.zeros(shape).double().masked_fill(~visible, -1e9), None: None}
    output, weights = eager_attention_forward(
        SimpleNamespace(is_causal=False), query, key, value, given_mask[mask], scaling=scaling, position_bias=bias
    )
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) * scaling
    logits = (logits if bias is None else logits + bias).exp()
    logits = logits * visible if mask else logits
    expected = logits / logits.sum(-1, keepdim=True)
    assert_close(weights, expected)
    assert_close(output, torch.einsum("bhqk,bhkd->bqhd", expected, value))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_rounds_once(dtype):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).mul(5).to(dtype)
    expected = F.softmax(logits.float(), dim=-1)
    assert softmax(logits, dtype).equal(expected.to(dtype))
    assert softmax(logits, torch.float32).equal(expected)
    assert softmax(logits.float(), dtype).equal(expected.to(dtype))


def test_attention_without_queries_runs_on_the_meta_device():
    """As all else does: shapes and FLOPs of models that do not fit into memory."""
    config = SynthesizerConfig(attention_components=["random"], num_hidden_layers=1, hidden_size=8, vocab_size=9)
    with torch.device("meta"):
        model, ids = SynthesizerModel(config), torch.zeros((2, 5), dtype=torch.long)
    assert model(ids).last_hidden_state.shape == (2, 5, 8)
