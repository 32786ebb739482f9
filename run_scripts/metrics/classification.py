"""Metrics of classes and of numbers, those of GLUE: by scikit-learn and scipy (extra `glue`)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from .local_metric import LocalMetric


_SKLEARN = """@article{scikit-learn,
  title={Scikit-learn: Machine Learning in {P}ython},
  author={Pedregosa, F. and others},
  journal={Journal of Machine Learning Research},
  volume={12},
  pages={2825--2830},
  year={2011}
}
"""
_SCIPY = """@article{2020SciPy-NMeth,
  title={{SciPy} 1.0: Fundamental Algorithms for Scientific Computing in Python},
  author={Virtanen, Pauli and others},
  journal={Nature Methods},
  volume={17},
  pages={261--272},
  year={2020}
}
"""
_GLUE = """@inproceedings{wang2019glue,
  title={{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author={Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel R.},
  booktitle={ICLR},
  year={2019}
}
"""
_CLASSES = """
Args:
    predictions: Class indices; with the configuration "multilabel" a list of 0 and 1 for every example.
    references: The labels.
"""
_NUMBERS = """
Args:
    predictions: Numbers.
    references: The labels.
    return_pvalue: Whether to return the p-value as well.
"""


def _pairs(dtype: str, several: bool = False) -> datasets.Features:
    value = datasets.Value(dtype)
    return datasets.Features(
        {name: datasets.Sequence(value) if several else value for name in ("predictions", "references")}
    )


def _f1(references: Sequence, predictions: Sequence, **options: Any) -> float | np.ndarray:
    from sklearn.metrics import f1_score

    score = f1_score(references, predictions, zero_division=0.0, **options)
    return score if np.size(score) > 1 else float(score)


def _matthews(references: Sequence, predictions: Sequence, sample_weight: Sequence[float] | None = None) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(references, predictions, sample_weight=sample_weight))


def _accuracy(references: Sequence, predictions: Sequence) -> float:
    return float(np.mean([ours == theirs for ours, theirs in zip(predictions, references, strict=True)]))


def _correlation(function: Callable, predictions: Sequence[float], references: Sequence[float]) -> tuple[float, float]:
    """Correlation and p-value: 0 and NaN where not defined, between numbers of which one side is all the same."""
    first, second = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if len(second) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0, math.nan
    result = function(first, second)
    return (0.0, math.nan) if math.isnan(result.statistic) else (float(result.statistic), float(result.pvalue))


def _pearson(predictions: Sequence[float], references: Sequence[float]) -> tuple[float, float]:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def _spearman(predictions: Sequence[float], references: Sequence[float]) -> tuple[float, float]:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, references)


class Accuracy(LocalMetric):
    """Share of examples whose class is right; of several labels per example, all must be."""

    CONFIGS = ("default", "multilabel")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of examples whose predicted class is right.",
            citation=_SKLEARN,
            inputs_description=_CLASSES
            + """    normalize: `False` for the number of right examples instead of their share.
    sample_weight: Weight of every example; all the same by default.

Returns:
    accuracy: From 0 to 1, or the number of right examples.
""",
            features=_pairs("int64", self.config_name == "multilabel"),
        )

    def _compute(
        self,
        predictions: Sequence,
        references: Sequence,
        normalize: bool = True,
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float]:
        right = np.array([ours == theirs for ours, theirs in zip(predictions, references, strict=True)])
        if normalize:
            return {"accuracy": float(np.average(right, weights=sample_weight))}
        return {"accuracy": float(right.sum() if sample_weight is None else np.dot(right, sample_weight))}


class F1(LocalMetric):
    """F1 of one class of two, or a mean over classes."""

    CONFIGS = ("default", "multilabel")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="F1, the harmonic mean of precision and recall: 2 TP / (2 TP + FP + FN).",
            citation=_SKLEARN,
            inputs_description=_CLASSES
            + """    labels: Classes that count with an `average` that is not "binary"; all that occur by default.
    pos_label: The class that counts with the average "binary".
    average: "binary", "micro", "macro", "weighted", "samples", or `None` for the F1 of every class.
    sample_weight: Weight of every example; all the same by default.

Returns:
    f1: From 0 to 1, 0 where it is not defined; an array with `average=None`.
""",
            features=_pairs("int64", self.config_name == "multilabel"),
        )

    def _compute(
        self,
        predictions: Sequence,
        references: Sequence,
        labels: Sequence[int] | None = None,
        pos_label: int = 1,
        average: str | None = "binary",
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float | np.ndarray]:
        options = {"labels": labels, "pos_label": pos_label, "average": average, "sample_weight": sample_weight}
        return {"f1": _f1(references, predictions, **options)}


class MatthewsCorrelation(LocalMetric):
    """Correlation of predicted and right classes; with several labels per example, of each label."""

    CONFIGS = ("default", "multilabel")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Matthews correlation coefficient: 1 if all classes are right, 0 as by chance.",
            citation=_SKLEARN,
            inputs_description=_CLASSES
            + """    sample_weight: Weight of every example; all the same by default.
    average: With the configuration "multilabel": "macro" for the mean over labels, `None` for that of every label.

Returns:
    matthews_correlation: From -1 to 1, 0 where it is not defined; a list with "multilabel" and `average=None`.
""",
            features=_pairs("int64", self.config_name == "multilabel"),
        )

    def _compute(
        self,
        predictions: Sequence,
        references: Sequence,
        sample_weight: Sequence[float] | None = None,
        average: str | None = None,
    ) -> dict[str, float | list[float]]:
        if self.config_name != "multilabel":
            return {"matthews_correlation": _matthews(references, predictions, sample_weight)}
        if average not in ("macro", None):
            raise ValueError(f"`average={average!r}` is not possible: give 'macro' or `None`.")
        columns = zip(np.transpose(references), np.transpose(predictions), strict=True)
        scores = [_matthews(right, predicted, sample_weight) for right, predicted in columns]
        return {"matthews_correlation": scores if average is None else float(np.mean(scores))}


class Pearsonr(LocalMetric):
    """Linear correlation."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Pearson correlation: how well a straight line maps one list of numbers to another.",
            citation=_SCIPY,
            inputs_description=_NUMBERS
            + """
Returns:
    pearsonr: From -1 to 1, 0 where it is not defined.
    p-value: If asked for.
""",
            features=_pairs("float64"),
        )

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float], return_pvalue: bool = False
    ) -> dict[str, float]:
        correlation, p_value = _pearson(predictions, references)
        return {"pearsonr": correlation, **({"p-value": p_value} if return_pvalue else {})}


