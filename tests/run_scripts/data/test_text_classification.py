import json
import re

import datasets
import numpy as np
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
    message = re.escape(f"a file, line 2: the label is {several!r}: a row has one label")
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
    "numpy.csv": "text,label\n" + "\n".join(f'x,"[{" ".join(map(repr, labels))}]"' for labels in LISTS),
    "spaces.csv": "text,label\n" + "\n".join(f'x," {[f" {label}" for label in labels]}"' for labels in LISTS),
    "columns.csv": "c,text,a,b\n0,x,1,1.0\n0,x,0,false\n1,x,0.0,0\n0,x,True,0",
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


MULTI_HOT = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
MULTI_HOT_FORMS = {
    "integers.json": json.dumps([{"text": "x", "label": marks} for marks in MULTI_HOT]),
    "floats.jsonl": "\n".join(json.dumps({"text": "x", "label": [*map(float, marks)]}) for marks in MULTI_HOT),
    "booleans.jsonl": "\n".join(json.dumps({"text": "x", "label": [*map(bool, marks)]}) for marks in MULTI_HOT),
    "integers.csv": "text,label\n" + "\n".join(f'x,"{marks}"' for marks in MULTI_HOT),
    "booleans.csv": "text,label\n" + "\n".join(f'x,"{[*map(bool, marks)]}"' for marks in MULTI_HOT),
    "numpy_integers.csv": "text,label\n" + "\n".join(f"x,{np.array(marks)}" for marks in MULTI_HOT),
    "numpy_floats.csv": "text,label\n" + "\n".join(f"x,{np.array(marks, float)}" for marks in MULTI_HOT),
    "numpy_booleans.tsv": "text\tlabel\n" + "\n".join(f"x\t{np.array(marks, bool)}" for marks in MULTI_HOT),
}


def read(folder, content, name="train.jsonl", config=None, **options):
    """The task and the labels of a file: of training rows, or with a configuration of rows to evaluate on."""
    (folder / name).write_text(content)
    split = "train" if config is None else "validation"
    arguments = TextClassificationArguments(**{f"{split}_file": [str(folder / name)]}, **options)
    rows = load_sets(arguments, [split])[split][""]
    task = own_task(arguments, rows if config is None else None, config or GMLPConfig(), [rows])
    return task, read_examples(rows, task, labelled=True)["label"][:]


@pytest.mark.parametrize("name", MULTI_HOT_FORMS)
def test_multi_hot_lists_have_a_class_for_each_place(name, tmp_path):
    task, labels = read(tmp_path, MULTI_HOT_FORMS[name], name)
    assert (task.labels, task.multi_label, labels) == (("0", "1", "2"), True, MULTI_HOT)
    task, labels = read(tmp_path, MULTI_HOT_FORMS[name], name, multi_hot_names=["c", " a", "b"])
    assert (task.labels, labels) == (("c", "a", "b"), MULTI_HOT)
    # Of a model that is evaluated, whose classes have names or numbers, or another order.
    for known in (["c", "a", "b"], ["0", "1", "2"]):
        config = GMLPConfig(id2label=dict(enumerate(known)), problem_type="multi_label_classification")
        assert read(tmp_path, MULTI_HOT_FORMS[name], name, config)[1] == MULTI_HOT
    config = GMLPConfig(id2label=dict(enumerate("abc")), problem_type="multi_label_classification")
    task, labels = read(tmp_path, MULTI_HOT_FORMS[name], name, config, multi_hot_names=["c", "a", "b"])
    assert (task.labels, labels) == (("a", "b", "c"), [[b, c, a] for a, b, c in MULTI_HOT])


def labelled(*lists):
    return "\n".join(json.dumps({"text": "x", "label": labels}) for labels in lists)


def test_lists_of_two_that_can_only_be_multi_hot(tmp_path):
    task, labels = read(tmp_path, labelled([True, False], [False, True]))
    assert (task.labels, labels) == (("0", "1"), [[1, 0], [0, 1]])
    config = GMLPConfig(id2label=dict(enumerate("ab")), problem_type="multi_label_classification")
    assert read(tmp_path, labelled([0, 1], [1, 0]), config=config)[1] == [[0, 1], [1, 0]]


def test_other_lists_of_numbers_hold_the_numbers_of_classes(tmp_path):
    task, labels = read(tmp_path, labelled([0, 2], [10.0], [], [1]))
    assert (task.labels, labels[0]) == (("0", "1", "2", "10"), [1, 0, 1, 0])
    assert read(tmp_path, labelled(["0", "1"], ["1"]))[0].labels == ("0", "1")
    config = GMLPConfig(id2label=dict(enumerate("0123")), problem_type="multi_label_classification")
    assert read(tmp_path, labelled([0, 3], [2]), config=config)[1] == [[1, 0, 0, 1], [0, 0, 1, 0]]


