import json

import datasets
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data import sentence_pairs
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments, iterate_sentences, load_sentence_pairs


ROWS = [
    {"question": "Who?", "answer": "Ada.", "wrong": "Rome.", "far": "A cat.", "kind": "same", "score": "4.2"},
    {"question": "Where?", "answer": "Oslo.", "wrong": "Kurt.", "far": "A dog.", "kind": "other", "score": "0"},
    {"question": "When?", "answer": "Now.", "wrong": "Here.", "far": "A cow.", "kind": "same", "score": "1.5"},
]
COLUMNS = {"anchor_column": "question", "positive_column": "answer"}


@pytest.fixture
def files(tmp_path):
    """The rows in every kind of file, and as a data set folder; name -> path."""
    folder = tmp_path / "data"
    folder.mkdir()
    head = list(ROWS[0])
    (folder / "rows.tsv").write_text("\n".join("\t".join(line) for line in (head, *(r.values() for r in ROWS))))
    (folder / "rows.csv").write_text("\n".join(",".join(line) for line in (head, *(r.values() for r in ROWS))))
    (folder / "rows.json").write_text(json.dumps(ROWS))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    datasets.Dataset.from_list(ROWS).to_parquet(folder / "rows.parquet")
    for split in ("train", "validation", "test"):
        datasets.Dataset.from_list(ROWS).to_parquet(folder / "hub" / f"{split}.parquet")
    return {path.suffix.removeprefix(".") or path.name: str(path) for path in folder.iterdir()}


def loaded(split="train", **arguments):
    return load_sentence_pairs(SentencePairArguments(**arguments), [split])[split]


@pytest.mark.parametrize("kind", ["tsv", "csv", "json", "jsonl", "parquet", "hub"])
def test_training_pairs_of_every_kind_of_file(kind, files):
    source = {"dataset_name": files["hub"]} if kind == "hub" else {"train_file": [files[kind]]}
    pairs = loaded(**source, **COLUMNS, negative_columns=["wrong", "far"])
    assert pairs.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    assert [tuple(row.values()) for row in pairs] == [tuple(row.values())[:4] for row in ROWS]
    assert list(iterate_sentences(pairs.take(1))) == ["Who?", "Ada.", "Rome.", "A cat."]


def test_several_files_labels_and_limits(files):
    arguments = {"train_file": [files["tsv"], files["json"]], **COLUMNS}
    kept = loaded(**arguments, label_column_name="kind", positive_labels=["same"])
    assert kept["anchor"][:] == ["Who?", "When?"] * 2
    few = loaded(**arguments, max_train_samples=4)
    assert len(few) == 4 and {*few["anchor"]} <= {row["question"] for row in ROWS}


@pytest.mark.parametrize(
    ("labels", "wanted", "places"),
    [
        ([1, 1.0, "1", " 1.0 ", 0, "one", True, None], "1", [0, 1, 2, 3]),
        ([1, 2, "1.5"], "1.0", [0]),
        ([True, "true", "True", False, 1], "true", [0, 1, 2]),
        (["yes", "yes ", "Yes", None], "yes", [0, 1]),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_labels_of_pairs_compare_as_numbers_where_they_are(labels, wanted, places, split, tmp_path):
    rows = [{"anchor": str(place), "positive": "x", "label": label} for place, label in enumerate(labels)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {f"{split}_file": [str(tmp_path / "rows.jsonl")], "label_column_name": "label"}
    assert loaded(split, **options, positive_labels=[wanted])["anchor"][:] == list(map(str, places))
    with pytest.raises(UserError, match=r"rows.jsonl has no pair with one of the --positive_labels '3' in 'label';"):
        loaded(split, **options, positive_labels=["3"])


def test_evaluation_pairs_with_a_similarity_and_without(tmp_path, monkeypatch):
    scored = [{"sentence1": row["question"], "sentence2": row["answer"], "score": row["score"]} for row in ROWS]
    datasets.Dataset.from_list(scored).to_parquet(tmp_path / "stsb" / "validation.parquet")
    monkeypatch.setattr(sentence_pairs, "STSB", str(tmp_path / "stsb"))
    expected = [{"index": i, **row, "score": float(row["score"])} for i, row in enumerate(scored)]
    assert loaded("validation").to_list() == expected
    pairs = [{"anchor": row["question"], "positive": row["answer"]} for row in ROWS]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    for split in ("validation", "test"):
        assert loaded(split, **{f"{split}_file": str(tmp_path / "pairs.json")}).to_list() == pairs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_file": ["tsv"], **COLUMNS, "negative_columns": ["far", "near"]},
            "there is no column 'near' (--negative_columns)",
        ),
        (
            {"train_file": ["tsv"], "anchor_column": "question", "positive_column": "sentence1"},
            "there is no column 'sentence1' (--positive_column)",
        ),
        (
            {"train_file": ["tsv"], **COLUMNS, "label_column_name": "kind", "positive_labels": ["1"]},
            "has no pair with one of the --positive_labels '1' in 'kind'; there are 'other', 'same'",
        ),
        ({"train_file": ["number.jsonl"], **COLUMNS}, "line 1: the text must be a string, got 3"),
        ({"train_file": ["tsv"], "label_column_name": "kind"}, "--label_column_name and --positive_labels belong"),
    ],
)
def test_wrong_training_pairs_are_named(changes, message, files, tmp_path):
    (tmp_path / "number.jsonl").write_text(json.dumps({"question": "Who?", "answer": 3}))
    files["number.jsonl"] = str(tmp_path / "number.jsonl")
    changes = changes | {"train_file": [files[name] for name in changes["train_file"]]}
    with pytest.raises(UserError) as caught:
        loaded(**changes)
    assert message in str(caught.value)
    if "belong" not in message:  # rows held out of them are read in the same way
        with pytest.raises(UserError) as caught:
            loaded("validation", **changes, train_val_split=0.2)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "x", "b": "y"}, "has neither a column 'score' with the similarity"),
        ({"sentence1": "x", "score": 1}, "line 1: there is no column 'sentence2'"),
        ({"sentence1": "x", "sentence2": "y", "score": "nan"}, "line 1: the similarity 'nan' is not a finite number"),
        ({"sentence1": "x", "sentence2": "y", "score": "high"}, "line 1: the similarity 'high' is not a finite num"),
        ({"sentence1": "x", "sentence2": "y", "score": 1}, "1 pairs without two different scores"),
    ],
)
def test_wrong_evaluation_pairs_are_named(row, message, tmp_path):
    (tmp_path / "dev.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError) as caught:
        loaded("validation", validation_file=str(tmp_path / "dev.jsonl"))
    assert message in str(caught.value)