class Spearmanr(LocalMetric):
    """Correlation of ranks."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Spearman correlation: the Pearson correlation of ranks, equal numbers having a mean rank.",
            citation=_SCIPY,
            inputs_description=_NUMBERS
            + """
Returns:
    spearmanr: From -1 to 1, 0 where it is not defined.
    spearmanr_pvalue: If asked for.
""",
            features=_pairs("float64"),
        )

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float], return_pvalue: bool = False
    ) -> dict[str, float]:
        correlation, p_value = _spearman(predictions, references)
        return {"spearmanr": correlation, **({"spearmanr_pvalue": p_value} if return_pvalue else {})}


class Glue(LocalMetric):
    """The metrics of a task of GLUE, which is the configuration."""

    CONFIGS = ("sst2", "mnli", "mnli_mismatched", "mnli_matched", "cola", "stsb", "mrpc", "qqp", "qnli", "rte", "wnli")
    CONFIGS += ("hans",)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="The metrics of a task of GLUE, the configuration.",
            citation=_GLUE,
            inputs_description="""
Args:
    predictions: Class indices; of "stsb" scores.
    references: The labels.

Returns:
    matthews_correlation: Of "cola".
    pearson, spearmanr: Of "stsb".
    f1: Of "mrpc" and "qqp".
    accuracy: Of these two and all other tasks.
""",
            features=_pairs("float64" if self.config_name == "stsb" else "int64"),
        )

    def _compute(self, predictions: Sequence, references: Sequence) -> dict[str, float]:
        if self.config_name == "cola":
            return {"matthews_correlation": _matthews(references, predictions)}
        if self.config_name == "stsb":
            return {
                "pearson": _pearson(predictions, references)[0],
                "spearmanr": _spearman(predictions, references)[0],
            }
        scores = {"accuracy": _accuracy(references, predictions)}
        if self.config_name in ("mrpc", "qqp"):
            scores["f1"] = _f1(references, predictions)
        return scores
