"""Train a causal language model, and report its perplexity.

    tokenmixers run_clm recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_clm ...

Works for every checkpoint that `AutoModelForCausalLM` loads. Configurations of this package become decoders with
`--config_overrides is_decoder=true`.
"""

from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.losses import IGNORED_LABEL
from ..modeling.inputs.token_layout import longest_sequence
from .data.collators import pad_rows
from .data.text_corpus import BlockDataArguments
from .training.language_modeling import Collator, LanguageModeling, perplexities
from .training.model_loading import sequence_length
from .training.run import Run


def _label(rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """A batch with the tokens to predict as labels."""
    batch = pad_rows(rows, tokenizer)
    predicted = batch["attention_mask"].bool()
    del batch["special_tokens_mask"]
    if "seq_idx" in batch:  # the first token of a document has no context
        starts = torch.diff(batch["seq_idx"], prepend=torch.full((len(rows), 1), -1)) != 0
        predicted = predicted & ~starts
    batch["labels"] = batch["input_ids"].masked_fill(~predicted, IGNORED_LABEL)
    return batch


class CausalLanguageModeling(LanguageModeling):
    """Predict the next token."""

    arguments = (BlockDataArguments,)
    pipeline_tag = "text-generation"
    auto_class = AutoModelForCausalLM
    tokenizer_kind = "decoder"
    is_causal = True

    def lengths(self, run: Run) -> dict[str, int]:
        name = "--block_size"
        return {name: sequence_length(run.data_args.block_size, run.config, run.tokenizer, name)}

    def build_model(self, run: Run, config: PreTrainedConfig) -> PreTrainedModel:
        """A model that writes to its longest sequence: a pipeline's default is 256 tokens after the prompt."""
        model = super().build_model(run, config)
        if model.generation_config.max_length is None:
            model.generation_config.max_length = longest_sequence(model.config)
        return model

    def collator(self, run: Run, model: PreTrainedModel) -> Collator:
        return self.evaluation_collator(run)

    def evaluation_collator(self, run: Run) -> Collator:
        return partial(_label, tokenizer=run.tokenizer)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns perplexities and training tokens per second, or for a grid the results of `run_all`."""
    return perplexities(Run(CausalLanguageModeling(), argv).command())


if __name__ == "__main__":
    main()
