"""What training data are recognised by."""

import json
import os

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data import fingerprint as module
from tokenmixers.run_scripts.data.fingerprint import fingerprint
from tokenmixers.run_scripts.data.text_corpus import CorpusArguments, load_documents
from tokenmixers.run_scripts.data.text_stream import TextStream


ROWS = {
    "text": [f"a text {number}" for number in range(30)],
    "input_ids": [[number, 1, 2][: 1 + number % 3] for number in range(30)],
    "label": [number % 4 for number in range(30)],
    "score": [number / 7 for number in range(30)],
    "embedding": [[number / 3, 0.5] for number in range(30)],
    "image": [{"bytes": bytes(number), "path": f"/here/{number}.png"} for number in range(30)],
}


def changed(column, value, row=17):
    values = list(ROWS[column])
    values[row] = value
    return datasets.Dataset.from_dict({**ROWS, column: values})


def test_equal_rows_have_one_fingerprint_wherever_they_are(tmp_path):
    rows, expected = datasets.Dataset.from_dict(ROWS), fingerprint(datasets.Dataset.from_dict(ROWS))
    assert len(expected) == 32 and int(expected, 16)
    rows.to_parquet(tmp_path / "rows.parquet")
    assert fingerprint(datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=tmp_path)) == expected
    padded = datasets.concatenate_datasets([rows.select(range(5, 9)), rows, rows.select(range(3))])
    assert fingerprint(padded.select(range(4, 34))) == expected  # arrays that begin within others
    halves = datasets.concatenate_datasets([rows.select(range(13)), rows.select(range(13, 30))])
    assert fingerprint(halves) == expected
    assert fingerprint(datasets.DatasetDict(a=rows)) == fingerprint({"a": rows}) != fingerprint({"b": rows})


@pytest.mark.parametrize(
    "rows",
    [
        changed("text", "a text 18"),
        changed("input_ids", [17, 1, 3]),
        changed("input_ids", [17, 1]),
        changed("label", 3),
        changed("score", 17 / 7 + 1e-9),
        changed("score", None),
        changed("image", {"bytes": bytes(16), "path": "/here/17.png"}),
        changed("image", {"bytes": b"a" + bytes(16), "path": "/here/17.png"}),
        changed("image", {"bytes": bytes(17), "path": "/here/x.png"}),
        datasets.Dataset.from_dict(ROWS).select(range(29)),
        datasets.Dataset.from_dict(ROWS).shuffle(seed=1),
        datasets.Dataset.from_dict(ROWS).rename_column("label", "other"),
    ],
)
def test_other_rows_have_others(rows):
    assert fingerprint(rows) != fingerprint(datasets.Dataset.from_dict(ROWS))


def test_what_another_machine_computes_or_another_folder_changes_does_not_count():
    expected = fingerprint(datasets.Dataset.from_dict(ROWS))
    assert fingerprint(changed("embedding", [17 / 3 + 1e-7, 0.5])) == expected
    assert fingerprint(changed("image", {"bytes": bytes(17), "path": "/there/17.png"})) == expected


def test_images_in_files_are_recognised_by_their_contents(tmp_path, monkeypatch):
    def found(folder: str, *changes: int) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(6):
            (tmp_path / folder / f"{number}.png").write_bytes(bytes([number in changes, number]))
        images = [{"bytes": None, "path": str(tmp_path / folder / f"{number}.png")} for number in range(6)]
        return fingerprint(datasets.Dataset.from_dict({"image": images}))

    assert found("here") == found("there") != found("here", 3)
    monkeypatch.setattr(module, "_IMAGES", 4)  # of six, every second one is read
    assert found("here") == found("here", 3) != found("here", 2)


def test_orders_count_where_rows_are_taken_by_index():
    rows = datasets.Dataset.from_dict(ROWS)
    first, again, other = (rows.shuffle(seed=seed).select(range(9)) for seed in (0, 0, 1))
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


def test_streams_are_recognised_by_their_first_texts():
    def stream(*texts):
        documents = datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset()
        return TextStream(documents, lambda batch: batch, 0, 10)

    many = [f"text {number}" for number in np.arange(2000)]
    expected = fingerprint(stream(*many))
    assert fingerprint(stream(*many)) == expected
    assert fingerprint(stream(*many[:-1], "another")) == expected
    assert fingerprint(stream(*many[:999], "another", *many[1000:])) != expected
    assert fingerprint(stream("ab", "c")) != fingerprint(stream("a", "bc"))


@pytest.mark.parametrize("place", ["a file", "a folder of texts", "a folder of json"])
def test_streams_of_files_are_recognised_by_all_texts(place, tmp_path):
    """Also behind the first 1,000, and if name, size and time stay."""

    def found(last: str, folder: str = "data") -> str:
        file = tmp_path / folder / ("train.jsonl" if "json" in place else "train.txt")
        texts = [*(f"text {number}" for number in range(1500)), last]
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(json.dumps({"body": text}) if "json" in place else text for text in texts))
        os.utime(file, (2**30, 2**30))
        arguments = {"streaming": True, "max_eval_samples": 2}
        if "json" in place:
            arguments["text_column_names"] = ["body"]
        where = {"train_file": [str(file)]} if place == "a file" else {"dataset_name": str(file.parent)}
        documents = load_documents(CorpusArguments(**where, **arguments))["train"]
        assert next(iter(documents))["text"] == "text 2"  # the held-out ones left out
        assert fingerprint(documents) == fingerprint(TextStream(documents, lambda batch: batch, 0, 10))
        return fingerprint(documents)

    assert found("one") == found("one", "elsewhere") != found("two")


def test_data_of_other_kinds_have_none():
    assert fingerprint([{"text": "a"}]) is None
