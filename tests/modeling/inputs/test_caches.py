"""Caches of every kind of decoder: masks with a static cache, and one tensor as keys and values."""

from inspect import signature

import pytest
import torch
from torch.nn import functional as F
from transformers import Cache, DynamicCache, EncoderDecoderCache, GPT2Model, StaticCache
from transformers.cache_utils import DynamicLayer

from tokenmixers import AMLPForCausalLM, GMLPForCausalLM, SynthesizerForCausalLM, SynthesizerForConditionalGeneration
from tokenmixers.modeling.inputs.caches import CACHE_NAME


LENGTH = 14
SIZES = {"vocab_size": 29, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "is_decoder": True}
HEADS = {"num_attention_heads": 2, "head_dim": 6}
KINDS = {
    "gmlp-toeplitz": (GMLPForCausalLM, {}),
    "gmlp-full": (GMLPForCausalLM, {"spatial_weight_type": "full"}),
    "amlp": (AMLPForCausalLM, {"attention_size": 6}),
    "amlp-eager": (AMLPForCausalLM, {"attention_size": 6, "attn_implementation": "eager"}),
    **{
        f"synthesizer-{'-'.join(names)}": (SynthesizerForCausalLM, {**HEADS, "attention_components": names})
        for names in (["vanilla"], ["random", "vanilla"], ["random"], ["dense"], ["factorized_dense", "relative"])
    },
    "synthesizer-eager": (
        SynthesizerForCausalLM,
        {**HEADS, "attention_components": ["random", "vanilla"], "attn_implementation": "eager"},
    ),
    "synthesizer-learned": (
        SynthesizerForCausalLM,
        {**HEADS, "attention_components": ["random"], "position_embedding_type": "learned"},
    ),
}
WITHOUT_KEYS = [name for name in KINDS if name.startswith("gmlp") or name[12:] in ("random", "dense")]


def build(name, randomise):
    model_class, fields = KINDS[name]
    fields = {**SIZES, "max_position_embeddings": LENGTH, "tie_word_embeddings": False, "eos_token_id": None, **fields}
    return randomise(model_class(model_class.config_class(**fields))).eval()


@pytest.fixture
def padded():
    """Two rows of 6 tokens, the first with two tokens of padding on the left, and their mask."""
    ids = torch.randint(1, 29, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return ids, mask


EVERY_KIND = pytest.mark.parametrize("name", KINDS)


@torch.no_grad()
@pytest.mark.parametrize("room", [6, 20])
@EVERY_KIND
def test_masks_with_a_static_cache(name, room, padded, randomise):
    """Masks cover the tokens so far, or the whole cache, whose room may be more than the model's weights cover."""
    model, (ids, mask) = build(name, randomise), padded
    for given in (mask, None):
        real = torch.ones_like(mask).bool() if given is None else mask.bool()
        expected = model(ids, attention_mask=given).logits[real]
        for cuts in ([6], [4, 5, 6]):
            for whole in {False, given is not None}:
                cache, parts = StaticCache(config=model.config, max_cache_len=room), []
                for start, end in zip([0, *cuts], cuts, strict=False):
                    part = None if given is None else F.pad(given[:, :end], (0, room - end if whole else 0))
                    parts.append(model(ids[:, start:end], attention_mask=part, past_key_values=cache).logits)
                torch.testing.assert_close(torch.cat(parts, 1)[real], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@EVERY_KIND
def test_both_names_of_the_cache(name, padded, randomise):
    """Transformers calls it `cache` from 5.24 on, `past_key_values` before."""
    model, (ids, mask) = build(name, randomise), padded
    assert CACHE_NAME in signature(model.forward).parameters and CACHE_NAME in signature(GPT2Model.forward).parameters
    expected = model(ids, attention_mask=mask).logits[:, -1]
    for argument in ("cache", "past_key_values"):
        cache = DynamicCache(config=model.config)
        first = model(ids[:, :4], attention_mask=mask[:, :4], **{argument: cache})
        assert first[CACHE_NAME] is cache and cache.get_seq_length() == 4
        found = model(ids[:, 4:], attention_mask=mask, **{argument: cache}).logits[:, -1]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert model(ids, cache=DynamicCache(), past_key_values=None)[CACHE_NAME].get_seq_length() == 6
    with pytest.raises(TypeError, match="multiple values for keyword argument 'cache'"):
        model(ids, cache=cache, past_key_values=cache)


@EVERY_KIND
def test_a_checkpointed_layer_gets_no_cache(name, padded, randomise):
    """It runs twice, and would store its tokens twice."""
    model, (ids, mask) = build(name, randomise).train(), padded
    torch.manual_seed(0)  # for dropout
    model(ids, attention_mask=mask, labels=ids).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(0)
    cache = DynamicCache(config=model.config)
    model(ids, attention_mask=mask, labels=ids, cache=cache).loss.backward()
    assert cache.get_seq_length() == 0
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key])


