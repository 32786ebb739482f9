"""Attention as matrix products in bfloat16, against Transformers' function for `attn_implementation="sdpa"`."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import AttentionInterface

from tokenmixers.modeling.kernels import attention, use_kernels
from tokenmixers.modeling.kernels.attention import products_or_sdpa


@pytest.fixture
def sdpa_calls(every_kernel, monkeypatch):
    """Any processor prefers products in bfloat16; the list holds the dtypes that PyTorch's kernel got."""
    dtypes, transformers = [], attention.sdpa_attention_forward

    def recorded(module, query, *args, **kwargs):
        dtypes.append(query.dtype)
        return transformers(module, query, *args, **kwargs)

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(attention, "sdpa_attention_forward", recorded)
    monkeypatch.setattr(attention, "FEWEST_WEIGHTS", 1)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", recorded)
    assert attention.applies(nn.Identity())
    return dtypes


def attention_module(is_causal=False):
    module = nn.Module()
    module.is_causal = is_causal
    return module


def inputs(batch=2, heads=3, queries=5, keys=5, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(batch, heads, length, 4).to(dtype).requires_grad_() for length in (queries, keys, keys)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("mask", [None, "causal", "boolean", "nothing to see"])
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_values_and_gradients(sdpa_calls, mask, has_bias, queries):
    """With fewer queries than keys, causal attention is that of a prompt into a static cache."""
    module = attention_module(is_causal=mask == "causal")
    visible = (torch.rand(2, 1, queries, 5) > 0.4).index_fill(3, torch.tensor([0]), True)
    masks = {"boolean": visible, "nothing to see": visible.index_fill(2, torch.tensor([0]), False)}
    bias = torch.randn(1, 3, queries, 5) if has_bias else None
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        tensors = inputs(queries=queries, dtype=dtype)
        bias_in_type = None if bias is None else bias.to(dtype)
        output, weights = products_or_sdpa(module, *tensors, masks.get(mask), scaling=0.5, position_bias=bias_in_type)
        assert weights is None and output.dtype == dtype
        output.float().square().sum().backward()
        found.append([output.float(), *(tensor.grad.float() for tensor in tensors)])
    assert sdpa_calls == [torch.float32]
    if mask == "nothing to see" and not has_bias:
        assert not found[0][0][:, 0].any()
    # With a bias, PyTorch's kernel has gradients for the logits that are hidden.
    compared = 1 if mask == "nothing to see" and has_bias else 4
    for one, other in zip(*(tensors[:compared] for tensors in found), strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()


@pytest.mark.parametrize("mask", [None, "causal", "shared", "of samples"])
@pytest.mark.parametrize("bias_batch", [None, 1, 5])
def test_pieces_of_the_batch(sdpa_calls, monkeypatch, mask, bias_batch):
    """Without gradients only some samples' weights are in memory at once."""
    keys = 8 if mask == "causal" else 5
    query, key, value = inputs(batch=5, keys=keys)
    bias = None if bias_batch is None else torch.randn(bias_batch, 3, 5, keys).to(query.dtype)
    visible = torch.rand(5, 1, 5, 5) > 0.6  # some see nothing
    given_mask = {"shared": visible[:1], "of samples": visible}.get(mask)
    sizes, eager = [], attention.eager_attention_forward

    def recorded(*args, **kwargs):
        sizes.append(len(args[1]))
        return eager(*args, **kwargs)

    monkeypatch.setattr(attention, "eager_attention_forward", recorded)
    attend = partial(products_or_sdpa, attention_module(mask == "causal"), query, key, value, given_mask)
    with torch.no_grad():
        expected = attend(position_bias=bias)[0]
        monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", 2 * 3 * 5 * keys)
        assert_close(attend(position_bias=bias)[0], expected)
        attend(position_bias=bias, dropout=0.5)
    attend(position_bias=bias)
    assert sizes == [5, 2, 2, 1, 5, 5]
    assert not sdpa_calls


def test_dropout_of_weights(sdpa_calls):
    """The weights of a token sum to 1 without dropout only."""
    query, key, value = inputs()
    kept, dropped = (
        products_or_sdpa(attention_module(), query, key, torch.ones_like(value), None, dropout=rate)[0].float()
        for rate in (0.0, 0.5)
    )
    assert (kept - 1).abs().max() < 0.02 < 0.2 < (dropped - 1).abs().max() and not sdpa_calls


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_draw_the_same_dropout(sdpa_calls, monkeypatch, use_reentrant):
    """A pass without gradients, by another way or in pieces, would draw other numbers than the one with them."""
    monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", 1)
    tensors = inputs(batch=3)

    def attend(*tensors):
        return products_or_sdpa(attention_module(), *tensors, None, dropout=0.5)[0]

    found = []
    for way in (attend, partial(checkpoint, attend, use_reentrant=use_reentrant)):
        torch.manual_seed(0)
        output = way(*tensors)
        output.float().square().sum().backward()
        found.append([output, *(tensor.grad for tensor in tensors)])
        for tensor in tensors:
            tensor.grad = None
    assert not sdpa_calls
    assert_close(*found)


def test_who_keeps_the_reference(sdpa_calls, monkeypatch):
    tensors = inputs()

    def calls(mask=None, **kwargs):
        sdpa_calls.clear()
        products_or_sdpa(attention_module(), *tensors, mask, **kwargs)
        return len(sdpa_calls)

    assert calls() == calls(is_causal=False) == calls(output_attentions=False) == 0
    assert calls(output_attentions=True) == calls(cache="of continuous batching") == 1
    assert calls(mask=torch.zeros(2, 1, 5, 5, dtype=torch.bfloat16)) == 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert calls() == 1
    for name, value in (("MOST_WEIGHTS", 2 * 3 * 5 * 5 - 1), ("FEWEST_WEIGHTS", 2 * 3 * 5 * 5 + 1)):
        with monkeypatch.context() as patched:
            patched.setattr(attention, name, value)
            assert calls() == 1
    monkeypatch.setattr(attention, "choice", lambda name: "reference")
    assert calls() == 1


@pytest.mark.parametrize("slow", ["COMPARISON", "COMPARISON_WITH_GRADIENTS"])
def test_gradients_are_measured_for_themselves(sdpa_calls, monkeypatch, slow):
    """A processor can be fast at PyTorch's kernel and slow at its backward pass; dropout is a sign of training."""
    slow_one = getattr(attention, slow)
    monkeypatch.setattr(attention, "choice", lambda name: "products" if name == slow_one else "reference")
    query, key, value = inputs()
    attend = partial(products_or_sdpa, attention_module(), query, key, value, None)
    attend()
    attend(dropout=0.5)
    in_training = len(sdpa_calls)
    with torch.no_grad():
        attend()
    assert (in_training, len(sdpa_calls)) == ((2, 2) if slow == "COMPARISON" else (0, 1))


@pytest.fixture(params=["AMLPModel", "SynthesizerModel", "HybridBertModel"])
def model(request, tiny_model, sdpa_calls):
    changes = {
        "SynthesizerModel": {"attention_components": ["vanilla", "random"]},
        "HybridBertModel": {"token_mixers": ["full_attention"] * 2},
    }
    return tiny_model(request.param, **changes.get(request.param, {}))


def test_models(model, sdpa_calls, tiny_inputs):
    inputs = tiny_inputs(model, 2, 6)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        assert sdpa_calls
        model.to(torch.bfloat16)
        sdpa_calls.clear()
        found = model(**inputs).last_hidden_state.float()
    assert not sdpa_calls
    assert (found - expected).norm() < 0.05 * expected.norm()
    use_kernels(model, enabled=False)
    model(**inputs)
    assert len(sdpa_calls) == model.config.num_hidden_layers


def test_autocast(tiny_model, sdpa_calls):
    """Queries are bfloat16 there, whatever the weights are."""
    model = tiny_model("AMLPModel")
    with torch.autocast("cpu", torch.bfloat16):
        model.train()(torch.tensor([[1, 2, 3]])).last_hidden_state.float().sum().backward()
    assert not sdpa_calls
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_functions_of_users_are_called(model, sdpa_calls, monkeypatch):
    calls, eager = [], attention.eager_attention_forward

    def own(module, *args, **kwargs):
        calls.append(module)
        return eager(module, *args, **kwargs)

    model.to(torch.bfloat16)
    for name in ("own", "sdpa"):
        monkeypatch.setitem(AttentionInterface._global_mapping, name, own)
        model.set_attn_implementation(name)
        model(torch.tensor([[1, 2, 3]]))
    assert len(calls) == 2 * model.config.num_hidden_layers and not sdpa_calls


@pytest.mark.fast_cases(model="HybridBertModel")  # all families call the attention alike
def test_compiled(model, sdpa_calls):
    model.to(torch.bfloat16)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    torch.compiler.reset()
    graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(graph(ids).last_hidden_state, model(ids).last_hidden_state, rtol=0.02, atol=0.02)
    assert not sdpa_calls


@pytest.mark.parametrize("way", ["exported", "traced"])
def test_exported_programs_have_the_reference(sdpa_calls, way):
    module = attention_module()
    module.forward = lambda *tensors: products_or_sdpa(module, *tensors, None)[0]
    tensors = tuple(tensor.detach() for tensor in inputs())
    if way == "traced":
        program = torch.jit.trace(module.forward, tensors, check_trace=False)
    else:
        program = torch.export.export(module, tensors, strict=False).module()
    assert sdpa_calls == [torch.bfloat16]
    assert_close(program(*tensors), module.forward(*tensors), rtol=0.02, atol=0.02)
