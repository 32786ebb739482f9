import dataclasses
import json

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.testing import assert_close
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos.answers import ANSWERS, InputError, answer, mark
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES, load_checkpoint
from tokenmixers.run_scripts.demos.page import TASKS


VALUES = {
    "fill-mask": ["the [MASK] mixes tokens"],
    "text-classification": ["a film", ""],
    "token-classification": ["the gate mixes"],
    "question-answering": ["what mixes", "the gate mixes tokens"],
    "text-generation": ["the gate", 4],
    "text2text-generation": ["the gate", 4],
    "image-classification": [Image.linear_gradient("L").resize((20, 12))],
}
CLASSES = {name for family in FAMILIES.values() for name in family.models.values()}
PREFIXES = ("GMLP", "AMLP", "MLPMixer", "Synthesizer")
POSSIBLE = [
    (prefix, task) for task, (_, ends) in TASK_NAMES.items() for prefix in PREFIXES if prefix + ends[0] in CLASSES
]


@pytest.mark.parametrize(("family", "task"), POSSIBLE)
def test_every_checkpoint_answers_and_has_a_picture(family, task, demo_checkpoint):
    assert TASKS.keys() == ANSWERS.keys() == VALUES.keys() == TASK_NAMES.keys()
    found = answer(demo_checkpoint(family, task), *VALUES[task])
    assert found.rows or found.text
    scores = [score for _, score in found.rows]
    assert scores == sorted(scores, reverse=True) or task == "token-classification"
    assert all(0 <= score <= 1.0001 for score in scores)
    assert {each.weights.shape[0] for each in found.maps} == {2}
    assert (found.pixels is not None) == (task == "image-classification")
    for each in found.maps:
        assert each.grid is not None or (len(each.rows), len(each.columns)) == tuple(each.weights.shape[2:])


def test_fillings_are_the_most_probable_tokens(demo_checkpoint, monkeypatch):
    monkeypatch.setattr("transformers.pipelines.base.is_torch_mps_available", lambda *_: True)  # as on a Mac
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    found = answer(checkpoint, *VALUES["fill-mask"])
    encoded = checkpoint.processor(*VALUES["fill-mask"], return_tensors="pt")
    place = encoded["input_ids"][0].tolist().index(checkpoint.processor.mask_token_id)
    best = checkpoint.model(**encoded).logits[0, place].softmax(-1).topk(5)
    assert [name for name, _ in found.rows] == [checkpoint.processor.decode([i]) for i in best.indices]
    assert_close(torch.tensor([score for _, score in found.rows]), best.values.detach())
    assert list(found.maps[0].columns) == checkpoint.processor.convert_ids_to_tokens(encoded["input_ids"][0])
    several = answer(checkpoint, "the [MASK] mixes [MASK]").rows
    assert [name[:7] for name, _ in several] == ["mask 1:"] * 5 + ["mask 2:"] * 5


