"""Finetune on GLUE, SuperGLUE or texts of your own, and report the task's metrics.

    tokenmixers run_glue --task_name sst2 --model_name_or_path ... --output_dir outputs/sst2 \
        --do_train --do_eval --do_predict
    tokenmixers run_glue recipe.yaml --seeds 1 2 3 4 5 --learning_rates 1e-5 2e-5 3e-5
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_glue ...

Works for every checkpoint that `AutoModelForSequenceClassification` loads, for COPA `AutoModelForMultipleChoice`.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.reporting import print_plan, print_table, write_label_sets, write_predictions
from .base.training_arguments import ScriptTrainingArguments, check_has_work, wanted_splits
from .data.glue import GlueTask, TextTask, find_task
from .data.loading import limited
from .data.text_classification import (
    ChoiceCollator,
    TextClassificationArguments,
    found_labels,
    load_tables,
    own_task,
    read_examples,
    tokenize,
)
from .metrics import check_packages
from .metrics.task_scores import SCORES, compute_scores, metric_type
from .training.class_names import build_classifier, set_label_names
from .training.classification import ClassificationTrainer, unseen_labels
from .training.distillation import Distillation, DistillationArguments
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import fitting_tokenizer, load_config, sequence_length
from .training.run_folder import checkpoint_to_resume
from .training.teacher import Teacher, find_teacher
from .training.trainer import ScriptTrainer, compare_by_first_set
from .training.training_run import predict_test, train_and_evaluate


@dataclass
class Experiment:
    """Shared by all runs of a grid: data, tokenizer, and the configuration of new models."""

    model_args: ModelArguments
    teacher: Teacher | None
    card: CardFacts
    task: TextTask
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset | None
    validation: dict[str, datasets.Dataset]
    test: dict[str, datasets.Dataset]

    @property
    def metric_names(self) -> list[str]:
        """Names of the results to compare, as in the results of `train_and_evaluate`."""
        return [f"eval_{_joined(part, name)}" for part in self.validation for name in self.task.metrics]

    def majority_metrics(self) -> dict[str, float]:
        """The metrics of always predicting the most frequent class of the training data."""
        if self.train is None or self.task.is_regression:
            return {}
        known = np.asarray(self.train["label"])
        if self.task.multi_label:
            guess = np.eye(len(self.task.all_labels))[known.sum(axis=0).argmax()]
        else:
            guess = np.bincount(known).argmax()
        results = {}
        for part, rows in self.validation.items():
            labels = np.asarray(rows["label"])
            guesses = np.broadcast_to(guess, labels.shape)
            scores = compute_scores(self.task.metrics, guesses, labels, groups_of(rows))
            results |= {_joined("majority", part, name): value for name, value in scores.items()}
        return results


def groups_of(rows: datasets.Dataset | None) -> list[str] | None:
    """Which rows belong together in a task's metric, if the task has groups."""
    return list(rows["group"]) if rows is not None and "group" in rows.column_names else None


def _joined(*parts: str) -> str:
    return "_".join(filter(None, parts))


