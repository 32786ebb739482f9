"""Standard output that accepts any text."""

import io
import sys


def escape_unencodable() -> None:
    """Escape text that standard output cannot encode, like standard error does, instead of raising.

    Redirected output on Windows has the encoding of its locale, which lacks most characters.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":  # others are the user's choice
        sys.stdout.reconfigure(errors="backslashreplace")
