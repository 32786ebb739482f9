"""Metrics of the benchmarks, computed on this machine: nothing is fetched when a run is evaluated.

Those of texts are scikit-learn's and scipy's (extra `glue`), those of entities are counted here.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..base.optional_packages import import_optional


#: Metric -> the Hub's name of such a metric, for model cards.
HUB_NAMES = {
    "accuracy": "accuracy",
    "f1": "f1",
    "macro_f1": "f1",
    "matthews_correlation": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "precision": "precision",
    "recall": "recall",
}


def check_packages() -> None:
    """Fail before a run, rather than at its first evaluation.

    Raises:
        UserError: If scikit-learn or scipy is missing.
    """
    for module in ("sklearn", "scipy"):
        import_optional(module, "glue", "the metric")


def compute(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Several metrics at once.

    Args:
        names: Keys of `METRICS`.
        predictions: Class indices or numbers, shape `(rows,)`.
        labels: The right ones, shape `(rows,)`.

    Returns:
        Fractions, not percentages; correlations lie in [-1, 1].
    """
    return {name: float(METRICS[name](predictions, labels)) for name in names}


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1 of two."""
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, zero_division=0.0)


def _macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the F1 of every class that occurs in predictions or labels."""
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, average="macro", zero_division=0.0)


def _matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(labels, predictions)


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, labels)


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, labels)


def _correlation(function: Callable, predictions: np.ndarray, labels: np.ndarray) -> float:
    """0 where it is not defined: between numbers of which one side is all the same."""
    predictions, labels = np.asarray(predictions, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if len(labels) < 2 or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    correlation = float(function(predictions, labels).statistic)
    return 0.0 if math.isnan(correlation) else correlation


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews_correlation,
    "pearson": _pearson,
    "spearman": _spearman,
}


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities that a sentence's tags mark, read as CoNLL's own scorer reads them.

    An entity goes on as long as `I-` tags of its type follow. An `I-` tag with nothing of its type before it starts
    one as `B-` does, so IOB1 and IOB2 can both be read.

    Args:
        tags: `O`, `B-TYPE` or `I-TYPE`, one per word.

    Returns:
        Type, first word and the word after the last, of each.
    """
    found, kind, start = set(), None, 0
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind is not None and (prefix != "I" or tag_kind != kind):
            found.add((kind, start, index))
            kind = None
        if kind is None and prefix in ("B", "I"):
            kind, start = tag_kind, index
    return found


def entity_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities, which count only if their type and both ends are right.

    Args:
        predictions: Predicted tags of each sentence.
        labels: The right ones.

    Returns:
        `precision`, `recall`, `f1` over all entities, `f1_TYPE` for every type among the labels, and the `accuracy` of
        the tags. What has no entities to count is 0.
    """
    predicted = {(row, *entity) for row, tags in enumerate(predictions) for entity in entities(tags)}
    wanted = {(row, *entity) for row, tags in enumerate(labels) for entity in entities(tags)}
    right = predicted & wanted

    def f1(right: int, predicted: int, wanted: int) -> float:
        return 2 * right / (predicted + wanted) if predicted + wanted else 0.0

    pairs = [pair for ours, theirs in zip(predictions, labels, strict=True) for pair in zip(ours, theirs, strict=True)]
    scores = {
        "precision": len(right) / len(predicted) if predicted else 0.0,
        "recall": len(right) / len(wanted) if wanted else 0.0,
        "f1": f1(len(right), len(predicted), len(wanted)),
        "accuracy": sum(ours == theirs for ours, theirs in pairs) / len(pairs) if pairs else 0.0,
    }
    for kind in sorted({entity[1] for entity in wanted}):
        counts = [sum(entity[1] == kind for entity in found) for found in (right, predicted, wanted)]
        scores[f"f1_{kind}"] = f1(*counts)
    return scores
