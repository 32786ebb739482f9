"""Errors that end a command with one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


_LINE_BREAK = re.compile(r"\s*\n\s*")  # in messages of other libraries


class UserError(SystemExit):
    """A mistake in the user's input. Commands end with the message alone and exit status 1."""

    def __init__(self, message: str):
        super().__init__(f"error: {_LINE_BREAK.sub(' ', message)}")


class BadDataError(ValueError):
    """Damaged data, found while reading; `report_bad_data` turns it into a `UserError`.

    A `UserError` itself is a `SystemExit`, which would end a data loader's worker without a message.
    """


@contextmanager
def report_bad_data() -> Iterator[None]:
    """Turn a `BadDataError`, also one of a worker with its traceback, into a `UserError`."""
    try:
        yield
    except BadDataError as error:
        raise UserError(str(error).rpartition("BadDataError: ")[2].strip()) from error
