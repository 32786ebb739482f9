"""Finetune an encoder-decoder on a mixture of tasks as text in, text out.

    tokenmixers run_text_to_text recipe.yaml --model_name_or_path ... --output_dir outputs/run
    tokenmixers run_text_to_text --tasks glue super_glue squad --model_name_or_path ... --output_dir outputs/run \
        --do_train --do_eval --max_steps 131072
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_text_to_text ...

The tasks of GLUE and SuperGLUE and SQuAD 1.1, in the format of T5 (arXiv:1910.10683), mixed in proportion to their
examples. Works for every checkpoint that `AutoModelForSeq2SeqLM` loads. Metrics are of generated texts, in percent. A
text that stands for no answer counts as wrong; there are `eval_<task>_unparseable` of them. Beside the last evaluation
the best of each task is reported (`best_<metric>`, `best_<task>_step`). The output folder also gets
`predictions_<task>.jsonl`, and with `--do_predict` the files for the servers of GLUE and SuperGLUE.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase, Seq2SeqTrainingArguments, set_seed

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.reporting import print_plan, print_table
from .base.training_arguments import GenerationTrainingArguments, check_has_work
from .data.mixture import mix, mixing_rates
from .data.text_pairs import iterate_pair_texts, tokenize_pairs
from .data.text_to_text import (
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
from .training.generation import build_trainer, print_truncation, set_generation, text_lengths
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts
from .training.model_loading import build_model, fitting_tokenizer, freeze_embeddings, load_config
from .training.run_folder import checkpoint_to_resume
from .training.text_to_text import (
    MEAN_OF_TASKS,
    EvaluationSet,
    MixtureEvaluation,
    TextToTextTrainer,
    constant_scores,
    parse_texts,
)
from .training.trainer import compare_by_first_set
from .training.training_run import train_and_evaluate


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
    """Load the examples that a run needs.

    Raises:
        UserError: If a task is unknown, or data are missing or invalid.
    """
    tasks = find_tasks(arguments.tasks)
    check_packages(*{SCORES[name][0] for task in tasks for name in task.metrics if name in SCORES})
    data, skip_empty = Data(tasks, {}, [], []), arguments.skip_empty_examples
    for task in tasks:
        if args.do_train:
            table = load_table(task, "train", "", arguments, token)
            examples = read_text_examples(task, table, True, arguments.max_train_samples, skip_empty)
            data.train[task.name] = training_pairs(task, examples)
        for part in task.sets:
            if args.do_eval:
                table = load_table(task, "validation", part, arguments, token)
                examples = read_text_examples(task, table, True, arguments.max_eval_samples, skip_empty)
                data.validation.append(EvaluationSet(task, part, examples))
            if args.do_predict and task.benchmark_task is not None:  # SQuAD's test set is not public
                examples = read_text_examples(task, load_table(task, "test", part, arguments, token), False)
                data.test.append(EvaluationSet(task, part, examples))
    return data


def tokenize(
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    lengths: tuple[int, int],
    num_workers: int | None = None,
) -> dict[str, dict[str, datasets.Dataset]]:
    """The tokenized rows of `train`, `validation` and `test`, by task or evaluation set."""
    pairs = {
        "train": data.train,
        "validation": {found.name: evaluation_pairs(found.examples) for found in data.validation},
        "test": {found.name: evaluation_pairs(found.examples) for found in data.test},
    }
    return {
        split: {
            name: tokenize_pairs(rows, tokenizer, *lengths, num_workers=num_workers) for name, rows in sets.items()
        }
        for split, sets in pairs.items()
    }


def mix_for_run(
    rows: Mapping[str, datasets.Dataset], arguments: TextToTextArguments, args: Seq2SeqTrainingArguments
) -> datasets.Dataset:
    """The training examples of the whole run, and the mixture as a table.

    Args:
        rows: Tokenized training examples of each task.
        arguments: Limit and temperature.
        args: `max_steps` is set from the number of epochs, if it is not given; an epoch has as many examples as count
            in the mixture. Examples are trained in the order in which they are drawn.
    """
    sizes = [len(split) for split in rows.values()]
    rates = mixing_rates(sizes, arguments.mixing_limit, arguments.mixing_temperature)
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    if args.max_steps <= 0:
        counted = sum(min(size, arguments.mixing_limit or size) for size in sizes)
        args.max_steps = max(1, round(args.num_train_epochs * counted / batch))
    if args.train_sampling_strategy == "random":
        args.train_sampling_strategy = "sequential"
    if args.process_index == 0:
        table = [(n, f"{s:,}", f"{100 * r:.2f} %") for n, s, r in zip(rows, sizes, rates, strict=True)]
        print_table(("task", "training examples", "of the mixture"), table)
    seed = args.seed if args.data_seed is None else args.data_seed
    return mix(rows, rates, args.max_steps * batch, seed)


def build(
    model_args: ModelArguments,
    data_args: TextToTextArguments,
    freezing_args: FreezingArguments,
    args: Seq2SeqTrainingArguments,
    resume_from: str | None = None,
) -> tuple[TextToTextTrainer, Data, dict[str, datasets.Dataset]]:
    """Load texts, tokenizer and model, and build the Trainer.

    Returns:
        The Trainer, the texts, and the tokenized test sets.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    if args.do_predict and not args.predict_with_generate:
        raise UserError("--do_predict writes what the model generates: leave out --predict_with_generate false.")
    config = load_config(model_args)
    find_tasks(data_args.tasks)
    with args.main_process_first(local=False, desc="loading the texts"):
        data = load_data(data_args, args, model_args.token)
    texts = _texts(data.train)
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from, "encoder-decoder")
    lengths = text_lengths(data_args, config, tokenizer)
    with args.main_process_first(local=False, desc="tokenizing"):
        rows = tokenize(data, tokenizer, lengths, data_args.preprocessing_num_workers)
    if args.process_index == 0:
        print_truncation({f"{n} {split}": r for split, sets in rows.items() for n, r in sets.items()}, *lengths)
    evaluation = MixtureEvaluation(data.validation, tokenizer)
    sets = {name: evaluation.number_rows(name, split) for name, split in rows["validation"].items()}
    if sets:
        compare_by_first_set(args, sets)
    train = mix_for_run(rows["train"], data_args, args) if args.do_train else None
    model = build_model(model_args, config, AutoModelForSeq2SeqLM)
    set_generation(model, args, lengths[1], config.get_text_config(decoder=True))
    if freezing_args.freeze_embeddings:
        frozen = freeze_embeddings(model)
        if args.process_index == 0:
            print(f"{frozen:,} parameters, those of the embeddings, do not train")
    trainer = build_trainer(TextToTextTrainer, model, args, tokenizer, train, sets or None, evaluation.metrics)
    trainer.evaluation = evaluation
    return trainer, data, rows["test"]