def load_experiment(
    model_args: ModelArguments,
    data_args: TextClassificationArguments,
    distillation_args: DistillationArguments,
    card_args: CardArguments,
    args: TrainingArguments,
    saved_tokenizer: str | None,
) -> Experiment:
    """Load and check everything that the command line names.

    Args:
        model_args: Names configuration and tokenizer.
        data_args: Names the data.
        distillation_args: Names the teacher, if any.
        card_args: Entries of the model card.
        args: The training arguments.
        saved_tokenizer: Folder with the tokenizer that an interrupted run has trained.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    check_packages(*(metric for metric, _ in SCORES.values()))
    teacher = find_teacher(distillation_args, model_args, args)
    if teacher is not None:
        model_args = teacher.student_arguments(model_args)
    config = load_config(model_args)
    tables = load_tables(data_args, wanted_splits(args), model_args.token)
    train = tables["train"][""] if args.do_train else None
    task = find_task(data_args.task_name) if data_args.task_name else own_task(data_args, train, config)
    if not isinstance(task, GlueTask) and not task.is_regression:
        others = {split: found_labels(parts[""], task) for split, parts in tables.items() if split != "train"}
        task = dataclasses.replace(task, unseen=tuple(unseen_labels("labels", task.labels, others)))
    if not task.multiple_choice:
        set_label_names(config, task.labels or ("score",), args.do_train)
        config.problem_type = problem_type(task)
    if task.multi_label:
        refuse_single_labels(teacher, args)
    learned = dataclasses.replace(task, unseen=())  # training labels have a column for each class of the model alone
    examples = {
        split: {
            part: read_examples(
                table, learned if split == "train" else task, split != "test", data_args.skip_empty_examples
            )
            for part, table in parts.items()
        }
        for split, parts in tables.items()
    }
    texts = _texts(examples["train"][""]) if args.do_train else ()
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, saved_tokenizer)
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    if teacher is not None:
        teacher.check_texts(tokenizer, {"--max_seq_length": length})
        if not task.multiple_choice:
            teacher.check_labels(task.labels or ("score",))
    limits = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    rows: dict[str, dict[str, datasets.Dataset]] = {"train": {"": None}, "validation": {}, "test": {}}
    for split, parts in examples.items():
        for part, found in parts.items():
            found = limited(found, limits.get(split), shuffle=True)
            rows[split][part] = tokenize(found, tokenizer, length, task.multiple_choice)
    names = [(part, name) for part in rows["validation"] for name in task.metrics]
    card = CardFacts(
        "multiple-choice" if task.multiple_choice else "text-classification",
        **_data_facts(data_args, task),
        metrics={_joined(part, name): metric_type(name) for part, name in names},
        base_model=model_args.model_name_or_path,
        author=card_args,
        multi_label=task.multi_label,
        text_pairs=any(len(found[0]["texts"]) > 1 for parts in examples.values() for found in parts.values() if found),
        hyper_parameters={"max_seq_length": length, **distillation_args.in_use()},
    )
    return Experiment(
        model_args, teacher, card, task, config, tokenizer, rows["train"][""], rows["validation"], rows["test"]
    )


def problem_type(task: TextTask) -> str:
    """What Transformers calls the kind of a classifier's labels."""
    if task.multi_label:
        return "multi_label_classification"
    return "regression" if task.is_regression else "single_label_classification"


def refuse_single_labels(teacher: Teacher | None, args: TrainingArguments) -> None:
    """Refuse what is for rows with one label each.

    Raises:
        UserError: If there is a teacher, or labels are smoothed.
    """
    if teacher is not None:
        raise UserError("--teacher is for one label per text: leave it out, the labels of these data are lists.")
    if args.label_smoothing_factor:
        raise UserError(
            "--label_smoothing_factor is for one label per text: leave it out, the labels of these data are lists."
        )


def _texts(examples: datasets.Dataset) -> Iterator[str]:
    for row in examples:
        yield from row["texts"]


def _data_facts(arguments: TextClassificationArguments, task: TextTask) -> dict[str, str | None]:
    if not isinstance(task, GlueTask):
        return describe_data(arguments)
    names = {"data": "validation", "train_data": "training", "test_data": "test"}
    facts = {key: f"the {split} set of {task.benchmark}'s {task.folder}" for key, split in names.items()}
    return {**facts, "dataset_id": task.hub_name}


def build_trainer(experiment: Experiment, args: TrainingArguments) -> ScriptTrainer:
    """A new model and its Trainer.

    Args:
        experiment: Shared by all runs.
        args: Arguments of this run.
    """
    task, tokenizer, teacher = experiment.task, experiment.tokenizer, experiment.teacher
    auto_class = AutoModelForMultipleChoice if task.multiple_choice else AutoModelForSequenceClassification
    if teacher is not None:
        teacher.load(auto_class, experiment.train)
    model = build_classifier(experiment.model_args, copy.deepcopy(experiment.config), auto_class, args.do_train)
    several = len(experiment.validation) > 1
    if several:
        compare_by_first_set(args, experiment.validation)
    groups = groups_of(experiment.validation.get(""))
    trainer_class = ScriptTrainer if task.multiple_choice else ClassificationTrainer
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=experiment.train,
        eval_dataset=experiment.validation if several else experiment.validation.get(""),
        data_collator=ChoiceCollator(tokenizer) if task.multiple_choice else DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda prediction: task_metrics(prediction, task, groups),
        preprocess_logits_for_metrics=lambda logits, labels: logits[0] if isinstance(logits, tuple) else logits,
    )
    if teacher is not None:
        teacher.teach(trainer, Distillation, {}, regression=task.is_regression)
    return trainer


def task_metrics(prediction: EvalPrediction, task: TextTask, groups: list[str] | None = None) -> dict[str, float]:
    """The task's metrics of logits.

    Args:
        prediction: Logits and labels.
        task: Names its metrics.
        groups: Which rows belong together, if the task has groups.
    """
    return compute_scores(task.metrics, answers(prediction.predictions, task), prediction.label_ids, groups)


