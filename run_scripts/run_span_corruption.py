"""Pretrain an encoder-decoder with T5's span corruption, and report its perplexity.

    tokenmixers run_span_corruption recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_span_corruption ...

Works for every checkpoint that `AutoModelForSeq2SeqLM` loads.
"""

from dataclasses import dataclass, field

from transformers import AutoModelForSeq2SeqLM, Trainer

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments
from .base.errors import UserError
from .base.ranges import check_ranges
from .base.training_arguments import ScriptTrainingArguments
from .data.collators import precompute_labels
from .data.row_seeds import SeededCollator
from .data.span_corruption import DataCollatorForSpanCorruption, span_corruption_lengths
from .data.text_corpus import TextDataArguments
from .training.language_modeling import build_trainer, load_corpus, run_script, tokenize_corpus
from .training.model_loading import build_model, sequence_length


@dataclass
class SpanCorruptionArguments:
    """How much text is replaced by sentinels."""

    noise_density: float = field(default=0.15, metadata={"help": "Share of the tokens to hide."})
    mean_noise_span_length: float = field(default=3.0, metadata={"help": "Mean length of a hidden span, in tokens."})

    def __post_init__(self):
        check_ranges(self, ("a share between 0 and 1", "noise_density"))
        check_ranges(self, ("a finite number of at least 1", "mean_noise_span_length"))


def build(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    noise_args: SpanCorruptionArguments,
    args: ScriptTrainingArguments,
    resume_from: str | None = None,
) -> Trainer:
    """Load data, tokenizer and model, and build the Trainer.

    `max_seq_length` is the length of the encoder's input. Rows of text are longer: their corrupted form fills it.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    if data_args.isolate_documents:
        raise UserError("--isolate_documents is for run_mlm and run_clm; --line_by_line keeps documents apart here.")
    if args.label_smoothing_factor:
        raise UserError("--label_smoothing_factor is not possible here: the Trainer would give the decoder no input.")
    corpus = load_corpus(model_args, data_args, args, resume_from, kind="encoder-decoder")
    length = sequence_length(data_args.max_seq_length, corpus.config, corpus.tokenizer)
    try:
        tokens, target_length = span_corruption_lengths(
            length, noise_args.noise_density, noise_args.mean_noise_span_length
        )
        collator = DataCollatorForSpanCorruption(
            corpus.tokenizer, noise_args.noise_density, noise_args.mean_noise_span_length, length, target_length
        )
        collator([{"input_ids": list(range(tokens))}])  # fails if there are too few sentinels
    except ValueError as error:
        raise UserError(f"span corruption is not possible: {error}") from error
    rows = tokenize_corpus(corpus, data_args, args, tokens, special_tokens=False, shortest_row=2)
    model = build_model(model_args, corpus.config, AutoModelForSeq2SeqLM)
    evaluation = precompute_labels(rows["validation"], SeededCollator(collator, args.evaluation_seed))
    return build_trainer(model, corpus, args, rows.get("train"), evaluation, SeededCollator(collator, args.seed))


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns perplexities and training tokens per second."""
    return run_script(build, (SpanCorruptionArguments,), "text2text-generation", argv)


if __name__ == "__main__":
    main()
