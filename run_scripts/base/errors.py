"""Errors that end a command with one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from safetensors import SafetensorError


_LINE_BREAK = re.compile(r"\s*\n\s*")  # in messages of other libraries


class UserError(SystemExit):
    """A mistake in the user's input. Commands end with the message alone and exit status 1."""

    def __init__(self, message: str):
        super().__init__(f"error: {_LINE_BREAK.sub(' ', message)}")


def refuse_arguments(message: str) -> NoReturn:
    """For `ArgumentParser.error`: one sentence, instead of a usage text of hundreds of lines.

    Raises:
        UserError: Always.
    """
    raise UserError(f"{message.rstrip('.')}. See --help.")


class BadDataError(ValueError):
    """Damaged data, found while reading; `report_bad_data` turns it into a `UserError`.

    A `UserError` itself is a `SystemExit`, which would end a data loader's worker without a message.
    """


@contextmanager
def report_unreadable(name: str) -> Iterator[None]:
    """Turn what Transformers raises for a model, tokenizer or file that is missing or wrong into a `UserError`."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{name!r} cannot be loaded: {error}") from error


@contextmanager
def report_bad_data() -> Iterator[None]:
    """Turn a `BadDataError`, also one of a worker with its traceback, into a `UserError`."""
    try:
        yield
    except BadDataError as error:
        raise UserError(str(error).rpartition("BadDataError: ")[2].strip()) from error
