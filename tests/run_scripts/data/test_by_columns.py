"""Rows of texts are checked and tokenized by columns: with the results and the errors of a look at each row."""

import dataclasses
import json
import tracemalloc

import datasets
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from transformers import AutoTokenizer

import tokenmixers
from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments, load_sentence_pairs
from tokenmixers.run_scripts.data.table_files import ColumnRows, read_table
from tokenmixers.run_scripts.data.text_classification import (
    TextClassificationArguments,
    found_labels,
    own_task,
    read_examples,
    tokenize,
)
from tokenmixers.run_scripts.data.token_classification import TokenClassificationArguments, check_sentences


def by_rows(table):
    """The same table with its rows one by one."""
    return dataclasses.replace(table, placed=list(table.placed))


def write(path, rows, header="text,other,label"):
    path.write_bytes("".join(f"{row}\n" for row in (header, *rows)).encode())
    return path


def write_json(folder, rows, kind=".jsonl"):
    path = folder / f"rows{kind}"
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


def found_in(table, arguments, skip_empty=False):
    """All that is read from a table, or the error."""
    try:
        task = own_task(arguments, table, GMLPConfig())
        examples = read_examples(table, task, True, skip_empty)
    except UserError as error:
        return str(error)
    return task.labels, found_labels(table, task) if task.labels else None, examples.features, examples.to_list()


@pytest.mark.parametrize(
    "rows", [["a\rb,c,x", '"d, ""e""\nf",g,y', "NA,null, x ", "é\u3000,\u200b,y"] * 700, ["a,b,x"]]
)
@pytest.mark.parametrize("texts", [["text"], ["other", "text"]])
def test_examples_are_those_of_row_by_row(rows, texts, tmp_path):
    table = read_table(write(tmp_path / "a.csv", rows))
    assert isinstance(table.placed, ColumnRows) and len(table.placed) == len(rows)
    arguments = TextClassificationArguments(text_column_names=texts)
    assert found_in(table, arguments) == found_in(by_rows(table), arguments)


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
@pytest.mark.parametrize("labels", [("x", " y"), (0, 2), (True, False), (0.5, 2.0), ("x", None), ([1], [0, 2])])
@pytest.mark.parametrize("do_regression", [False, True])
def test_examples_of_objects(kind, labels, do_regression, tmp_path, capsys):
    rows = [{"text": f"row {number}", "label": labels[number % 2]} for number in range(1500)]
    table = read_table(write_json(tmp_path, rows, kind))
    assert isinstance(table.placed, ColumnRows) and table.rows == rows
    arguments = TextClassificationArguments(do_regression=do_regression)
    assert found_in(table, arguments) == found_in(by_rows(table), arguments)


@pytest.mark.parametrize(
    "other", [{"a": 1.0}, {"a": True}, {"a": "1"}, {"b": 1}, {"a": 2**70}, {"a": {"b": 1}}, {}, 1]
)
@pytest.mark.parametrize("count", [1, 1500])  # in the first batch of rows, or in another
def test_rows_that_arrow_would_change_stay_as_they_are(other, count, tmp_path):
    rows = [*[{"a": 1}] * count, other]
    table = read_table(write_json(tmp_path, rows))
    assert not isinstance(table.placed, ColumnRows) and len(table.placed) == count + 1
    assert repr(list(table.readable)) == repr(rows[: count + (other != 1)])  # 1 and 1.0 differ
    assert [place for _, place, _ in table.placed[-2:]] == [f"line {count}", f"line {count + 1}"]


def test_files_with_equal_columns_stay_columns(tmp_path):
    files = [write(tmp_path / f"{name}.csv", [f"{name},b,x"]) for name in "cd"]
    placed = read_table(files).placed
    assert isinstance(placed, ColumnRows)
    assert [(place[0], place[2]["text"]) for place in placed] == [(str(files[0]), "c"), (str(files[1]), "d")]
    assert not isinstance(read_table([*files, write_json(tmp_path, [{"text": "e"}])]).placed, ColumnRows)


