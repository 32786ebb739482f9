"""What all metrics share."""

import os
from typing import Any

import datasets
import evaluate


class LocalMetric(evaluate.Metric):
    """A metric that keeps what it is given in memory, and writes no file, as long as it knows of one process only.

    Args:
        config_name: One of `CONFIGS`.
        keep_in_memory: `False` for a file in the cache folder of `evaluate`, as its own metrics have by default.
        options: Further arguments of `evaluate.Metric`.

    Raises:
        ValueError: If there is no such configuration, or, when computing, there is nothing to compute from.
    """

    #: Names of configurations; `"default"` needs no name.
    CONFIGS: tuple[str, ...] = ("default",)

    def __init__(self, config_name: str | None = None, keep_in_memory: bool | None = None, **options: Any):
        if (config_name or "default") not in self.CONFIGS:
            raise ValueError(
                f"`config_name={config_name!r}` is not possible for {type(self).__name__}: give one of "
                f"{', '.join(self.CONFIGS)}."
            )
        if keep_in_memory is None:
            keep_in_memory = options.get("num_process", 1) == 1
        super().__init__(config_name, keep_in_memory=keep_in_memory, **options)

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
