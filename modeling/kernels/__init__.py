"""Faster equivalents of layers on CPUs. They bind themselves to the modules of our models from outside.

In the manner of Transformers' `kernelize`, `KERNELS` maps the name of a module's class to the functions that can stand
in for its methods, and `use_kernels` sets them on the modules of one model. Which of them are used is measured on the
processor at hand (`measurement.py`); the models themselves know nothing of it. Without this folder, or with the
environment variable `TOKENMIXERS_KERNELS=0`, models run as they are written.
"""

import os
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

from torch import nn

from . import attention, fourier, linear


class Kernel(NamedTuple):
    """A stand-in for a method.

    Attributes:
        method: Name of the method, whose own function is the reference.
        function: The stand-in, which takes the module first.
        applies: Whether it gains anything for a module on this machine.
    """

    method: str
    function: Callable[..., Any]
    applies: Callable[[Any], bool]


_ATTENTION = Kernel("attention_function", attention.attention_function, attention.applies)

KERNELS: dict[str, Kernel] = {
    "AMLPAttention": _ATTENTION,
    "SynthesizerAttention": _ATTENTION,
    "SynthesizerCrossAttention": _ATTENTION,
    "SpatialProjection": Kernel("forward", fourier.forward, fourier.applies),
    "Linear": Kernel("forward", linear.forward, linear.applies),
}
"""Stand-in by name of the module's class."""


def use_kernels(model: nn.Module, enabled: bool = True) -> None:
    """Bind the kernels to the modules of a model, or take them off again.

    Models of this package have had this call when they were built, unless `TOKENMIXERS_KERNELS` is `0`. Modules with
    a `forward` of their own (accelerate's hooks) are left alone.

    Args:
        model: Any module; changed in place.
        enabled: `False` to compute as the models are written.
    """
    for module in model.modules():
        kernel = KERNELS.get(type(module).__name__)
        if kernel is None:
            continue
        bound = module.__dict__.get(kernel.method)
        if bound is None and enabled and kernel.applies(module):
            setattr(module, kernel.method, MethodType(kernel.function, module))
        elif getattr(bound, "__func__", None) is kernel.function and not enabled:
            delattr(module, kernel.method)


def bind(model: nn.Module) -> None:
    """`use_kernels` for models on the CPU, unless the environment says otherwise; others lose their kernels.

    On other devices no kernel computes anything, and `torch.nn.DataParallel` copies modules with what is bound.
    """
    parameter = next(model.parameters(), None)
    is_off = os.environ.get("TOKENMIXERS_KERNELS", "1").lower() in ("0", "false", "off", "no")
    on_cpu = parameter is None or parameter.device.type in ("cpu", "meta")
    use_kernels(model, enabled=on_cpu and not is_off)
