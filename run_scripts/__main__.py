"""The command `tokenmixers`, which lists the commands of this package and runs them.

    tokenmixers --help
    tokenmixers run_mlm quickstart.yaml --output_dir outputs/run
    python -m tokenmixers.run_scripts run_mlm quickstart.yaml --output_dir outputs/run

`tokenmixers NAME ...` does the same as `python -m tokenmixers.run_scripts.NAME ...`, the form that `torchrun -m` and
`accelerate launch -m` need. The list is made without importing torch.
"""

import difflib
import functools
import importlib
import sys
from collections.abc import Sequence

from tokenmixers import __version__

from .base.commands import COMMANDS, GROUPS, TRAINING_COMMANDS, describe, module_of
from .base.output import escape_unencodable


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
    """An exception hook: one sentence for Ctrl-C."""
    hint = " The same command continues it from its newest checkpoint." if command in TRAINING_COMMANDS else ""
    print(f"\n{command} was interrupted.{hint}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point.

    Args:
        argv: The command's name and its arguments; `sys.argv[1:]` by default.

    Raises:
        SystemExit: With status 2 if there is no such command; otherwise as the command ends.
    """
    escape_unencodable()
    command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(overview())
    elif command == "--version":
        print(f"tokenmixers {__version__}")
    elif command in COMMANDS:
        sys.argv = [f"tokenmixers {command}", *arguments]  # usage texts name the program by the first
        try:
            importlib.import_module(module_of(command)).main()
        except KeyboardInterrupt:
            # Only the traceback is replaced: Python then ends as by the signal, so that loops of a shell end too.
            sys.excepthook = functools.partial(_report_interruption, command)
            raise
    else:
        near = difflib.get_close_matches(command, COMMANDS, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        print(f"error: tokenmixers has no command {command!r}.{hint} See tokenmixers --help.", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
