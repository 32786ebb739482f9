"""Features of models beyond the forward pass; checkpoints contain `checkpoint_features.py` instead of this module."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel

from .flops import CountsFlops
from .saving import SelfContained


AFTER_INIT: list[Callable[[PreTrainedModel], None]] = []
"""Functions called with every new model of this package, and again after its parameters are replaced."""

_REPLACE_PARAMETERS = ("resize_token_embeddings", "resize_position_embeddings", "to_full_spatial_weights")


class PackageFeatures(SelfContained, CountsFlops):
    """Base class of all models: checkpoints with code, and FLOP counts."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make resizing methods call the functions in `AFTER_INIT` at their end."""
        super().__init_subclass__(**kwargs)
        for name in _REPLACE_PARAMETERS:
            method = getattr(cls, name, None)
            if method is not None and not hasattr(method, "__wrapped__"):
                setattr(cls, name, _with_after_init(method))

    def post_init(self) -> None:
        """Call the functions in `AFTER_INIT` after Transformers' initialisation."""
        super().post_init()
        _call_after_init(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Apply `to`, `half`, `cuda` etc., then call the functions in `AFTER_INIT`."""
        super()._apply(fn, recurse)
        _call_after_init(self)
        return self


def _call_after_init(model: PreTrainedModel) -> None:
    for function in AFTER_INIT:
        function(model)


def _with_after_init(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        _call_after_init(self)
        return result

    return call
