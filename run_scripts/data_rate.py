"""Measure how fast a training command reads and prepares its data, without a model.

    tokenmixers data_rate run_mlm recipe.yaml [--seconds 20] [arguments of run_mlm]

The measured time includes reading, shuffling, packing, masking and padding, and with `--streaming` also tokenizing,
which otherwise happens before training. Nothing is trained or written.
"""

import argparse
import importlib
import itertools
import time
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from .base.commands import TRAINING_COMMANDS
from .base.errors import UserError, refuse_arguments
from .base.ranges import check_ranges
from .base.reporting import print_table
from .training.trainer import ScriptTrainer, ScriptTrainerMixin


class _MeasuredError(Exception):
    """Ends a command before it trains, and carries the figures."""


def measure(trainer: ScriptTrainer, seconds: float) -> dict[str, float]:
    """Take batches from a Trainer's data loader for some time, over several epochs if there is time.

    Args:
        trainer: Its training data are read.
        seconds: Length of the measurement, with the time to the first batch.

    Returns:
        `rows_per_second`, for text `tokens_per_second` (tokens of the model's input without padding), and
        `seconds_to_first_batch`.
    """
    rows = tokens = 0
    start, first = time.perf_counter(), 0.0
    loader = trainer.get_train_dataloader()
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        rows += len(next(iter(batch.values())))
        if "attention_mask" in batch:
            tokens += int(batch["attention_mask"].sum())
        elif "input_ids" in batch:
            tokens += batch["input_ids"].numel()
        passed = time.perf_counter() - start
        first = first or passed
        if passed > seconds:
            break
    figures = {"rows_per_second": rows / passed, "seconds_to_first_batch": first}
    return figures | ({"tokens_per_second": tokens / passed} if tokens else {})


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; prints and returns the results of `measure`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s COMMAND [recipe.yaml] [--seconds SECONDS] [arguments of COMMAND]",
    )
    parser.add_argument(
        "script", metavar="command", choices=TRAINING_COMMANDS, help=f"One of {', '.join(TRAINING_COMMANDS)}."
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="How long to measure.")
    parser.error = refuse_arguments
    own, arguments = parser.parse_known_args(argv)
    check_ranges(own, ("a finite number above 0", "seconds"))

    def measure_instead(trainer: ScriptTrainer, *args: Any, **kwargs: Any) -> None:
        raise _MeasuredError(measure(trainer, own.seconds))

    script = importlib.import_module(f".{own.script}", __package__)
    with patch.object(ScriptTrainerMixin, "train", measure_instead), TemporaryDirectory() as folder:
        try:
            script.main([*arguments, "--output_dir", folder])
        except _MeasuredError as measured:
            (figures,) = measured.args
        else:
            raise UserError(f"{own.script} did not come to train: give it --do_train and training data.")
    print_table(("training data", "figure"), [(name.replace("_", " "), f"{n:,.1f}") for name, n in figures.items()])
    return figures


if __name__ == "__main__":
    main()
