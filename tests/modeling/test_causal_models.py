"""gMLP and aMLP as decoders: causality, caches, generation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, StaticCache, pipeline

import tokenmixers
from tokenmixers import AMLPForCausalLM, GMLPForCausalLM, GMLPForMaskedLM
from tokenmixers.modeling.heads import language_modeling
from tokenmixers.modeling.inputs import token_layout


SIZES = {
    "vocab_size": 23,
    "hidden_size": 10,
    "intermediate_size": 14,
    "num_hidden_layers": 3,
    "max_position_embeddings": 14,
    "is_decoder": True,
    "tie_word_embeddings": False,  # a tied head tends to repeat the last token
}
KINDS = {
    "gmlp-toeplitz": (GMLPForCausalLM, {"spatial_weight_type": "toeplitz"}),
    "gmlp-full": (GMLPForCausalLM, {"spatial_weight_type": "full"}),
    "gmlp-additive": (GMLPForCausalLM, {"gate_type": "additive", "tie_word_embeddings": True}),
    "amlp-toeplitz": (AMLPForCausalLM, {"attention_size": 6}),
    "amlp-full": (AMLPForCausalLM, {"attention_size": 6, "spatial_weight_type": "full"}),
    "amlp-eager": (AMLPForCausalLM, {"attention_size": 6, "attn_implementation": "eager"}),
}


@pytest.fixture(scope="module", params=KINDS)
def model(request, randomise):
    model_class, fields = KINDS[request.param]
    model = randomise(model_class(model_class.config_class(**{**SIZES, **fields}))).double().eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def reference(gmlp_states):
    """`reference(model, ids)`: logits for one sequence, from the papers' formulas, with causal sums."""
    return lambda model, ids: (
        gmlp_states(model.model, model.model.embed_tokens.weight[ids])[-1] @ model.lm_head.weight.mT
    )


@pytest.mark.parametrize("length", [1, 7, 14])
def test_logits_and_gradients_equal_the_formula(model, reference, length):
    ids = torch.randint(1, 23, (length,))
    found, expected = model(ids[None]).logits[0], reference(model, ids)
    torch.testing.assert_close(found, expected)
    weights, parameters = torch.randn_like(found), list(model.parameters())
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(ours, theirs)


def test_the_future_has_no_influence_and_no_gradient(model):
    embeddings = torch.randn(2, 9, 10, dtype=torch.float64, requires_grad=True)
    logits = model(inputs_embeds=embeddings).logits
    (gradient,) = torch.autograd.grad(logits[:, 4].square().sum(), embeddings)
    assert (gradient[:, 5:] == 0).all() and (gradient[:, :5] != 0).any(dim=-1).all()


@given(data=st.data())
def test_cached_and_uncached_logits_agree(data, model, pad, padded_layouts):
    lengths, padded, offsets = data.draw(padded_layouts(max_length=14, min_padded=2))
    # A prompt may be padded anywhere, a token that follows it is real.
    rows = [torch.randint(1, 23, (length,)) for length in lengths]
    ids, mask = pad(rows, padded, offsets)
    ids = ids.clamp(max=22)
    cuts = sorted(data.draw(st.sets(st.integers(1, padded - 1), max_size=4)))
    with torch.no_grad():
        whole = model(ids, mask).logits
        room = data.draw(st.none() | st.integers(padded, 20), label="room in a static cache")
        cache = StaticCache(config=model.config, max_cache_len=room) if room else None
        parts = []
        for start, end in zip([0, *cuts], [*cuts, padded], strict=True):
            output = model(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            parts.append(output.logits)
    real = mask.bool()
    # Until a row's first token has been seen, its position is not known: what was cached then is padding.
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real])
    for row, offset, logits in zip(rows, offsets, whole, strict=True):
        torch.testing.assert_close(logits[offset : offset + len(row)], model(row[None]).logits[0])


def greedy(model, prompt: torch.Tensor, steps: int) -> list[int]:
    """The plainest loop: no cache, no batch, no padding."""
    ids = prompt.tolist()
    for _ in range(steps):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
    return ids


