"""Standard output that accepts any text, and ends the process when its reader is gone."""

import atexit
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any


def prepare_output() -> None:
    """Set standard output up for a command.

    Text that it cannot encode is escaped, like in standard error, instead of raising: redirected output on Windows
    has the encoding of its locale, which lacks most characters. Once its reader is gone, as `head` is after ten lines,
    the process ends quietly and with the status of other programs.
    """
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and output.errors == "strict":  # others are the user's choice
        output.reconfigure(errors="backslashreplace")
    if output is not None and output is sys.__stdout__ and hasattr(signal, "SIGPIPE"):  # Windows has none
        output.flush()
        raw = _Output(output.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            raw if output.write_through else io.BufferedWriter(raw),
            output.encoding,
            output.errors,
            line_buffering=output.line_buffering,
            write_through=output.write_through,
        )
        atexit.register(raw.end)


class _Output(io.FileIO):
    """A file whose reader may go away: the writing program then ends, after it has cleaned up."""

    is_read = True

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            return super().write(data) if self.is_read else len(data)
        except BrokenPipeError:
            self.is_read = False
            raise SystemExit(128 + signal.SIGPIPE) from None

    def end(self) -> None:
        """Write what is left. Without a reader, end by the signal for that, which Python ignores."""
        with suppress(SystemExit):
            sys.stdout.flush()
        if not self.is_read:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
