"""The longest sequence that a model and its tokenizer take."""

from typing import Any

from transformers import PreTrainedConfig

from ...modeling.inputs.token_layout import longest_sequence


#: Longer maximum lengths mean none: tokenizers without one report 10**30.
LONGEST_PLAUSIBLE = 10**6


def longest_text(config: PreTrainedConfig, tokenizer: Any) -> int | None:
    """Most tokens of a text, special ones included; `None` if neither model nor tokenizer has a limit.

    Args:
        config: Configuration of the model, or of the encoder or decoder in question.
        tokenizer: Its `model_max_length` counts, if it has one.
    """
    limits = [longest_sequence(config), getattr(tokenizer, "model_max_length", None)]
    return min((limit for limit in limits if limit is not None and limit <= LONGEST_PLAUSIBLE), default=None)
