"""Attention written out, and where it stands in for PyTorch's kernel."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import AttentionInterface

from tokenmixers import AMLPConfig, AMLPModel, SynthesizerConfig, SynthesizerModel
from tokenmixers.modeling import attention, linear
from tokenmixers.modeling.attention import eager_attention_forward, sdpa_or_written_out, softmax


@pytest.fixture
def kernel_calls(monkeypatch):
    """Any processor prefers attention written out in bfloat16; the list holds the dtypes that the kernel got."""
    dtypes, transformers = [], attention.sdpa_attention_forward

    def recorded(module, query, *args, **kwargs):
        dtypes.append(query.dtype)
        return transformers(module, query, *args, **kwargs)

    monkeypatch.setattr(linear, "types_for_convolution", lambda: {torch.float32, torch.bfloat16})
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS_OF_ONE_QUERY", 1)
    monkeypatch.setattr(attention, "sdpa_attention_forward", recorded)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", recorded)
    return dtypes


def attention_module(is_causal=False):
    module = nn.Module()
    module.is_causal = is_causal
    return module


def inputs(batch=2, heads=3, queries=5, keys=5, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(batch, heads, length, 4).to(dtype).requires_grad_() for length in (queries, keys, keys)]


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
    query, key, value = inputs(batch, heads, queries, queries + more_keys, torch.double)
    shape = (batch, 1, queries, queries + more_keys)
    visible = (torch.rand(shape) > 0.4).index_fill(3, torch.tensor([0]), True)
    bias = torch.randn(1, heads, *shape[2:], dtype=torch.double) if has_bias else None
    given_mask = {"boolean": visible, "additive": torch.zeros(shape).double().masked_fill(~visible, -1e9), None: None}
    output, weights = eager_attention_forward(
        attention_module(), query, key, value, given_mask[mask], scaling=scaling, position_bias=bias
    )
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) * scaling
    logits = (logits if bias is None else logits + bias).exp()
    logits = logits * visible if mask else logits
    expected = logits / logits.sum(-1, keepdim=True)
    assert_close(weights, expected)
    assert_close(output, torch.einsum("bhqk,bhkd->bqhd", expected, value))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("mask", [None, "causal", "boolean", "nothing to see"])
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_stands_in_for_the_kernel(kernel_calls, mask, has_bias, queries):
    """Output and gradients are those of Transformers' function in float32, up to bfloat16's rounding.

    With fewer queries than keys, causal attention is that of a prompt into a static cache.
    """
    module = attention_module(is_causal=mask == "causal")
    visible = (torch.rand(2, 1, queries, 5) > 0.4).index_fill(3, torch.tensor([0]), True)
    bias = torch.randn(1, 3, queries, 5) if has_bias else None
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        tensors = inputs(queries=queries, dtype=dtype)
        given_mask = {"boolean": visible, "nothing to see": visible.index_fill(2, torch.tensor([0]), False)}
        output, weights = sdpa_or_written_out(
            module,
            *tensors,
            given_mask.get(mask),
            scaling=0.5,
            position_bias=None if bias is None else bias.to(dtype),
        )
        assert weights is None and output.dtype == dtype
        output.float().square().sum().backward()
        found.append([output.float(), *(tensor.grad.float() for tensor in tensors)])
    assert kernel_calls == [torch.float32]
    if mask == "nothing to see" and not has_bias:
        assert not found[0][0][:, 0].any()
    # With a bias, the kernel has gradients for the logits that are hidden.
    compared = 1 if mask == "nothing to see" and has_bias else 4
    for one, other in zip(*(tensors[:compared] for tensors in found), strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()


@pytest.mark.parametrize("mask", [None, "causal", "shared", "of samples"])
@pytest.mark.parametrize("bias_batch", [None, 1, 5])
def test_pieces_of_the_batch(kernel_calls, monkeypatch, mask, bias_batch):
    """Without gradients only some samples' weights are in memory at once; the bound is on those."""
    keys = 8 if mask == "causal" else 5  # a prompt into a static cache
    query, key, value = inputs(batch=5, keys=keys)
    bias = None if bias_batch is None else torch.randn(bias_batch, 3, 5, keys).to(query.dtype)
    visible = torch.rand(5, 1, 5, 5) > 0.6  # some see nothing
    given_mask = {"shared": visible[:1], "of samples": visible}.get(mask)
    written_out = []
    monkeypatch.setattr(
        attention,
        "eager_attention_forward",
        lambda *args, **kwargs: written_out.append(len(args[1])) or eager_attention_forward(*args, **kwargs),
    )

    def attend(**kwargs):
        module = attention_module(is_causal=mask == "causal")
        return sdpa_or_written_out(module, query, key, value, given_mask, position_bias=bias, **kwargs)[0]

    weights = 3 * 5 * 5
    with torch.no_grad():
        expected = attend()
        monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", 2 * weights)
        attend(dropout=0.5)
        monkeypatch.setattr(attention, "MOST_WEIGHTS", 2 * weights)
        assert_close(attend(), expected)
        monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", weights - 1)
        assert_close(attend(), expected)
    assert written_out == [5, 5, 2, 2, 1, 1, 1, 1, 1, 1]
    assert kernel_calls == []
    attend()
    with torch.no_grad():
        monkeypatch.setattr(attention, "MOST_WEIGHTS", weights - 1)
        attend()
    assert len(kernel_calls) == 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_draw_the_same_dropout(kernel_calls, monkeypatch, use_reentrant):
    """A pass without gradients, by the kernel or in pieces, would draw other numbers than the one with them."""
    monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", 1)
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 2**15)
    tensors = inputs(batch=3)

    def attend(*tensors):
        return sdpa_or_written_out(attention_module(), *tensors, None, dropout=0.5)[0]

    found = []
    for way in (attend, partial(checkpoint, attend, use_reentrant=use_reentrant)):
        torch.manual_seed(0)
        output = way(*tensors)
        output.float().square().sum().backward()
        found.append([output, *(tensor.grad for tensor in tensors)])
        for tensor in tensors:
            tensor.grad = None
    assert kernel_calls == []
    assert_close(*found)