@pytest.mark.slow  # FlexAttention is compiled
@torch.no_grad()
def test_flex_attention_with_a_static_cache(padded, randomise):
    model, (ids, mask) = build("synthesizer-random-vanilla", randomise), padded
    expected = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("flex_attention")
    torch.compiler.reset()
    cache = StaticCache(config=model.config, max_cache_len=20)
    found = model(ids, attention_mask=mask, past_key_values=cache).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)


@EVERY_KIND
def test_texts_are_those_of_greedy_search_without_a_cache(name, padded, randomise):
    """The last cache has more room than the model's weights cover."""
    model, (ids, mask) = build(name, randomise), padded
    expected, seen = ids, mask
    for _ in range(LENGTH - 6):
        with torch.no_grad():
            token = model(expected, attention_mask=seen, use_cache=False).logits[:, -1:].argmax(-1)
        expected, seen = torch.cat([expected, token], dim=1), F.pad(seen, (0, 1), value=1)
    options = {"attention_mask": mask, "max_new_tokens": LENGTH - 6, "do_sample": False}
    cache = StaticCache(config=model.config, max_cache_len=20)
    for kind in ({}, {"cache_implementation": "static"}, {"past_key_values": cache, "disable_compile": True}):
        assert torch.equal(model.generate(ids, **kind, **options), expected)
    if model.config.model_type != "synthesizer" or model.config.max_sequence_length is not None:
        token = torch.ones(2, 1, dtype=torch.long)
        model(token, attention_mask=F.pad(mask, (0, LENGTH - 6), value=1), past_key_values=cache)  # the last one
        with pytest.raises(ValueError, match=f"has {LENGTH + 1} tokens.*max_position_embeddings={LENGTH}"):
            model(token, attention_mask=F.pad(mask, (0, LENGTH - 5), value=1), past_key_values=cache)


@pytest.mark.fast_cases(name=["amlp", "synthesizer-random-vanilla"])  # to compile takes seconds
@EVERY_KIND
def test_decoding_with_a_static_cache_compiles_once(name, padded, randomise):
    model, (ids, mask) = build(name, randomise), padded
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")
    cache, mask = StaticCache(config=model.config, max_cache_len=LENGTH), F.pad(mask, (0, LENGTH - 6))
    with torch.no_grad():
        logits = model(ids, mask, past_key_values=cache).logits
        for step in range(5):
            token = logits[:, -1:].argmax(-1)
            ids, mask = torch.cat([ids, token], dim=1), mask.clone()
            mask[:, 6 + step] = 1
            logits = compiled(token, mask, past_key_values=cache).logits
    assert torch.equal(torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@torch.no_grad()
@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_caches_of_the_decoder_of_seq2seq(components, padded, randomise):
    config = SynthesizerForConditionalGeneration.config_class(
        **{**SIZES, **HEADS, "is_decoder": False, "is_encoder_decoder": True, "max_position_embeddings": LENGTH},
        attention_components=components,
    )
    model, (ids, mask) = randomise(SynthesizerForConditionalGeneration(config)).eval(), padded
    inputs = {"input_ids": ids.flip(1), "attention_mask": mask.flip(1)}
    expected = model(**inputs, decoder_input_ids=ids, decoder_attention_mask=mask).logits
    dynamic = model(**inputs, decoder_input_ids=ids, use_cache=True).past_key_values
    one_tensor = 2 * 2 * 6 * 2 * 6 * 4  # layers, rows, tokens, heads and width, bytes
    assert held_bytes(dynamic.self_attention_cache) == one_tensor * (2 if "vanilla" in components else 1)
    assert held_bytes(dynamic.cross_attention_cache) == one_tensor * 2
    own, cross = (StaticCache(config=config.get_text_config(decoder=True), max_cache_len=n) for n in (20, 6))
    cache, parts = EncoderDecoderCache(own, cross), []
    for start, end in ((0, 4), (4, 5), (5, 6)):
        output = model(
            **inputs,
            decoder_input_ids=ids[:, start:end],
            decoder_attention_mask=mask[:, :end],
            past_key_values=cache,
        )
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)


