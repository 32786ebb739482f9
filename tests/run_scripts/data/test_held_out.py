"""`--train_val_split` and `--max_*_samples` in all commands."""

import json

import datasets
import pytest
from PIL import Image
from transformers import GPT2Config

from tokenmixers.run_scripts.data.images import ImageDataArguments, load_images
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments, load_sentence_pairs
from tokenmixers.run_scripts.data.squad import QuestionDataArguments, load_questions
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments
from tokenmixers.run_scripts.data.text_pairs import Seq2SeqDataArguments, load_pairs
from tokenmixers.run_scripts.data.text_to_text import TextToTextArguments
from tokenmixers.run_scripts.data.token_classification import TokenClassificationArguments, load_sentences
from tokenmixers.run_scripts.run_glue import TextClassification
from tokenmixers.run_scripts.run_text_to_text import load_data


NUMBERS = list(range(20))


@pytest.fixture(params=["file", "data set"])
def source(request, tmp_path):
    """Rows for every command, in which the text is a number: as arguments that name a file or a data set."""
    rows = []
    for number in NUMBERS:
        row = dict.fromkeys(("text", "id", "context", "source", "anchor", "score"), str(number))
        row |= {"label": number % 2, "tokens": [str(number)], "ner_tags": ["O"], "target": "x", "positive": "x"}
        rows.append(row | {"question": "Which?", "answers": {"text": [str(number)], "answer_start": [0]}})
    if request.param == "file":
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return {"train_file": [str(tmp_path / "train.jsonl")]}
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "data" / "train.parquet")
    return {"dataset_name": str(tmp_path / "data")}


class _Run(dict):
    """As much of a run as loading needs."""

    def __init__(self, data_args, wanted):
        self.data_args, self.args = data_args, type("Args", (), _jobs(wanted))
        self.config, self.model_args = GPT2Config(num_labels=2), type("ModelArgs", (), {"token": None})


def _jobs(wanted):
    return {
        f"do_{job}": split in wanted
        for job, split in (("train", "train"), ("eval", "validation"), ("predict", "test"))
    }


def _glue(wanted, **options):
    found = TextClassification().load(_Run(TextClassificationArguments(**options), wanted))
    return {split: [row[0] for row in sets[""]["texts"]] for split, sets in found.items()}


def _tags(wanted, **options):
    found = load_sentences(TokenClassificationArguments(**options), wanted)
    return {split: [row[0] for row in rows["tokens"]] for split, rows in found.items()}


def _questions(wanted, **options):
    found = load_questions(QuestionDataArguments(**options), wanted)
    return {split: rows["context"][:] for split, rows in found.items()}


def _pairs(wanted, **options):
    found = load_pairs(Seq2SeqDataArguments(**options), wanted)
    return {split: pairs["source"][:] for split, (pairs, _) in found.items()}


def _sentence_pairs(wanted, **options):
    found = load_sentence_pairs(SentencePairArguments(**options), wanted)
    return {split: pairs["anchor"][:] for split, pairs in found.items()}


LOADERS = [_glue, _tags, _questions, _pairs, _sentence_pairs]


@pytest.mark.parametrize("load", LOADERS)
def test_every_command_holds_out_the_same_share_of_its_rows(load, source):
    found = load(["train", "validation"], **source, train_val_split=0.3)
    train, validation = ([int(text) for text in found[split]] for split in ("train", "validation"))
    assert len(validation) == 6 and validation == sorted(validation) and train == sorted(train)
    assert sorted(train + validation) == NUMBERS
    alone = load(["validation"], **source, train_val_split=0.3)
    assert [int(text) for text in alone["validation"]] == validation
    few = load(["train", "validation"], **source, train_val_split=0.3, max_train_samples=5, max_eval_samples=2)
    assert [len(few["train"]), len(few["validation"])] == [5, 2]
    assert {*map(int, few["train"])} < {*train} and {*map(int, few["validation"])} < {*validation}


@pytest.mark.parametrize("source", ["file"], indirect=True)
@pytest.mark.parametrize("load", LOADERS)
def test_training_data_are_read_once(load, source, capsys):
    empty = {"text": "", "label": 0, "tokens": [], "ner_tags": [], "id": "empty", "anchor": "", "source": ""}
    with open(source["train_file"][0], "a") as file:
        file.write("\n" + json.dumps(empty))
    found = load(["train", "validation"], **source, train_val_split=0.3, skip_empty_examples=True)
    assert sorted(int(text) for rows in found.values() for text in rows) == NUMBERS
    assert capsys.readouterr().out.count("1 of 21 rows left out") == 1


@pytest.mark.parametrize("load", LOADERS)
def test_other_validation_data_next_to_it_are_a_mistake(load, source, tmp_path):
    files = {"validation_file": [str(tmp_path / "train.jsonl")]}
    with pytest.raises(SystemExit, match="validation_file names others: give one of them"):
        load(["train", "validation"], **source, **files, train_val_split=0.3)


def test_pairs_without_a_hard_negative_do_not_shift_those_held_out(tmp_path):
    rows = [{"anchor": str(n), "positive": "x", "far": "" if n < 3 else "y"} for n in NUMBERS]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"negative_columns": ["far"], "skip_empty_examples": True, "train_val_split": 0.3}
    found = _sentence_pairs(["train", "validation"], train_file=[str(tmp_path / "train.jsonl")], **options)
    assert sorted(map(int, found["train"] + found["validation"])) == NUMBERS[3:]


def test_answers_to_one_question_are_not_divided(tmp_path):
    """MultiRC has a row for each answer, and a score for each question."""
    with pytest.raises(SystemExit, match=r"--train_val_split 0\.3 would divide the answers to one question of"):
        _glue(["train"], task_name="multirc", data_dir=str(tmp_path), train_val_split=0.3)
    arguments = TextToTextArguments(tasks=["cb", "multirc"], data_dir=str(tmp_path), train_val_split=0.3)
    with pytest.raises(SystemExit, match="would divide the answers to one question of MultiRC"):
        load_data(arguments, _Run(arguments, ["train"]).args)


def test_images_in_no_folder_of_a_class_are_a_mistake_in_the_current_folder_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    Image.new("RGB", (2, 2)).save("one.png")
    with pytest.raises(SystemExit, match="must have a folder of images for each class"):
        load_images(ImageDataArguments(train_dir="."), ["train"])


def test_images_are_held_out(tmp_path, capsys):
    for number in NUMBERS:
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / "ab"[number % 2] / f"{number:02}.png")
    (tmp_path / "a" / "notes.txt").touch()
    splits = load_images(ImageDataArguments(train_dir=str(tmp_path), train_val_split=0.3), ["train", "validation"])
    assert capsys.readouterr().out.count("files that are not images are left out: 1 with .txt") == 1
    names = {split: [image["path"] for image in rows["image"]] for split, rows in splits.items()}
    assert len(names["validation"]) == 6 and not {*names["train"]} & {*names["validation"]}
    assert sorted(splits["train"]["index"][:] + splits["validation"]["index"][:]) == NUMBERS
    assert "row_number" not in splits["validation"].column_names  # which would be augmented