#: A row of words and tags, instead of a good one.
SENTENCES = [
    (["a", "b"], ["O", "B-X"]),
    (["a"], ["-100"]),
    (["a", " "], ["O", "O"]),
    (["a", "\u3000"], ["O", "O"]),
    (["a", None], ["O", "O"]),
    ([], []),
    (["a"], ["O", "O"]),
    (["a"], [None]),
    (["a"], None),
    ("a", ["O"]),
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences_are_those_of_row_by_row(sentence, tmp_path):
    rows = [dict(zip(("tokens", "ner_tags"), row, strict=True)) for row in (SENTENCES[0], sentence)]
    table = read_table(write_json(tmp_path, rows))
    arguments, found = TokenClassificationArguments(), []
    for each in (table, by_rows(table)):
        try:
            found.append(check_sentences(each, arguments, tagged=True).to_list())
        except UserError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("labels", [("0", "1.0", " 2"), ("0.5", "-1", "3e1"), ("a", "1", "-1")])
@pytest.mark.parametrize("do_regression", [False, True])
def test_labels_too(labels, do_regression, tmp_path):
    table = read_table(write(tmp_path / "a.csv", [f"a,b,{label}" for label in labels]))
    arguments = TextClassificationArguments(do_regression=do_regression)
    assert found_in(table, arguments) == found_in(by_rows(table), arguments)


@pytest.mark.parametrize(
    "bad",
    [" ,b,x", "\u3000,b,x", "a,b,", "a,b", 'a,b,"[1, 2]"', 'a,b,"[""x""]"', "a,b,[x,y", '"a,b,x', "a,b,x,y"],
)
@pytest.mark.parametrize("skip_empty", [False, True])
def test_bad_rows_have_the_same_errors(bad, skip_empty, tmp_path, capsys):
    table = read_table(write(tmp_path / "a.csv", ["a,b,x", "a,b,y", bad, "a,b,x"]))
    results = []
    for each in (table, by_rows(table)):
        results.append((found_in(each, TextClassificationArguments(), skip_empty), capsys.readouterr().out))
    assert results[0] == results[1]


def test_missing_columns_have_the_same_errors(tmp_path):
    table = read_table(write(tmp_path / "a.tsv", ["a\tb"], "text\tother"))
    for arguments in ({}, {"text_column_names": ["none"]}, {"label_column_name": "other", "text_column_names": ["n"]}):
        arguments = TextClassificationArguments(**arguments)
        message = found_in(table, arguments)
        assert "there is no column" in message and message == found_in(by_rows(table), arguments)


def test_rows_by_columns_are_a_sequence(tmp_path):
    placed = read_table(write(tmp_path / "a.csv", ["a,b,x", "", '"c\nd",e,y'])).placed
    assert placed[1] == (str(tmp_path / "a.csv"), "line 5", {"text": "c\nd", "other": "e", "label": "y"})
    assert list(placed) == placed[:] == [placed[0], placed[-1]]


def test_pairs_of_sentences_are_those_of_row_by_row(tmp_path):
    path = write(tmp_path / "a.csv", ["a,b", "c,d"], "anchor,positive")
    rows = load_sentence_pairs(SentencePairArguments(train_file=[str(path)]), ["train"])["train"]
    assert rows.to_list() == [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}]


@pytest.mark.parametrize("length", [4, 64])
@pytest.mark.parametrize("count", [1, 2])
def test_tokens_are_those_of_the_tokenizer(length, count):
    tokenizer = AutoTokenizer.from_pretrained(str(tokenmixers.shipped_model("gmlp-minilm")))
    texts = [["the quick [SEP] fox", "é\u200b ß jumps over"][:count], ["a " * 50, "b c " * 9][:count]] * 600
    columns = {"index": np.arange(len(texts)), "texts": texts, "label": [0, 1] * 600}
    examples = datasets.Dataset.from_dict(columns)
    calls = []
    found = tokenize(examples, tokenizer, length, False)

    class Other(type(tokenizer)):
        def __call__(self, *texts, **options):
            calls.append(len(texts[0]))
            return super().__call__(*texts, **options)

    tokenizer.__class__ = Other
    expected = tokenize(examples, tokenizer, length, False)
    assert calls  # whose own `__call__` is asked
    assert found.features == expected.features and found.column_names == expected.column_names
    assert found.to_list() == expected.to_list() and max(map(len, found["input_ids"])) <= length


def test_many_rows_take_little_memory(tmp_path):
    path = write(tmp_path / "a.csv", (f"some words in row {number},b,x" for number in range(20_000)))
    tracemalloc.start()
    try:
        table = read_table(path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table.placed) == 20_000 and kept < 20_000 * 100  # dictionaries take 700 bytes a row
