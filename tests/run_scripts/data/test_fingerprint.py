"""What training data are recognised by."""

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.fingerprint import fingerprint
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


def test_data_of_other_kinds_have_none():
    assert fingerprint([{"text": "a"}]) is None