def test_spaces_around_names_do_not_count(tmp_path):
    assert read(tmp_path, labelled(["a ", "b"], [" a"]))[1] == [[1, 1], [1, 0]]
    task, labels = read(tmp_path, "text,label\nx, a\nx,b \nx,a", "train.csv")
    assert (task.labels, labels) == (("a", "b"), [0, 1, 0])
    assert found_labels(table("b ", " c"), task) == {"b", "c"}


THREE = GMLPConfig(id2label=dict(enumerate("abc")), problem_type="multi_label_classification")


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        ([[0], [1]], {}, "lists such as [0] may be numbers of classes, or 0 and 1 for each class: name the"),
        ([[0, 1], [1, 0]], {}, '--multi_hot_names, or write numbers of classes as texts, such as ["0", "1"]'),
        ([[0], [0, 1]], {}, "lists hold 0 and 1 alone, but have 1 to 2 elements: name the classes of 0 and 1 with"),
        ([[True, False], [True]], {}, "lists hold 0 and 1 alone, but have 1 to 2 elements"),
        ([[0, 0], [1, 1]], {"config": THREE}, "lists have 0 and 1 for 2 classes, the model has 3"),
        ([[0, 0, 1], [1, 0]], {"multi_hot_names": ["a", "b"]}, "line 1: the label must be a list of 0 and 1 for each"),
        ([[0, 1], [2, 0]], {"multi_hot_names": ["a", "b"]}, "line 2: the label must be a list of 0 and 1 for each of"),
        (["a", "b"], {"multi_hot_names": ["a", "b"]}, "line 1: the label must be a list of labels, got 'a'"),
        ([[0, 1, 0], [0, 2, 1]], {}, "line 1: the list [0, 1, 0] has 0 twice"),
        ([["0", "1", "0"], ["0", "2", "1"]], {}, "line 1: the list ['0', '1', '0'] has 0 twice"),
        ([["true", "false", "true"], ["true"]], {}, "line 1: the list ['true', 'false', 'true'] has true twice"),
        ([[1.0, 0.0, 1.0], [0.3, 0.7, 0]], {}, "line 2: the label 0.3 in the list [0.3, 0.7, 0] is neither a name"),
        ([["a", None], ["b"]], {}, "line 1: the label None in the list ['a', None] is neither a name nor"),
        ([["a", ["b"]], ["b"]], {}, "line 1: the label ['b'] in the list ['a', ['b']] is neither"),
        ([["a"], ["b", {"c": 1}]], {}, "line 2: the label {'c': 1} in the list ['b', {'c': 1}] is neither"),
        ([["a"], ["b", " "]], {}, "line 2: the label ' ' in the list ['b', ' '] is neither"),
        ([["a"], ["b", True]], {}, "line 2: the label True in the list ['b', True] is neither"),
        (["['a' 'b', 'c']", "[a, b]"], {}, "2 bad rows. line 1: the label \"['a' 'b', 'c']\" is no list: write"),
        ([["a"], None, ["b"]], {}, "train.jsonl, line 2: the label is missing"),
        (["tensor([0, 1])", "array([1, 0])"], {}, "2 bad rows. line 1: the label 'tensor([0, 1])' is no list: write"),
        (["('a', 'b')", "{'a': 1}"], {}, "2 bad rows. line 1: the label \"('a', 'b')\" is no list"),
    ],
)
def test_lists_that_say_too_little_are_refused(lists, options, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        read(tmp_path, labelled(*lists), **options)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text,a,b\nx,1,2\nx,1,0", ["a", "b"], "line 2: the column 'b' of --label_columns must be 0 or 1, got '2'"),
        ("text,a,b\nx,1,\nx,1,0", ["a", "b"], "line 2: the label is missing"),
        ("text,a,b\nx,1,0", ["a", "c"], "there is no column 'c' (--label_columns); the columns are 'text', 'a', 'b'"),
        ("text,class\nx,1", None, "there is no column 'label' (--label_column_name); the columns are 'text', 'class'"),
        ("text,label\nx,[]\nx,[]", None, "has no label: all lists in the column 'label' are empty"),
        ("text,label\nx,\"['a']\"\nx,[]", None, "has no label but 'a': a classifier needs two"),
    ],
)
def test_wrong_lists_of_labels(content, options, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        read(tmp_path, content, "train.csv", label_columns=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_columns": ["a", "a"]}, "--label_columns a a gives a name twice"),
        ({"multi_hot_names": ["b", "b"]}, "--multi_hot_names b b gives a name twice"),
        ({"multi_hot_names": ["a", "b"], "do_regression": True}, "--multi_hot_names names classes: leave it out, or"),
        ({"label_columns": ["a"], "multi_hot_names": ["a"]}, "--label_columns names classes: leave it out, or --mul"),
    ],
)
def test_names_of_classes_that_do_not_fit(options, message):
    with pytest.raises(SystemExit, match=message):
        TextClassificationArguments(**options)
