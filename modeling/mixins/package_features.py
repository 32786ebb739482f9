"""What models do besides computing; in a checkpoint, `checkpoint_features.py` takes the place of this module."""

from collections.abc import Callable

from transformers import PreTrainedModel

from .flops import CountsFlops
from .saving import SelfContained


AFTER_INIT: list[Callable[[PreTrainedModel], None]] = []
"""Functions that are called with every new model of this package, at the end of its `post_init`."""


class PackageFeatures(SelfContained, CountsFlops):
    """Base class of all models: checkpoints with code, and operation counts."""

    def post_init(self) -> None:
        """Call the functions in `AFTER_INIT` after Transformers' initialisation."""
        super().post_init()
        for function in AFTER_INIT:
            function(self)
