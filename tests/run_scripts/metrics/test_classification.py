"""Every metric against its formula, written out."""

import math

import numpy as np
import pytest

from tokenmixers.run_scripts.metrics import load_metric


pytest.importorskip("sklearn")
pytest.importorskip("scipy")


@pytest.fixture
def classes():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 50)
    return {"predictions": np.where(random.random(50) < 0.7, labels, 1 - labels), "references": labels}


def counts(classes) -> tuple[int, int, int, int]:
    pairs = list(zip(classes["predictions"].tolist(), classes["references"].tolist(), strict=True))
    return tuple(pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0)))


def matthews(tp: int, fp: int, fn: int, tn: int) -> float:
    return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))


def f1(tp: int, fp: int, fn: int, tn: int) -> float:
    return tp / (tp + (fp + fn) / 2)


def test_two_classes(classes):
    tp, fp, fn, tn = counts(classes)
    expected = {"accuracy": (tp + tn) / 50, "f1": f1(tp, fp, fn, tn), "matthews_correlation": matthews(tp, fp, fn, tn)}
    for name, value in expected.items():
        assert load_metric(name).compute(**classes) == {name: pytest.approx(value)}
    assert load_metric("f1").compute(**classes, pos_label=0) == {"f1": pytest.approx(f1(tn, fn, fp, tp))}


def test_f1_averages():
    pairs = {"predictions": [0, 0, 1, 2, 2, 2], "references": [0, 1, 1, 2, 0, 2]}
    by_class = [2 * 1 / (2 + 2), 2 * 1 / (1 + 2), 2 * 2 / (3 + 2)]
    metric = load_metric("f1")
    assert metric.compute(**pairs, average="macro") == {"f1": pytest.approx(sum(by_class) / 3)}
    assert metric.compute(**pairs, average="micro") == {"f1": pytest.approx(4 / 6)}
    assert metric.compute(**pairs, average=None)["f1"] == pytest.approx(by_class)


def test_several_labels_per_example():
    pairs = {"predictions": [[1, 0], [1, 1], [0, 1], [0, 0]], "references": [[1, 0], [1, 0], [0, 1], [1, 0]]}
    # Label by label: true positives, false positives, false negatives, true negatives.
    tables = [(2, 0, 1, 1), (1, 1, 0, 2)]
    assert load_metric("accuracy", "multilabel").compute(**pairs) == {"accuracy": 2 / 4}
    scores = load_metric("f1", "multilabel").compute(**pairs, average="macro")
    assert scores == {"f1": pytest.approx(sum(f1(*table) for table in tables) / 2)}
    metric, expected = load_metric("matthews_correlation", "multilabel"), [matthews(*table) for table in tables]
    assert metric.compute(**pairs)["matthews_correlation"] == pytest.approx(expected)


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())


@pytest.fixture
def numbers():
    random = np.random.default_rng(0)
    labels = random.normal(size=30)
    return {"predictions": np.exp(labels + random.normal(size=30) / 3), "references": labels}


def test_correlations(numbers):
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in numbers.values()]
    pearson, spearman = correlation(*numbers.values()), correlation(*ranks)
    assert load_metric("pearsonr").compute(**numbers) == {"pearsonr": pytest.approx(pearson)}
    assert load_metric("spearmanr").compute(**numbers) == {"spearmanr": pytest.approx(spearman)}


@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_zero():
    pairs = {"predictions": [0, 0, 0, 0], "references": [1, 1, 1, 1]}
    for name in ("f1", "matthews_correlation", "pearsonr", "spearmanr"):
        assert load_metric(name).compute(**pairs) == {name: 0.0}
    assert load_metric("f1").compute(**pairs, average="macro") == {"f1": 0.0}
    for undefined in (
        pairs,
        {"predictions": [1, 2, 3], "references": [4, 4, 4]},
        {"predictions": [4, 4, 4], "references": [1, 2, 3]},
        {"predictions": [1], "references": [2]},
    ):
        for name in ("pearsonr", "spearmanr"):
            assert load_metric(name).compute(**undefined) == {name: 0.0}
    two = {"predictions": [1, 2], "references": [3, 5]}
    assert load_metric("pearsonr").compute(**two) == {"pearsonr": pytest.approx(1)}


def test_scores_keep_the_precision_of_numbers():
    """Numbers that differ in their ninth digit are the same to a float of 32 bits."""
    pairs = {"predictions": [1.0, 1.0 + 1e-9, 1.0 + 2e-9], "references": [1.0, 2.0, 3.0]}
    assert load_metric("pearsonr").compute(**pairs) == {"pearsonr": pytest.approx(1.0, rel=1e-6)}
