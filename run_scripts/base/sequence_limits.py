"""The maximum sequence length of a model and its tokenizer."""

from typing import Any

from transformers import PreTrainedConfig

from ...modeling.inputs.token_layout import longest_sequence


#: Larger maximum lengths mean no limit; tokenizers without a limit report 10**30.
LONGEST_PLAUSIBLE = 10**6


def longest_text(config: PreTrainedConfig, tokenizer: Any) -> int | None:
    """Maximum number of tokens of a text, including special tokens; `None` if model and tokenizer have no limit."""
    limits = [longest_sequence(config), getattr(tokenizer, "model_max_length", None)]
    return min((limit for limit in limits if limit is not None and limit <= LONGEST_PLAUSIBLE), default=None)
