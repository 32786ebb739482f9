"""Metrics of classes and of numbers, by scikit-learn and scipy (extra `glue`)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def accuracy(predictions: Sequence, references: Sequence) -> dict[str, float]:
    """Share of examples whose predicted class is right; of several labels in an example, all must be.

    Args:
        predictions: Class indices, or a list of 0 and 1 for every example.
        references: The labels.

    Returns:
        accuracy: From 0 to 1.
    """
    right = [bool(np.all(ours == theirs)) for ours, theirs in zip(predictions, references, strict=True)]
    return {"accuracy": float(np.mean(right))}


def f1(predictions: Sequence, references: Sequence, **options: Any) -> dict[str, float | np.ndarray]:
    """F1, the harmonic mean of precision and recall: 2 TP / (2 TP + FP + FN).

    Args:
        predictions: Class indices, or a list of 0 and 1 for every example.
        references: The labels.
        options: `labels`, `pos_label`, `average` and `sample_weight` of scikit-learn's `f1_score`.

    Returns:
        f1: From 0 to 1, 0 where it is not defined; an array with `average=None`.
    """
    from sklearn.metrics import f1_score

    score = f1_score(references, predictions, zero_division=0.0, **options)
    return {"f1": score if np.size(score) > 1 else float(score)}


def matthews_correlation(predictions: Sequence, references: Sequence) -> dict[str, float | list[float]]:
    """Matthews correlation coefficient: 1 if all classes are right, 0 as by chance.

    Args:
        predictions: Class indices, or a list of 0 and 1 for every example.
        references: The labels.

    Returns:
        matthews_correlation: From -1 to 1, 0 where it is not defined; a list, one for each of several labels.
    """
    from sklearn.metrics import matthews_corrcoef

    if np.ndim(references) == 1:
        return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}
    columns = zip(np.transpose(references), np.transpose(predictions), strict=True)
    return {"matthews_correlation": [float(matthews_corrcoef(*column)) for column in columns]}


def _correlation(function: Callable, predictions: Sequence[float], references: Sequence[float]) -> float:
    """A correlation, 0 where it is not defined: where all numbers of one side are the same."""
    first, second = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if len(second) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.nan_to_num(function(first, second).statistic))


def pearsonr(predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
    """Pearson correlation: how well a straight line maps one list of numbers to another.

    Args:
        predictions: Numbers.
        references: The labels.

    Returns:
        pearsonr: From -1 to 1, 0 where it is not defined.
    """
    from scipy.stats import pearsonr

    return {"pearsonr": _correlation(pearsonr, predictions, references)}


def spearmanr(predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
    """Spearman correlation: the Pearson correlation of ranks, equal numbers having a mean rank.

    Args:
        predictions: Numbers.
        references: The labels.

    Returns:
        spearmanr: From -1 to 1, 0 where it is not defined.
    """
    from scipy.stats import spearmanr

    return {"spearmanr": _correlation(spearmanr, predictions, references)}
