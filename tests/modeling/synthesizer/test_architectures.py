"""Encoders, decoders and encoder-decoders: shapes, what is shared and saved, losses, types, attention."""

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from tokenmixers import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForMaskedLM,
    SynthesizerForSequenceClassification,
    SynthesizerModel,
)


@pytest.mark.fast_cases
@pytest.mark.parametrize("is_decoder", [False, True])
def test_implementations_agree(build, tokens, pad, components, is_decoder):
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


def test_the_encoders_own_output_keeps_its_fields(seq2seq):
    model = seq2seq(["vanilla"], implementation="eager")
    ids = torch.randint(3, 20, (2, 5))
    options = {"decoder_input_ids": ids, "output_attentions": True}
    whole = model(ids, **options)
    outputs = model(encoder_outputs=model.get_encoder()(ids, output_attentions=True), **options)
    assert torch.equal(outputs.logits, whole.logits) and outputs.encoder_hidden_states is None
    assert len(outputs.encoder_attentions) == len(whole.encoder_attentions) > 0
    assert all(map(torch.equal, outputs.encoder_attentions, whole.encoder_attentions))


def test_different_shapes_of_the_two_sides(seq2seq, tokens):
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


def test_fixed_random_is_saved_and_not_trained(build, tmp_path):
    model = build(SynthesizerForMaskedLM, attention_components=["fixed_random"])
    name = "model.encoder.layers.0.self_attn.components.fixed_random.weight"
    assert name in dict(model.named_buffers()) and name not in dict(model.named_parameters())
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_shared_by_both_sides(seq2seq, tokens, tied, tmp_path):
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
    loaded.resize_token_embeddings(45)
    assert loaded.model.decoder.embed_tokens.weight.shape[0] == loaded.lm_head.weight.shape[0] == 45


def test_encoder_of_an_encoder_decoder_is_an_encoder(seq2seq, tokens, tmp_path):
    model = seq2seq(["random", "vanilla"])
    model.save_pretrained(tmp_path)
    encoder, info = SynthesizerModel.from_pretrained(tmp_path, is_encoder_decoder=False, output_loading_info=True)
    assert not info["missing_keys"]
    ids = tokens(2, 6)
    torch.testing.assert_close(encoder(ids)[0], model.get_encoder()(ids)[0])


def test_seq2seq_loss_is_not_shifted(seq2seq, tokens):
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
def test_head_and_architecture_must_fit(tiny, model_class, kwargs, message):
    with pytest.raises(ValueError, match=message):
        model_class(SynthesizerConfig(**{**tiny, **kwargs}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("components", [["random"], ["dense"], ["random", "vanilla"]])
def test_half_precision(seq2seq, tokens, pad, components, dtype, tmp_path):
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
def test_flex_attention(build, tokens, pad, components, is_decoder):
    ids, mask = pad([tokens(5), tokens(11, seed=1)], left=True)
    kwargs = {"attention_components": components, "is_decoder": is_decoder, "head_dim": 16}
    with torch.no_grad():
        sdpa, flex = (
            build(SynthesizerModel, implementation=name, **kwargs)(ids, mask)[0][mask.bool()]
            for name in ("sdpa", "flex_attention")
        )
    torch.testing.assert_close(flex, sdpa, rtol=1e-4, atol=1e-5)


def test_queries_keys_and_values_have_one_type_under_autocast(tiny, tokens, monkeypatch, randomise):
    """Weights of a mixture are in float32; flex attention, unlike sdpa, is not cast by autocast."""
    types = []

    def own(module, query, key, value, *args, **kwargs):
        types.append((query.dtype, key.dtype, value.dtype))
        return sdpa(module, query, key, value, *args, **kwargs)

    sdpa = AttentionInterface._global_mapping["sdpa"]
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", own)
    config = SynthesizerConfig(**tiny, attention_components=["vanilla", "random"], mixture="softmax")
    model = randomise(SynthesizerForMaskedLM(config))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(tokens(2, 7))
    assert types == [(torch.bfloat16,) * 3] * 2
