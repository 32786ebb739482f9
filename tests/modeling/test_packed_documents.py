"""Several documents in a row (`seq_idx`) give what each gives in a row of its own."""

from typing import get_args

import datasets
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.modeling.inputs.token_layout import positions_in_documents


MODELS = {
    "gmlp, toeplitz": ("GMLPForMaskedLM", {"spatial_weight_type": "toeplitz"}),
    "gmlp, full": ("GMLPForTokenClassification", {"spatial_weight_type": "full"}),
    "gmlp decoder": ("GMLPForCausalLM", {}),
    "gmlp decoder, full": ("GMLPForCausalLM", {"is_decoder": True, "spatial_weight_type": "full"}),
    "amlp": ("AMLPForMaskedLM", {}),
    "amlp, eager": ("AMLPForMaskedLM", {"attn_implementation": "eager"}),
    "amlp decoder": ("AMLPForCausalLM", {}),
}
for component in ("vanilla", "dense", "random", "factorized_dense", "factorized_random", "relative"):
    MODELS[f"synthesizer, {component}"] = ("SynthesizerForMaskedLM", {"attention_components": [component]})
MODELS["synthesizer, mixture"] = ("SynthesizerForMaskedLM", {"attention_components": ["vanilla", "dense", "random"]})
MODELS["synthesizer decoder"] = (
    "SynthesizerForCausalLM",
    {"attention_components": ["vanilla", "random"]},
)
for component in ("dense", "random", "factorized_random", "relative"):  # masks of our own, without the interface's
    MODELS[f"synthesizer decoder, {component}"] = (
        "SynthesizerForCausalLM",
        {"attention_components": [component]},
    )
for mixer in get_args(TokenMixer):
    MODELS[f"hybrid, {mixer}"] = ("HybridBertForMaskedLM", {"token_mixers": [mixer]})
MODELS["synthesizer, learned positions"] = ("SynthesizerForMaskedLM", {"position_embedding_type": "learned"})


@pytest.fixture
def build(tiny_model):
    return lambda name, **changes: tiny_model(name, **{"max_position_embeddings": 16, **changes})


@pytest.mark.parametrize("name", MODELS)
def test_documents_in_a_row_are_as_alone(name, build):
    class_name, changes = MODELS[name]
    model = build(class_name, **changes)
    rows = [[3, 5, 2], [1, 7], [10]]  # lengths of the documents
    width = 11
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    seq_idx, mask = torch.full_like(input_ids, -1), torch.zeros_like(input_ids)
    documents = []
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths):
            document = torch.randint(1, 37, (length,))
            place = slice(start, start + length)
            input_ids[row, place], seq_idx[row, place], mask[row, place] = document, number, 1
            documents.append((row, place, document))
            start += length
    with torch.no_grad():
        packed = model(input_ids, attention_mask=mask, seq_idx=seq_idx).logits
        for row, place, document in documents:
            alone = model(document[None]).logits[0]
            torch.testing.assert_close(packed[row, place], alone, rtol=1e-4, atol=1e-5)
        together = model(input_ids, attention_mask=mask).logits
    assert not torch.allclose(together[0, :10], packed[0, :10], atol=1e-3)  # the documents do see each other without


@pytest.mark.parametrize("name", ["gmlp, toeplitz", "amlp", "synthesizer, mixture"])
def test_gradients_are_those_of_separate_rows(name, build):
    class_name, changes = MODELS[name]
    model = build(class_name, **changes)
    first, second = torch.randint(1, 37, (1, 4)), torch.randint(1, 37, (1, 6))
    both = torch.cat([first, second], dim=1)
    seq_idx = torch.tensor([[5] * 4 + [2] * 6])

    def gradients(loss):
        return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)

    packed = gradients(model(both, seq_idx=seq_idx).logits.square().sum())
    separate = gradients(model(first).logits.square().sum() + model(second).logits.square().sum())
    for one, other in zip(packed, separate, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3))
def test_positions_count_from_zero_in_every_document(rows):
    width = max(map(sum, rows))
    seq_idx = torch.full((len(rows), width), -1)
    expected = torch.zeros_like(seq_idx)
    for row, lengths in enumerate(rows):
        lengths = [*lengths, *([width - sum(lengths)] if width > sum(lengths) else [])]
        numbers = [*range(len(rows[row])), -1][: len(lengths)]
        seq_idx[row] = torch.cat([torch.full((n,), k) for n, k in zip(lengths, numbers, strict=True)])
        expected[row] = torch.cat([torch.arange(n) for n in lengths])
    assert torch.equal(positions_in_documents(seq_idx), expected)


@pytest.mark.parametrize("name", [name for name in MODELS if "decoder" in name])
def test_positions_that_start_again_separate_the_documents_of_a_decoder(name, build):
    """As in Transformers' decoders, whose collators for packed rows give no `seq_idx`."""
    class_name, changes = MODELS[name]
    model = build(class_name, **changes)
    ids, positions = torch.randint(1, 37, (1, 8)), torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=True).logits
        alone = torch.cat([model(ids[:, :3]).logits, model(ids[:, 3:]).logits], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("class_name", ["GMLPForMaskedLM", "AMLPForTokenClassification", "SynthesizerForCausalLM"])
def test_the_trainer_keeps_the_column(class_name, build, tmp_path):
    model = build(class_name)
    row = {"input_ids": [3, 4, 5], "labels": [1, 1, 0], "seq_idx": [0, 0, 1]}
    arguments = transformers.TrainingArguments(tmp_path, report_to="none", use_cpu=True)
    trainer = transformers.Trainer(model, arguments, train_dataset=datasets.Dataset.from_list([row]))
    assert next(iter(trainer.get_train_dataloader())).keys() == row.keys()


def test_mistakes(build):
    ids = torch.randint(1, 37, (2, 5))
    with pytest.raises(ValueError, match=r"`seq_idx` has shape \(2, 4\), expected \(2, 5\)"):
        build("GMLPForMaskedLM")(ids, seq_idx=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="MLP-Mixer does not support `seq_idx`"):
        build("MLPMixerForMaskedLM")(ids, seq_idx=torch.zeros(2, 5))
    flash = build("AMLPForMaskedLM")
    flash.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="'flash_attention_2', which has no mask for them: use 'sdpa'"):
        flash(ids, seq_idx=torch.zeros(2, 5))
    decoder = build("GMLPForCausalLM")
    cache = decoder(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="with tokens in a cache"):
        decoder(ids[:, :1], past_key_values=cache, seq_idx=torch.zeros(2, 1))
    seq2seq = build("SynthesizerForConditionalGeneration")
    with pytest.raises(ValueError, match="Encoder-decoders do not support `seq_idx`"):
        seq2seq(ids, decoder_input_ids=ids, seq_idx=torch.zeros(2, 5))
