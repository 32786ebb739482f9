import json
import re

import datasets
import pytest

from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.data.glue import find_task
from tokenmixers.run_scripts.data.table_files import Table
from tokenmixers.run_scripts.data.text_classification import (
    TextClassificationArguments,
    found_labels,
    load_sets,
    own_task,
    read_examples,
)


def table(*labels):
    rows = ({"text": "a", "label": label} for label in labels)
    return Table("a file", [("a file", f"line {number}", row) for number, row in enumerate(rows, start=1)])


@pytest.mark.parametrize("kind", [int, str])
def test_minus_one_may_be_a_class_of_ones_own(kind):
    train = table(*map(kind, (1, -1, 0)))
    task = own_task(TextClassificationArguments(), train, GMLPConfig())
    assert task.labels == ("-1", "0", "1")
    assert read_examples(table(*map(kind, (-1, 1))), task, labelled=False)["label"][:] == [0, 2]


@pytest.mark.parametrize("label", [-1, -1.0, "-1"])
def test_minus_one_may_be_a_number_to_predict(label):
    task = own_task(TextClassificationArguments(do_regression=True), None, GMLPConfig())
    assert read_examples(table(label, 2.5), task, labelled=False)["label"][:] == [-1.0, 2.5]


@pytest.mark.parametrize("label", [-1, "-1", "", None, float("nan")])
def test_labels_are_hidden_otherwise(label):
    names = own_task(TextClassificationArguments(), table(0, 1), GMLPConfig())
    for task in (names, find_task("stsb"), find_task("rte")):
        assert not task.has_label({task.label_column: label})


@pytest.mark.parametrize("several", [["a", "b"], ["a"], {"a": 1}])
def test_a_text_has_one_label(several):
    """A list would be a class of its own, named by its characters."""
    message = re.escape(f"a file, line 2: the label is {several!r}: a text has one label")
    task = own_task(TextClassificationArguments(), table("a", several, "b"), GMLPConfig())
    assert task.labels == ("a", "b")
    with pytest.raises(SystemExit, match=message):
        read_examples(table("a", several), task, labelled=True)
    with pytest.raises(SystemExit, match=message):
        own_task(TextClassificationArguments(), table("a", several), GMLPConfig())


LISTS = [["b", "a"], [], ["c"], ["a"]]
FORMS = {
    "train.json": json.dumps([{"text": "x", "label": labels} for labels in LISTS]),
    "train.jsonl": "\n".join(json.dumps({"text": "x", "label": labels}) for labels in LISTS),
    "train.csv": "text,label\n" + "\n".join(f'x,"{json.dumps(labels)}"'.replace('"a"', '""a""') for labels in LISTS),
    "pandas.csv": "text,label\n" + "\n".join(f'x,"{labels}"' for labels in LISTS),
    "train.tsv": "text\tlabel\n" + "\n".join(f"x\t{json.dumps(labels)}" for labels in LISTS),
    "columns.csv": "c,text,a,b\n0,x,1,1.0\n0,x,0,false\n1,x,0,0\n0,x,True,0",
}
FORMS["train.csv"] = FORMS["train.csv"].replace('"b"', '""b""').replace('"c"', '""c""')


@pytest.mark.parametrize("name", FORMS)
def test_lists_of_labels_in_every_form(name, tmp_path):
    (tmp_path / name).write_text(FORMS[name])
    columns = ["a", "b", "c"] if name.startswith("columns") else None
    arguments = TextClassificationArguments(train_file=[str(tmp_path / name)], label_columns=columns)
    train = load_sets(arguments, ["train"])["train"][""]
    task = own_task(arguments, train, GMLPConfig())
    assert (task.labels, task.multi_label) == (("a", "b", "c"), True)
    assert read_examples(train, task, labelled=True)["label"][:] == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert found_labels(train, task) == {"a", "b", "c"}
    # A test file without labels.
    (tmp_path / "test.csv").write_text("text\nx")
    arguments.test_file = [str(tmp_path / "test.csv")]
    test = load_sets(arguments, ["test"])["test"][""]
    assert "label" not in read_examples(test, task, labelled=False).column_names


def test_the_lists_of_a_data_set_on_the_hub(tmp_path):
    """Lists of a `ClassLabel`, as GoEmotions has them, have the names of the classes."""
    features = {"text": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=["b", "a", "c"]))}
    rows = datasets.Dataset.from_dict(
        {"text": ["x"] * 2, "label": [[0, 1], [2]]}, features=datasets.Features(features)
    )
    rows.to_parquet(tmp_path / "train.parquet")
    arguments = TextClassificationArguments(dataset_name=str(tmp_path))
    train = load_sets(arguments, ["train"])["train"][""]
    task = own_task(arguments, train, GMLPConfig())
    assert task.labels == ("a", "b", "c")
    assert read_examples(train, task, labelled=True)["label"][:] == [[1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("text,a,b\nx,1,2\nx,1,0", ["a", "b"], "line 2: the column 'b' of --label_columns must hold 0 or 1, got '2'"),
        ("text,a,b\nx,1,\nx,1,0", ["a", "b"], "line 2: the label is missing"),
        ("text,a,b\nx,1,0", ["a", "c"], "there is no column 'c' (--label_columns); the columns are 'text', 'a', 'b'"),
        ("text,class\nx,1", None, "there is no column 'label' (--label_column_name); the columns are 'text', 'class'"),
        ("text,a,b\nx,1,0", ["a", "a"], "--label_columns a a names a column twice"),
        ("text,label\nx,[]\nx,[]", None, "has no label: all lists in the column 'label' are empty"),
        ("text,label\nx,\"['a']\"\nx,[]", None, "has no label but 'a': a classifier needs two"),
    ],
)
def test_wrong_lists_of_labels(content, columns, message, tmp_path):
    (tmp_path / "train.csv").write_text(content)
    arguments = TextClassificationArguments(train_file=[str(tmp_path / "train.csv")], label_columns=columns)
    with pytest.raises(SystemExit) as caught:
        train = load_sets(arguments, ["train"])["train"][""]
        read_examples(train, own_task(arguments, train, GMLPConfig()), labelled=True)
    assert message in str(caught.value)
