"""Caches of a Synthesizer, and texts that it generates with them."""

import pytest
import torch


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


def test_the_configuration_switches_the_cache_off(seq2seq, tokens):
    model = seq2seq(["random"])
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is not None
    model.config.use_cache = False
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is None
