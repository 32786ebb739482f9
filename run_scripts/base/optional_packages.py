"""Packages that only some commands need, and how to install them."""

import importlib
import importlib.metadata
from types import ModuleType

from .errors import UserError


def install_hint(extra: str) -> str:
    """How to get the packages of an extra: by their own names or from a checkout, as no package index has this one."""
    from_checkout = f"pip install '.[{extra}]' in a checkout of tokenmixers"
    try:
        requirements = importlib.metadata.requires("tokenmixers") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder
        return from_checkout
    wanted = [name.partition(";")[0].strip() for name in requirements if f'extra == "{extra}"' in name]
    return f"pip install {' '.join(map(repr, wanted))}, or {from_checkout}" if wanted else from_checkout


def import_optional(module: str, extra: str, purpose: str) -> ModuleType:
    """A package that only some uses need.

    Args:
        module: What to import.
        extra: The extra of this package that brings it.
        purpose: What needs it, for the message.

    Raises:
        UserError: If it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    # A RuntimeError is what a torchvision raises that was built for another torch.
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"{purpose} needs {module}, which cannot be imported ({error}): {install_hint(extra)}."
        ) from error
