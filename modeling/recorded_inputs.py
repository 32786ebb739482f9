"""Record the inputs of modules while a model runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def record_inputs(modules: Iterable[nn.Module]) -> Iterator[dict[nn.Module, tuple[Any, ...]]]:
    """Collect the positional arguments of each module's last call, by module, within the context.

    Args:
        modules: Modules of a model whose forward pass is not compiled.
    """
    inputs: dict[nn.Module, tuple[Any, ...]] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[module] = arguments

    handles = [module.register_forward_pre_hook(record) for module in modules]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()
