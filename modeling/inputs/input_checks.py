"""Checks of a model's inputs that all families share."""

import torch
from transformers import PreTrainedConfig


def check_length(length: int, max_length: int) -> None:
    """Raise `ValueError` for a sequence that is longer than the model's weights."""
    if length > max_length:
        raise ValueError(
            f"The sequence has {length} tokens, but the model's weights cover `max_position_embeddings={max_length}`. "
            f"Truncate the input (tokenizer arguments `truncation=True, max_length={max_length}`), split it, generate "
            "fewer tokens (`max_new_tokens`), or extend the model with `model.resize_position_embeddings(length)`."
        )


def check_ids_or_embeds(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> None:
    """Raise `ValueError` unless exactly one of the two forms of a text is given."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")


def check_modality(config: PreTrainedConfig, pixel_values: torch.Tensor | None, *text: torch.Tensor | None) -> None:
    """Raise `ValueError` for images if `config.image_size` is `None`, and for text or no images if it is set."""
    if config.image_size is None and pixel_values is not None:
        raise ValueError("`pixel_values` need a model whose configuration has `image_size` set; this one has not.")
    if config.image_size is not None and (pixel_values is None or any(tensor is not None for tensor in text)):
        raise ValueError("A model with `config.image_size` set takes `pixel_values`, and no text inputs.")
