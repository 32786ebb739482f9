import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, DynamicCache, StaticCache
from transformers.modeling_utils import AttentionInterface

from tokenmixers import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForMaskedLM,
    SynthesizerForSequenceClassification,
    SynthesizerModel,
)


VOCABULARY, N = 40, 19
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": N,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "is_encoder_decoder": False,
    "cross_attention_num_heads": None,
    "cross_attention_head_dim": None,
}
WITHOUT_VANILLA = [
    ["random"],
    ["fixed_random"],
    ["factorized_random"],
    ["mesh_factorized"],
    ["relative"],
    ["dense"],
    ["factorized_dense"],
    ["random", "dense"],
]
ALL_COMPONENTS = [*WITHOUT_VANILLA, ["vanilla"], ["random", "vanilla"], ["dense", "vanilla"]]


def randomise(model, seed=0):
    """All weights, norms included: fresh ones hide transposes and missing scales."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif "shared" in name or "embed" in name:
                tensor.normal_()
            else:
                tensor.normal_(std=0.7 if tensor.dim() < 2 or "components" in name else tensor.shape[-1] ** -0.5)
    return model.eval()


def build(model_class, seed=0, implementation="sdpa", **kwargs):
    torch.manual_seed(seed)
    config = SynthesizerConfig(**{**TINY, **kwargs})
    return randomise(model_class._from_config(config, attn_implementation=implementation), seed)


def causal_lm(components, **kwargs):
    # Untied: a tied head tends to repeat the last token.
    kwargs = {"eos_token_id": None, "tie_word_embeddings": False, **kwargs}
    return build(SynthesizerForCausalLM, attention_components=components, is_decoder=True, **kwargs)


def seq2seq(components, **kwargs):
    kwargs = {"eos_token_id": None, **kwargs}
    return build(
        SynthesizerForConditionalGeneration, attention_components=components, is_encoder_decoder=True, **kwargs
    )


def tokens(*shape, seed=0):
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def pad(rows, left):
    longest = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for index, row in enumerate(rows):
        start = longest - len(row) if left else 0
        ids[index, start : start + len(row)], mask[index, start : start + len(row)] = row, 1
    return ids, mask


# Padding


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_padding_changes_nothing(data):
    components = data.draw(st.sampled_from(ALL_COMPONENTS))
    model = build(
        SynthesizerModel,
        implementation=data.draw(st.sampled_from(["sdpa", "eager"])),
        attention_components=components,
        is_decoder=data.draw(st.booleans()),
        position_embedding_type=data.draw(st.sampled_from(["relative", "learned", "none"])),
    )
    lengths = data.draw(st.lists(st.integers(1, N), min_size=1, max_size=3))
    rows = [tokens(length, seed=length) for length in lengths]
    ids, mask = pad(rows, left=data.draw(st.booleans()))
    with torch.no_grad():
        together = model(ids, mask).last_hidden_state
        for index, row in enumerate(rows):
            alone = model(row[None]).last_hidden_state[0]
            torch.testing.assert_close(together[index][mask[index].bool()], alone, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_padding_changes_nothing_in_seq2seq(components, left):
    model = seq2seq(components)
    sources, targets = [tokens(5), tokens(9, seed=1)], [tokens(7), tokens(4, seed=1)]
    ids, mask = pad(sources, left)
    decoder_ids, decoder_mask = pad(targets, left)
    with torch.no_grad():
        together = model(ids, mask, decoder_ids, decoder_mask).logits
        for index in range(2):
            alone = model(sources[index][None], decoder_input_ids=targets[index][None]).logits[0]
            torch.testing.assert_close(together[index][decoder_mask[index].bool()], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_implementations_agree(components, is_decoder):
    ids, mask = pad([tokens(5), tokens(11, seed=1)], left=True)
    kwargs = {"attention_components": components, "is_decoder": is_decoder}
    eager, sdpa = (
        build(SynthesizerModel, implementation=name, **kwargs)(ids, mask, output_attentions=name == "eager")
        for name in ("eager", "sdpa")
    )
    real = mask.bool()
    torch.testing.assert_close(eager[0][real], sdpa[0][real], rtol=1e-4, atol=1e-5)
    assert len(eager.attentions) == 2
    for weights in eager.attentions:
        assert weights.shape == (2, 2, 11, 11)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 11))


@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_mask_of_four_dimensions(components):
    model = build(SynthesizerModel, attention_components=components)
    ids, mask = pad([tokens(5), tokens(11, seed=1)], left=False)
    full = mask.bool()[:, None, None, :].expand(-1, -1, 11, -1)
    two, four = model(ids, mask)[0], model(ids, full)[0]
    torch.testing.assert_close(two[mask.bool()], four[mask.bool()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_position_ids(components, is_decoder):
    """Counted positions, given by hand, change nothing; others do, wherever the model knows positions."""
    model = build(
        SynthesizerModel,
        attention_components=components,
        is_decoder=is_decoder,
        position_embedding_type="none" if components != ["vanilla"] else "learned",
    )
    ids = tokens(2, 6)
    counted = torch.arange(6)[None]
    with torch.no_grad():
        plain = model(ids)[0]
        torch.testing.assert_close(model(ids, position_ids=counted)[0], plain, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(ids, position_ids=counted.repeat(2, 1))[0], plain, rtol=1e-4, atol=1e-5)
        assert (model(ids, position_ids=counted * 2)[0] - plain).abs().max() > 1e-3


# Length


@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_too_long(components):
    model = build(SynthesizerModel, attention_components=components, position_embedding_type="none")
    assert model(tokens(1, N))[0].shape == (1, N, 16)
    if set(components) <= {"vanilla", "relative"}:
        assert model(tokens(1, N + 1))[0].shape == (1, N + 1, 16)
    else:
        with pytest.raises(ValueError, match=f"has {N + 1} tokens.*`max_position_embeddings={N}`.*Truncate"):
            model(tokens(1, N + 1))


@pytest.mark.fast_cases
@pytest.mark.parametrize("length", [11, N, 50])
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_resize_position_embeddings(components, length, tmp_path):
    model = causal_lm(components, position_embedding_type="learned")
    ids = tokens(2, min(length, N))
    with torch.no_grad():
        before = model(ids).logits
        model.resize_position_embeddings(length)
        torch.testing.assert_close(model(ids).logits, before)
        model(tokens(1, length))
        with pytest.raises(ValueError, match=f"max_position_embeddings={length}"):
            model(tokens(1, length + 1))
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, before)


def test_resize_position_embeddings_of_seq2seq(tmp_path):
    model = seq2seq(["random", "factorized_dense"])
    inputs = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 6)}
    before = model(**inputs).logits
    model.resize_position_embeddings(30, 7)
    assert model.get_position_embeddings() == (30, 7)
    torch.testing.assert_close(model(**inputs).logits, before)
    model(tokens(1, 30), decoder_input_ids=tokens(1, 7))
    with pytest.raises(ValueError, match="has 8 tokens"):
        model(tokens(1, 30), decoder_input_ids=tokens(1, 8))
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)(**inputs).logits, before)
    with pytest.raises(ValueError, match="at least 1"):
        model.resize_position_embeddings(0)
    with pytest.raises(ValueError, match="encoder-decoder models only"):
        causal_lm(["random"]).resize_position_embeddings(4, 4)


# Generation


def greedy(model, ids, steps, mask=None, **kwargs):
    """Greedy search without a cache."""
    mask = torch.ones_like(ids) if mask is None else mask
    for _ in range(steps):
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, use_cache=False, **kwargs).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return ids


@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_cached_steps_equal_one_pass(components):
    model = causal_lm(components)
    ids, mask = pad([tokens(9), tokens(12, seed=1)], left=True)
    with torch.no_grad():
        whole = model(ids, mask).logits
        cache, parts = None, []
        for start, end in ((0, 5), (5, 6), (6, 9), (9, 12)):
            output = model(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_positions_of_new_tokens_after_a_cache(components):
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
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_generate_is_greedy_search(components, cache):
    model = causal_lm(components)
    rows = [tokens(4), tokens(7, seed=1)]
    ids, mask = pad(rows, left=True)
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, cache_implementation=cache)
    assert torch.equal(generated, greedy(model, ids, 8, mask))
    for index, row in enumerate(rows):  # a left-padded prompt continues like the prompt alone
        assert torch.equal(generated[index, 7:], greedy(model, row[None], 8)[0, len(row) :])
    assert len(set(generated[:, 7:].flatten().tolist())) > 2


@pytest.mark.fast_cases
@pytest.mark.parametrize("cache", ["dynamic", "static", pytest.param("static, compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("components", [["random"], ["dense"], ["vanilla"], ["random", "vanilla"]])
def test_seq2seq_generate_is_greedy_search(components, cache):
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


@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_beam_search_reorders_the_cache(components):
    model = causal_lm(components)
    ids, mask = pad([tokens(4), tokens(7, seed=1)], left=True)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "attention_mask": mask}
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert not torch.equal(cached, greedy(model, ids, 8, mask))


@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_assisted_decoding_crops_the_cache(components):
    model, assistant = causal_lm(components), causal_lm(["random"], seed=1)
    ids = tokens(1, 5)
    assisted = model.generate(ids, assistant_model=assistant, max_new_tokens=9, do_sample=False)
    assert torch.equal(assisted, greedy(model, ids, 9))
    looked_up = model.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=9, do_sample=False)
    assert torch.equal(looked_up, assisted)


def cache_bytes(cache):
    storages = [t.untyped_storage() for layer in cache.layers for t in (layer.keys, layer.values)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
@pytest.mark.parametrize("components", WITHOUT_VANILLA)
def test_without_vanilla_the_cache_has_half_the_bytes(components, cache_class):
    sizes = []
    for names in (components, ["vanilla"]):
        model = causal_lm(names)
        length = {"max_cache_len": 14} if cache_class is StaticCache else {}
        cache = cache_class(config=model.config, **length)
        for step in tokens(6, 2, 2):
            model(step, past_key_values=cache)
        assert cache.get_seq_length() == 12
        sizes.append(cache_bytes(cache))
    held = 14 if cache_class is StaticCache else 12
    assert sizes[1] == 2 * 2 * held * 2 * 2 * 6 * 4  # layers, batch, tokens, keys and values, heads, width, bytes
    assert sizes[0] * 2 == sizes[1]


@pytest.mark.parametrize("components", [["random"], ["dense"]])
def test_cache_in_the_decoder_of_seq2seq(components):
    model = seq2seq(components)
    cache = model(tokens(2, 5), decoder_input_ids=tokens(2, 4), use_cache=True).past_key_values
    assert cache_bytes(cache.self_attention_cache) == 2 * 2 * 4 * 2 * 6 * 4
    assert cache_bytes(cache.cross_attention_cache) == 2 * 2 * 5 * 2 * 2 * 6 * 4


def test_the_encoders_own_output_keeps_its_fields():
    model = seq2seq(["vanilla"], implementation="eager")
    ids = torch.randint(3, 20, (2, 5))
    options = {"decoder_input_ids": ids, "output_attentions": True}
    whole = model(ids, **options)
    outputs = model(encoder_outputs=model.get_encoder()(ids, output_attentions=True), **options)
    assert torch.equal(outputs.logits, whole.logits) and outputs.encoder_hidden_states is None
    assert len(outputs.encoder_attentions) == len(whole.encoder_attentions) > 0
    assert all(map(torch.equal, outputs.encoder_attentions, whole.encoder_attentions))


def test_different_shapes_of_the_two_sides():
    config = {
        "decoder_attention_components": ["random"],
        "decoder_num_attention_heads": 3,
        "decoder_head_dim": 4,
        "decoder_max_position_embeddings": 6,
        "decoder_position_embedding_type": "learned",
        "num_decoder_layers": 3,
        "cross_attention_num_heads": 5,
        "cross_attention_head_dim": 2,
    }
    model = seq2seq(["vanilla"], **config)
    decoder = model.get_decoder()
    assert model.get_encoder().config.attention_components == ["vanilla"]
    assert len(decoder.layers) == 3 and len(model.get_encoder().layers) == 2
    assert decoder.layers[0].self_attn.components["random"].weight.shape == (3, 6, 6)
    assert decoder.layers[0].cross_attn.q_proj.weight.shape == (10, 16)
    assert decoder.embed_positions.weight.shape == (6, 16)
    generated = model.generate(tokens(2, 30), max_new_tokens=5, do_sample=False)
    assert generated.shape == (2, 6)


# Initialisation, saving


def test_fixed_random_is_saved_and_not_trained(tmp_path):
    model = build(SynthesizerForMaskedLM, attention_components=["fixed_random"])
    name = "model.encoder.layers.0.self_attn.components.fixed_random.weight"
    assert name in dict(model.named_buffers()) and name not in dict(model.named_parameters())
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_shared_by_both_sides(tied, tmp_path):
    model = seq2seq(["random"], tie_word_embeddings=tied)
    assert (
        model.model.encoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight is model.model.shared.weight
    )
    assert (model.lm_head.weight is model.model.shared.weight) == tied
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.model.encoder.embed_tokens.weight is loaded.model.shared.weight
    inputs = {"input_ids": tokens(1, 4), "decoder_input_ids": tokens(1, 3)}
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)
    loaded.resize_token_embeddings(VOCABULARY + 5)
    assert loaded.model.decoder.embed_tokens.weight.shape[0] == loaded.lm_head.weight.shape[0] == VOCABULARY + 5


def test_encoder_of_an_encoder_decoder_is_an_encoder(tmp_path):
    model = seq2seq(["random", "vanilla"])
    model.save_pretrained(tmp_path)
    encoder, info = SynthesizerModel.from_pretrained(tmp_path, is_encoder_decoder=False, output_loading_info=True)
    assert not info["missing_keys"]
    ids = tokens(2, 6)
    torch.testing.assert_close(encoder(ids)[0], model.get_encoder()(ids)[0])


def test_the_configuration_switches_the_cache_off():
    model = seq2seq(["random"])
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is not None
    model.config.use_cache = False
    assert model(tokens(2, 5), decoder_input_ids=tokens(2, 4)).past_key_values is None


@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_frozen_weights_stay_frozen_with_another_length(components):
    model = causal_lm(components, position_embedding_type="learned").requires_grad_(False)
    model.resize_position_embeddings(N + 4)
    assert not [name for name, weight in model.named_parameters() if weight.requires_grad]


def test_seq2seq_loss_is_not_shifted():
    model = seq2seq(["random"])
    ids, labels = tokens(2, 5), tokens(2, 4, seed=1)
    labels[0, -1] = -100
    output = model(ids, labels=labels)
    inputs = torch.tensor([[0, *row[:-1]] for row in labels.tolist()])
    logits = model(ids, decoder_input_ids=inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(output.loss, expected)
    summed = model(ids, labels=labels, num_items_in_batch=7).loss
    torch.testing.assert_close(summed * 7, expected * 7)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=14).loss * 2, expected)
    given = model(ids, labels=labels, decoder_input_ids=tokens(2, 4, seed=2))  # inputs that are given are used
    logits = model(ids, decoder_input_ids=tokens(2, 4, seed=2)).logits
    torch.testing.assert_close(given.logits, logits)
    embedded = model(ids, labels=labels, decoder_inputs_embeds=model.model.shared(tokens(2, 4, seed=2)))
    torch.testing.assert_close(embedded.logits, logits)
    torch.testing.assert_close(
        given.loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    )


@pytest.mark.parametrize(
    ("model_class", "kwargs", "message"),
    [
        (SynthesizerForCausalLM, {}, "SynthesizerForCausalLM needs .*is_decoder=True"),
        (SynthesizerForConditionalGeneration, {}, "needs .*is_encoder_decoder=True"),
        (SynthesizerForMaskedLM, {"is_decoder": True}, "an encoder"),
        (SynthesizerForSequenceClassification, {"is_encoder_decoder": True}, "an encoder"),
    ],
)
def test_head_and_architecture_must_fit(model_class, kwargs, message):
    with pytest.raises(ValueError, match=message):
        model_class(SynthesizerConfig(**{**TINY, **kwargs}))


@pytest.mark.fast_cases(components=[["random", "vanilla"]])  # one, as to compile takes seconds
@pytest.mark.parametrize("components", ALL_COMPONENTS)
def test_decoding_with_a_static_cache_compiles_once(components):
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_half_precision(components, dtype, tmp_path):
    model = seq2seq(components)
    model.save_pretrained(tmp_path)
    half = SynthesizerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    ids, mask = pad([tokens(5), tokens(7, seed=1)], left=True)
    expected = model(ids, mask, decoder_input_ids=ids).logits
    actual = half(ids, mask, decoder_input_ids=ids).logits
    assert actual.dtype == dtype
    assert (actual.float() - expected).std() < 0.05 * expected.std()
    # The sums of the last feed-forward matrix leave float16 in large T5 models.
    kept = half.model.encoder.layers[0].mlp.down_proj.weight.dtype
    assert kept == (torch.float32 if dtype == torch.float16 else dtype)


@pytest.mark.slow
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("components", [["vanilla"], ["random", "vanilla"], ["dense", "vanilla"]])
def test_flex_attention(components, is_decoder):
    ids, mask = pad([tokens(5), tokens(11, seed=1)], left=True)
    kwargs = {"attention_components": components, "is_decoder": is_decoder, "head_dim": 16}
    with torch.no_grad():
        sdpa, flex = (
            build(SynthesizerModel, implementation=name, **kwargs)(ids, mask)[0][mask.bool()]
            for name in ("sdpa", "flex_attention")
        )
    torch.testing.assert_close(flex, sdpa, rtol=1e-4, atol=1e-5)


def test_queries_keys_and_values_have_one_type_under_autocast(monkeypatch, randomise):
    """Weights of a mixture are in float32; flex attention, unlike sdpa, is not cast by autocast."""
    types = []

    def own(module, query, key, value, *args, **kwargs):
        types.append((query.dtype, key.dtype, value.dtype))
        return sdpa(module, query, key, value, *args, **kwargs)

    sdpa = AttentionInterface._global_mapping["sdpa"]
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", own)
    config = SynthesizerConfig(**TINY, attention_components=["vanilla", "random"], mixture="softmax")
    model = randomise(SynthesizerForMaskedLM(config))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(1, VOCABULARY, (2, 7)))
    assert types == [(torch.bfloat16,) * 3] * 2
