"""Train a sequence-to-sequence model, and report BLEU, ROUGE and perplexity.

    tokenmixers run_seq2seq recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_seq2seq ...

Works for every checkpoint and configuration that `AutoModelForSeq2SeqLM` loads. The output folder also gets
`predictions.txt` and `references.txt`, one example a line, and with `--do_predict` the same of the test data, as
`test_predictions.txt` and `test_references.txt`. New texts need no references:

    tokenmixers run_seq2seq --model_name_or_path outputs/run --do_predict --test_source_file new.txt \
        --output_dir outputs/new
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import (
    AutoModelForSeq2SeqLM,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.reporting import print_plan, print_table
from .base.training_arguments import GenerationTrainingArguments, check_has_work, wanted_splits
from .data.text_pairs import Seq2SeqDataArguments, iterate_pair_texts, load_pairs, tokenize_pairs
from .metrics import load_metric
from .training.distillation import TokenDistillation, TokenDistillationArguments
from .training.generation import (
    GenerationTrainer,
    build_trainer,
    generated_texts,
    in_order,
    one_line,
    print_truncation,
    set_generation,
    text_lengths,
)
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.language_modeling import perplexity
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import build_model, fitting_tokenizer, load_config
from .training.run_folder import checkpoint_to_resume
from .training.teacher import Teacher, find_teacher
from .training.training_run import train_and_evaluate


#: What `--metric` adds to the results -> what the Hub calls it.
METRICS = {
    "bleu": {"bleu": "bleu"},
    "bleu_1": {"bleu_1": "bleu"},
    "rouge": dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "rouge"),
}


@dataclass
class MetricArguments:
    """How generated texts are compared with the references."""

    metric: list[str] = field(
        default_factory=lambda: ["bleu"],
        metadata={"help": "bleu (sacreBLEU), bleu_1 (of single words, for dialogue), rouge, or several of them."},
    )
    bleu_tokenize: str = field(default="13a", metadata={"help": "sacreBLEU's tokenization: 13a, intl, zh, char, ..."})

    def __post_init__(self):
        unknown = [name for name in self.metric if name not in METRICS]
        if unknown or not self.metric:
            raise UserError(f"--metric {' '.join(self.metric)} is not possible; there are {', '.join(METRICS)}.")


class GenerationEvaluation:
    """Turns what `GenerationTrainer` predicts into texts and metrics.

    Args:
        pairs: The examples, with their `references`. Without any, texts are written and not scored.
        tokenizer: Decodes.
        arguments: Which metrics; `None` if no texts are generated.

    Attributes:
        signature: sacreBLEU's, if BLEU is asked for.

    Raises:
        UserError: If a package that a metric needs is missing: before training rather than at its end.
    """

    def __init__(self, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, arguments: MetricArguments | None):
        self.references = list(pairs["references"])
        self.tokenizer = tokenizer
        self.arguments = arguments
        self.signature: str | None = None
        if arguments is not None and any(self.references):
            # The signature says how many references there are, or that this varies.
            some = list({len(texts): texts for texts in self.references}.values())
            _, self.signature = score_texts([texts[0] for texts in some], some, arguments)

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Perplexity of the tokens of the (truncated) targets, and what `--metric` asks for.

        Raises:
            ValueError: If an example has no prediction.
        """
        if not any(self.references):
            return {}
        (losses, *generated), labels = in_order(prediction, len(self.references))
        metrics = perplexity(EvalPrediction(losses, labels))
        if generated:
            metrics |= score_texts(generated_texts(generated[0], self.tokenizer), self.references, self.arguments)[0]
        return metrics

    def write(self, output: PredictionOutput, folder: str, prefix: str = "") -> None:
        """Write `predictions.txt` and `references.txt`, one example a line, several references with tabs between them.

        Args:
            output: From `GenerationTrainer.predict`.
            folder: Where to write.
            prefix: Of the names of the files.
        """
        (_, *generated), _ = in_order(output, len(self.references))
        if not generated:
            return
        lines = {"predictions": generated_texts(generated[0], self.tokenizer)}
        if any(self.references):
            lines["references"] = ["\t".join(map(one_line, texts)) for texts in self.references]
        for name, texts in lines.items():
            Path(folder, f"{prefix}{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")