def test_a_second_text_is_read_too(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-classification")
    alone, pair = answer(checkpoint, "a film", "  "), answer(checkpoint, "a film", "the gate")
    assert len(pair.maps[0].rows) > len(alone.maps[0].rows)
    assert pair.rows != alone.rows


def test_generated_texts_are_those_of_generate(demo_checkpoint):
    checkpoint = demo_checkpoint("GMLP", "text-generation")
    found = answer(checkpoint, *VALUES["text-generation"])
    encoded = checkpoint.processor("the gate", return_tensors="pt")
    ids = checkpoint.model.generate(**encoded, max_new_tokens=4)[0]
    new = checkpoint.processor.decode(ids, skip_special_tokens=True).removeprefix("the gate")
    assert new and found.text == [("the gate", None), (new, "new")]
    assert list(found.maps[0].rows) == checkpoint.processor.convert_ids_to_tokens(ids)
    assert answer(checkpoint, "the gate", 100).maps[0].weights.shape[-1] <= 24  # no more than fits
    other = demo_checkpoint("Synthesizer", "text2text-generation")
    found = answer(other, *VALUES["text2text-generation"])
    written = other.model.generate(**other.processor("the gate", return_tensors="pt"), max_new_tokens=4)[0]
    assert found.text == [(other.processor.decode(written, skip_special_tokens=True).strip() or "(nothing)", None)]
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
    assert answer(checkpoint, start, len(ids)).text == [(start, None), (new, "new")]


def byte_level_tokenizer():
    """Of GPT-2's kind: its decoder joins bytes and adds no spaces."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the gate mixes tokens"] * 9, trainer)
    backend.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", model_max_length=24)


def test_inputs_that_the_model_cannot_read_are_refused(demo_checkpoint):
    fill = demo_checkpoint("GMLP", "fill-mask")
    for text, complaint in {
        " \n ": "is empty: write something",
        "the gate": r"no mask: write \[MASK\] where a word is missing",
        "[MASK] the gate mixes tokens" * 9: r"^The text has \d+ tokens, and the model takes at most 24: shorten it",
    }.items():
        with pytest.raises(InputError, match=complaint):
            answer(fill, text)
    with pytest.raises(InputError, match="is empty: choose an image"):
        answer(demo_checkpoint("GMLP", "image-classification"), None)
    with pytest.raises(InputError, match="takes at most 23: shorten"):
        answer(demo_checkpoint("GMLP", "text-generation"), "gate " * 30, 4)


def test_a_long_context_is_read_to_its_end(demo_checkpoint):
    context = "linear maps mix channels " * 8 + "the gate mixes tokens"
    found = answer(demo_checkpoint("GMLP", "question-answering"), "what mixes", context)
    assert "".join(piece for piece, _ in found.text) == context
    assert [piece for piece, label in found.text if label] == [found.rows[0][0]]
    assert found.maps[0].weights.shape[-1] == 24


def test_pieces_of_a_text_are_the_text():
    pieces = mark("Ada lives in Rome.", [(0, 3, "PER"), (12, 17, "LOC")])  # a token with the space before it
    assert pieces == [("Ada", "PER"), (" lives in ", None), ("Rome", "LOC"), (".", None)]
    assert mark("", []) == [] and mark("x", []) == [("x", None)]


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(demo_checkpoint, tmp_path):
    """`saved(family, task)`: the folder of a checkpoint."""

    def save(family: str, task: str):
        checkpoint = demo_checkpoint(family, task)
        checkpoint.model.save_pretrained(tmp_path / task)
        checkpoint.processor.save_pretrained(tmp_path / task)
        return tmp_path / task

    return save


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_folder_is_loaded_for_its_task(task, saved):
    loaded = load_checkpoint(str(saved("Synthesizer", task)))
    assert (loaded.task, loaded.title) == (task, task)
    assert not loaded.model.training and loaded.model.config._attn_implementation == "eager"
    assert type(loaded.model).__module__.startswith("tokenmixers.")  # no code of the checkpoint


def refused(name, **options):
    with pytest.raises(UserError) as error:
        load_checkpoint(str(name), **options)
    message = str(error.value)
    assert message.startswith("error: ") and "\n" not in message
    return message


def test_what_cannot_be_loaded_is_one_sentence(saved):
    folder = saved("GMLP", "fill-mask")
    assert refused("./nowhere") == "error: there is no folder './nowhere'."
    assert "'nowhere' cannot be loaded" in refused("nowhere")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    assert "has no mask token" in refused(folder)
    for file in folder.glob("*token*"):
        file.unlink()
    assert "fill-mask', which has no tokenizer.json: " in refused(folder)
    fields = json.loads((folder / "config.json").read_text()) | {"architectures": ["GMLPForMultipleChoice"]}
    (folder / "config.json").write_text(json.dumps(fields))
    assert "fill-mask', which was saved by GMLPForMultipleChoice: it shows ...ForMaskedLM, " in refused(folder)


def test_code_of_a_checkpoint_runs_only_if_allowed(saved, monkeypatch):
    folder = saved("GMLP", "fill-mask")
    fields = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard-of"}
    (folder / "config.json").write_text(json.dumps(fields))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    assert "contains custom code" in refused(folder)
