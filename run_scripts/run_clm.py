"""Train a causal language model, and report its perplexity.

    tokenmixers run_clm recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_clm ...

Works for every checkpoint that `AutoModelForCausalLM` loads. Configurations of this package become decoders with
`--config_overrides is_decoder=true`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, Trainer

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.losses import IGNORED_LABEL
from ..modeling.inputs.token_layout import longest_sequence
from .base.arguments import ModelArguments
from .base.training_arguments import ScriptTrainingArguments
from .data.collators import pad_rows, precompute_labels
from .data.text_corpus import TextDataArguments
from .training.language_modeling import build_trainer, load_corpus, run_script, tokenize_corpus
from .training.model_loading import build_model, sequence_length


@dataclass
class CausalArguments:
    """Which tokens the model is trained to predict."""

    predict_separators: bool = field(
        default=True, metadata={"help": "Whether the ends of documents inside a sequence are to be predicted."}
    )


def _label(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, predict_separators: bool
) -> dict[str, torch.Tensor]:
    """A batch with the tokens to predict as labels."""
    batch = pad_rows(rows, tokenizer)
    predicted, special = batch["attention_mask"].bool(), batch.pop("special_tokens_mask").bool()
    if not predict_separators:
        predicted = predicted & ~special
    if "seq_idx" in batch:  # the first token of a document has no context
        starts = torch.diff(batch["seq_idx"], prepend=torch.full((len(rows), 1), -1)) != 0
        predicted = predicted & ~starts
    batch["labels"] = batch["input_ids"].masked_fill(~predicted, IGNORED_LABEL)
    return batch


def build(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    causal_args: CausalArguments,
    args: ScriptTrainingArguments,
    resume_from: str | None = None,
) -> Trainer:
    """Load data, tokenizer and model, and build the Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    corpus = load_corpus(model_args, data_args, args, resume_from, kind="decoder")
    length = sequence_length(data_args.max_seq_length, corpus.config, corpus.tokenizer)
    rows = tokenize_corpus(corpus, data_args, args, length)
    label = partial(_label, tokenizer=corpus.tokenizer, predict_separators=causal_args.predict_separators)
    model = build_model(model_args, corpus.config, AutoModelForCausalLM)
    if model.generation_config.max_length is None:  # a pipeline's default is 256 tokens after the prompt
        model.generation_config.max_length = longest_sequence(model.config)
    evaluation = precompute_labels(rows["validation"], label)
    return build_trainer(model, corpus, args, rows.get("train"), evaluation, label, causal=True)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns perplexities and training tokens per second."""
    return run_script(build, (CausalArguments,), "text-generation", argv)


if __name__ == "__main__":
    main()
