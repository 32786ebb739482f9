"""What models do besides computing; `checkpoint_features.py` stands for this module in checkpoints."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from .flops import CountsFlops
from .saving import SelfContained


AFTER_INIT: list[Callable[[PreTrainedModel], None]] = []
"""Functions that are called with every new model of this package, and again after it was moved or converted."""


class PackageFeatures(SelfContained, CountsFlops):
    """Base class of all models: checkpoints with code, and operation counts."""

    def post_init(self) -> None:
        """Call the functions in `AFTER_INIT` after Transformers' initialisation."""
        super().post_init()
        for function in AFTER_INIT:
            function(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What `to`, `half`, `cuda` and the like do; then call the functions in `AFTER_INIT`."""
        super()._apply(fn, recurse)
        for function in AFTER_INIT:
            function(self)
        return self
