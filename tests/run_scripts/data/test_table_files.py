import json
import math

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.conll import read_conll
from tokenmixers.run_scripts.data.table_files import (
    BadRowError,
    EmptyRowError,
    check_some_text,
    class_names,
    load_split,
    read_list,
    read_table,
)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def placed(table):
    return [(place, row) for _, place, row in table.placed]


def test_tsv_is_taken_literally(tmp_path):
    content = '\ufefflabel\ttext\r\n1\tHe said " yes .\r\n\r\n0\tnext line\u2028and\x85on\r\n'
    table = read_table(write(tmp_path, "a.tsv", content))
    assert placed(table) == [
        ("line 2", {"label": "1", "text": 'He said " yes .'}),
        ("line 4", {"label": "0", "text": "next line\u2028and\x85on"}),
    ]
    headerless = read_table(write(tmp_path, "b.tsv", "1\tx\n"), columns=("label", "text"))
    assert headerless.rows == [{"label": "1", "text": "x"}]


def test_broken_lines_fail_unless_they_are_expected(tmp_path, capsys):
    path = write(tmp_path, "a.tsv", "a\tb\n1\t2\n3\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 3: 1 columns instead of 2"):
        assert read_table(path).rows
    assert read_table(path, drop_incomplete=True).rows == [{"a": "1", "b": "2"}]
    assert "1 incomplete lines left out" in capsys.readouterr().out


def test_compressed_tables_of_unknown_kinds(tmp_path):
    for name in ("a.gz", "a.txt.gz", "tsv", "a.tsv.zip"):
        with pytest.raises(UserError, match=r"is of no known kind\. Known endings: \.tsv, .* also with one of "):
            read_table(write(tmp_path, name, b""))


def test_csv_is_quoted(tmp_path):
    table = read_table(write(tmp_path, "A.CSV", 'text,label\n"a, ""b""\nc",1\nd,0\n'))
    assert placed(table) == [
        ("line 3", {"text": 'a, "b"\nc', "label": "1"}),
        ("line 4", {"text": "d", "label": "0"}),
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "list.json", "A.JSON", "A.Jsonl"])
def test_json(name, tmp_path):
    rows = [{"text": "a\u2028b", "label": True}, {"text": "c", "label": 0}]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    table = read_table(write(tmp_path, name, json.dumps(rows) if name == "list.json" else lines))
    assert table.rows == rows


def test_classes_become_names_also_in_lists(tmp_path):
    names = datasets.ClassLabel(names=["O", "B-X"])
    features = datasets.Features({"label": names, "tags": datasets.List(names)})
    rows = datasets.Dataset.from_dict({"label": [1, -1], "tags": [[0, 1], []]}, features=features)
    rows.to_parquet(tmp_path / "train.parquet")
    expected = [("row 1", {"label": "B-X", "tags": ["O", "B-X"]}), ("row 2", {"label": None, "tags": []})]
    assert placed(read_table(tmp_path / "train.parquet")) == expected
    assert placed(load_split(str(tmp_path), None, "train")) == expected
    (tmp_path / "copa" / "validation").mkdir(parents=True)  # how the Hub stores what it converted
    rows.to_parquet(tmp_path / "copa" / "validation" / "0000.parquet")
    assert placed(load_split(str(tmp_path), None, "validation", data_dir="copa")) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"text\nfine\nbad \xff byte\n", r"a\.tsv, line 3: not valid UTF-8 \(byte 0xff\)"),
        ("a.csv", 'a,b\n1,2\n"1,2\n3,4\n5,6\n', r"a\.csv, line 3: unexpected end of data\.$"),
        ("a.csv", 'a;b\n1;2\n"1";2\n', r"a\.csv, line 3: .* Commas separate columns"),
        ("a.json", "[1]", r"a\.json, row 1: a row must be an object"),
        ("a.json", '{"a":\n 1}', r"a\.json' is one JSON object over several lines"),
        ("a.tsv", "text\n", "has no rows"),
        ("a.parquet", "no parquet", "cannot be read as parquet"),
        ("a.xls", "", "of no known kind"),
    ],
)
def test_mistakes_are_named_with_their_place(name, content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        assert read_table(write(tmp_path, name, content)).rows


def test_missing_files_and_data_sets(tmp_path):
    for read in (read_table, read_conll):
        with pytest.raises(UserError, match="there is no file"):
            read(tmp_path / "missing.tsv")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_split(str(tmp_path / "missing"), None, "train")


def test_conll(tmp_path):
    content = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter NNP B-PER\n"
    table = read_conll(write(tmp_path, "a.conll", content))
    assert placed(table) == [
        ("line 3", {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}),
        ("line 7", {"tokens": ["Peter"], "ner_tags": ["B-PER"]}),
    ]
    assert read_conll(write(tmp_path, "words.txt", "a\nb\n")).rows == [{"tokens": ["a", "b"]}]
    with pytest.raises(UserError, match="has no sentences"):
        read_conll(write(tmp_path, "a.conll", "\n"))


def test_some_texts_of_a_row_may_be_empty():
    assert check_some_text(["", "a"]) == ["", "a"] and check_some_text([math.nan, "a"]) == ["", "a"]
    with pytest.raises(EmptyRowError):
        check_some_text([None, " "])
    with pytest.raises(BadRowError, match="must be a string, got 3") as caught:
        check_some_text(["", 3])
    assert not isinstance(caught.value, EmptyRowError)  # which --skip_empty_examples leaves out


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ('["a", "b"]', ["a", "b"]),
        (" ['it\\'s', None] ", ["it's", None]),
        ("[u'a', \"b\"]", ["a", "b"]),
        ("[]", []),
        (str(np.array(["it's", "two words", 'a "b"'])), ["it's", "two words", 'a "b"']),
        (str(np.array([f"label {index}" for index in range(30)])), [f"label {index}" for index in range(30)]),
        (str(np.array([1, 0, -1])), [1, 0, -1]),
        (str(np.array([0.5, 1, np.nan])), [0.5, 1, None]),
        (str(np.array([True, False])), [True, False]),
        # No lists: a comma is missing, rows of a matrix, names in brackets, two lists, a part of a list.
        *((text, text) for text in ("['a' 'b', 'c']", "[1, 0 1]", str(np.eye(2)), "[not sure]", "[PAD]")),
        *((text, text) for text in ("['a'],['b']", "['a'", "a]", 3)),
    ],
)
def test_lists_of_json_python_and_numpy(cell, found):
    assert read_list(cell) == found


def test_abbreviated_arrays_are_no_labels():
    with pytest.raises(BadRowError, match="the label Ellipsis in the list"):
        class_names(read_list(str(np.zeros(2000, int))))
