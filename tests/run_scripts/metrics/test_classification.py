"""Every metric against its formula, written out."""

import math
import sys

import numpy as np
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.metrics import classification


pytest.importorskip("sklearn")


@pytest.fixture
def classes():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 50)
    return np.where(random.random(50) < 0.7, labels, 1 - labels), labels


def test_metrics_of_two_classes(classes):
    predictions, labels = classes
    pairs = list(zip(predictions.tolist(), labels.tolist(), strict=True))
    tp, fp, fn, tn = (pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0)))
    assert classification.compute(("accuracy", "f1", "matthews_correlation"), predictions, labels) == pytest.approx(
        {
            "accuracy": (tp + tn) / 50,
            "f1": tp / (tp + (fp + fn) / 2),
            "matthews_correlation": (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),
        }
    )


def test_macro_f1_is_the_mean_over_classes():
    predictions, labels = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 0, 2])
    by_class = [2 * 1 / (2 + 2), 2 * 1 / (1 + 2), 2 * 2 / (3 + 2)]
    assert classification.compute(["macro_f1"], predictions, labels)["macro_f1"] == pytest.approx(sum(by_class) / 3)


def test_correlations():
    random = np.random.default_rng(0)
    labels = random.normal(size=30)
    predictions = np.exp(labels + random.normal(size=30) / 3)

    def correlation(x, y):
        x, y = x - x.mean(), y - y.mean()
        return (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())

    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (predictions, labels)]
    found = classification.compute(("pearson", "spearman"), predictions, labels)
    assert found == pytest.approx({"pearson": correlation(predictions, labels), "spearman": correlation(*ranks)})


@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_zero():
    constant, labels = np.zeros(4, dtype=int), np.array([1, 1, 1, 1])
    undefined = [name for name in classification.METRICS if name != "accuracy"]
    assert classification.compute(undefined, constant, labels) == dict.fromkeys(undefined, 0.0)
    assert set(classification.entity_scores([["O"]], [["O"]]).values()) == {0.0, 1.0}  # the accuracy alone is one


def test_entities_end_where_type_or_prefix_says_so():
    tags = ["B-A", "I-A", "B-A", "I-B", "O", "I-A", "I-A", "B-C"]
    assert classification.entities(tags) == {("A", 0, 2), ("A", 2, 3), ("B", 3, 4), ("A", 5, 7), ("C", 7, 8)}


def test_entities_count_when_type_and_ends_are_right():
    labels = [["B-A", "I-A", "O", "B-B"], ["B-B", "O"]]
    predictions = [["B-A", "I-A", "O", "B-A"], ["B-B", "I-B"]]
    assert classification.entity_scores(predictions, labels) == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 4 / 6, "f1_A": 2 / 3, "f1_B": 0.0}
    )


def test_entity_scores_are_those_of_seqeval():
    theirs = pytest.importorskip("seqeval.metrics")
    random = np.random.default_rng(0)
    tags = np.array(["O", "B-A", "I-A", "B-B", "I-B"])
    labels = [tags[random.integers(0, 5, length)].tolist() for length in range(1, 60)]
    predictions = [[tag if random.random() < 0.8 else "B-A" for tag in row] for row in labels]
    scores = classification.entity_scores(predictions, labels)
    for name in ("precision", "recall", "f1"):
        assert scores[name] == pytest.approx(getattr(theirs, f"{name}_score")(labels, predictions))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install '\.\[glue\]'"):
        classification.check_packages()
