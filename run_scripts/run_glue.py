"""Finetune on a task of GLUE or SuperGLUE, or on texts with labels of your own, and report the benchmark's metrics.

    python -m tokenmixers.run_scripts.run_glue --task_name sst2 --model_name_or_path ... --output_dir outputs/sst2 \
        --do_train --do_eval --do_predict
    python -m tokenmixers.run_scripts.run_glue recipe.yaml --seeds 1 2 3 4 5 --learning_rates 1e-5 2e-5 3e-5
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_glue ...

Works for every checkpoint that `AutoModelForSequenceClassification` loads, for COPA `AutoModelForMultipleChoice`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
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

from .base.arguments import ModelArguments, UserError, parse_arguments
from .base.reporting import print_plan, print_table, write_predictions
from .base.training_arguments import ScriptTrainingArguments
from .data.glue import TASKS, GlueTask, TextTask, columns, find_task
from .data.table_files import Table, load_split, read_table
from .metrics import check_packages, load_metric
from .training import hyperparameter_grid
from .training.language_modeling import build_model
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import (
    checkpoint_to_resume,
    fitting_tokenizer,
    load_config,
    sequence_length,
    set_label_names,
)
from .training.trainer import ScriptTrainer, leave_processes, train_and_evaluate


#: What the results call a score -> the metric, and its arguments.
SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy", {}),
    "f1": ("f1", {}),
    "macro_f1": ("f1", {"average": "macro"}),
    "matthews_correlation": ("matthews_correlation", {}),
    "pearson": ("pearsonr", {}),
    "spearman": ("spearmanr", {}),
}


@dataclass
class TextClassificationArguments:
    """Which task, or which texts and labels."""

    task_name: str | None = field(default=None, metadata={"help": f"One of {', '.join(TASKS)}."})
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with the task's files as the benchmark offers them; its Hub data by default."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of a task: data set on the Hub, or a local folder of one."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_file: str | None = field(
        default=None, metadata={"help": "Instead of a task: file with texts and labels; tsv, csv, json(l), parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    test_file: str | None = field(default=None, metadata={"help": "As train_file, to predict; labels may be missing."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})
    test_split: str = field(default="test", metadata={"help": "Name of its test split."})
    text_column: str = field(default="text", metadata={"help": "Column that holds the text."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column of the second text of a pair."})
    label_column: str = field(default="label", metadata={"help": "Column that holds the class, or the number."})
    regression: bool = field(default=False, metadata={"help": "The labels of your own data are numbers, not classes."})
    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per text or pair, special ones included, of which the longer text loses its end first; "
            "the model's maximum by default."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training rows only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many validation rows only."})


#: Split -> name of an evaluation set (`""` where there is one only) -> rows.
Tables = dict[str, dict[str, Table]]


def load_tables(arguments: TextClassificationArguments, splits: list[str], token: str | None = None) -> Tables:
    """The rows of some splits.

    Args:
        arguments: Where they come from.
        splits: Of `"train"`, `"validation"` and `"test"`.
        token: Hub token.

    Raises:
        UserError: If it is not clear where, or something is missing.
    """
    own = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    sources = [arguments.task_name, arguments.dataset_name, next(filter(None, own.values()), None)]
    if sum(source is not None for source in sources) != 1:
        raise UserError("give the data as one of --task_name, --dataset_name, or --train_file and --validation_file.")
    if arguments.data_dir is not None and arguments.task_name is None:
        raise UserError("--data_dir holds the files of a benchmark: say which task with --task_name.")
    if arguments.task_name is not None:
        task = find_task(arguments.task_name)
        parts = {split: task.sets if split != "train" else ("",) for split in splits}
        return {
            split: {part: task.read(split, part, arguments.data_dir, token) for part in parts[split]}
            for split in splits
        }
    if arguments.dataset_name is not None:
        return {split: {"": _load_own_split(arguments, split, token)} for split in splits}
    for split in splits:
        if own[split] is None:
            raise UserError(f"--{split}_file is missing.")
    return {split: {"": read_table(own[split])} for split in splits}


def _load_own_split(arguments: TextClassificationArguments, split: str, token: str | None) -> Table:
    name = getattr(arguments, f"{split}_split")
    return load_split(arguments.dataset_name, arguments.dataset_config_name, name, token)


def own_task(arguments: TextClassificationArguments, train: Table | None, config: PreTrainedConfig) -> TextTask:
    """What is asked in data that belong to no benchmark.

    Args:
        arguments: Names of the columns.
        train: Training rows, which say what classes there are.
        config: Of the checkpoint, which says so if there are no training rows.

    Raises:
        UserError: If a training row has no label, or there are fewer than two classes.
    """
    texts = columns(*filter(None, (arguments.text_column, arguments.text_pair_column)))
    if arguments.regression:
        return TextTask(texts, None, ("pearson", "spearman"), label_column=arguments.label_column)
    if train is None:
        names = [config.id2label[index] for index in range(config.num_labels)]
    else:
        found = set()
        for number, row in train.rows:
            label = train.value(number, row, arguments.label_column)
            if label in (None, ""):
                raise train.error(number, "the label is missing.")
            found.add(str(label))
        by_number = all(name.isdecimal() for name in found)
        names = sorted(found, key=lambda name: (int(name), name) if by_number else (0, name))
    if len(names) < 2:
        source = "the model" if train is None else train.source
        raise UserError(f"{source} has no label but {names[0]!r}: a classifier needs two, numbers --regression.")
    return TextTask(texts, tuple(names), ("accuracy", "macro_f1"), label_column=arguments.label_column)


def read_examples(table: Table, task: TextTask, labelled: bool) -> datasets.Dataset:
    """Check rows and make them `index`, `texts` and, if labelled, `label`.

    Args:
        table: Rows as they were found.
        task: What they mean.
        labelled: Whether every row must have a label. Otherwise labels are used if the first row has one.

    Raises:
        UserError: If a column, a text or a label is missing or not possible, with the row's place.
    """
    labelled = labelled or task.has_label(table.rows[0][1])
    examples = []
    for position, (number, row) in enumerate(table.rows):
        try:
            texts = task.texts(row)
            label = {"label": task.read_label(table.value(number, row, task.label_column))} if labelled else {}
        except KeyError as error:
            raise table.error(number, f"there is no column {error}; the columns are {', '.join(row)}.") from error
        except ValueError as error:
            raise table.error(number, str(error)) from error
        for text in texts:
            if not isinstance(text, str):
                raise table.error(number, f"a text is {text!r} instead of text.")
        if not any(text.strip() for text in texts):
            raise table.error(number, "the text is empty.")
        index = row.get("idx", position) if isinstance(task, GlueTask) else position
        examples.append({"index": index, "texts": list(texts), **label})
    return datasets.Dataset.from_list(examples)


def tokenize(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, multiple_choice: bool
) -> datasets.Dataset:
    """Add the tokenizer's columns; with choices, each holds a list of sequences per row, one for every choice."""

    def encode(rows: dict[str, list]) -> dict[str, list]:
        inputs = rows["texts"]
        if multiple_choice:
            inputs = [(question, choice) for question, *choices in rows["texts"] for choice in choices]
        texts = map(list, zip(*inputs, strict=True))  # all first texts, all second ones
        encoded = dict(tokenizer(*texts, truncation="longest_first", max_length=max_seq_length))
        if not multiple_choice:
            return encoded
        count = len(inputs) // len(rows["texts"])
        return {
            name: [column[i : i + count] for i in range(0, len(inputs), count)] for name, column in encoded.items()
        }

    return examples.map(encode, batched=True, remove_columns=["texts"], desc="Tokenizing")


