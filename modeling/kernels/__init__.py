"""Faster CPU implementations of layers, which are attached to a model's modules from outside.

Like Transformers' `kernelize`, `KERNELS` maps the name of a module's class to functions that can replace its methods,
and `use_kernels` sets them on the modules of a model. Measurements on the current processor decide which kernels are
used (`measurement.py`); the models do not know about them. Without this folder, or with the environment variable
`TOKENMIXERS_KERNELS=0`, models run in plain PyTorch.
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
    """A replacement for a method.

    Attributes:
        method: Name of the method.
        reference: The original function. Classes whose method is another function are left alone.
        function: The replacement, whose first argument is the module.
        applies: Whether the kernel is faster for a module on this machine.
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
    "HybridBertAttention": _ATTENTION,
    "SynthesizerAttention": _ATTENTION,
    "SynthesizerCrossAttention": _ATTENTION,
    "SpatialProjection": Kernel("forward", SpatialProjection.forward, fourier.forward, fourier.applies),
    "Linear": Kernel("forward", nn.Linear.forward, linear.forward, linear.applies),
}
"""Name of a module's class -> its kernels."""


#: Attribute of modules whose kernels the user disabled.
_KEEPS_REFERENCE = "_keeps_reference"


def use_kernels(model: nn.Module, enabled: bool = True) -> None:
    """Attach kernels to the modules of a model, or remove them permanently.

    Models of this package get their kernels when they are built, unless `TOKENMIXERS_KERNELS` is `0`. Modules whose
    `forward` was replaced (accelerate's hooks) are left alone.

    Args:
        model: Any module; changed in place.
        enabled: `False` to run the model in plain PyTorch.
    """
    for module, kernel in _modules_with_kernels(model):
        if enabled:
            module.__dict__.pop(_KEEPS_REFERENCE, None)
        else:
            module.__dict__[_KEEPS_REFERENCE] = True
        _set(module, kernel, enabled)


def bind(model: nn.Module) -> None:
    """Attach kernels to a model on the CPU unless they were disabled; remove them from models on other devices.

    Kernels do nothing on other devices, but `torch.nn.DataParallel` would copy modules together with them.
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
    if present is kernel.reference:  # from a pickled module with a kernel
        delattr(module, kernel.method)
    if enabled and kernel.method not in module.__dict__ and kernel.applies(module):
        setattr(module, kernel.method, MethodType(kernel.function, module))
    elif not enabled and present is kernel.function:
        delattr(module, kernel.method)
    if not enabled and getattr(module.__dict__.get("_old_forward"), "__func__", None) is kernel.function:
        module.__dict__["_old_forward"] = MethodType(kernel.reference, module)  # below accelerate's hooks
