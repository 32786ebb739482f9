import dataclasses

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.run_scripts.demos import tasks
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES
from tokenmixers.run_scripts.demos.tasks import InputError, Span, answer, mark


VALUES = {
    "fill-mask": {"text": "the [MASK] mixes tokens"},
    "text-classification": {"text": "a film", "text_pair": ""},
    "token-classification": {"text": "the gate mixes"},
    "question-answering": {"question": "what mixes", "context": "the gate mixes tokens"},
    "text-generation": {"text": "the gate", "max_new_tokens": 4},
    "text2text-generation": {"text": "the gate", "max_new_tokens": 4},
    "image-classification": {"image": Image.linear_gradient("L").resize((20, 12))},
}
CLASSES = {name for family in FAMILIES.values() for name in family.models.values()}
PREFIXES = ("GMLP", "AMLP", "MLPMixer", "Synthesizer")
POSSIBLE = [(prefix, task.name) for task in TASK_NAMES for prefix in PREFIXES if prefix + task.endings[0] in CLASSES]


def test_every_task_is_shown():
    assert tasks.TASKS.keys() == VALUES.keys() == {task.name for task in TASK_NAMES}


@pytest.mark.parametrize(("family", "task"), POSSIBLE)
def test_every_checkpoint_answers_and_has_a_picture(family, task, demo_checkpoint):
    found = answer(demo_checkpoint(family, task), VALUES[task])
    assert found.tables or found.text
    for table in found.tables:
        scores = [row.score for row in table.rows]
        assert scores == sorted(scores, reverse=True) or task == "token-classification"
        assert all(0 <= score <= 1.0001 for score in scores)
    assert {each.weights.shape[0] for each in found.maps} == {2}
    assert (found.pixels is not None) == (task == "image-classification")
    for each in found.maps:
        assert each.grid is not None or (len(each.rows), len(each.columns)) == tuple(each.weights.shape[2:])


def test_the_model_stays_where_the_inputs_of_its_maps_are(demo_checkpoint, monkeypatch):
    monkeypatch.setattr("transformers.pipelines.base.is_torch_mps_available", lambda *_: True)  # as on a Mac
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    assert answer(checkpoint, VALUES["fill-mask"]).maps
    assert checkpoint.model.device == torch.device("cpu")


