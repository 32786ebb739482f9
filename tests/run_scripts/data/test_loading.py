import json
import os

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.files import find_files
from tokenmixers.run_scripts.data.loading import PredictionDataArguments, drawn, load_named
from tokenmixers.run_scripts.data.text_corpus import load_texts


@pytest.fixture
def rows() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [str(number) for number in range(20)]})


def test_a_draw_is_always_the_same_and_keeps_the_order(rows):
    expected = sorted(np.random.default_rng(0).permutation(20)[:5].tolist())
    for _ in range(2):
        assert drawn(rows, 5)["text"][:] == list(map(str, expected))
        np.random.seed(1)
    assert drawn(list(range(20)), 5) == expected != list(range(5))
    assert {*expected} < {*map(int, drawn(rows, 9)["text"])}
    assert drawn(rows, 21)["text"][:] == drawn(rows, None)["text"][:] == rows["text"][:]


def test_of_a_stream_the_first_rows(rows):
    assert [row["text"] for row in drawn(rows.to_iterable_dataset(), 3)] == ["0", "1", "2"]
    assert len(list(drawn(rows.to_iterable_dataset(), 21))) == 20


def test_every_split_has_its_limit_and_held_out_rows_are_in_one_alone(rows):
    limits = {"max_train_samples": 3, "max_eval_samples": 4, "max_predict_samples": 5}
    splits = ("train", "validation", "test")
    arguments = PredictionDataArguments(**limits)
    assert [len(arguments.select(split, rows)) for split in splits] == [3, 4, 5]
    arguments = PredictionDataArguments(train_val_split=0.3)
    train, validation, test = (arguments.select(split, rows)["text"][:] for split in splits)
    assert [len(train), len(validation), len(test)] == [14, 6, 20]
    assert sorted(train + validation, key=int) == test and train != test[:14]
    drawn_too = PredictionDataArguments(**limits, train_val_split=0.3)
    assert {*drawn_too.select("validation", rows)["text"]} < {*validation}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a[1].txt", "a[[]1].txt", "b[2]/a.txt"])
def test_a_file_is_found_by_its_name_before_it_is_a_pattern(name, streaming, tmp_path):
    (tmp_path / "b[2]").mkdir()
    for other in ("a1.txt", "a[1].txt", "a[[]1].txt", "b[2]/a.txt"):
        (tmp_path / other).write_text(other)
    assert [row["text"] for row in load_texts([str(tmp_path / name)], "text", "train", streaming)] == [name]


def test_a_pattern_finds_names_with_brackets(tmp_path):
    for name in ("a1.txt", "a[1].txt"):
        (tmp_path / name).write_text(name)
    assert find_files([str(tmp_path / "a[[]1].txt")]) == [str(tmp_path / "a[1].txt")]
    assert sorted(load_texts([str(tmp_path / "a*.txt")], "text", "train")["text"]) == ["a1.txt", "a[1].txt"]


@pytest.mark.parametrize("kind", ["a file", "txt", "json", "csv"])
def test_rows_are_those_of_the_contents(kind, tmp_path):
    """Of a file, or of a data set's folder: whatever size and time, as other files may be moved into the place."""
    found = []
    for text in ("one", "two"):
        file = tmp_path / f"train.{'txt' if kind == 'a file' else kind}"
        file.write_text({"json": json.dumps({"text": text}), "csv": f"text\n{text}"}.get(kind, text))
        os.utime(file, (2**30, 2**30))
        if kind == "a file":
            found += load_texts([str(file)], "text", "train")["text"][:]
        else:
            found += load_named(str(tmp_path), None, "train")["text"][:]
    assert found == ["one", "two"]
