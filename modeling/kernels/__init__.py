"""Faster equivalents of layers on CPUs. They bind themselves to the modules of our models from outside.

In the manner of Transformers' `kernelize`, `KERNELS` maps the name of a module's class to the functions that can stand
in for its methods, and `use_kernels` sets them on the modules of one model. Which of them are used is measured on the
processor at hand (`measurement.py`); the models themselves know nothing of it. Without this folder, or with the
environment variable `TOKENMIXERS_KERNELS=0`, models run as they are written.
"""

import os
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, NamedTuple

from torch import nn

from ..layers.spatial_gating_unit import SpatialProjection
from ..mixins.attention_interface import UsesAttentionInterface
from . import attention, fourier, linear


class Kernel(NamedTuple):
    """A stand-in for a method.

    Attributes:
        method: Name of the method.
        reference: The method's own function. Classes with another one, of the same name, are left alone.
        function: The stand-in, which takes the module first.
        applies: Whether it gains anything for a module on this machine.
    """

    method: str
    reference: Callable[..., Any]
    function: Callable[..., Any]
    applies: Callable[[Any], bool]


_ATTENTION = Kernel(
    "attention_function",
    UsesAttentionInterface.attention_function,
    attention.attention_function,
    attention.applies,
)

KERNELS: dict[str, Kernel] = {
    "AMLPAttention": _ATTENTION,
    "SynthesizerAttention": _ATTENTION,
    "SynthesizerCrossAttention": _ATTENTION,
    "SpatialProjection": Kernel("forward", SpatialProjection.forward, fourier.forward, fourier.applies),
    "Linear": Kernel("forward", nn.Linear.forward, linear.forward, linear.applies),
}
"""Stand-in by name of the module's class."""


#: Attribute of modules whose kernels were switched off by the user.
_KEEPS_REFERENCE = "_keeps_reference"


def use_kernels(model: nn.Module, enabled: bool = True) -> None:
    """Bind the kernels to the modules of a model, or take them off for good.

    Models of this package have their kernels when they are built, unless `TOKENMIXERS_KERNELS` is `0`. Modules with a
    `forward` of their own (accelerate's hooks) are left alone.

    Args:
        model: Any module; changed in place.
        enabled: `False` to compute as the models are written.
    """
    for module, kernel in _modules_with_kernels(model):
        if enabled:
            module.__dict__.pop(_KEEPS_REFERENCE, None)
        else:
            module.__dict__[_KEEPS_REFERENCE] = True
        _set(module, kernel, enabled)


def bind(model: nn.Module) -> None:
    """Bind the kernels to a model on the CPU unless they were switched off; take them off models on other devices.

    There no kernel computes anything, and `torch.nn.DataParallel` copies modules with what is bound.
    """
    parameter = next(model.parameters(), None)
    is_on = os.environ.get("TOKENMIXERS_KERNELS", "1").lower() not in ("0", "false", "off", "no")
    on_cpu = parameter is None or parameter.device.type in ("cpu", "meta")
    for module, kernel in _modules_with_kernels(model):
        _set(module, kernel, is_on and on_cpu and _KEEPS_REFERENCE not in module.__dict__)


def _modules_with_kernels(model: nn.Module) -> Iterator[tuple[nn.Module, Kernel]]:
    for module in model.modules():
        kernel = KERNELS.get(type(module).__name__)
        if kernel is not None and getattr(type(module), kernel.method) is kernel.reference:
            yield module, kernel


def _set(module: nn.Module, kernel: Kernel, enabled: bool) -> None:
    present = getattr(module.__dict__.get(kernel.method), "__func__", None)
    if present is kernel.reference:  # of a pickled module with a kernel
        delattr(module, kernel.method)
    if enabled and kernel.method not in module.__dict__ and kernel.applies(module):
        setattr(module, kernel.method, MethodType(kernel.function, module))
    elif not enabled and present is kernel.function:
        delattr(module, kernel.method)
    if not enabled and getattr(module.__dict__.get("_old_forward"), "__func__", None) is kernel.function:
        module.__dict__["_old_forward"] = MethodType(kernel.reference, module)  # below accelerate's hooks