def test_who_keeps_the_kernel(kernel_calls, monkeypatch):
    query, key, value = inputs()

    def calls(**kwargs):
        kernel_calls.clear()
        sdpa_or_written_out(attention_module(), query, key, value, None, **kwargs)
        return len(kernel_calls)

    assert calls() == calls(is_causal=False) == calls(cache=None, output_attentions=False) == 0
    assert calls(output_attentions=True) == 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert calls() == 1
    for name, value_of_it in (("MOST_WEIGHTS", 2 * 3 * 5 * 5 - 1), ("FEWEST_WEIGHTS", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(attention, name, value_of_it)
            assert calls() == (name == "MOST_WEIGHTS")
    additive = torch.zeros(2, 1, 5, 5, dtype=query.dtype)
    kernel_calls.clear()
    sdpa_or_written_out(attention_module(), query, key, value, additive)
    assert len(kernel_calls) == 1
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 2 * 3 * 5 * 5 + 1)
    assert calls() == 0
    with torch.no_grad():
        assert calls() == 1
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 2 * 3 * 5 * 5)
    with torch.no_grad():
        assert calls() == 0
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 2**15)
    query = query[:, :, :1]
    for fewest, expected in ((2 * 3 * 5 + 1, 1), (2 * 3 * 5, 0)):
        monkeypatch.setattr(attention, "FEWEST_WEIGHTS_OF_ONE_QUERY", fewest)
        with torch.no_grad():
            assert calls() == expected
    monkeypatch.setattr(linear, "types_for_convolution", lambda: {torch.float32})
    assert calls() == 1


def model_of(kind):
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    if kind == "amlp":
        return AMLPModel(AMLPConfig(**sizes, attention_size=8, max_position_embeddings=8))
    config = SynthesizerConfig(
        **sizes,
        num_attention_heads=2,
        attention_components=["vanilla", "random"],
        is_encoder_decoder=False,
        max_position_embeddings=8,
    )
    return SynthesizerModel(config)


@pytest.mark.parametrize("kind", ["amlp", "synthesizer"])
def test_models_in_bfloat16(kernel_calls, kind):
    """Ours never gets to the kernel then, exported programs always; with and without it the outputs are the same."""
    model = model_of(kind).eval().to(torch.bfloat16)
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
    given_inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with torch.inference_mode():
        found = model(**given_inputs).last_hidden_state[ids != 0].float()
        assert not kernel_calls
        expected = model.float()(**given_inputs).last_hidden_state[ids != 0]
    assert kernel_calls
    assert (found - expected).norm() < 0.03 * expected.norm()
    kernel_calls.clear()
    with torch.no_grad():
        torch.export.export(model.to(torch.bfloat16), (), given_inputs)
    assert kernel_calls


