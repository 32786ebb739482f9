"""Evaluate decoders and encoder-decoders with lm-evaluation-harness.

    tokenmixers lm_eval --model hf --model_args pretrained=outputs/run --tasks local_perplexity --metadata JSON
    tokenmixers lm_eval ls tasks

This is the program `lm_eval` with the models of this package and the tasks of `lm_eval_tasks/`, which read the file
that JSON names: '{"file": "held_out.txt"}'. All arguments are those of `lm_eval`. It needs the extra `eval`.
"""

import argparse
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.output import prepare_output
from .base.shipped_files import LM_EVAL_TASKS
from .base.trained_model import check_complete, check_folder, checked_loading


@contextmanager
def _texts_begin_with_cls(model_class: Any) -> Iterator[None]:
    """For tokenizers without BOS and EOS, such as BERT's, let texts begin after [CLS], as rows of `run_clm` do."""
    kept = model_class.prefix_token_id

    def prefix_token_id(model: Any) -> int:
        found = kept.fget(model)
        found = model.tokenizer.cls_token_id if found is None else found
        if found is None:
            raise UserError(
                "the tokenizer has neither BOS nor EOS nor [CLS] for a text to begin after: add prefix_token_id=ID "
                "to --model_args."
            )
        return found

    with patch.object(model_class, "prefix_token_id", property(prefix_token_id)):
        yield


def _check(name: str, missing: Iterable[str]) -> None:
    """Refuse checkpoints that lack weights of a language model: scores of random ones mean nothing."""
    check_folder(name)
    check_complete(name, missing)


@contextmanager
def _report_wrong_calls() -> Iterator[None]:
    """Turn what the harness raises for wrong arguments, files and models into a `UserError`.

    Once `lm_eval.evaluator.evaluate` runs, models and tasks are loaded: what it raises are errors of the program.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        called = {(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in frames}
        if ("lm_eval.evaluator", "evaluate") in called:
            raise
        raise UserError(str(error)) from error


def main(argv: list[str] | None = None) -> None:
    """Entry point; prints a table of results."""
    prepare_output()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Arguments of lm_eval.")
    given = list(sys.argv[1:] if argv is None else argv)
    if given in ([], ["-h"], ["--help"]):
        parser.print_help()
        return
    import_optional("lm_eval", "eval", "this command")  # first, so that the message names the package
    models = import_optional("lm_eval.models.huggingface", "eval", "this command")
    harness = import_optional("lm_eval.__main__", "eval", "this command")
    if not any(argument.partition("=")[0] == "--include_path" for argument in given):
        given += ["--include_path", str(LM_EVAL_TASKS)]
    arguments = patch.object(sys, "argv", ["lm_eval", *given])  # it takes none itself
    with arguments, _report_wrong_calls(), checked_loading(_check), _texts_begin_with_cls(models.HFLM):
        harness.cli_evaluate()


if __name__ == "__main__":
    main()
