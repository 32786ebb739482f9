"""Errors that end a command with one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(SystemExit):
    """A mistake in what the user gave. Scripts end with the message alone and exit status 1."""

    def __init__(self, message: str):
        super().__init__(f"error: {message}")


class BadDataError(ValueError):
    """Damaged data, found while they are read; `report_bad_data` makes a `UserError` of it.

    That is no ordinary exception, so it would end a data loader's worker without a word.
    """


@contextmanager
def report_bad_data() -> Iterator[None]:
    """Turn a `BadDataError`, also one of a worker with its traceback, into a `UserError`."""
    try:
        yield
    except BadDataError as error:
        raise UserError(str(error).rpartition("BadDataError: ")[2].strip()) from error
