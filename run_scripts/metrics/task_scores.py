"""Scores of whole tasks: several metrics of classes, numbers or texts by the names that results have."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import load_metric
from .squad import exact_match, f1


#: Name of a result -> the metric that computes it, and the metric's arguments.
SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy", {}),
    "f1": ("f1", {}),
    "macro_f1": ("f1", {"average": "macro"}),
    "micro_f1": ("f1", {"average": "micro"}),
    "matthews_correlation": ("matthews_correlation", {}),
    "pearson": ("pearsonr", {}),
    "spearman": ("spearmanr", {}),
}

#: In place of a class: no class. For numbers, the number that T5 takes.
UNPARSEABLE = -1


def metric_type(name: str) -> str:
    """What the Hub calls the metric of a result."""
    return SCORES[name][0] if name in SCORES else name


def compute_scores(
    names: Iterable[str], predictions: np.ndarray, labels: np.ndarray, groups: Sequence[Any] | None = None
) -> dict[str, float]:
    """Several scores at once.

    Args:
        names: Keys of `SCORES`, or `"exact_match"`: the share of groups whose predictions are all right.
        predictions: Class indices or numbers, shape `(rows,)`; or 0 and 1 for each class, shape `(rows, classes)`,
            whose accuracy is the share of rows with all classes right, and macro F1 the mean over all classes.
        labels: The labels, of the same shape.
        groups: For `"exact_match"`: rows with the same value belong together, as answers to one question do.

    Returns:
        Fractions, not percentages; correlations lie in [-1, 1].
    """
    results = {}
    several = np.ndim(predictions) > 1
    if several:
        predictions, labels = (np.asarray(values).astype(np.int64) for values in (predictions, labels))
    for name in names:
        if name == "exact_match":
            results[name] = _groups_right(predictions == labels, groups)
            continue
        metric, options = SCORES[name]
        computed = load_metric(metric, "multilabel" if several else None)
        results[name] = computed.compute(predictions=predictions, references=labels, **options)[metric]
    return results


def compute_scores_with_unparseable(
    names: Iterable[str],
    predictions: np.ndarray,
    labels: np.ndarray,
    num_classes: int | None,
    groups: Sequence[Any] | None = None,
) -> dict[str, float]:
    """`compute_scores` of predictions some of which are `UNPARSEABLE`, as T5 computes them.

    These count as wrong everywhere. For F1 of two classes they are the class that is not the label; the macro F1 is
    the mean over the `num_classes` classes, where they are misses; for the Matthews correlation they are a further
    class; for correlations of numbers they are -1.

    Args:
        names: As for `compute_scores`.
        predictions: Class indices or numbers, shape `(rows,)`.
        labels: The labels, shape `(rows,)`.
        num_classes: Number of classes; `None` for numbers.
        groups: As for `compute_scores`.
    """
    results = {}
    for name in names:
        if name == "macro_f1":
            metric, options = SCORES[name]
            scores = load_metric(metric).compute(
                predictions=predictions, references=labels, labels=list(range(num_classes or 0)), **options
            )
            results[name] = scores[metric]
            continue
        guesses = np.where(predictions == UNPARSEABLE, 1 - labels, predictions) if name == "f1" else predictions
        results |= compute_scores([name], guesses, labels, groups)
    return results


def answer_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of words, as SQuAD defines them; the best of several right answers counts.

    Args:
        predictions: Texts. An empty one is wrong, also where a right answer consists of articles alone.
        answers: The right answers of each, at least one.

    Returns:
        `exact_match` and `f1`, as fractions.
    """
    pairs = list(zip(predictions, answers, strict=True))
    return {
        name: sum(max(score(text, answer) for answer in right) for text, right in pairs if text) / len(pairs)
        for name, score in (("exact_match", exact_match), ("f1", f1))
    }


def _groups_right(right: np.ndarray, groups: Sequence[Any] | None) -> float:
    found: dict[Any, bool] = {}
    for group, correct in zip(groups or (), right, strict=True):
        found[group] = found.get(group, True) and bool(correct)
    return sum(found.values()) / len(found)