@pytest.mark.fast_cases(kind="synthesizer")  # one, as it compiles twice, which takes seconds
@pytest.mark.parametrize("kind", ["amlp", "synthesizer"])
def test_compiled(kernel_calls, monkeypatch, kind):
    model, softmaxes = model_of(kind).eval().to(torch.bfloat16), []
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])

    def backend(module, _):
        softmaxes.append(sum(node.name.startswith("softmax") for node in module.graph.nodes))
        return module.forward

    with torch.no_grad():
        expected = model(ids).last_hidden_state.float()
        for weights in (attention.WEIGHTS_AT_ONCE, 1):
            monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", weights)
            torch.compiler.reset()
            found = torch.compile(model, backend=backend, fullgraph=True)(ids).last_hidden_state.float()
            assert (found - expected).norm() < 0.01 * expected.norm()
    assert not kernel_calls
    assert softmaxes[0] == softmaxes[1] > 0  # not in pieces, which would be for one batch alone


@pytest.mark.parametrize("lengths", ["known", "unknown"])
def test_single_queries_in_graphs(kernel_calls, monkeypatch, lengths):
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 2**15)
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS_OF_ONE_QUERY", 2 * 3 * 5)
    tensors = [tensor.detach() for tensor in inputs(queries=1)]

    def attend(*tensors):
        return sdpa_or_written_out(attention_module(), *tensors, None)[0]

    torch.compiler.reset()
    with torch.no_grad():
        expected = attend(*tensors)
        assert not kernel_calls
        if lengths == "unknown":
            for tensor in tensors[1:]:
                torch._dynamo.mark_dynamic(tensor, 2)
        found = torch.compile(attend, backend="eager", fullgraph=True)(*tensors)
    assert_close(found, expected, rtol=0.02, atol=0.02)
    assert bool(kernel_calls) == (lengths == "unknown")


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_traced(kernel_calls, queries, dtype):
    """While `torch.jit` traces, sizes are tensors."""
    tensors = [tensor.detach() for tensor in inputs(queries=queries, dtype=dtype)]

    def attend(*tensors):
        return sdpa_or_written_out(attention_module(), *tensors, None)[0]

    # Eager and in bfloat16, logits are rounded.
    assert_close(torch.jit.trace(attend, tensors, check_trace=False)(*tensors), attend(*tensors), rtol=0.02, atol=0.02)


def test_functions_of_users_are_called():
    model, calls = model_of("amlp").eval(), []

    def own(module, query, key, value, attention_mask, **kwargs):
        calls.append(module)
        return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)

    for name in ("own", "sdpa"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(AttentionInterface._global_mapping, name, own)
            model.set_attn_implementation(name)
            model(torch.tensor([[1, 2, 3]]))
    assert len(calls) == 2 * model.config.num_hidden_layers


def test_dropout_is_on_the_weights(kernel_calls):
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 6, 4).bfloat16()
    value = torch.eye(6).bfloat16()[None, None]
    output, _ = sdpa_or_written_out(attention_module(), query, key, value, None, dropout=0.5)
    kept = eager_attention_forward(attention_module(), query, key, value, None)[0]
    assert not kernel_calls
    assert (output == 0).any() and (output == 2 * kept).any() and ((output == 0) | (output == 2 * kept)).all()


def test_autocast(kernel_calls):
    """Queries are bfloat16 there, whatever the weights are."""
    model = model_of("amlp").train()
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.tensor([[1, 2, 3]])).last_hidden_state.float().sum().backward()
    assert not kernel_calls
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
def test_the_compiler_keeps_the_products(kernel_calls):
    """It knows attention by its products, and would put PyTorch's kernel in their place."""
    model, ids = model_of("amlp").eval().to(torch.bfloat16), torch.tensor([[1, 2, 3, 4, 5]])
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        found = torch.compile(model, fullgraph=True)(ids).last_hidden_state.float()
        expected = model(ids).last_hidden_state.float()
    assert not kernel_calls
    assert torch._dynamo.utils.counters["inductor"]["fuse_attention"] == 0
    assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_rounds_once(dtype):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).mul(5).to(dtype)
    expected = F.softmax(logits.float(), dim=-1)
    assert softmax(logits, dtype).equal(expected.to(dtype))
    assert softmax(logits, torch.float32).equal(expected)
    assert softmax(logits.float(), dtype).equal(expected.to(dtype))
