"""Grids of runs: every combination of learning rates, batch sizes and seeds, and a summary of the results.

Papers on finetuning report the median over seeds of the best hyper-parameters. Each run has a folder of its own in the
output folder. Finished runs are not repeated, and an interrupted run is resumed.
"""

import copy
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils.memory import clear_device_cache
from transformers import TrainingArguments

from ..base.errors import UserError
from ..base.ranges import check_ranges
from ..base.reporting import print_table
from ..base.trained_model import model_fingerprint
from .model_card import HYPER_PARAMETERS
from .run_folder import FILES_OF, GridFolder, finished_results, write_atomically


GRID_RESULTS = "grid_results.json"

#: Results of which lower ones are better, without `eval_`.
LOWER_IS_BETTER = ("perplexity", "loss")

#: Hyper-parameters that may differ between the runs of a grid, or between attempts at one.
_VARIED = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size", "seed")


@dataclass
class GridArguments:
    """Several runs instead of one, each in a sub-folder of the output folder."""

    seeds: list[int] | None = field(default=None, metadata={"help": "A run for each seed; medians are reported."})
    learning_rates: list[float] | None = field(default=None, metadata={"help": "Runs for each peak learning rate."})
    batch_sizes: list[int] | None = field(
        default=None, metadata={"help": "Runs for each number of rows a step, all processes together."}
    )

    def __post_init__(self):
        for name, values in vars(self).items():
            if values is not None and len(set(values)) < len(values):
                raise UserError(f"--{name} takes different numbers; got {values!r}.")
        check_ranges(self, ("from 0 to 4294967295", "seeds"), ("a finite number of at least 0", "learning_rates"))
        check_ranges(self, ("at least 1", "batch_sizes"))

    @property
    def is_used(self) -> bool:
        """Whether there are several runs."""
        return any(values is not None for values in vars(self).values())