def left_padded(lengths) -> tuple[torch.Tensor, torch.Tensor]:
    longest, prompts = max(lengths), [torch.randint(1, 23, (length,)) for length in lengths]
    ids = torch.stack([F.pad(prompt, (longest - len(prompt), 0), value=7) for prompt in prompts])
    return ids, torch.stack([F.pad(torch.ones_like(prompt), (longest - len(prompt), 0)) for prompt in prompts])


@pytest.mark.fast_cases(model=["gmlp-full", "amlp-toeplitz"])  # all kinds in test_caches.py
def test_beams_are_those_found_without_a_cache(model):
    ids, mask = left_padded([4, 2])
    options = {"max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 3, "do_sample": False}
    with_cache = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(with_cache, model.generate(ids, attention_mask=mask, **options, use_cache=False))
    best = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert not torch.equal(with_cache[::3], best)  # else no beam was ever exchanged


@pytest.mark.fast_cases(model=["gmlp-full", "amlp-toeplitz"])  # all kinds in test_caches.py
def test_assisted_decoding_takes_tokens_back_out_of_the_cache(model, randomise):
    assistant = randomise(GMLPForCausalLM(tokenmixers.GMLPConfig(**SIZES)), seed=1).double().eval()
    prompt = torch.randint(1, 23, (4,))
    expected = greedy(model, prompt, 9)
    options = {"max_new_tokens": 9, "do_sample": False}
    assert model.generate(prompt[None], assistant_model=assistant, **options)[0].tolist() == expected
    assert model.generate(prompt[None], prompt_lookup_num_tokens=2, **options)[0].tolist() == expected


@pytest.mark.fast_cases(model=["gmlp-toeplitz", "amlp-toeplitz"])  # all kinds in test_caches.py
def test_models_for_long_sequences_generate_the_same(model, monkeypatch):
    ids, mask = left_padded([7, 3])
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    short = model.generate(ids, **options)
    monkeypatch.setattr(token_layout, "_SHORTEST_WITHOUT_INDEX", 0)
    for cache in ({"prefill_chunk_size": 3}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(ids, **cache, **options), short)


@pytest.mark.parametrize("model_class", [GMLPForCausalLM, AMLPForCausalLM])
def test_a_static_cache_under_autocast(model_class, randomise):
    """On GPUs autocast normalises in float32, so that the gate's input has another type than keys and values."""
    model = randomise(model_class(model_class.config_class(**SIZES))).eval()
    for layer in model.model.layers:
        layer.sgu.norm.register_forward_hook(lambda module, inputs, output: output.float())
    ids = torch.randint(1, 23, (2, 7))
    cache = StaticCache(config=model.config, max_cache_len=9)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = [model(part, past_key_values=cache).logits for part in ids.split((4, 2, 1), dim=1)]
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=0.05, atol=0.05)


@pytest.mark.fast_cases(model=["gmlp-full", "amlp-toeplitz"])  # all kinds in test_caches.py
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_stops_where_the_weights_end(cache, model, monkeypatch):
    warnings = []
    monkeypatch.setattr(language_modeling.logger, "warning_once", warnings.append)
    options = {"do_sample": False, "cache_implementation": cache}
    prompt = torch.randint(1, 23, (1, 10))
    assert model.generate(prompt, max_new_tokens=5, **options)[0].tolist() == greedy(model, prompt[0], 5)
    assert not warnings
    # The maximum is 14: the fifth token is the last that can be predicted.
    assert model.generate(prompt, max_new_tokens=90, **options)[0].tolist() == greedy(model, prompt[0], 5)
    assert model.generate(prompt, max_length=90, **options)[0].tolist() == greedy(model, prompt[0], 5)
    assert warnings[0].startswith("`generate` stops after 5 tokens instead of 90: the model's weights cover")
    embeds = model.get_input_embeddings()(prompt)
    found = model.generate(inputs_embeds=embeds, max_new_tokens=90, **options)
    assert found[0].tolist() == greedy(model, prompt[0], 5)[10:]
    with pytest.raises(ValueError, match=r"has 15 tokens.*max_position_embeddings=14.*`max_new_tokens`.*resize_pos"):
        model.generate(torch.randint(1, 23, (1, 15)), max_new_tokens=9, **options)


