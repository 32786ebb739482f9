r"""Train a sequence-to-sequence model, and report BLEU, ROUGE and perplexity.

    tokenmixers run_seq2seq recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_seq2seq ...

Works for every checkpoint and configuration that `AutoModelForSeq2SeqLM` loads. The output folder also gets
`predictions_validation.csv`, and with `--do_predict` `predictions_test.csv`. Next to them are files with the same name
and the ending `.txt`, which hold the written texts alone, one per line. New texts need no references:

    tokenmixers run_seq2seq --model_name_or_path outputs/run --do_predict --test_source_file new.txt \
        --output_dir outputs/new
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.reporting import print_table
from .base.training_arguments import wanted_splits
from .data.loading import INDEX
from .data.text_pairs import Seq2SeqDataArguments, iterate_pair_texts, load_pairs, tokenize_pairs
from .metrics import load_metric
from .training.distillation import DistillationArguments, TokenDistillation
from .training.generation import TextGeneration, generated_texts, in_order, print_truncation
from .training.hyperparameter_grid import Comparison
from .training.language_modeling import perplexity
from .training.run import Run


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
    """

    def __init__(self, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, arguments: MetricArguments | None):
        self.pairs = pairs
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

    def columns(self, output: PredictionOutput) -> dict[str, list[Any]] | None:
        """The generated texts next to sources and references; `None` if no texts were generated."""
        (_, *generated), _ = in_order(output, len(self.references))
        if not generated:
            return None
        names = [INDEX, "source", *(["references"] if any(self.references) else [])]
        columns = {name: list(self.pairs[name]) for name in names}
        return columns | {"prediction": generated_texts(generated[0], self.tokenizer)}


def score_texts(
    texts: list[str], references: list[list[str]], arguments: MetricArguments
) -> tuple[dict[str, float], str | None]:
    """The scores of `--metric` in percent, and sacreBLEU's signature if BLEU is one of them.

    ROUGE compares words without their English endings. rougeLsum compares sentences, as in papers on CNN/DailyMail.
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


class SequenceToSequence(TextGeneration):
    """A text for a text.

    Attributes:
        evaluations: Those of the splits `validation` and `test`, if needed.
    """

    arguments = (Seq2SeqDataArguments, MetricArguments, DistillationArguments)
    pipeline_tag = "text2text-generation"
    distillation = TokenDistillation
    evaluations: dict[str, GenerationEvaluation]

    def check(self, run: Run) -> None:
        """Without targets all that is written is what the model generates."""
        new_texts = run.data_args.test_source_file is not None and run.data_args.test_target_file is None
        if run.args.do_predict and new_texts and not run.args.predict_with_generate:
            raise UserError(
                "--do_predict without targets writes what the model generates: leave out "
                "--predict_with_generate false."
            )

    def comparison(self, run: Run) -> Comparison:
        """By the first score of generated texts, if there are any."""
        return Comparison(sorted(self.metric_types(run), key="perplexity".__eq__))

    def load(self, run: Run) -> dict[str, tuple[datasets.Dataset, str]]:
        """Split -> pairs of texts, and the side at which sources are cut."""
        return load_pairs(run.data_args, wanted_splits(run.args), run.model_args.token)

    def texts(self, run: Run) -> Iterable[str]:
        return iterate_pair_texts(run.data["train"][0])

    def encode(self, run: Run) -> dict[str, datasets.Dataset]:
        lengths, workers = run.lengths.values(), run.data_args.preprocessing_num_workers
        rows = {
            split: tokenize_pairs(pairs, run.tokenizer, *lengths, side, workers)
            for split, (pairs, side) in run.data.items()
        }
        if run.args.process_index == 0:
            print_truncation(rows, *lengths)
        scored, self.evaluations = run[MetricArguments] if run.args.predict_with_generate else None, {}
        for split in rows.keys() - {"train"}:
            rows[split] = rows[split].add_column("example", list(range(len(rows[split]))))
            self.evaluations[split] = GenerationEvaluation(run.data[split][0], run.tokenizer, scored)
        return rows

    def metric_types(self, run: Run) -> dict[str, str]:
        names = {"perplexity": "perplexity"}
        for metric in run[MetricArguments].metric if run.args.predict_with_generate else ():
            names |= METRICS[metric]
        return names

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        names = ("source_prefix", "max_source_length", "max_target_length", "max_history")
        settings = {name: getattr(run.data_args, name) for name in names if getattr(run.data_args, name)}
        settings |= {"generation_max_length": model.generation_config.max_length}
        settings |= {"num_beams": model.generation_config.num_beams or 1}
        note = "BLEU is sacreBLEU's, its signature is in eval_results.json."
        return {"hyper_parameters": settings, "notes": note if "bleu" in self.metric_types(run) else ""}

    def baselines(self, run: Run, trainer: Any) -> dict[str, str]:
        signature = self.evaluations["validation"].signature if run.args.do_eval else None
        return {"bleu_signature": signature} if signature else {}

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        return self.evaluations[split].metrics(prediction)

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path | None:
        """Write the texts as a table, and one per line, as `sacrebleu` reads them."""
        columns = self.evaluations[split].columns(output)
        if columns is None:
            return None
        lines = "".join(f"{text}\n" for text in columns["prediction"])
        run.prediction_file(split, part, "txt").write_text(lines, encoding="utf-8", newline="\n")
        return run.write_predictions(split, part, columns)

    def test_results(self, run: Run, trainer: Any) -> dict[str, Any]:
        """The metrics and sacreBLEU's signature. There is no loss of texts without a target."""
        metrics, evaluation = super().test_results(run, trainer), self.evaluations["test"]
        if not any(evaluation.references):
            metrics.pop("test_loss")
        return metrics | ({"test_bleu_signature": evaluation.signature} if evaluation.signature else {})

    def report(self, run: Run, results: Mapping[str, Any], model_type: str) -> None:
        """Print the metrics of all evaluated splits as a table."""
        if "tokens_per_second" in results:
            print(f"{results['tokens_per_second']:,.0f} source tokens a second in training")
        evaluations = {split: self.evaluations[split] for split in ("validation", "test") if split in self.evaluations}
        evaluations = {split: found for split, found in evaluations.items() if any(found.references)}
        if not evaluations:
            return
        prefixes = {"validation": "eval", "test": "test"}
        names = self.metric_types(run)
        rows = [(name, *(f"{results[f'{prefixes[split]}_{name}']:.2f}" for split in evaluations)) for name in names]
        heads = (f"{len(found.references):,} {split} examples" for split, found in evaluations.items())
        print_table((model_type, *heads), rows)
        signatures = [evaluation.signature for evaluation in evaluations.values() if evaluation.signature]
        if signatures:
            print(f"sacreBLEU's signature: {signatures[-1]}\n")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(SequenceToSequence(), argv).command()


if __name__ == "__main__":
    main()