class ChoiceCollator:
    """Pads the choices of all rows of a batch to one length: tensors of shape `(batch, choices, length)`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """From rows with lists of sequences, and maybe labels."""
        names = [name for name in rows[0] if name not in ("label", "index")]
        count = len(rows[0][names[0]])
        choices = [{name: row[name][choice] for name in names} for row in rows for choice in range(count)]
        batch = {name: tensor.view(len(rows), count, -1) for name, tensor in self.pad(choices).items()}
        if "label" in rows[0]:
            batch["labels"] = torch.tensor([row["label"] for row in rows])
        return batch


@dataclass
class Experiment:
    """Everything that all runs share: data, tokenizer, and what to build models from."""

    model_args: ModelArguments
    card: CardFacts
    task: TextTask
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset | None
    validation: dict[str, datasets.Dataset]
    test: dict[str, datasets.Dataset]

    @property
    def metric_names(self) -> list[str]:
        """The results that count, as `train_and_evaluate` names them."""
        return [f"eval_{_joined(part, name)}" for part in self.validation for name in self.task.metrics]

    def majority_metrics(self) -> dict[str, float]:
        """What always answering with the most frequent class of the training data would reach."""
        if self.train is None or self.task.is_regression:
            return {}
        guess = np.bincount(self.train["label"]).argmax()
        results = {}
        for part, rows in self.validation.items():
            scores = compute_scores(self.task.metrics, np.full(len(rows), guess), np.asarray(rows["label"]))
            results |= {_joined("majority", part, name): value for name, value in scores.items()}
        return results


def _joined(*parts: str) -> str:
    return "_".join(filter(None, parts))


def load_experiment(
    model_args: ModelArguments,
    data_args: TextClassificationArguments,
    card_args: CardArguments,
    args: TrainingArguments,
    saved_tokenizer: str | None,
) -> Experiment:
    """Load and check everything that the command line names.

    Args:
        model_args: Which configuration and tokenizer.
        data_args: Which data.
        card_args: For the model's card.
        args: What is to be done with them.
        saved_tokenizer: Where an earlier run of the same command left the tokenizer that it trained.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    check_packages(*(metric for metric, _ in SCORES.values()))
    config = load_config(model_args)
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    tables = load_tables(data_args, [split for split in wanted if wanted[split]], model_args.token)
    train = tables["train"][""] if args.do_train else None
    task = find_task(data_args.task_name) if data_args.task_name else own_task(data_args, train, config)
    if not task.multiple_choice:
        set_label_names(config, task.labels or ("score",), args.do_train)
        config.problem_type = "regression" if task.is_regression else "single_label_classification"
    examples = {
        split: {part: read_examples(table, task, split != "test") for part, table in parts.items()}
        for split, parts in tables.items()
    }
    if model_args.train_tokenizer is not None and train is None:
        raise UserError("--train_tokenizer needs --do_train.")
    texts = _texts(examples["train"][""]) if args.do_train else ()
    tokenizer = fitting_tokenizer(model_args, config, texts, args, saved_tokenizer)
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    limits = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    rows: dict[str, dict[str, datasets.Dataset]] = {"train": {"": None}, "validation": {}, "test": {}}
    for split, parts in examples.items():
        for part, found in parts.items():
            if limits.get(split) is not None:
                found = found.shuffle(seed=0).take(limits[split])
            rows[split][part] = tokenize(found, tokenizer, length, task.multiple_choice)
    names = [(part, name) for part in rows["validation"] for name in task.metrics]
    card = CardFacts(
        "multiple-choice" if task.multiple_choice else "text-classification",
        **_data_facts(data_args, task),
        metrics={_joined(part, name): SCORES[name][0] for part, name in names},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters={"max_seq_length": length},
    )
    return Experiment(model_args, card, task, config, tokenizer, rows["train"][""], rows["validation"], rows["test"])