def answers(logits: np.ndarray, task: TextTask) -> np.ndarray:
    """Class numbers, or scores, from logits of shape `(rows, classes)`; of several labels 0 or 1 for each."""
    if task.multi_label:
        predicted = np.zeros((len(logits), len(task.all_labels)), dtype=np.int64)
        predicted[:, : logits.shape[1]] = logits > 0
        return predicted
    return logits.reshape(-1) if task.is_regression else logits.argmax(axis=-1)


def run_once(experiment: Experiment, args: TrainingArguments, resume_from: str | None) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say.

    Args:
        experiment: Shared by all runs.
        args: Arguments of this run.
        resume_from: Checkpoint to resume from.

    Returns:
        The metrics with the prefix `eval_`, those of the most frequent class with `majority_`, those of a labelled
        test set with `test_`.
    """
    set_seed(args.seed)
    trainer = build_trainer(experiment, args)
    print_plan(trainer, resume_from)
    folder = Path(args.output_dir)

    def write(output: PredictionOutput, part: str = "") -> None:
        write_answers(folder / f"{_joined('predictions', part)}.csv", output, experiment.task)

    def predict_all() -> dict[str, float]:
        found: dict[str, float] = {}
        for part, rows in experiment.test.items():
            found |= predict(trainer, experiment.task, part, rows)
        return found

    known = experiment.majority_metrics()
    predicting = predict_all if experiment.test else None
    results = train_and_evaluate(trainer, experiment.card, resume_from, write, known, predicting)
    if trainer.is_world_process_zero():
        print_results(results, experiment)
    return results


def predict(trainer: ScriptTrainer, task: TextTask, part: str, rows: datasets.Dataset) -> dict[str, float]:
    """Write the predictions for a test set: a benchmark's submission file, or `predictions_test.csv`.

    Returns:
        The metrics if the rows have labels.
    """
    prefix, folder = _joined("test", part), Path(trainer.args.output_dir)

    def write(output: PredictionOutput) -> Path:
        if isinstance(task, GlueTask):
            path = folder / task.submission(part)
            task.write_submission(answers(output.predictions, task), rows["index"], path)
        else:
            path = folder / "predictions_test.csv"
            write_answers(path, output, task)
        return path

    metrics = predict_test(trainer, rows, write, prefix)
    return {f"{prefix}_{name}": metrics[f"{prefix}_{name}"] for name in task.metrics if "label" in rows.features}


def write_answers(path: Path, output: PredictionOutput, task: TextTask) -> None:
    """Write a csv file of predictions with the names of classes."""
    write = write_label_sets if task.multi_label else write_predictions
    write(path, output.predictions, output.label_ids, task.all_labels)


def print_results(results: Mapping[str, float], experiment: Experiment) -> None:
    """Print the metrics beside those of the most frequent class."""
    has_majority = any(key.startswith("majority_") for key in results)
    rows = []
    for name in experiment.metric_names:
        short = name.removeprefix("eval_")
        majority = [f"{100 * results[f'majority_{short}']:.2f}"] if has_majority else []
        rows.append((short.replace("_", " "), f"{100 * results[name]:.2f}", *majority))
    rows += [
        (key.replace("_", " "), f"{100 * value:.2f}", *([""] if has_majority else []))
        for key, value in results.items()
        if key.startswith("test_")
    ]
    if rows:
        head = ("metric x 100", experiment.config.model_type, *(["most frequent class"] if has_majority else []))
        print_table(head, rows)


def compared_metrics(data_args: TextClassificationArguments) -> list[str]:
    """Names of the metrics whose mean compares the runs of a grid; of a task of one's own all that it may have."""
    if data_args.task_name is None:
        return list(SCORES)
    task = find_task(data_args.task_name)
    return [_joined(part, name) for part in task.sets for name in task.metrics]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or for a grid those of `hyperparameter_grid.run_all`."""
    types = (ModelArguments, TextClassificationArguments, DistillationArguments)
    *named, grid_args, card_args, args = parse_arguments(
        (*types, GridArguments, CardArguments, ScriptTrainingArguments), argv
    )
    check_has_work(args, "do_train", "do_eval", "do_predict")
    experiment: Experiment | None = None

    def run(run_args: TrainingArguments) -> dict[str, float]:
        nonlocal experiment
        resume_from = checkpoint_to_resume(run_args)
        if experiment is None:
            experiment = load_experiment(*named, card_args, run_args, resume_from)
        return run_once(experiment, run_args, resume_from)

    comparison = Comparison(compared_metrics(named[1]), by_mean=True, scale=100)
    return run_command(run, grid_args, args, named, comparison)


if __name__ == "__main__":
    main()