def score_texts(
    texts: list[str], references: list[list[str]], arguments: MetricArguments
) -> tuple[dict[str, float], str | None]:
    """The scores of `--metric` in percent, and sacreBLEU's signature if BLEU is one of them.

    ROUGE compares words without their English endings. rougeLsum compares sentences, as in papers on CNN/DailyMail.

    Raises:
        UserError: If a package that a metric needs is missing, or sacreBLEU does not know `--bleu_tokenize`.
    """
    scores, signature = {}, None
    pairs = {"predictions": texts, "references": references}
    for name in arguments.metric:
        if name == "rouge":
            options = {"use_aggregator": False, "use_stemmer": True, "split_sentences": True}
            found = load_metric("rouge").compute(**pairs, **options)
            scores |= {kind: 100.0 * sum(values) / len(values) for kind, values in found.items()}
        else:
            known = import_optional("sacrebleu", "seq2seq", f"--metric {name}").BLEU.TOKENIZERS
            if arguments.bleu_tokenize not in known:
                raise UserError(f"--bleu_tokenize {arguments.bleu_tokenize!r} is unknown. Known: {', '.join(known)}.")
            options = {"tokenize": arguments.bleu_tokenize, "max_ngram_order": 1 if name == "bleu_1" else 4}
            found = load_metric("sacrebleu").compute(**pairs, **options)
            scores[name], signature = found["score"], found["signature"]
    return scores, signature


def load_rows(
    model_args: ModelArguments,
    data_args: Seq2SeqDataArguments,
    args: Seq2SeqTrainingArguments,
    config: PreTrainedConfig,
    resume_from: str | None = None,
    teacher: Teacher | None = None,
) -> tuple[PreTrainedTokenizerBase, dict[str, datasets.Dataset], dict[str, datasets.Dataset], int]:
    """Load texts and tokenizer, and tokenize.

    Returns:
        The tokenizer, the pairs of texts and the tokenized rows by split, and the most tokens of a target.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    with args.main_process_first(local=False, desc="loading the texts"):
        loaded = {name: load_pairs(data_args, name, model_args.token) for name in wanted_splits(args)}
    texts = iterate_pair_texts(loaded["train"][0]) if model_args.train_tokenizer is not None else ()
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from, "encoder-decoder")
    source_length, target_length = text_lengths(data_args, config, tokenizer)
    if teacher is not None:
        teacher.check_texts(tokenizer, {"--max_source_length": source_length, "--max_target_length": target_length})
    rows = {}
    with args.main_process_first(local=False, desc="tokenizing"):
        for name, (pairs, truncation_side) in loaded.items():
            rows[name] = tokenize_pairs(
                pairs, tokenizer, source_length, target_length, truncation_side, data_args.preprocessing_num_workers
            )
    if args.process_index == 0:
        print_truncation(rows, source_length, target_length)
    return tokenizer, {name: pairs for name, (pairs, _) in loaded.items()}, rows, target_length


def build(
    model_args: ModelArguments,
    data_args: Seq2SeqDataArguments,
    metric_args: MetricArguments,
    distillation_args: TokenDistillationArguments,
    args: Seq2SeqTrainingArguments,
    resume_from: str | None = None,
) -> tuple[GenerationTrainer, dict[str, tuple[datasets.Dataset, GenerationEvaluation]]]:
    """Load texts, tokenizer and model, and build the Trainer.

    Returns:
        The Trainer, and the tokenized rows and the evaluation of the splits `validation` and `test`, as far as needed.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    new_texts = data_args.test_source_file is not None and data_args.test_target_file is None
    if args.do_predict and new_texts and not args.predict_with_generate:
        raise UserError(
            "--do_predict without targets writes what the model generates: leave out --predict_with_generate false."
        )
    teacher = find_teacher(distillation_args, model_args, args)
    if teacher is not None:
        model_args = teacher.student_arguments(model_args)
    config = load_config(model_args)
    tokenizer, pairs, rows, target_length = load_rows(model_args, data_args, args, config, resume_from, teacher)
    evaluations = {
        name: (
            rows[name].add_column("example", list(range(len(rows[name])))),
            GenerationEvaluation(pairs[name], tokenizer, metric_args if args.predict_with_generate else None),
        )
        for name in ("validation", "test")
        if name in rows
    }
    if teacher is not None:
        teacher.load(AutoModelForSeq2SeqLM, rows["train"])
    model = build_model(model_args, config, AutoModelForSeq2SeqLM)
    set_generation(model, args, target_length, config.get_text_config(decoder=True))
    validation, evaluation = evaluations.get("validation", (None, None))
    metrics = None if evaluation is None else evaluation.metrics
    trainer = build_trainer(GenerationTrainer, model, args, tokenizer, rows.get("train"), validation, metrics)
    if teacher is not None:
        teacher.teach(trainer, TokenDistillation, {})
    return trainer, evaluations


def metric_names(metric_args: MetricArguments, args: Seq2SeqTrainingArguments) -> dict[str, str]:
    """The reported metrics, and what the Hub calls them."""
    names = {"perplexity": "perplexity"}
    for metric in metric_args.metric if args.predict_with_generate else ():
        names |= METRICS[metric]
    return names