def _texts(examples: datasets.Dataset) -> Iterator[str]:
    for row in examples:
        yield from row["texts"]


def _data_facts(arguments: TextClassificationArguments, task: TextTask) -> dict[str, str | None]:
    if not isinstance(task, GlueTask):
        return describe_data(arguments)
    return {"data": f"the validation set of {task.benchmark}'s {task.folder}", "dataset_id": task.hub_name}


def build_trainer(experiment: Experiment, args: TrainingArguments) -> ScriptTrainer:
    """A new model and its Trainer.

    Args:
        experiment: What is the same for all runs.
        args: Arguments of this run.
    """
    task, tokenizer = experiment.task, experiment.tokenizer
    model = build_model(
        experiment.model_args,
        copy.deepcopy(experiment.config),
        AutoModelForMultipleChoice if task.multiple_choice else AutoModelForSequenceClassification,
        ignore_mismatched_sizes=args.do_train,  # a checkpoint of another task gets a new head
    )
    several = len(experiment.validation) > 1
    if several and args.metric_for_best_model == "loss":
        args.metric_for_best_model = f"{next(iter(experiment.validation))}_loss"
    return ScriptTrainer(
        model=model,
        args=args,
        train_dataset=experiment.train,
        eval_dataset=experiment.validation if several else experiment.validation.get(""),
        data_collator=ChoiceCollator(tokenizer) if task.multiple_choice else DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda prediction: task_metrics(prediction, task),
        preprocess_logits_for_metrics=lambda logits, labels: logits[0] if isinstance(logits, tuple) else logits,
    )


def task_metrics(prediction: EvalPrediction, task: TextTask) -> dict[str, float]:
    """The task's metrics of logits."""
    return compute_scores(task.metrics, answers(prediction.predictions, task), prediction.label_ids)


