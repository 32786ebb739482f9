"""What a Synthesizer makes of padding, positions and lengths."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tokenmixers import (
    SynthesizerModel,
)


N = 19  # `max_position_embeddings` of all models


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_padding_changes_nothing(build, all_components, tokens, pad, data):
    components = data.draw(st.sampled_from(all_components))
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
def test_padding_changes_nothing_in_seq2seq(seq2seq, tokens, pad, components, left):
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
def test_position_ids(build, tokens, components, is_decoder):
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


def test_too_long(build, tokens, components):
    model = build(SynthesizerModel, attention_components=components, position_embedding_type="none")
    assert model(tokens(1, N))[0].shape == (1, N, 16)
    if set(components) <= {"vanilla", "relative"}:
        assert model(tokens(1, N + 1))[0].shape == (1, N + 1, 16)
    else:
        with pytest.raises(ValueError, match=f"has {N + 1} tokens.*`max_position_embeddings={N}`.*Truncate"):
            model(tokens(1, N + 1))


@pytest.mark.fast_cases
@pytest.mark.parametrize("length", [11, N, 50])
def test_resize_position_embeddings(causal_lm, tokens, components, length, tmp_path):
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


def test_resize_position_embeddings_of_seq2seq(causal_lm, seq2seq, tokens, tmp_path):
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


def test_frozen_weights_stay_frozen_with_another_length(causal_lm, components):
    model = causal_lm(components, position_embedding_type="learned").requires_grad_(False)
    model.resize_position_embeddings(N + 4)
    assert not [name for name, weight in model.named_parameters() if weight.requires_grad]
