"""Pretrain a masked language model, and report its perplexity.

    tokenmixers run_mlm recipe.yaml --output_dir outputs/run [--seeds 1 2 3] [--learning_rates 1e-3 2e-3]
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_mlm ...
    tokenmixers launch ddp.yaml run_mlm ...

Works for every checkpoint that `AutoModelForMaskedLM` loads.
"""

from typing import Any

from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.language_modeling import MaskedLMHead
from .base.errors import UserError
from .data.masking import MaskingArguments, MaskingCollator
from .data.row_seeds import SeededCollator
from .data.text_corpus import TextDataArguments
from .training.distillation import DistillationArguments, TokenDistillation
from .training.language_modeling import LanguageModeling, Rows, perplexities
from .training.run import Run


class MaskedLanguageModeling(LanguageModeling):
    """Predict masked tokens."""

    arguments = (TextDataArguments, MaskingArguments, DistillationArguments)
    pipeline_tag = "fill-mask"
    auto_class = AutoModelForMaskedLM
    distillation = TokenDistillation

    def encode(self, run: Run) -> dict[str, Rows]:
        """Rows of tokens; the masks are possible."""
        masking = run[MaskingArguments]
        try:
            self.masks = MaskingCollator(run.tokenizer, **masking.collator_options())
        except ValueError as error:
            raise UserError(f"masking is not possible: {error}") from error
        return self.tokenize(run, run.max_seq_length, word_offsets=masking.whole_word_mask)

    def build_model(self, run: Run, config: PreTrainedConfig) -> PreTrainedModel:
        """A model that computes the logits of masked tokens only: training needs no others."""
        model = super().build_model(run, config)
        if isinstance(model, MaskedLMHead):
            model.config.sparse_prediction = True
        return model

    def collator(self, run: Run, model: PreTrainedModel) -> SeededCollator:
        return SeededCollator(self.masks, run.args.seed)

    def evaluation_collator(self, run: Run) -> SeededCollator:
        """The same masks in all runs of a grid."""
        return SeededCollator(self.masks, run.args.evaluation_seed)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns perplexities and training tokens per second, or for a grid the results of `run_all`."""
    return perplexities(Run(MaskedLanguageModeling(), argv).command())


if __name__ == "__main__":
    main()
