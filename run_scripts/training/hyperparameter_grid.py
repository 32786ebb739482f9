"""Grids of runs: every combination of learning rates, batch sizes and seeds, and a summary of the results.

Papers on finetuning report the median over seeds of the best hyper-parameters. Each run has a folder of its own in the
output folder. Finished runs are not repeated, and an interrupted run is resumed.
"""

import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from transformers import TrainingArguments

from ..base.errors import UserError
from ..base.ranges import check_ranges
from ..base.reporting import print_table
from .model_card import HYPER_PARAMETERS
from .run_folder import finished_results, write_atomically


GRID_RESULTS, SETTINGS = "grid_results.json", "grid_settings.json"


@dataclass
class GridArguments:
    """Several runs instead of one, each in a sub-folder of the output folder."""

    seeds: list[int] | None = field(default=None, metadata={"help": "A run for each seed; medians are reported."})
    learning_rates: list[float] | None = field(default=None, metadata={"help": "Runs for each peak learning rate."})
    batch_sizes: list[int] | None = field(
        default=None, metadata={"help": "Runs for each number of rows a step, all processes together."}
    )

    def __post_init__(self):
        for name, kind in (("seeds", int), ("learning_rates", float), ("batch_sizes", int)):
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, _read_values(name, values, kind))
        check_ranges(self, ("from 0 to 4294967295", "seeds"), ("a finite number of at least 0", "learning_rates"))
        check_ranges(self, ("at least 1", "batch_sizes"))

    @property
    def is_used(self) -> bool:
        """Whether there are several runs."""
        return any(values is not None for values in vars(self).values())


def _read_values(name: str, values: Any, kind: type) -> list:
    """Numbers from a command line or a recipe, in which YAML reads 1e-5 as text."""
    try:
        read = [kind(value) for value in values]
    except (TypeError, ValueError) as error:
        raise UserError(f"--{name} takes a list of numbers, not {values!r}.") from error
    if not read or len(set(read)) < len(read):
        raise UserError(f"--{name} takes different numbers; got {values!r}.")
    return read


def plan(grid: GridArguments, args: TrainingArguments) -> list[TrainingArguments]:
    """The training arguments of every run.

    Args:
        grid: The values to combine.
        args: All other arguments.

    Raises:
        UserError: If a batch size is not possible with these processes, or an argument is for single runs.
    """
    if not (args.do_train and args.do_eval):
        raise UserError("--seeds, --learning_rates and --batch_sizes need --do_train and --do_eval.")
    for name in ("push_to_hub", "do_predict", "resume_from_checkpoint"):
        if getattr(args, name):
            raise UserError(
                f"--{name} is for a single run. Do it afterwards with the best one, given as --model_name_or_path."
            )
    parts = args.world_size * max(args.n_gpu, 1) * args.gradient_accumulation_steps
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
        run = copy.copy(args)
        run.learning_rate, run.per_device_train_batch_size, run.seed = rate, size // parts, seed
        run.output_dir = str(Path(args.output_dir) / f"lr{rate:g}_batch{size}_seed{seed}")
        run.run_name = Path(run.output_dir).name
        runs.append(run)
    return runs


def check_folder(args: TrainingArguments, settings: Mapping[str, Any]) -> None:
    """Create the output folder, or check that an existing one belongs to the same grid.

    Args:
        args: The command's training arguments.
        settings: Settings that must be equal in all runs, besides the `HYPER_PARAMETERS` of `args`.

    Raises:
        UserError: If the folder holds something else, or runs with other settings.
    """
    folder = Path(args.output_dir)
    varied = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size", "seed")
    kept = {key: getattr(args, key) for key in HYPER_PARAMETERS if key not in varied}
    settings = json.loads(json.dumps({**settings, **kept}, default=str))
    if not folder.is_dir() or {path.name for path in folder.iterdir()} <= {f"_{SETTINGS}"}:
        if args.process_index == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")
        return
    if not (folder / SETTINGS).is_file():
        raise UserError(f"{args.output_dir!r} is not empty and holds no runs of this kind. Choose another.")
    before = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    for key in settings:
        if before.get(key) != settings[key]:
            raise UserError(
                f"the runs in {args.output_dir!r} were made with {key}={before.get(key)!r}, now it is "
                f"{settings[key]!r}: they could not be compared. Choose another --output_dir."
            )


def run_all(
    runs: Sequence[TrainingArguments],
    run: Callable[[TrainingArguments], Mapping[str, float]],
    metrics: Sequence[str],
    folder: str,
) -> dict[str, Any]:
    """Perform all runs that are not finished, and write and print a summary.

    Args:
        runs: From `plan`.
        run: Performs one run and returns its results.
        metrics: Names of the results to compare, with `eval_`. Configurations are compared by their mean.
        folder: Folder for `grid_results.json`.

    Returns:
        The content of that file: the `runs`, the `configurations` with their medians over seeds, and the `best` one.
    """
    # Read by all processes before any of them finishes a run.
    finished = [finished_results(args.output_dir) for args in runs]
    outcomes = []
    for number, (args, results) in enumerate(zip(runs, finished, strict=True), start=1):
        if args.process_index == 0:
            state = "finished before" if results else "starts"
            print(f"run {number} of {len(runs)}, {Path(args.output_dir).name}: {state}", flush=True)
        results = results or run(args)
        values = {metric: results[metric] for metric in metrics}
        outcomes.append((args, values))
    summary = summarise(outcomes)
    if runs[0].process_index == 0:
        write_atomically(Path(folder) / GRID_RESULTS, json.dumps(summary, indent=2) + "\n")
        print_summary(summary)
    return summary


def summarise(outcomes: Sequence[tuple[TrainingArguments, Mapping[str, float]]]) -> dict[str, Any]:
    """Medians over seeds, and the configuration with the best one.

    Args:
        outcomes: The arguments of each run, and its metrics, higher ones being better.
    """
    runs = [
        {
            "folder": Path(args.output_dir).name,
            "learning_rate": args.learning_rate,
            "batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "seed": args.seed,
            **values,
            "score": mean(values.values()),
        }
        for args, values in outcomes
    ]
    configurations = []
    for rate, size in dict.fromkeys((run["learning_rate"], run["batch_size"]) for run in runs):
        group = [run for run in runs if (run["learning_rate"], run["batch_size"]) == (rate, size)]
        medians = {key: median(run[key] for run in group) for key in (*outcomes[0][1], "score")}
        configurations.append({"learning_rate": rate, "batch_size": size, "runs": len(group), **medians})
    return {
        "runs": runs,
        "configurations": configurations,
        "best": max(configurations, key=lambda configuration: configuration["score"]),
    }


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the scores of all seeds, and the medians."""
    seeds = list(dict.fromkeys(run["seed"] for run in summary["runs"]))
    rows = []
    for configuration in summary["configurations"]:
        key = configuration["learning_rate"], configuration["batch_size"]
        scores = {
            run["seed"]: run["score"] for run in summary["runs"] if (run["learning_rate"], run["batch_size"]) == key
        }
        best = " (best)" if configuration is summary["best"] else ""
        cells = [f"{100 * scores[seed]:.2f}" for seed in seeds]
        rows.append((f"lr {key[0]:g}, {key[1]} rows a step{best}", *cells, f"{100 * configuration['score']:.2f}"))
    print_table(("mean of the metrics x 100", *(f"seed {seed}" for seed in seeds), "median"), rows)
