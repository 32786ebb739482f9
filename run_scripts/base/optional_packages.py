"""Packages that only some commands need, and how to install them."""

import importlib
import importlib.metadata
from types import ModuleType

from .errors import UserError


def install_hint(extra: str) -> str:
    """How to install the packages of an extra, by name or as an extra of a checkout."""
    from_checkout = f"pip install '.[{extra}]' in a checkout of tokenmixers"
    try:
        requirements = importlib.metadata.requires("tokenmixers") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder
        return from_checkout
    wanted = [name.partition(";")[0].strip() for name in requirements if f'extra == "{extra}"' in name]
    return f"pip install {' '.join(map(repr, wanted))}, or {from_checkout}" if wanted else from_checkout


def import_optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that only some commands need."""
    try:
        return importlib.import_module(module)
    # A torchvision that was built for another torch raises a RuntimeError.
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"{purpose} needs {module}, which cannot be imported ({error}): {install_hint(extra)}."
        ) from error
