"""Evaluate decoders and encoder-decoders with lm-evaluation-harness.

    tokenmixers lm_eval --model hf --model_args pretrained=outputs/run --tasks local_perplexity --metadata JSON
    tokenmixers lm_eval ls tasks

This is the program `lm_eval` with the models of this package and the tasks of `lm_eval_tasks/`, which read the file
that JSON names: '{"file": "held_out.txt"}'. All arguments are those of `lm_eval`. It needs the extra `eval`.
"""

import argparse
import sys

import tokenmixers  # noqa: F401  (registers the models)

from .base.optional_packages import import_optional
from .base.shipped_files import LM_EVAL_TASKS


def main(argv: list[str] | None = None) -> None:
    """Entry point; prints a table of results.

    Raises:
        UserError: If lm-evaluation-harness is not installed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Arguments of lm_eval.")
    given = list(sys.argv[1:] if argv is None else argv)
    if given in ([], ["-h"], ["--help"]):
        parser.print_help()
        return
    harness = import_optional("lm_eval.__main__", "eval", "lm_eval")
    if not any(argument.partition("=")[0] == "--include_path" for argument in given):
        given += ["--include_path", str(LM_EVAL_TASKS)]
    kept, sys.argv = sys.argv, ["lm_eval", *given]  # it takes no arguments itself
    try:
        harness.cli_evaluate()
    finally:
        sys.argv = kept


if __name__ == "__main__":
    main()
