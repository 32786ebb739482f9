r"""Finetune on GLUE, SuperGLUE or texts of your own, and report the task's metrics.

    tokenmixers run_glue --task_name sst2 --model_name_or_path ... --output_dir outputs/sst2 \
        --do_train --do_eval --do_predict
    tokenmixers run_glue recipe.yaml --seeds 1 2 3 4 5 --learning_rates 1e-5 2e-5 3e-5
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_glue ...

Works for every checkpoint that `AutoModelForSequenceClassification` loads, for COPA `AutoModelForMultipleChoice`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.reporting import class_columns, label_set_columns, print_table
from .base.training_arguments import wanted_splits
from .data.glue import GlueTask, TextTask, find_task
from .data.loading import INDEX
from .data.table_files import Table
from .data.text_classification import (
    ChoiceCollator,
    TextClassificationArguments,
    found_labels,
    load_sets,
    own_task,
    read_examples,
    tokenize,
)
from .metrics import check_packages
from .metrics.task_scores import SCORES, compute_scores, metric_type
from .training.classification import ClassificationTrainer, unseen_labels
from .training.distillation import DistillationArguments
from .training.hyperparameter_grid import Comparison
from .training.linear_probe import LinearProbeArguments, new_output_layer, start_with_probe
from .training.run import Run, Task, joined, sets_of
from .training.schedules import choose_epochs
from .training.trainer import ScriptTrainer


def text_columns(texts: Iterable[Sequence[str]]) -> dict[str, list[Any]]:
    """Columns of a file of predictions with the texts of each row: `text` and `text_pair`, or `texts` of a choice."""
    rows = [*map(list, texts)]
    if len(rows[0]) > 2:
        return {"texts": rows}
    return dict(zip(("text", "text_pair"), map(list, zip(*rows, strict=True)), strict=False))


class TextClassification(Task):
    """Classes or scores of texts; for COPA the better of two texts.

    Attributes:
        task: The benchmark's task, or that of data of one's own.
    """

    arguments = (TextClassificationArguments, LinearProbeArguments, DistillationArguments)
    is_classifier = True
    task: TextTask

    @property
    def auto_class(self) -> type:
        return AutoModelForMultipleChoice if self.task.multiple_choice else AutoModelForSequenceClassification

    @property
    def trainer_class(self) -> type:
        return ScriptTrainer if self.task.multiple_choice else ClassificationTrainer

    @property
    def pipeline_tag(self) -> str:
        return "multiple-choice" if self.task.multiple_choice else "text-classification"

    def comparison(self, run: Run) -> Comparison:
        """By the mean of all metrics; data of one's own have some of those that there are."""
        name = run.data_args.task_name
        task = None if name is None else find_task(name)
        sets = () if task is None else task.sets_of(run.data_args.source_of("validation"))
        names = [*SCORES] if task is None else [joined(part, key) for part in sets for key in task.metrics]
        return Comparison(names, by_mean=True, scale=100)

    def load(self, run: Run) -> dict[str, dict[str, datasets.Dataset]]:
        """Split -> set -> examples, see `read_examples`."""
        data_args, args = run.data_args, run.args
        check_packages(*(metric for metric, _ in SCORES.values()))
        tables = load_sets(data_args, wanted_splits(args), run.model_args.token)
        if data_args.task_name is not None:
            self.task = find_task(data_args.task_name)
        else:
            train = tables["train"][""] if args.do_train else None
            self.task = own_task(data_args, train, run.config, [sets[""] for sets in tables.values()])
            if not self.task.is_regression:
                others = {
                    split: found_labels(sets[""], self.task) for split, sets in tables.items() if split != "train"
                }
                unseen = unseen_labels("labels", self.task.labels, others)
                self.task = dataclasses.replace(self.task, unseen=tuple(unseen))
        if self.task.multi_label:
            self._refuse_single_labels(run)
        # Several training labels have a column for each class of the model alone.
        tasks = {"train": dataclasses.replace(self.task, unseen=())} if self.task.multi_label else {}
        found: dict[Any, datasets.Dataset] = {}

        def examples(split: str, table: Table) -> datasets.Dataset:
            task = tasks.get(split, self.task)
            key = id(table), task.unseen  # rows held out are in the table of the training data
            if key not in found:
                found[key] = read_examples(table, task, split != "test", data_args.skip_empty_examples)
            return found[key]

        return {
            split: {part: data_args.select(split, examples(split, table)) for part, table in sets.items()}
            for split, sets in tables.items()
        }

    def _refuse_single_labels(self, run: Run) -> None:
        """Refuse what is for rows with one label each."""
        given = {
            "teacher": run[DistillationArguments].teacher,
            "label_smoothing_factor": run.args.label_smoothing_factor,
        }
        for name in filter(given.get, given):
            raise UserError(f"--{name} is for one label per text: leave it out, the labels of these data are lists.")

    def labels(self, run: Run) -> tuple[str, ...] | None:
        """The task's classes, or a single score."""
        if self.task.multiple_choice:
            return None
        kind = "multi_label" if self.task.multi_label else "single_label"
        run.config.problem_type = "regression" if self.task.is_regression else f"{kind}_classification"
        return self.task.labels or ("score",)

    def texts(self, run: Run) -> Iterator[str]:
        for row in run.data["train"][""]:
            yield from row["texts"]

    def encode(self, run: Run) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for split, sets in run.data.items():
            found = {
                part: tokenize(examples, run.tokenizer, run.max_seq_length, self.task.multiple_choice)
                for part, examples in sets.items()
            }
            rows[split] = found if len(found) > 1 else next(iter(found.values()))
        return rows

    def collator(self, run: Run, model: PreTrainedModel) -> Any:
        return (ChoiceCollator if self.task.multiple_choice else DataCollatorWithPadding)(run.tokenizer)

    def build_trainer(self, run: Run, model: PreTrainedModel, **options: Any) -> Any:
        """With more epochs over few rows, if the output layer starts with a linear probe."""
        if run.args.do_train and self.is_probed(run, model):
            choose_epochs(run.args, len(run.rows["train"]), model.config.model_type)
        return super().build_trainer(run, model, **options)

    def metric_types(self, run: Run) -> dict[str, str]:
        parts = sets_of(run.rows.get("validation"))
        return {joined(part, name): metric_type(name) for part in parts for name in self.task.metrics}

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        """The benchmark's sets, and whether there are pairs."""
        settings = {"max_seq_length": run.max_seq_length, "linear_probe": self.is_probed(run, model)}
        facts: dict[str, Any] = {"hyper_parameters": settings}
        facts["multi_label"] = self.task.multi_label
        examples = [found for sets in run.data.values() for found in sets.values() if found]
        facts["text_pairs"] = any(len(found[0]["texts"]) > 1 for found in examples)
        if isinstance(self.task, GlueTask):
            names = {"data": "validation", "train_data": "training", "test_data": "test"}
            source = f"{self.task.benchmark}'s {self.task.folder}"
            facts |= {key: f"the {split} set of {source}" for key, split in names.items()}
            if run.data_args.train_val_split is not None:
                facts["data"] = f"{facts['train_data']} (a part held out of training)"
            facts["dataset_id"] = self.task.hub_name
        return facts

    def is_probed(self, run: Run, model: PreTrainedModel) -> bool:
        """Whether the output layer starts with a linear probe: by default at the model's default learning rate."""
        wanted = run[LinearProbeArguments].linear_probe
        if wanted is None:
            wanted = run.args.learning_rate == run.args.default_rate
        return wanted and not self.task.multiple_choice and new_output_layer(model) is not None

    def start(self, run: Run, trainer: Any) -> None:
        """Set a new output layer of a checkpoint with a linear probe."""
        probed = self.is_probed(run, trainer.model)
        rows = start_with_probe(trainer.model, run.rows["train"], trainer.data_collator) if probed else 0
        if not rows and run[LinearProbeArguments].linear_probe:
            raise UserError("--linear_probe is for a new output layer of a checkpoint, here is none: leave it out.")
        if rows and run.args.process_index == 0:
            print(f"the new output layer starts with a regression on the features of {rows:,} training rows")

    def baselines(self, run: Run, trainer: Any) -> dict[str, float]:
        """The metrics of always predicting the most frequent class of the training data."""
        train, validation = run.rows.get("train"), run.rows.get("validation")
        if train is None or validation is None or self.task.is_regression:
            return {}
        known, results = np.asarray(train["label"]), {}
        if self.task.multi_label:
            guess = np.eye(len(self.task.all_labels))[known.sum(axis=0).argmax()]
        else:
            guess = np.bincount(known).argmax()
        for part, rows in sets_of(validation).items():
            labels = np.asarray(rows["label"])
            scores = self._scores(np.broadcast_to(guess, labels.shape), labels, rows)
            results |= {joined("majority", part, name): value for name, value in scores.items()}
        return results

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        return self._scores(self._answers(prediction.predictions), prediction.label_ids, run.rows[split])

    def _answers(self, logits: np.ndarray) -> np.ndarray:
        """Class numbers, or scores, from logits of shape `(rows, classes)`; of several labels 0 or 1 for each."""
        if self.task.multi_label:
            predicted = np.zeros((len(logits), len(self.task.all_labels)), dtype=np.int64)
            predicted[:, : logits.shape[1]] = logits > 0
            return predicted
        return logits.reshape(-1) if self.task.is_regression else logits.argmax(axis=-1)

    def _scores(self, answers: np.ndarray, labels: np.ndarray, rows: Any) -> dict[str, float]:
        has_groups = isinstance(rows, datasets.Dataset) and "group" in rows.column_names
        return compute_scores(self.task.metrics, answers, labels, list(rows["group"]) if has_groups else None)

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path:
        """A table; for a benchmark's test set its submission file."""
        index = list(sets_of(run.rows[split])[part][INDEX])
        if split == "test" and isinstance(self.task, GlueTask):
            path = Path(run.args.output_dir) / self.task.submission(part)
            self.task.write_submission(self._answers(output.predictions), index, path)
            return path
        columns = label_set_columns if self.task.multi_label else class_columns
        found = columns(output.predictions, output.label_ids, self.task.all_labels)
        return run.write_predictions(
            split, part, {INDEX: index, **text_columns(run.data[split][part]["texts"]), **found}
        )

    def report(self, run: Run, results: Mapping[str, float], model_type: str) -> None:
        """Print the metrics next to those of the most frequent class."""
        names = self.metric_types(run) if run.args.do_eval else {}
        with_majority = any(key.startswith("majority_") for key in results)
        rows = []
        for name in names:
            majority = [f"{100 * results[f'majority_{name}']:.2f}"] if with_majority else []
            rows.append((name.replace("_", " "), f"{100 * results[f'eval_{name}']:.2f}", *majority))
        for part in sets_of(run.rows.get("test")):
            for key in (joined("test", part, name) for name in self.task.metrics):
                if key in results:
                    rows.append((key.replace("_", " "), f"{100 * results[key]:.2f}", *([""] if with_majority else [])))
        if rows:
            print_table(("metric x 100", model_type, *(["most frequent class"] if with_majority else [])), rows)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(TextClassification(), argv).command()


if __name__ == "__main__":
    main()