def _texts(pairs: Mapping[str, datasets.Dataset]) -> Iterator[str]:
    for split in pairs.values():
        yield from iterate_pair_texts(split)


def describe_tasks(tasks: list[TextToTextTask]) -> dict[str, str]:
    """The data, as arguments of `CardFacts`."""
    names = ", ".join(
        f"{task.benchmark_task.benchmark}'s {task.benchmark_task.folder}" if task.benchmark_task else "SQuAD 1.1"
        for task in tasks
    )
    return {"data": f"the validation sets of {names}", "train_data": f"a mixture of {names}"}


def predict_test_data(
    trainer: TextToTextTrainer, sets: list[EvaluationSet], rows: Mapping[str, datasets.Dataset]
) -> dict[str, float]:
    """Write the files for the servers of GLUE and SuperGLUE.

    Texts that stand for no answer become the first class, 0, or an empty text.

    Returns:
        The number of such texts, `test_<set>_unparseable`.
    """
    evaluation, trainer.compute_metrics = MixtureEvaluation(sets, trainer.processing_class), None
    results: dict[str, float] = {}
    for found in sets:
        output = trainer.predict(evaluation.number_rows(found.name, rows[found.name]), metric_key_prefix="test")
        answers, unparseable = parse_texts(found.task, evaluation.texts(output, found), found.examples)
        results[f"test_{found.name}_unparseable"] = unparseable
        if trainer.is_world_process_zero():
            path = Path(trainer.args.output_dir, found.task.benchmark_task.submission(found.part))
            answers = answers if found.task.compares_texts else [max(answer, 0) for answer in answers]
            found.task.benchmark_task.write_submission(answers, [e.index for e in found.examples], path)
            print(f"predictions for the test set: {path}", flush=True)
    trainer.save_metrics("test", results, combined=False)
    return results


