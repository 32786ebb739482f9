"""Pretrain an encoder-decoder with T5's span corruption, and report its perplexity.

    tokenmixers run_span_corruption recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_span_corruption ...

Works for every checkpoint that `AutoModelForSeq2SeqLM` loads. `--max_seq_length` is the length of the encoder's input.
Rows of text are longer: their corrupted form fills it.
"""

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.ranges import check_ranges
from .data.row_seeds import SeededCollator
from .data.span_corruption import DataCollatorForSpanCorruption, span_corruption_lengths
from .data.text_corpus import TextDataArguments
from .training.language_modeling import LanguageModeling, Rows, perplexities
from .training.run import Run


@dataclass
class SpanCorruptionArguments:
    """How much text is replaced by sentinels."""

    noise_density: float = field(default=0.15, metadata={"help": "Share of the tokens to hide."})
    mean_noise_span_length: float = field(default=3.0, metadata={"help": "Mean length of a hidden span, in tokens."})

    def __post_init__(self):
        check_ranges(self, ("a share between 0 and 1", "noise_density"))
        check_ranges(self, ("a finite number of at least 1", "mean_noise_span_length"))


class SpanCorruption(LanguageModeling):
    """Write what sentinels in a text stand for."""

    arguments = (TextDataArguments, SpanCorruptionArguments)
    pipeline_tag = "text2text-generation"
    auto_class = AutoModelForSeq2SeqLM
    tokenizer_kind = "encoder-decoder"

    def check(self, run: Run) -> None:
        """Refuse what only the other language models can do."""
        super().check(run)
        if run.data_args.isolate_documents:
            raise UserError(
                "--isolate_documents is for run_mlm and run_clm; --line_by_line keeps documents apart here."
            )
        if run.args.label_smoothing_factor:
            raise UserError(
                "--label_smoothing_factor is not possible here: the Trainer would give the decoder no input."
            )

    def encode(self, run: Run) -> dict[str, Rows]:
        """Rows of tokens, of a length that corrupted fills the encoder's input."""
        density, span, length = *vars(run[SpanCorruptionArguments]).values(), run.max_seq_length
        try:
            tokens, target_length = span_corruption_lengths(length, density, span)
            self.corrupt = DataCollatorForSpanCorruption(run.tokenizer, density, span, length, target_length)
            self.corrupt([{"input_ids": list(range(tokens))}])  # fails if there are too few sentinels
        except ValueError as error:
            raise UserError(f"span corruption is not possible: {error}") from error
        return self.tokenize(run, tokens, special_tokens=False, shortest_row=2)

    def collator(self, run: Run, model: PreTrainedModel) -> SeededCollator:
        return SeededCollator(self.corrupt, run.args.seed)

    def evaluation_collator(self, run: Run) -> SeededCollator:
        """The same spans in all runs of a grid."""
        return SeededCollator(self.corrupt, run.args.evaluation_seed)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns perplexities and training tokens per second, or for a grid the results of `run_all`."""
    return perplexities(Run(SpanCorruption(), argv).command())


if __name__ == "__main__":
    main()