def run_once(
    model_args: ModelArguments,
    data_args: Seq2SeqDataArguments,
    metric_args: MetricArguments,
    distillation_args: TokenDistillationArguments,
    card_args: CardArguments,
    args: Seq2SeqTrainingArguments,
) -> dict[str, float | str]:
    """One run: train, evaluate and predict as the arguments say.

    Returns:
        The metrics of the evaluations and training tokens per second.
    """
    resume_from = checkpoint_to_resume(args)
    args.include_num_input_tokens_seen = "non_padding"
    set_seed(args.seed)
    trainer, evaluations = build(model_args, data_args, metric_args, distillation_args, args, resume_from)
    print_plan(trainer, resume_from)
    names = metric_names(metric_args, args)
    settings = ("source_prefix", "max_source_length", "max_target_length", "max_history")
    generation = trainer.model.generation_config
    card = CardFacts(
        "text2text-generation",
        **describe_data(data_args),
        metrics=names,
        base_model=model_args.model_name_or_path,
        author=card_args,
        notes="BLEU is sacreBLEU's, its signature is in eval_results.json." if "bleu" in names else "",
        hyper_parameters={name: getattr(data_args, name) for name in settings if getattr(data_args, name)}
        | {"generation_max_length": generation.max_length, "generation_num_beams": generation.num_beams or 1}
        | distillation_args.in_use(),
    )
    write, known = None, {}
    if args.do_eval:
        evaluation = evaluations["validation"][1]
        write = partial(evaluation.write, folder=args.output_dir)
        known = {"bleu_signature": evaluation.signature} if evaluation.signature else {}
    predict = partial(predict_test_data, trainer, *evaluations["test"]) if args.do_predict else None
    results = train_and_evaluate(trainer, card, resume_from, write, known, predict)
    if trainer.is_world_process_zero():
        report(results, names, evaluations, trainer.model.config.model_type)
    return results


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or for a grid those of `hyperparameter_grid.run_all`."""
    types = (ModelArguments, Seq2SeqDataArguments, MetricArguments, TokenDistillationArguments, CardArguments)
    *arguments, grid_args, args = parse_arguments((*types, GridArguments, GenerationTrainingArguments), argv)
    check_has_work(args, "do_train", "do_eval", "do_predict")
    # By the first score of generated texts, if there are any.
    comparison = Comparison(sorted(metric_names(arguments[2], args), key="perplexity".__eq__))
    return run_command(partial(run_once, *arguments), grid_args, args, arguments[:4], comparison)


def predict_test_data(
    trainer: GenerationTrainer, rows: datasets.Dataset, evaluation: GenerationEvaluation
) -> dict[str, float]:
    """Predict the test data: writes `test_predictions.txt`, `test_references.txt` and `test_results.json`."""
    trainer.compute_metrics = evaluation.metrics
    output = trainer.predict(rows, metric_key_prefix="test")
    if trainer.is_world_process_zero():
        evaluation.write(output, trainer.args.output_dir, prefix="test_")
        if trainer.args.predict_with_generate:
            path = Path(trainer.args.output_dir, "test_predictions.txt")
            print(f"predictions for the test set: {path}", flush=True)
    metrics = output.metrics | ({"test_bleu_signature": evaluation.signature} if evaluation.signature else {})
    if not any(evaluation.references):
        metrics.pop("test_loss")  # of empty targets
    trainer.save_metrics("test", metrics, combined=False)
    return metrics


def report(
    results: Mapping[str, float | str],
    metrics: Iterable[str],
    evaluations: Mapping[str, tuple[datasets.Dataset, GenerationEvaluation]],
    model_type: str,
) -> None:
    """Print the metrics of all evaluated splits as a table."""
    if "tokens_per_second" in results:
        print(f"{results['tokens_per_second']:,.0f} source tokens a second in training")
    evaluations = {split: found for split, found in evaluations.items() if any(found[1].references)}
    if not evaluations:
        return
    prefixes = {"validation": "eval", "test": "test"}
    rows = [(name, *(f"{results[f'{prefixes[split]}_{name}']:.2f}" for split in evaluations)) for name in metrics]
    heads = (f"{len(rows):,} {split} examples" for split, (rows, _) in evaluations.items())
    print_table((model_type, *heads), rows)
    signatures = [evaluation.signature for _, evaluation in evaluations.values() if evaluation.signature]
    if signatures:
        print(f"sacreBLEU's signature: {signatures[-1]}\n")


if __name__ == "__main__":
    main()
