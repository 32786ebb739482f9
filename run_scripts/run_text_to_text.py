r"""Finetune an encoder-decoder on a mixture of tasks as text in, text out.

    tokenmixers run_text_to_text recipe.yaml --model_name_or_path ... --output_dir outputs/run
    tokenmixers run_text_to_text --tasks glue super_glue squad --model_name_or_path ... --output_dir outputs/run \
        --do_train --do_eval --max_steps 131072
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_text_to_text ...

The tasks of GLUE and SuperGLUE and SQuAD 1.1, in the format of T5 (arXiv:1910.10683), mixed in proportion to their
examples. Works for every checkpoint that `AutoModelForSeq2SeqLM` loads. Metrics are of generated texts, in percent. A
text that stands for no answer counts as wrong; there are `eval_<task>_unparseable` of them. Beside the last evaluation
the best of each task is reported (`best_<metric>`, `best_<task>_step`). The output folder also gets
`predictions_validation_<task>.csv`, and with `--do_predict` the files for the servers of GLUE and SuperGLUE.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, Seq2SeqTrainingArguments
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.reporting import print_table
from .base.training_arguments import order_seed, wanted_splits
from .data.mixture import mix, mixing_rates
from .data.text_pairs import iterate_pair_texts, tokenize_pairs
from .data.text_to_text import (
    Example,
    TextToTextArguments,
    TextToTextTask,
    evaluation_pairs,
    find_tasks,
    load_table,
    read_text_examples,
    training_pairs,
)
from .metrics import check_packages
from .metrics.task_scores import SCORES
from .training.generation import TextGeneration, print_truncation
from .training.hyperparameter_grid import Comparison, GridArguments
from .training.model_loading import freeze_embeddings
from .training.run import Run
from .training.text_to_text import (
    MEAN_OF_TASKS,
    EvaluationSet,
    MixtureEvaluation,
    TextToTextTrainer,
    constant_scores,
    parse_texts,
)


@dataclass
class FreezingArguments:
    """Which parameters do not train."""

    freeze_embeddings: bool = field(
        default=False, metadata={"help": "Do not train the input and output embedding matrices."}
    )


@dataclass
class Data:
    """The examples of a run as texts."""

    tasks: list[TextToTextTask]
    train: dict[str, datasets.Dataset]
    validation: list[EvaluationSet]
    test: list[EvaluationSet]


def load_data(arguments: TextToTextArguments, args: Seq2SeqTrainingArguments, token: str | None = None) -> Data:
    """Load the examples that a run needs."""
    tasks = find_tasks(arguments.tasks)
    check_packages(*{SCORES[name][0] for task in tasks for name in task.metrics if name in SCORES})
    for task in tasks:
        if task.benchmark_task is not None:
            task.benchmark_task.check_split(arguments.train_val_split)
    found: dict[str, list[EvaluationSet]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        examples: dict[tuple[str, str], list[Example]] = {}
        for split in wanted_splits(args):
            if split == "test" and task.benchmark_task is None:  # SQuAD's test set is not public
                continue
            source = arguments.source_of(split)
            for part in task.sets_of(source):
                if (source, part) not in examples:
                    table = load_table(task, source, part, arguments, token)
                    read = read_text_examples(task, table, split != "test", arguments.skip_empty_examples)
                    examples[source, part] = read
                found[split].append(EvaluationSet(task, part, arguments.select(split, examples[source, part])))
    train = {part.task.name: training_pairs(part.task, part.examples) for part in found["train"]}
    return Data(tasks, train, found["validation"], found["test"])


def mix_for_run(
    rows: Mapping[str, datasets.Dataset], arguments: TextToTextArguments, args: Seq2SeqTrainingArguments
) -> datasets.Dataset:
    """The training examples of the whole run, and the mixture as a table.

    Args:
        rows: Tokenized training examples of each task.
        arguments: With the limit.
        args: `max_steps` is set from the number of epochs, if it is not given; an epoch has as many examples as count
            in the mixture. Examples are trained in the order in which they are drawn.
    """
    sizes = [len(split) for split in rows.values()]
    rates = mixing_rates(sizes, arguments.mixing_limit)
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    if args.max_steps <= 0:
        counted = sum(min(size, arguments.mixing_limit or size) for size in sizes)
        args.max_steps = max(1, round(args.num_train_epochs * counted / batch))
    if args.train_sampling_strategy == "random":
        args.train_sampling_strategy = "sequential"
    if args.process_index == 0:
        table = [(n, f"{s:,}", f"{100 * r:.2f} %") for n, s, r in zip(rows, sizes, rates, strict=True)]
        print_table(("task", "training examples", "of the mixture"), table)
    return mix(rows, rates, args.max_steps * batch, order_seed(args))


class TextToText(TextGeneration):
    """Several tasks as text in, text out.

    Attributes:
        evaluations: Those of the splits `validation` and `test`.
    """

    arguments = (TextToTextArguments, FreezingArguments)
    pipeline_tag = "text2text-generation"
    trainer_class = TextToTextTrainer
    draws_by_seed = True
    evaluations: dict[str, MixtureEvaluation]

    def check(self, run: Run) -> None:
        """What is written and compared is what the model generates."""
        if run[GridArguments].is_used and not run.args.predict_with_generate:
            raise UserError(
                "several runs are compared by what they generate: leave out --predict_with_generate false."
            )
        if run.args.do_predict and not run.args.predict_with_generate:
            raise UserError("--do_predict writes what the model generates: leave out --predict_with_generate false.")

    def comparison(self, run: Run) -> Comparison:
        """By the mean of all tasks."""
        return Comparison([MEAN_OF_TASKS])

    def load(self, run: Run) -> Data:
        return load_data(run.data_args, run.args, run.model_args.token)

    def texts(self, run: Run) -> Iterator[str]:
        for split in run.data.train.values():
            yield from iterate_pair_texts(split)

    def encode(self, run: Run) -> dict[str, dict[str, datasets.Dataset]]:
        """Tokens of sources and targets: of the training data by task, of the others by evaluation set."""
        data, lengths, workers = run.data, run.lengths.values(), run.data_args.preprocessing_num_workers
        pairs = {"train": data.train} if data.train else {}
        self.evaluations = {}
        for split, sets in (("validation", data.validation), ("test", data.test)):
            if sets:
                pairs[split] = {found.name: evaluation_pairs(found.examples) for found in sets}
            self.evaluations[split] = MixtureEvaluation(sets, run.tokenizer)
        rows = {
            split: {
                name: tokenize_pairs(found, run.tokenizer, *lengths, num_workers=workers)
                for name, found in sets.items()
            }
            for split, sets in pairs.items()
        }
        if run.args.process_index == 0:
            print_truncation({f"{n} {split}": r for split, sets in rows.items() for n, r in sets.items()}, *lengths)
        for split in rows.keys() - {"train"}:
            rows[split] = {name: self.evaluations[split].number_rows(name, r) for name, r in rows[split].items()}
        return rows

    def build_model(self, run: Run, config: PreTrainedConfig) -> PreTrainedModel:
        model = super().build_model(run, config)
        if run[FreezingArguments].freeze_embeddings:
            frozen = freeze_embeddings(model)
            if run.args.process_index == 0:
                print(f"{frozen:,} parameters, those of the embeddings, do not train")
        return model

    def build_trainer(self, run: Run, model: PreTrainedModel, **options: Any) -> TextToTextTrainer:
        train = mix_for_run(run.rows["train"], run.data_args, run.args) if run.args.do_train else None
        trainer = super().build_trainer(run, model, train_dataset=train, **options)
        trainer.evaluation = self.evaluations["validation"]
        return trainer

    def metric_types(self, run: Run) -> dict[str, str]:
        return self.evaluations["validation"].metric_types() if run.args.predict_with_generate else {}

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        names = ", ".join(
            f"{task.benchmark_task.benchmark}'s {task.benchmark_task.folder}" if task.benchmark_task else "SQuAD 1.1"
            for task in run.data.tasks
        )
        settings = ("mixing_limit", "max_source_length", "max_target_length")
        held_out = run.data_args.train_val_split is not None
        return {
            "data": f"{'parts of the training' if held_out else 'the validation'} sets of {names}",
            "train_data": f"a mixture of {names}",
            "notes": "Metrics are of generated texts, in percent.",
            "hyper_parameters": {
                name: getattr(run.data_args, name) for name in settings if getattr(run.data_args, name)
            }
            | {"freeze_embeddings": run[FreezingArguments].freeze_embeddings},
        }

    def baselines(self, run: Run, trainer: TextToTextTrainer) -> dict[str, float]:
        """The metrics of a task's most frequent text."""
        targets = {name: split["target"] for name, split in run.data.train.items()}
        return constant_scores(run.data.validation, targets)

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        """The metrics of a set; of a test set, whose targets are not public, how many texts stand for no answer."""
        return self.evaluations[split].metrics(prediction)

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path | None:
        """The predictions for a set; of test data the files for the servers of GLUE and SuperGLUE.

        Texts that stand for no answer become the first class, 0, or an empty text.
        """
        evaluation = self.evaluations[split]
        if split == "validation":
            columns = evaluation.columns(output, part)
            return None if columns is None else run.write_predictions(split, part, columns)
        found = evaluation.sets[part]
        answers, _ = parse_texts(found.task, evaluation.texts(output, found), found.examples)
        path = Path(run.args.output_dir, found.task.benchmark_task.submission(found.part))
        answers = answers if found.task.compares_texts else [max(answer, 0) for answer in answers]
        found.task.benchmark_task.write_submission(answers, [e.index for e in found.examples], path)
        return path

    def test_results(self, run: Run, trainer: TextToTextTrainer) -> dict[str, Any]:
        """How many texts stand for no answer. There is no loss of texts without a target."""
        metrics = super().test_results(run, trainer)
        return {name: value for name, value in metrics.items() if name.endswith("_unparseable")}

    def report(self, run: Run, results: Mapping[str, float], model_type: str) -> None:
        """Print the metrics of every task: of the last evaluation, the best, and of the most frequent text."""
        if "tokens_per_second" in results:
            print(f"{results['tokens_per_second']:,.0f} source tokens a second in training")
        evaluation = self.evaluations["validation"]
        rows = []
        for name in evaluation.metric_types():
            if f"eval_{name}" in results:
                figures = [results.get(f"{kind}_{name}") for kind in ("eval", "best", "majority")]
                rows.append((name.replace("_", " "), *("" if value is None else f"{value:.2f}" for value in figures)))
        for name, found in evaluation.sets.items():
            number = results.get(f"eval_{name}_unparseable")
            if number:
                rows.append(
                    (f"{name.replace('_', ' ')} unparseable", f"{number:.0f} of {len(found.examples)}", "", "")
                )
        if rows:
            print_table(("in percent", model_type, "best evaluation", "most frequent text"), rows)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(TextToText(), argv).command()


if __name__ == "__main__":
    main()
