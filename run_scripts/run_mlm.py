"""Pretrain or continue a masked language model, and report its perplexity.

    python -m tokenmixers.run_scripts.run_mlm recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_mlm ...
    python -m tokenmixers.run_scripts.launch ddp.yaml run_mlm ...

Works for every checkpoint that `AutoModelForMaskedLM` loads.
"""

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.task_heads import MaskedLMHead
from .base.arguments import ModelArguments, UserError
from .data.text_corpus import TextDataArguments, labelled_once, pad_rows
from .training.language_modeling import (
    SeededCollator,
    build_model,
    build_trainer,
    load_corpus,
    run_script,
    tokenize_corpus,
)
from .training.model_loading import sequence_length


@dataclass
class MaskingArguments:
    """Which tokens the model has to predict."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})
    mask_replace_prob: float = field(default=0.8, metadata={"help": "Share of those that become the mask token."})
    random_replace_prob: float = field(default=0.1, metadata={"help": "Share of those that become a random token."})
    whole_word_mask: bool = field(
        default=False, metadata={"help": "Choose whole words; they are then always replaced by mask tokens."}
    )

    def __post_init__(self):
        if self.whole_word_mask:
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0


class MaskingCollator(DataCollatorForLanguageModeling):
    """Transformers' masking of batches that are padded here."""

    def __call__(self, rows: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        """Pad and mask."""
        batch = pad_rows(rows, self.tokenizer)
        special, offsets = batch.pop("special_tokens_mask", None), batch.pop("offset_mapping", None)
        batch["input_ids"], batch["labels"] = self.torch_mask_tokens(batch["input_ids"], special, offsets)
        return batch


def build(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    masking: MaskingArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> Trainer:
    """Load data, tokenizer and model, and join them in a Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    corpus = load_corpus(model_args, data_args, args, resume_from)
    length = sequence_length(data_args.max_seq_length, corpus.config, corpus.tokenizer)
    try:
        mask = SeededCollator(MaskingCollator(corpus.tokenizer, **vars(masking)), args.seed)
    except ValueError as error:
        raise UserError(f"masking is not possible: {error}") from error
    rows = tokenize_corpus(corpus, data_args, args, length, word_offsets=masking.whole_word_mask)
    model = build_model(model_args, corpus.config, AutoModelForMaskedLM)
    if isinstance(model, MaskedLMHead):
        model.config.sparse_prediction = True  # training steps need no logits
    return build_trainer(model, corpus, args, rows["train"], labelled_once(rows["validation"], mask), mask)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns perplexities and training tokens per second."""
    return run_script(build, MaskingArguments, "fill-mask", argv)


if __name__ == "__main__":
    main()
