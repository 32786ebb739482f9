import re

import pytest

from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.data.glue import find_task
from tokenmixers.run_scripts.data.table_files import Table
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments, own_task, read_examples


def table(*labels):
    return Table("a file", [(number, {"text": "a", "label": label}) for number, label in enumerate(labels, 1)])


@pytest.mark.parametrize("kind", [int, str])
def test_minus_one_may_be_a_class_of_ones_own(kind):
    train = table(*map(kind, (1, -1, 0)))
    task = own_task(TextClassificationArguments(), train, GMLPConfig())
    assert task.labels == ("-1", "0", "1")
    assert read_examples(table(*map(kind, (-1, 1))), task, labelled=False)["label"][:] == [0, 2]


@pytest.mark.parametrize("label", [-1, -1.0, "-1"])
def test_minus_one_may_be_a_number_to_predict(label):
    task = own_task(TextClassificationArguments(regression=True), None, GMLPConfig())
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
