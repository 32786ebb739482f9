"""Errors that end a command with a one-sentence message."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from safetensors import SafetensorError


_LINE_BREAK = re.compile(r"\s*\n\s*")  # in messages of other libraries


class UserError(SystemExit):
    """A mistake in the user's input. Commands print only the message and exit with status 1."""

    def __init__(self, message: str):
        super().__init__(f"error: {_LINE_BREAK.sub(' ', message)}")


def refuse_arguments(message: str) -> NoReturn:
    """Replace `ArgumentParser.error`: raise one sentence instead of printing hundreds of lines of usage."""
    raise UserError(f"{message.rstrip('.')}. See --help.")


class BadDataError(ValueError):
    """Damaged data found while reading; `report_bad_data` turns it into a `UserError`.

    A `UserError` itself is a `SystemExit`, which would end a data loader's worker without a message.
    """


@contextmanager
def report_unreadable(name: str) -> Iterator[None]:
    """Turn Transformers' exceptions for missing or wrong models, tokenizers or files into a `UserError`."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{name!r} cannot be loaded: {error}") from error


@contextmanager
def report_bad_data() -> Iterator[None]:
    """Turn a `BadDataError`, also from a worker with its traceback, into a `UserError`."""
    try:
        yield
    except BadDataError as error:
        raise UserError(str(error).rpartition("BadDataError: ")[2].strip()) from error