def held_bytes(cache: Cache) -> int:
    """Bytes of the storages that the cache's tensors are in, each counted once."""
    storages = [tensor.untyped_storage() for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def change_tensors(cache: Cache, change: str) -> torch.Tensor:
    """Change a cache as generation does; which of its rows remain, in order."""
    rows = torch.tensor([1, 0])
    if change == "reorder":
        cache.reorder_cache(rows)
    elif change == "select":
        rows = torch.tensor([1])
        cache.batch_select_indices(rows)
    elif change == "repeat":
        rows = torch.tensor([0, 0, 1, 1])
        cache.batch_repeat_interleave(2)
    elif change == "crop":
        cache.crop(-2)
        rows = torch.arange(2)
    return rows


@torch.no_grad()
@pytest.mark.parametrize("change", ["reorder", "select", "repeat", "crop"])
@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_one_tensor_is_keys_and_values_whatever_was_done_to_it(name, change, padded, randomise):
    model, (ids, mask) = build(name, randomise), padded
    expected = model(ids, attention_mask=mask).logits
    cache = model(ids[:, :5], attention_mask=mask[:, :5], use_cache=True).past_key_values
    rows, start = change_tensors(cache, change), 3 if change == "crop" else 5
    assert all(layer.values.shape == layer.keys.shape for layer in cache.layers)
    output = model(ids[rows, start:], attention_mask=mask[rows], past_key_values=cache)
    torch.testing.assert_close(output.logits, expected[rows, start:], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(layer.values, layer.keys) for layer in cache.layers)
    width = cache.layers[0].keys.shape[1] * cache.layers[0].keys.shape[3]
    assert held_bytes(cache) == 2 * len(rows) * 6 * width * 4  # layers, rows, tokens, heads and width, bytes


@torch.no_grad()
@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_a_static_cache_is_allocated_once(name, padded, randomise):
    model, (ids, _) = build(name, randomise), padded
    cache = StaticCache(config=model.config, max_cache_len=9)
    for step in ids.split(2, dim=1):
        model(step, past_key_values=cache)
    keys = cache.layers[0].keys
    assert keys.shape[2] == 9 and all(layer.keys is layer.values for layer in cache.layers)
    assert held_bytes(cache) == 2 * 2 * 9 * keys.shape[1] * keys.shape[3] * 4
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


class _OwnLayer(DynamicLayer):
    """A layer of somebody else, about which nothing is known."""


@torch.no_grad()
@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_other_caches_hold_two_tensors(name, padded, randomise):
    model, (ids, _) = build(name, randomise), padded
    own = DynamicCache()
    own.layer_class_to_replicate = _OwnLayer
    early = StaticCache(config=model.config, max_cache_len=9)
    heads = (2, 6) if "synthesizer" in name else (1, model.config.gate_size)
    early.early_initialization(2, *heads, torch.float32, torch.device("cpu"))
    for cache in (own, early):
        parts = [model(step, past_key_values=cache).logits for step in ids.split(2, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, rtol=1e-4, atol=1e-4)
        for layer in cache.layers:
            assert layer.keys is not layer.values and torch.equal(layer.keys, layer.values)