@dataclass(frozen=True)
class Comparison:
    """How the runs of a grid are compared.

    Args:
        metrics: Names of the results to report, without `eval_`. Those that the runs do not have are left out, and the
            first of the others is compared: of `LOWER_IS_BETTER` the lowest is the best, else the highest.
        by_mean: Whether the mean of all these results is compared instead, as on GLUE.
        scale: Factor in the printed table, 100 for fractions.
    """

    metrics: Sequence[str]
    by_mean: bool = False
    scale: float = 1.0

    def values(self, results: Mapping[str, Any]) -> dict[str, float]:
        """The results to report, under their names with `eval_`, and `score`, what is compared."""
        found = {f"eval_{name}": results[f"eval_{name}"] for name in self.metrics if f"eval_{name}" in results}
        values = list(found.values())
        return found | {"score": sum(values) / len(values) if self.by_mean else values[0]}

    def best(self, configurations: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The configuration with the best `score`; one that is not a number is the worst."""
        sign = -1.0 if self.compared(configurations[0]) in LOWER_IS_BETTER else 1.0
        return max(configurations, key=lambda found: (not math.isnan(found["score"]), sign * found["score"]))

    def compared(self, values: Mapping[str, Any]) -> str:
        """What `score` is, in words."""
        return "mean of the metrics" if self.by_mean else next(n for n in self.metrics if f"eval_{n}" in values)


def plan(grid: GridArguments, args: TrainingArguments, shared: Sequence[Any] = ()) -> list[Any]:
    """The training arguments of every run.

    Args:
        grid: The values to combine.
        args: All other arguments.
        shared: The command's other argument dataclasses, whose values must be equal in all runs.
    """
    if not (args.do_train and args.do_eval):
        raise UserError("--seeds, --learning_rates and --batch_sizes need --do_train and --do_eval.")
    for name in ("push_to_hub", "do_predict", "resume_from_checkpoint"):
        if getattr(args, name):
            raise UserError(
                f"--{name} is for a single run. Do it afterwards with the best one, given as --model_name_or_path."
            )
    folder = GridFolder(Path(args.output_dir), _settings(args, shared), args.seed)
    parts = args.world_size * args.gradient_accumulation_steps
    runs = []
    for rate, size, seed in itertools.product(
        grid.learning_rates or [args.learning_rate],
        grid.batch_sizes or [args.per_device_train_batch_size * parts],
        grid.seeds or [args.seed],
    ):
        if size < parts or size % parts:
            raise UserError(
                f"--batch_sizes {size} cannot be divided into {parts} equal parts, one for each process and "
                "accumulation step."
            )
        run: Any = copy.copy(args)
        run.learning_rate, run.per_device_train_batch_size, run.seed = rate, size // parts, seed
        if grid.learning_rates is not None:
            run.rate_reason, run.default_rate = None, None
        run.output_dir = str(folder.path / f"lr{rate:.15g}_batch{size}_seed{seed}")
        run.run_name = Path(run.output_dir).name
        run.grid = folder
        runs.append(run)
    return runs


def _settings(args: TrainingArguments, shared: Sequence[Any]) -> dict[str, Any]:
    """What must be equal in all runs, as JSON has it."""
    settings = {name: value for arguments in shared for name, value in vars(arguments).items()}
    settings.pop("token", None)  # is secret
    settings |= {name: getattr(args, name) for name in HYPER_PARAMETERS if name not in _VARIED}
    for name in ("teacher", "model_name_or_path"):
        if settings.get(name) and Path(settings[name]).is_dir():  # where another model may come
            settings[f"{FILES_OF}{name}"] = model_fingerprint(settings[name])
    return json.loads(json.dumps(settings, default=str))


def run_all(
    runs: Sequence[Any], run_once: Callable[[Any], Mapping[str, Any]], comparison: Comparison
) -> dict[str, Any]:
    """Perform all runs that are not finished, and write and print a summary.

    Args:
        runs: From `plan`.
        run_once: Performs one run and returns its results. Its model is freed before the next run.
        comparison: How to compare the runs.

    Returns:
        The content of `grid_results.json`: the `runs`, the `configurations` with their medians over seeds, and the
        `best` one.
    """
    # Read by all processes before any of them finishes a run.
    finished = [finished_results(args.output_dir) for args in runs]
    outcomes = []
    for number, (args, results) in enumerate(zip(runs, finished, strict=True), start=1):
        if args.process_index == 0:
            state = "finished before" if results else "starts"
            print(f"run {number} of {len(runs)}, {Path(args.output_dir).name}: {state}", flush=True)
        if not results:
            results = run_once(args)
            clear_device_cache(garbage_collection=True)  # a Trainer and its model refer to each other
        outcomes.append((args, comparison.values(results)))
    summary = summarise(outcomes, comparison)
    if runs[0].process_index == 0:
        write_atomically(runs[0].grid.path / GRID_RESULTS, json.dumps(summary, indent=2) + "\n")
        print_summary(summary, comparison)
    return summary


def summarise(outcomes: Sequence[tuple[Any, Mapping[str, float]]], comparison: Comparison) -> dict[str, Any]:
    """Medians over seeds, and the configuration with the best one.

    Args:
        outcomes: The arguments of each run, and its `Comparison.values`.
        comparison: How to compare the runs.
    """
    runs = [
        {
            "folder": Path(args.output_dir).name,
            "learning_rate": args.learning_rate,
            "batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "seed": args.seed,
            **values,
        }
        for args, values in outcomes
    ]
    configurations = []
    for rate, size in dict.fromkeys((run["learning_rate"], run["batch_size"]) for run in runs):
        group = [run for run in runs if (run["learning_rate"], run["batch_size"]) == (rate, size)]
        medians = {key: float(np.median([run[key] for run in group])) for key in outcomes[0][1]}
        configurations.append({"learning_rate": rate, "batch_size": size, "runs": len(group), **medians})
    return {"runs": runs, "configurations": configurations, "best": comparison.best(configurations)}


def print_summary(summary: Mapping[str, Any], comparison: Comparison) -> None:
    """Print the scores of all seeds, and the medians."""
    seeds = list(dict.fromkeys(run["seed"] for run in summary["runs"]))
    rows = []
    for configuration in summary["configurations"]:
        key = configuration["learning_rate"], configuration["batch_size"]
        scores = {
            run["seed"]: run["score"] for run in summary["runs"] if (run["learning_rate"], run["batch_size"]) == key
        }
        best = " (best)" if configuration is summary["best"] else ""
        figures = [*(scores[seed] for seed in seeds), configuration["score"]]
        cells = [f"{comparison.scale * figure:.2f}" for figure in figures]
        rows.append((f"lr {key[0]:g}, {key[1]} rows a step{best}", *cells))
    unit = "" if comparison.scale == 1 else f" x {comparison.scale:g}"
    head = f"{comparison.compared(summary['runs'][0])}{unit}"
    print_table((head, *(f"seed {seed}" for seed in seeds), "median"), rows)
