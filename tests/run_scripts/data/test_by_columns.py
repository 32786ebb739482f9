"""Rows of texts are checked and tokenized by columns: with the results and the errors of a look at each row."""

import dataclasses
import tracemalloc

import datasets
import numpy as np
import pytest
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


def by_rows(table):
    """The same table with its rows one by one."""
    return dataclasses.replace(table, placed=list(table.placed))


def write(path, rows, header="text,other,label"):
    path.write_bytes("".join(f"{row}\n" for row in (header, *rows)).encode())
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
