"""Entities counted by hand, and by seqeval where it is installed."""

import numpy as np
import pytest

from tokenmixers.run_scripts.metrics import load_metric
from tokenmixers.run_scripts.metrics.entities import entities


def test_entities_end_where_type_or_prefix_says_so():
    tags = ["B-A", "I-A", "B-A", "I-B", "O", "I-A", "I-A", "B-C"]
    assert entities(tags) == {("A", 0, 2), ("A", 2, 3), ("B", 3, 4), ("A", 5, 7), ("C", 7, 8)}


def test_entities_with_marked_ends():
    tags = ["B-A", "E-A", "I-A", "S-A", "S-B", "E-B", "B-B", "I-B", "E-B"]
    spans = {("A", 0, 2), ("A", 2, 3), ("A", 3, 4), ("B", 4, 5), ("B", 5, 6), ("B", 6, 9)}
    assert entities(tags) == spans


def test_entities_count_when_type_and_ends_are_right():
    references = [["B-A", "I-A", "O", "B-B"], ["B-B", "O"]]
    predictions = [["B-A", "I-A", "O", "B-A"], ["B-B", "I-B"]]
    assert load_metric("seqeval").compute(predictions=predictions, references=references) == {
        "A": {"precision": 1 / 2, "recall": 1.0, "f1": pytest.approx(2 / 3), "number": 1},
        "B": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 2},
        "overall_precision": pytest.approx(1 / 3),
        "overall_recall": pytest.approx(1 / 3),
        "overall_f1": pytest.approx(1 / 3),
        "overall_accuracy": pytest.approx(4 / 6),
    }


def test_nothing_to_count_is_zero():
    scores = load_metric("seqeval").compute(predictions=[["O"]], references=[["O"]])
    assert scores.pop("overall_accuracy") == 1.0
    assert scores == {"overall_precision": 0.0, "overall_recall": 0.0, "overall_f1": 0.0}


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_equal_to_seqeval(prefixes):
    theirs = pytest.importorskip("seqeval.metrics")
    random = np.random.default_rng(0)
    tags = np.array(["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in "AB")])
    references = [random.choice(tags, length).tolist() for length in range(1, 60)]
    predictions = [[tag if random.random() < 0.8 else "B-C" for tag in row] for row in references]
    scores = load_metric("seqeval").compute(predictions=predictions, references=references)
    report = theirs.classification_report(references, predictions, output_dict=True, zero_division=0)
    for kind in "ABC":
        expected = {"number" if key == "support" else key.removesuffix("-score"): v for key, v in report[kind].items()}
        assert scores[kind] == pytest.approx(expected)
    for name in ("precision", "recall", "f1"):
        assert scores[f"overall_{name}"] == pytest.approx(getattr(theirs, f"{name}_score")(references, predictions))


@pytest.mark.parametrize("tag", ["NOUN", "B", "O-A", "X-A", ""])
def test_other_tags_are_refused(tag):
    with pytest.raises(ValueError, match=f"the tag '{tag}' is not O, nor of the form"):
        load_metric("seqeval").compute(predictions=[["O"]], references=[[tag]])


def test_every_word_needs_a_tag():
    with pytest.raises(ValueError, match="sentence 1 has 1 tags, but 2 are predicted"):
        load_metric("seqeval").compute(predictions=[["O"], ["O", "O"]], references=[["O"], ["O"]])
