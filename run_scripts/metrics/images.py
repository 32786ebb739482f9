"""Metrics of image classifiers: top-5 accuracy. Their accuracy is the `accuracy` of all classifiers."""

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np

from .local_metric import LocalMetric


class TopKAccuracy(LocalMetric):
    """Share of examples whose right class is among the k best."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of examples whose right class is among the k classes with the highest scores.",
            citation="""@article{russakovsky2015imagenet,
  title={{ImageNet} Large Scale Visual Recognition Challenge},
  author={Russakovsky, Olga and others},
  journal={International Journal of Computer Vision},
  volume={115},
  pages={211--252},
  year={2015}
}
""",
            inputs_description="""
Args:
    predictions: Class indices of every example, best first, at least k: `scores.argsort(axis=-1)[:, ::-1][:, :k]`.
    references: The class of every example.
    k: Classes that count.

Returns:
    top_k_accuracy: From 0 to 1.
""",
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("int64")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(
        self, predictions: Sequence[Sequence[int]], references: Sequence[int], k: int = 5
    ) -> dict[str, float]:
        if k < 1 or any(len(row) < k for row in predictions):
            raise ValueError(
                f"`k={k}` must be at least 1, and not more than the {min(map(len, predictions))} classes that are "
                "given for an example."
            )
        right = [label in row[:k] for row, label in zip(predictions, references, strict=True)]
        return {"top_k_accuracy": float(np.mean(right))}