def test_fillings_are_the_most_probable_tokens(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    found = answer(checkpoint, VALUES["fill-mask"])
    encoded = checkpoint.processor(VALUES["fill-mask"]["text"], return_tensors="pt")
    place = encoded["input_ids"][0].tolist().index(checkpoint.processor.mask_token_id)
    best = checkpoint.model(**encoded).logits[0, place].softmax(-1).topk(5)
    assert [row.answer for row in found.tables[0].rows] == [checkpoint.processor.decode([i]) for i in best.indices]
    assert_close(torch.tensor([row.score for row in found.tables[0].rows]), best.values.detach())
    assert list(found.maps[0].columns) == checkpoint.processor.convert_ids_to_tokens(encoded["input_ids"][0])


def test_each_of_several_masks_has_a_table(demo_checkpoint):
    found = answer(demo_checkpoint("GMLP", "fill-mask"), {"text": "the [MASK] mixes [MASK]"})
    assert [table.caption for table in found.tables] == ["Fillings of mask 1", "Fillings of mask 2"]


def test_a_second_text_is_read_too(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-classification")
    alone = answer(checkpoint, {"text": "a film", "text_pair": "  "})
    pair = answer(checkpoint, {"text": "a film", "text_pair": "the gate"})
    assert len(pair.maps[0].rows) > len(alone.maps[0].rows)
    assert pair.tables[0].rows != alone.tables[0].rows


def test_a_regression_has_no_probabilities(demo_checkpoint):
    changes = {"problem_type": "regression", "id2label": {0: "score"}, "label2id": {"score": 0}}
    checkpoint = demo_checkpoint("GMLP", "text-classification", **changes)
    (table,) = answer(checkpoint, VALUES["text-classification"]).tables
    expected = checkpoint.model(**checkpoint.processor("a film", return_tensors="pt")).logits.item()
    assert not table.are_probabilities and table.rows[0].score == pytest.approx(expected, rel=1e-5)


def test_the_best_answer_is_marked_in_the_text(demo_checkpoint):
    found = answer(demo_checkpoint("AMLP", "question-answering"), VALUES["question-answering"])
    assert "".join(span.text for span in found.text) == VALUES["question-answering"]["context"]
    assert [span.text for span in found.text if span.label] == [found.tables[0].rows[0].answer]


def test_generated_texts_are_those_of_generate(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-generation")
    found = answer(checkpoint, VALUES["text-generation"])
    encoded = checkpoint.processor("the gate", return_tensors="pt")
    ids = checkpoint.model.generate(**encoded, max_new_tokens=4)[0]
    new = checkpoint.processor.decode(ids, skip_special_tokens=True).removeprefix("the gate")
    assert new and found.text == [Span("the gate"), Span(new, "new")]
    assert list(found.maps[0].rows) == checkpoint.processor.convert_ids_to_tokens(ids)
    other = demo_checkpoint("Synthesizer", "text2text-generation")
    found = answer(other, VALUES["text2text-generation"])
    written = other.model.generate(**other.processor("the gate", return_tensors="pt"), max_new_tokens=4)[0]
    assert found.text == [Span(other.processor.decode(written, skip_special_tokens=True).strip() or "(nothing)")]
    assert list(found.maps[2].rows) == other.processor.convert_ids_to_tokens(written[:-1])


@pytest.mark.parametrize(
    ("start", "tokens", "new"),
    [("the gat", "e", "e"), ("the gate", "Ġmixes", " mixes"), ("the caf", "Ã©", "é"), ("the gate ", "t", "t")],
)
def test_the_text_is_continued_without_spaces_of_our_own(start, tokens, new, demo_checkpoint):
    tokenizer = byte_level_tokenizer()
    tokens = [tokens] if tokens in tokenizer.get_vocab() else list(tokens)  # of the letter, its two bytes
    checkpoint = demo_checkpoint("GMLP", "text-generation", vocab_size=len(tokenizer), tie_word_embeddings=False)
    checkpoint = dataclasses.replace(checkpoint, processor=tokenizer)
    ids = tokenizer.convert_tokens_to_ids(tokens)
    # The first is wanted most, and after it the second more.
    bias = {(ids[0],): 1e4} | {tuple(ids): 1e6 for _ in ids[1:]}
    checkpoint.model.generation_config.sequence_bias = bias
    found = answer(checkpoint, {"text": start, "max_new_tokens": len(ids)})
    assert found.text == [Span(start), Span(new, "new")] and found.notes == []


def byte_level_tokenizer():
    """Of GPT-2's kind: its decoder joins bytes and adds no spaces."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the gate mixes tokens"] * 9, trainer)
    backend.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", model_max_length=24)


def test_a_continuation_without_text_is_said(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-generation")
    checkpoint.model.generation_config.sequence_bias = {(checkpoint.processor.eos_token_id,): 1e4}
    checkpoint.model.generation_config.eos_token_id = checkpoint.processor.eos_token_id
    found = answer(checkpoint, VALUES["text-generation"])
    assert found.text == [Span("the gate")] and found.notes == ["The model wrote nothing more."]


def test_texts_are_sampled_if_wanted(demo_checkpoint):
    values = {**VALUES["text-generation"], "max_new_tokens": 12, "do_sample": True}
    checkpoint = demo_checkpoint("GMLP", "text-generation")
    assert len({answer(checkpoint, values).text[1] for _ in range(4)}) > 1


def test_no_more_is_generated_than_fits(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-generation")
    found = answer(checkpoint, {"text": "the gate", "max_new_tokens": 100})
    assert found.notes[0].startswith("The model takes 24 tokens, which leaves room for")
    assert found.maps[0].weights.shape[-1] <= 24
    seq2seq = answer(demo_checkpoint("Synthesizer", "text2text-generation"), {"text": "gate", "max_new_tokens": 100})
    assert seq2seq.maps[1].weights.shape[-1] <= 24


@pytest.mark.parametrize("task", [task for task in VALUES if task != "image-classification"])
@pytest.mark.parametrize("nothing", ["", " \n ", None])
def test_empty_inputs_are_named(task, nothing, demo_checkpoint):
    name, label = next((field.name, field.label) for field in tasks.TASKS[task].fields)
    with pytest.raises(InputError, match=f"^{label} is empty: write something"):
        answer(demo_checkpoint("Synthesizer", task), {**VALUES[task], name: nothing})


def test_what_the_model_cannot_read_is_said(demo_checkpoint):
    with pytest.raises(InputError, match=r"Image is empty: choose one"):
        answer(demo_checkpoint("GMLP", "image-classification"), {"image": None})
    fill = demo_checkpoint("GMLP", "fill-mask")
    with pytest.raises(InputError, match=r"no mask: write \[MASK\] where a word is missing"):
        answer(fill, {"text": "the gate"})
    with pytest.raises(InputError, match=r"^The text has \d+ tokens, and the model takes at most 24: shorten it"):
        answer(fill, {"text": "[MASK] the gate mixes tokens" * 9})
    with pytest.raises(InputError, match="takes at most 24 with room for 1 new one: shorten"):
        answer(demo_checkpoint("GMLP", "text-generation"), {"text": "gate " * 30, "max_new_tokens": 4})


def test_long_contexts_are_read_in_parts(demo_checkpoint):
    context = "linear maps mix channels " * 8 + "the gate mixes tokens"
    found = answer(demo_checkpoint("GMLP", "question-answering"), {"question": "what mixes", "context": context})
    assert found.notes == ["The text is read in parts of 24 tokens; the picture is of the first."]
    assert found.maps[0].weights.shape[-1] == 24


def test_pieces_of_a_text_are_the_text():
    text = "Ada lives in Rome."
    pieces = mark(text, [(0, 3, "PER"), (12, 17, "LOC")])  # a token with the space before it
    assert pieces == [Span("Ada", "PER"), Span(" lives in "), Span("Rome", "LOC"), Span(".")]
    assert mark("", []) == [] and mark("x", []) == [Span("x")]
