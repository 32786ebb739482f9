"""The command `tokenmixers`, which lists the commands of this package and runs them.

    tokenmixers --help
    tokenmixers run_mlm quickstart.yaml --output_dir outputs/run
    python -m tokenmixers.run_scripts run_mlm quickstart.yaml --output_dir outputs/run

`tokenmixers NAME ...` does the same as `python -m tokenmixers.run_scripts.NAME ...`, the form that `torchrun -m` and
`accelerate launch -m` need. The list is made without importing torch.
"""

import atexit
import difflib
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence

from tokenmixers import __version__

from .base.commands import COMMANDS, GROUPS, SMALL_DATA, TRAINING_COMMANDS, describe, module_of
from .base.help_text import help_text
from .base.output import prepare_output


USAGE = """usage: tokenmixers COMMAND [arguments]
       tokenmixers COMMAND --help
       tokenmixers --version
"""


def overview() -> str:
    """The text of `tokenmixers --help`: every command with its description, in groups."""
    width = max(map(len, COMMANDS))
    lines = [USAGE]
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {command:{width}}  {describe(command)}" for command in commands), ""]
    return "\n".join(lines).rstrip()


def _report_interruption(command: str, *_: object) -> None:
    """An exception hook: one or two sentences for Ctrl-C instead of a traceback."""
    hint = ""
    if command in ("study", "evaluate_embeddings"):
        hint = " The same command goes on with it."
    elif command in TRAINING_COMMANDS:
        hint = " If it has saved a checkpoint, the same command continues from the newest."
    print(f"\n{command} was interrupted.{hint}", file=sys.stderr)


def _end_by_signal(interrupted: threading.Event) -> None:
    """End as Ctrl-C ends a process, so that loops of a shell end too. Python forgets to, once PyTorch is imported."""
    if interrupted.is_set():
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point.

    Args:
        argv: The command's name and its arguments; `sys.argv[1:]` by default.

    Raises:
        SystemExit: With status 2 if there is no such command; otherwise as the command ends.
    """
    prepare_output()
    command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(overview())
    elif command == "--version":
        print(f"tokenmixers {__version__}")
    elif command in TRAINING_COMMANDS and {"--help", "-h"} & {*arguments}:
        print(help_text(command))  # without the seconds that importing the command takes
        raise SystemExit(0)
    elif command in COMMANDS:
        sys.argv = [f"tokenmixers {command}", *arguments]  # usage texts name the program by the first
        interrupted = threading.Event()
        atexit.register(_end_by_signal, interrupted)  # first, so it runs after all that the command registers
        try:
            importlib.import_module(module_of(command)).main()
        except KeyboardInterrupt:
            interrupted.set()
            sys.excepthook = functools.partial(_report_interruption, command)
            raise
    else:
        near = difflib.get_close_matches(command, COMMANDS, n=3)
        if command in SMALL_DATA:  # was a command of its own
            near = [f"make_data {command}"]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        print(f"error: tokenmixers has no command {command!r}.{hint} See tokenmixers --help.", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