def compute_scores(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Several scores at once.

    Args:
        names: Keys of `SCORES`.
        predictions: Class numbers or numbers, shape `(rows,)`.
        labels: The right ones, shape `(rows,)`.

    Returns:
        Fractions, not percentages; correlations lie in [-1, 1].
    """
    results = {}
    for name in names:
        metric, options = SCORES[name]
        results[name] = load_metric(metric).compute(predictions=predictions, references=labels, **options)[metric]
    return results


def answers(logits: np.ndarray, task: TextTask) -> np.ndarray:
    """Class numbers, or scores, from logits of shape `(rows, classes)`."""
    return logits.reshape(-1) if task.is_regression else logits.argmax(axis=-1)


def run_once(experiment: Experiment, args: TrainingArguments) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say.

    Args:
        experiment: What is the same for all runs.
        args: Arguments of this run.

    Returns:
        The metrics under names that start with `eval_`, the majority's under `majority_`, those of a test set with
        labels under `test_`.
    """
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer = build_trainer(experiment, args)
    print_plan(trainer, resume_from)
    folder, classes = Path(args.output_dir), experiment.task.labels or ()

    def write(output: PredictionOutput, part: str = "") -> None:
        path = folder / f"{_joined('predictions', part)}.csv"
        write_predictions(path, output.predictions, output.label_ids, classes)

    results = train_and_evaluate(trainer, experiment.card, resume_from, write, experiment.majority_metrics())
    for part, rows in experiment.test.items():
        results |= predict(trainer, experiment.task, part, rows)
    return results


def predict(trainer: ScriptTrainer, task: TextTask, part: str, rows: datasets.Dataset) -> dict[str, float]:
    """Write the predictions for a test set: the submission file of a benchmark, or `predictions_test.csv`.

    Returns:
        The metrics if the rows have labels.
    """
    prefix = _joined("test", part)
    output, folder = trainer.predict(rows, metric_key_prefix=prefix), Path(trainer.args.output_dir)
    trainer.save_metrics(prefix, output.metrics)
    if trainer.is_world_process_zero():
        if isinstance(task, GlueTask):
            path = folder / task.submission(part)
            task.write_submission(answers(output.predictions, task), rows["index"], path)
        else:
            path = folder / "predictions_test.csv"
            write_predictions(path, output.predictions, output.label_ids, task.labels or ())
        print(f"predictions for the test set: {path}", flush=True)
    return {
        f"{prefix}_{name}": output.metrics[f"{prefix}_{name}"] for name in task.metrics if "label" in rows.features
    }


def print_results(results: Mapping[str, float], experiment: Experiment) -> None:
    """Print the metrics beside those of the majority."""
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


def run_grid(
    load: Callable[[str | None], Experiment],
    grid_args: hyperparameter_grid.GridArguments,
    args: TrainingArguments,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Several runs with the same data, see `hyperparameter_grid.run_all`.

    Args:
        load: `load_experiment` but for its last argument.
        grid_args: What varies.
        args: Everything else.
        settings: What must be the same in all runs in one output folder.
    """
    runs = hyperparameter_grid.plan(grid_args, args)
    tokenizer_folder = Path(args.output_dir) / "tokenizer"  # a new one need not be the same when trained again
    experiment = load(str(tokenizer_folder) if tokenizer_folder.is_dir() else None)
    with args.main_process_first(local=False, desc="output folder"):
        hyperparameter_grid.check_folder(args, settings)
    if args.process_index == 0 and not tokenizer_folder.is_dir():
        experiment.tokenizer.save_pretrained(tokenizer_folder)
    return hyperparameter_grid.run_all(
        runs, lambda run: run_once(experiment, run), experiment.metric_names, args.output_dir
    )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or of several runs those of `hyperparameter_grid.run_all`."""
    model_args, data_args, grid_args, card_args, args = parse_arguments(
        (
            ModelArguments,
            TextClassificationArguments,
            hyperparameter_grid.GridArguments,
            CardArguments,
            ScriptTrainingArguments,
        ),
        argv,
    )
    if not (args.do_train or args.do_eval or args.do_predict):
        raise UserError("there is nothing to do: give --do_train, --do_eval or --do_predict.")

    def load(saved_tokenizer: str | None) -> Experiment:
        return load_experiment(model_args, data_args, card_args, args, saved_tokenizer)

    if grid_args.is_used:
        settings = {**vars(model_args), **vars(data_args)}
        settings.pop("token")  # is secret
        results = run_grid(load, grid_args, args, settings)
    else:
        experiment = load(checkpoint_to_resume(args))
        results = run_once(experiment, args)
        if args.process_index == 0:
            print_results(results, experiment)
    leave_processes()
    return results


if __name__ == "__main__":
    main()