def run_once(
    model_args: ModelArguments,
    data_args: TextToTextArguments,
    freezing_args: FreezingArguments,
    card_args: CardArguments,
    args: Seq2SeqTrainingArguments,
) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say.

    Returns:
        The metrics of the last evaluation, the best ones, and training tokens per second.
    """
    resume_from = checkpoint_to_resume(args)
    args.include_num_input_tokens_seen = "non_padding"
    set_seed(args.seed)
    trainer, data, test_rows = build(model_args, data_args, freezing_args, args, resume_from)
    print_plan(trainer, resume_from)
    settings = ("mixing_limit", "mixing_temperature", "max_source_length", "max_target_length")
    card = CardFacts(
        "text2text-generation",
        **describe_tasks(data.tasks),
        metrics=trainer.evaluation.metric_types() if args.predict_with_generate else {},
        base_model=model_args.model_name_or_path,
        author=card_args,
        notes="Metrics are of generated texts, in percent.",
        hyper_parameters={name: getattr(data_args, name) for name in settings if getattr(data_args, name)}
        | {"freeze_embeddings": freezing_args.freeze_embeddings},
    )
    targets = {name: split["target"] for name, split in data.train.items()}
    known = constant_scores(data.validation, targets)
    write = partial(trainer.evaluation.write, folder=args.output_dir)
    predict = partial(predict_test_data, trainer, data.test, test_rows) if args.do_predict else None
    results = train_and_evaluate(trainer, card, resume_from, write, known, predict)
    if trainer.is_world_process_zero():
        report(results, trainer.evaluation, trainer.model.config.model_type)
    return results


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or for a grid those of `hyperparameter_grid.run_all`."""
    types = (ModelArguments, TextToTextArguments, FreezingArguments, CardArguments)
    *arguments, grid_args, args = parse_arguments((*types, GridArguments, GenerationTrainingArguments), argv)
    check_has_work(args, "do_train", "do_eval", "do_predict")
    if grid_args.is_used and not args.predict_with_generate:
        raise UserError("several runs are compared by what they generate: leave out --predict_with_generate false.")
    comparison = Comparison([MEAN_OF_TASKS])
    return run_command(partial(run_once, *arguments), grid_args, args, arguments[:3], comparison)


def report(results: Mapping[str, float], evaluation: MixtureEvaluation, model_type: str) -> None:
    """Print the metrics of every task: of the last evaluation, the best, and of the most frequent text."""
    if "tokens_per_second" in results:
        print(f"{results['tokens_per_second']:,.0f} source tokens a second in training")
    kinds = ("eval", "best", "majority")
    rows = []
    for name in evaluation.metric_types():
        if f"eval_{name}" in results:
            figures = [results.get(f"{kind}_{name}") for kind in kinds]
            rows.append((name.replace("_", " "), *("" if value is None else f"{value:.2f}" for value in figures)))
    for name, found in evaluation.sets.items():
        count = results.get(f"eval_{name}_unparseable")
        if count:
            rows.append((f"{name.replace('_', ' ')} unparseable", f"{count:.0f} of {len(found.examples)}", "", ""))
    if rows:
        print_table(("in percent", model_type, "best evaluation", "most frequent text"), rows)


if __name__ == "__main__":
    main()
