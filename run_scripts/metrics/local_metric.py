"""A function of predictions and references as an `evaluate.Metric`."""

import inspect
import os
from typing import TYPE_CHECKING, Any

import datasets
import evaluate


if TYPE_CHECKING:
    from . import Definition


def _feature(kind: Any) -> Any:
    if isinstance(kind, str):
        return datasets.Value(kind)
    if isinstance(kind, list):
        return datasets.Sequence(_feature(kind[0]))
    return {name: _feature(part) for name, part in kind.items()}


class LocalMetric(evaluate.Metric):
    """A metric that keeps what it is given in memory, and writes no file.

    Args:
        config_name: `None`, or `"multilabel"` if predictions are class indices.

    Raises:
        ValueError: If there is no such configuration, or, when computing, there is nothing to compute from.
    """

    definition: "Definition"

    def __init__(self, config_name: str | None = None):
        possible = ["default", *(["multilabel"] if self.definition[1:3] == ("int64", "int64") else [])]
        if (config_name or "default") not in possible:
            raise ValueError(f"`config_name={config_name!r}` is not possible here: give one of {', '.join(possible)}.")
        super().__init__(config_name, keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        _, predictions, references, *_ = self.definition
        if self.config_name == "multilabel":
            predictions = references = ["int64"]
        several = references if isinstance(references, tuple) else (references,)
        features = [
            datasets.Features({"predictions": _feature(predictions), "references": _feature(each)}) for each in several
        ]
        description, _, arguments = (inspect.getdoc(self.definition.compute) or "").partition("\n\n")
        return evaluate.MetricInfo(
            description=description,
            citation="",
            inputs_description=arguments,
            features=features if len(features) > 1 else features[0],
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> dict[str, Any]:
        """The scores of these predictions, or of those of `add_batch`."""
        if self.writer is None and any(values is None or not len(values) for values in (predictions, references)):
            raise ValueError(
                f"{self.name}: give `predictions` and `references`, at least one of each, or call `add_batch` before."
            )
        return super().compute(predictions=predictions, references=references, **options)

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        return self.definition.compute(predictions, references, **options)

    def _build_data_dir(self) -> str:
        """Where files would be: `evaluate` would make the folder."""
        return os.path.join(self._data_dir_root, self.name, self.config_name)
