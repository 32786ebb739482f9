"""Caches of a Synthesizer, and texts that it generates with them."""

import pytest
import torch
from transformers import StaticCache


def greedy(model, ids, steps, mask=None, **kwargs):
    """Greedy search without a cache."""
    mask = torch.ones_like(ids) if mask is None else mask
    for _ in range(steps):
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, use_cache=False, **kwargs).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return ids


@torch.no_grad()
def test_positions_of_new_tokens_after_a_cache(causal_lm, seq2seq, tokens, components):
    ids, positions = tokens(2, 6), torch.tensor([[0, 1, 2, 3, 7, 8]])
    for model, prefix in ((causal_lm(components), ""), (seq2seq(components), "decoder_")):
        source = {"encoder_outputs": (model.get_encoder()(tokens(2, 5))[0],)} if prefix else {}
        cache = model(**source, **{f"{prefix}input_ids": ids[:, :4]}, use_cache=True).past_key_values
        parts = []
        for start, past in ((0, None), (4, cache)):
            more = {f"{prefix}input_ids": ids[:, start:], f"{prefix}position_ids": positions[:, start:]}
            parts.append(model(**source, **more, past_key_values=past).logits[:, -2:])
        torch.testing.assert_close(*parts, rtol=1e-4, atol=1e-4)
        counted = model(**source, **{f"{prefix}input_ids": ids}).logits[:, -2:]
        assert (parts[0] - counted).abs().max() > 1e-3


@pytest.mark.fast_cases
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_is_greedy_search(causal_lm, tokens, pad, components, cache):
    model = causal_lm(components)
    rows = [tokens(4), tokens(7, seed=1)]
    ids, mask = pad(rows, left=True)
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, cache_implementation=cache)
    assert torch.equal(generated, greedy(model, ids, 8, mask))
    for index, row in enumerate(rows):  # a left-padded prompt continues like the prompt alone
        assert torch.equal(generated[index, 7:], greedy(model, row[None], 8)[0, len(row) :])
    assert len(set(generated[:, 7:].flatten().tolist())) > 2


@pytest.mark.parametrize(("names", "limit"), [(["random"], 19), (["relative"], None)])
def test_generate_stops_where_the_weights_end(causal_lm, seq2seq, tokens, names, limit):
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    prompt = tokens(7)[None]
    # The last token is not read: one more than there are positions, with the prompt or the decoder's start token.
    assert causal_lm(names).generate(prompt, **options).shape == (1, limit + 1 if limit else 37)
    assert seq2seq(names).generate(prompt, **options).shape == (1, limit + 1 if limit else 31)


@pytest.mark.fast_cases
@pytest.mark.parametrize("cache", ["dynamic", "static", pytest.param("static, compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("components", [["random"], ["dense"], ["vanilla"], ["random", "vanilla"]])
def test_seq2seq_generate_is_greedy_search(seq2seq, tokens, pad, components, cache):
    model = seq2seq(components, num_hidden_layers=1 if "compiled" in cache else 2)
    ids, mask = pad([tokens(4), tokens(7, seed=1)], left=False)
    decoded = torch.zeros(2, 1, dtype=torch.long)
    for _ in range(8):
        logits = model(ids, mask, decoded, use_cache=False).logits[:, -1]
        decoded = torch.cat([decoded, logits.argmax(-1, keepdim=True)], dim=1)
    implementation, *compiled = cache.split(", ")
    if compiled:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": implementation}
    assert torch.equal(model.generate(ids, attention_mask=mask, **options), decoded)
    if compiled:  # the first step, which encodes what cross-attention reads, and all others
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def cache_bytes(cache):
    storages = [t.untyped_storage() for layer in cache.layers for t in (layer.keys, layer.values)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("components", [["random"], ["dense"]])
def test_cache_in_the_decoder_of_seq2seq(seq2seq, tokens, components):
    model = seq2seq(components)
    cache = model(tokens(2, 5), decoder_input_ids=tokens(2, 4), use_cache=True).past_key_values
    assert cache_bytes(cache.self_attention_cache) == 2 * 2 * 4 * 2 * 6 * 4
    assert cache_bytes(cache.cross_attention_cache) == 2 * 2 * 5 * 2 * 2 * 6 * 4


def test_the_configuration_switches_the_cache_off(seq2seq, tokens):
    model = seq2seq(["random"])
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is not None
    model.config.use_cache = False
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is None


@pytest.mark.fast_cases(components=[["random", "vanilla"]])  # one, as to compile takes seconds
def test_decoding_with_a_static_cache_compiles_once(causal_lm, tokens, pad, components):
    model = causal_lm(components)
    ids, mask = pad([tokens(5), tokens(7, seed=1)], left=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")
    cache = StaticCache(config=model.config, max_cache_len=14)
    mask_so_far, sequence = torch.nn.functional.pad(mask, (0, 7)), ids
    with torch.no_grad():
        output = model(ids, mask_so_far, past_key_values=cache)
        for step in range(5):
            token = output.logits[:, -1:].argmax(-1)
            sequence = torch.cat([sequence, token], dim=1)
            mask_so_far = mask_so_far.clone()
            mask_so_far[:, 7 + step] = 1
            output = compiled(token, mask_so_far, past_key_values=cache)
    assert torch.equal(sequence, greedy(model, ids, 5, mask))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