def test_positions_with_a_cache_are_those_the_mask_gives(model):
    ids, mask = left_padded([6, 4])
    whole = model(ids, mask).logits
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    cache = model(ids[:, :4], mask[:, :4], use_cache=True, position_ids=positions[:, :4]).past_key_values
    logits = model(ids[:, 4:], mask, past_key_values=cache, position_ids=positions[:, 4:]).logits
    torch.testing.assert_close(logits, whole[:, 4:])
    with pytest.raises(ValueError, match=r"mask`, \[\[6\], \[4\]\]; got \[\[6\], \[6\]\]. Leave them out"):
        model(ids[:, :1], F.pad(mask, (0, 1), value=1), past_key_values=cache, position_ids=torch.full((2, 1), 6))


def test_a_mask_has_to_cover_the_cache(model):
    cache = model(torch.ones(2, 3, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"\(2, 1\), expected \(2, 4\): .* those in the cache included"):
        model(torch.ones(2, 1, dtype=torch.long), torch.ones(2, 1), past_key_values=cache)


def test_loss_is_that_of_every_next_token(model):
    ids = torch.randint(1, 23, (3, 8))
    labels = ids.masked_fill(torch.rand(3, 8) < 0.3, -100)
    output = model(ids, labels=labels)
    terms = [
        -output.logits[row, position - 1].log_softmax(-1)[labels[row, position]]
        for row in range(3)
        for position in range(1, 8)
        if labels[row, position] != -100
    ]
    losses = torch.stack(terms).float()  # as Transformers computes it
    torch.testing.assert_close(output.loss, losses.mean())
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=7).loss, losses.sum() / 7)


@pytest.mark.parametrize("family", ["GMLP", "AMLP"])
def test_an_encoders_weights_make_a_decoder(family, randomise, reference, tmp_path):
    config = getattr(tokenmixers, f"{family}Config")(**{**SIZES, "is_decoder": False, "tie_word_embeddings": True})
    encoder = randomise(getattr(tokenmixers, f"{family}ForMaskedLM")(config)).double()
    encoder.save_pretrained(tmp_path)
    decoder = AutoModelForCausalLM.from_pretrained(tmp_path, is_decoder=True, dtype=torch.float64)
    assert type(decoder) is getattr(tokenmixers, f"{family}ForCausalLM")
    ids = torch.randint(1, 23, (6,))
    torch.testing.assert_close(decoder(ids[None]).logits[0], reference(decoder, ids))


def test_another_length_keeps_what_was_learned(randomise):
    model = randomise(GMLPForCausalLM(tokenmixers.GMLPConfig(**SIZES))).eval()
    ids = torch.randint(1, 23, (1, 6))
    before = model(ids).logits
    model.resize_position_embeddings(30)
    torch.testing.assert_close(model(ids).logits, before)
    assert model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None).shape == (1, 26)


def test_pipeline(randomise, tmp_path):
    texts = ["the gate mixes tokens", "this example is about channels"] * 9
    tokenizer = tokenmixers.train_unigram_tokenizer(texts, 60, 64, show_progress=False, kind="decoder")
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 40}
    model = randomise(AMLPForCausalLM(tokenmixers.AMLPConfig(**sizes))).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = pipeline("text-generation", model=str(tmp_path))
    prompts = ["the gate", "this example is about channels"]  # the first is padded
    answers = run(prompts, max_new_tokens=6, batch_size=2, do_sample=False, return_tensors=True)
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        assert answer["generated_token_ids"][-6 - len(ids) :] == greedy(model, torch.tensor(ids), 6)


def test_encoders_and_decoders_are_not_confused():
    with pytest.raises(ValueError, match="GMLPForCausalLM needs a configuration with `is_decoder=True`, a decoder"):
        GMLPForCausalLM(tokenmixers.GMLPConfig(**{**SIZES, "is_decoder": False}))
    with pytest.raises(ValueError, match="GMLPForMaskedLM needs a configuration with `is_decoder=False`, an encoder"):
        GMLPForMaskedLM(tokenmixers.GMLPConfig(**SIZES))


@pytest.mark.parametrize("model_class", [GMLPForCausalLM, AMLPForCausalLM])
def test_continuous_batching_is_refused(model_class):
    model = model_class(model_class.config_class(**SIZES))
    with pytest.raises(NotImplementedError, match="has no `generate_batch`: use `generate` with padded rows"):
        model.generate_batch([[1, 2, 3]])
