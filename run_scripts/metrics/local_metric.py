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
    """A metric that keeps what it is given in memory, and writes no file, as long as it knows of one process only.

    Args:
        config_name: `None`, or `"multilabel"` if predictions are class indices.
        keep_in_memory: `False` for a file in the cache folder of `evaluate`, as its own metrics have by default.
        options: Further arguments of `evaluate.Metric`.

    Raises:
        ValueError: If there is no such configuration, or, when computing, there is nothing to compute from.
    """

    definition: "Definition"

    def __init__(self, config_name: str | None = None, keep_in_memory: bool | None = None, **options: Any):
        possible = ["default", *(["multilabel"] if self.definition[1:3] == ("int64", "int64") else [])]
        if (config_name or "default") not in possible:
            raise ValueError(f"`config_name={config_name!r}` is not possible here: give one of {', '.join(possible)}.")
        if keep_in_memory is None:
            keep_in_memory = options.get("num_process", 1) == 1
        super().__init__(config_name, keep_in_memory=keep_in_memory, **options)

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

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        return self.definition.compute(predictions, references, **options)

    def _build_data_dir(self) -> str:
        """Where files would be: the folder is made only if there will be any."""
        if self.keep_in_memory:
            return os.path.join(self._data_dir_root, self.name, self.config_name)
        return super()._build_data_dir()

    def _infer_feature_from_batch(self, batch: dict[str, Any]) -> datasets.Features:
        if any(column is None or len(column) == 0 for column in batch.values()):
            raise ValueError(self._nothing())
        return super()._infer_feature_from_batch(batch)

    def _finalize(self) -> None:
        if self.writer is None and self.process_id == 0:
            raise ValueError(self._nothing())
        super()._finalize()

    def _nothing(self) -> str:
        return f"{self.name}: give `predictions` and `references`, at least one of each, or call `add_batch` before."


def local_metric(name: str, definition: "Definition", config_name: str | None = None, **options: Any) -> LocalMetric:
    """A metric of this name: `evaluate` takes it from the class."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return type(class_name, (LocalMetric,), {"definition": definition})(config_name, **options)
