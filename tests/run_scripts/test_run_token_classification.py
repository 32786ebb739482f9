import json
import math

import datasets
import numpy as np
import pytest
from transformers import EvalPrediction, pipeline

from tokenmixers.run_scripts import run_token_classification
from tokenmixers.run_scripts.data.token_classification import tag_names
from tokenmixers.run_scripts.training import classification


SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=32,vocab_size=90"


@pytest.fixture(scope="module")
def data(tagged_sentences):
    return tagged_sentences


@pytest.fixture
def command(data, as_words, tmp_path):
    settings = {
        "train_file": data / "train.conll",
        "validation_file": data / "validation.conll",
        "config_name": "gmlp-base",
        "config_overrides": SIZES,
        "tokenizer_name": data / "tokenizer",
        "output_dir": tmp_path / "run",
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_strategy": "no",
    }
    return lambda *more, **changes: as_words(settings, *more, changes)


def compared(results):
    """What a grid compares, and the factor in its table."""
    comparison = run_token_classification.TokenClassification().comparison(None)
    return comparison.values(results)["score"], comparison.scale


def test_learns_entities_and_writes_tags(command, data, tmp_path, capsys, table_of):
    results = run_token_classification.main(
        command(
            max_steps=30,
            per_device_train_batch_size=20,
            learning_rate=3e-2,
            do_predict=True,
            test_file=data / "test.conll",
            label_all_tokens=True,
        )
    )
    assert results["eval_f1"] == results["eval_f1_PER"] == results["test_f1"] == 1.0
    assert compared(results) == (results["eval_f1"], 100)
    assert "| f1                                 | 100.00 |" in capsys.readouterr().out
    row = table_of(tmp_path / "run" / "predictions_test.csv")[0]
    first = [("Ada", "B-PER"), ("Smith", "I-PER"), ("went", "O"), ("to", "O"), ("Rome", "B-LOC"), (".", "O")]
    words, tags = (list(part) for part in zip(*first, strict=True))
    assert {name: json.loads(cell) for name, cell in row.items()} == {
        "index": 0, "tokens": words, "label": tags, "prediction": tags
    }  # fmt: skip
    find = pipeline("token-classification", model=str(tmp_path / "run"), aggregation_strategy="first")
    text = "Kurt Smith went to Oslo ."
    found = [(entity["entity_group"], text[entity["start"] : entity["end"]].strip()) for entity in find(text)]
    assert found == [("PER", "Kurt Smith"), ("LOC", "Oslo")]
    assert "token-classification" in (tmp_path / "run" / "README.md").read_text()
    evaluated = run_token_classification.main(
        command(do_train=None, model_name_or_path=tmp_path / "run", output_dir=tmp_path / "evaluation")
    )
    assert evaluated["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-4)


def test_tags_that_are_no_entities(command, tmp_path):
    rows = [{"tokens": ["dogs", "bark"], "pos": ["NOUN", "VERB"]}] * 4
    (tmp_path / "pos.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {
        "train_file": tmp_path / "pos.jsonl",
        "validation_file": tmp_path / "pos.jsonl",
        "label_column_name": "pos",
    }
    results = run_token_classification.main(command(**options))
    assert "eval_f1" not in results and compared(results) == (results["eval_accuracy"], 100)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["label2id"] == {"NOUN": 0, "VERB": 1}
    assert tag_names(datasets.Dataset.from_dict({"tags": [["10", "9"]]})) == ["9", "10"]


def test_entities_of_one_word_and_last_words_have_scores():
    names = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    labels, guesses = np.array([[1, 2, 3, 0, 4, -100]]), np.array([[1, 2, 3, 4, 4, 0]])
    scores = run_token_classification.tag_metrics(EvalPrediction(guesses, labels), names, [0])
    assert scores["precision"] == pytest.approx(2 / 3)  # three words and one word are right, one is too much
    assert scores["recall"] == 1 and scores["accuracy"] == pytest.approx(4 / 5)
    assert scores["f1"] == scores["f1_PER"] == pytest.approx(0.8)


def test_entities_are_those_of_whole_sentences_where_these_are_cut(command, tmp_path, capsys, table_of):
    names = ("train", "validation", "test")
    for name in names:  # after training, "Smith" goes on with the name, where the other files end it
        tags = f"Ada B-PER\nSmith {'I-PER' if name == 'train' else 'O'}\nwent O\nto O\nRome B-LOC"
        (tmp_path / f"{name}.conll").write_text("\n\n".join([tags] * 8))
    files = {f"{name}_file": tmp_path / f"{name}.conll" for name in names}
    results = run_token_classification.main(
        command(**files, max_seq_length=4, max_steps=60, per_device_train_batch_size=40, do_predict=True)
    )
    for split, prefix in (("validation", "eval"), ("test", "test")):
        rows = table_of(tmp_path / "run" / f"predictions_{split}.csv")
        assert [json.loads(row["prediction"]) for row in rows] == [["B-PER", "I-PER", "O", "O", "B-LOC"]] * 8
        assert [json.loads(row["label"]) for row in rows] == [["B-PER", "O", "O", "O", "B-LOC"]] * 8
        assert results[f"{prefix}_precision"] == results[f"{prefix}_recall"] == 0.5  # Rome, not Ada
        conll = (tmp_path / "run" / f"predictions_{split}.conll").read_text()
        assert conll == "Ada B-PER B-PER\nSmith O I-PER\nwent O O\nto O O\nRome B-LOC B-LOC\n\n" * 8
    assert f"test set: {tmp_path / 'run' / 'predictions_test.csv'}" in capsys.readouterr().out


@pytest.fixture
def warnings_given(monkeypatch):
    """The warnings about labels that only evaluation data have."""
    found = []
    monkeypatch.setattr(classification.logger, "warning", found.append)
    return found


def test_tags_that_only_evaluation_data_have_are_misses(command, data, tmp_path, warnings_given, table_of):
    known = (data / "train.conll").read_text().split("\n\n")[1:8]
    for name in ("validation", "test"):
        (tmp_path / f"{name}.conll").write_text("\n\n".join([*known, "Rex X B-DOG\nSmith X I-DOG\nwent X O"]))
    files = {"validation_file": tmp_path / "validation.conll", "test_file": tmp_path / "test.conll"}
    training = {"max_steps": 30, "per_device_train_batch_size": 20, "learning_rate": 3e-2}
    results = run_token_classification.main(
        command(**files, **training, do_predict=True, per_device_eval_batch_size=1)  # one batch with unseen tags alone
    )
    assert len(warnings_given) == 1
    assert "2 tags of the validation and test data" in warnings_given[0] and "'B-DOG', 'I-DOG'" in warnings_given[0]
    labels = json.loads((tmp_path / "run" / "config.json").read_text())["label2id"]
    assert set(labels) == {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    for split, prefix in (("validation", "eval"), ("test", "test")):
        rows = table_of(tmp_path / "run" / f"predictions_{split}.csv")
        cells = [[json.loads(row[name]) for name in ("label", "prediction")] for row in rows]
        pairs = [pair for row in cells for pair in zip(*row, strict=True)]
        assert results[f"{prefix}_accuracy"] == pytest.approx(sum(tag == guess for tag, guess in pairs) / len(pairs))
        # Every entity of two people and places in seven sentences is found, the dog is not.
        assert results[f"{prefix}_recall"] == pytest.approx(14 / 15)
        assert results[f"{prefix}_accuracy"] <= 43 / 45
    assert results["eval_f1_DOG"] == 0 and math.isfinite(results["eval_loss"])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_data_without_entities_give_a_warning(split, command, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(run_token_classification.logger, "warning", warnings.append)
    (tmp_path / "plain.conll").write_text("\n\n".join(["Ada X O\nwent X O"] * 12) + "\n")
    results = run_token_classification.main(command(**{f"{split}_file": tmp_path / "plain.conll"}))
    (warning,) = warnings
    assert warning.startswith(f"the {split} data have the tag O alone: without entities")
    assert results["eval_f1"] == 0


def test_test_sentences_need_no_tags(command, tmp_path, table_of):
    (tmp_path / "words.txt").write_text("Ada\nwent\n\nKurt\n")
    run_token_classification.main(command(do_predict=True, test_file=tmp_path / "words.txt"))
    rows = table_of(tmp_path / "run" / "predictions_test.csv")
    assert [json.loads(row["tokens"]) for row in rows] == [["Ada", "went"], ["Kurt"]] and "label" not in rows[0]
    (first, second), (third,) = (json.loads(row["prediction"]) for row in rows)
    conll = (tmp_path / "run" / "predictions_test.conll").read_text()
    assert conll == f"Ada {first}\nwent {second}\n\nKurt {third}\n\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tokens": ["a"], "ner_tags": ["B-DOG"]}', "none of the tags of the validation data ('B-DOG') is one of"),
        ('{"tokens": [], "ner_tags": []}', "line 1: the sentence is empty"),
        ('{"tokens": "a", "ner_tags": ["O"]}', "line 1: 'tokens' must be a list of words, not 'a'"),
        ('{"tokens": ["a", " "], "ner_tags": ["O", "O"]}', "line 1: a word is empty"),
        ('{"tokens": ["a", "b"], "ner_tags": ["O", "NOUN"]}', "are O and those of entities, but evaluation data"),
    ],
)
def test_a_bad_row_is_named(content, message, command, tmp_path, refuses):
    (tmp_path / "bad.jsonl").write_text(content)
    refuses(run_token_classification.main, command(validation_file=tmp_path / "bad.jsonl"), message)


def test_mistakes_are_one_sentence_before_anything_is_written(command, refuses):
    refuses(run_token_classification.main, command(do_train=None), "is one of the model's ('LABEL_0', 'LABEL_1')")
