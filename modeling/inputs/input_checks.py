"""Checks of model inputs, shared by all families."""

from typing import Any

import torch
from transformers import Cache, PreTrainedConfig
from transformers.utils import is_tracing

from .caches import CACHE_NAME


def check_length(length: int, max_length: int) -> None:
    """Raise `ValueError` for a sequence that is longer than the model's weights."""
    if length > max_length:
        raise ValueError(
            f"The sequence has {length} tokens, but the model's weights cover `max_position_embeddings={max_length}`. "
            f"Truncate the input (tokenizer arguments `truncation=True, max_length={max_length}`), split it, generate "
            "fewer tokens (`max_new_tokens`), or extend the model with `model.resize_position_embeddings(length)`."
        )


def embed_text(
    embeddings: Any,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    hidden_size: int,
    prefix: str = "",
) -> torch.Tensor:
    """Return the embeddings of a text, which is given as ids or as embeddings.

    Values are not checked, because reading them would synchronize with the GPU and break graphs.

    Args:
        embeddings: The model's embeddings, an `nn.Embedding`.
        input_ids: Token ids, shape `(batch, length)`.
        inputs_embeds: Embeddings, shape `(batch, length, hidden_size)`.
        hidden_size: Width of the model.
        prefix: Prefix of the arguments' names in messages.

    Raises:
        ValueError: Unless exactly one of them is given, with the right shape and type and one token or more.
        IndexError: See `embed`.
    """
    if input_ids is None and inputs_embeds is not None:
        _check_embeds(f"{prefix}inputs_embeds", inputs_embeds, hidden_size)
        return inputs_embeds
    if input_ids is not None and inputs_embeds is None:
        name = f"{prefix}input_ids"
        check_integers(name, input_ids)
        fits = input_ids.ndim == 2 and input_ids.shape[1] > 0
        _require_shape(name, input_ids, fits, "(batch, length) with a length of at least 1")
        return embed(embeddings, input_ids, name)
    raise ValueError(f"Give either `{prefix}input_ids` or `{prefix}inputs_embeds`, and not both.")


def _check_embeds(name: str, embeds: Any, hidden_size: int) -> None:
    if not isinstance(embeds, torch.Tensor) or not embeds.is_floating_point():
        raise ValueError(f"`{name}` must be a tensor of floating point numbers, got {_kind(embeds)}.")
    fits = embeds.ndim == 3 and embeds.shape[2] == hidden_size and embeds.shape[1] > 0
    _require_shape(name, embeds, fits, "(batch, length, hidden_size={}) with a length of at least 1", hidden_size)


def check_integers(name: str, tensor: Any) -> None:
    """Raise `ValueError` unless the value is an int64 or int32 tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`{name}` must be a tensor of int64 or int32, got {_kind(tensor)}.")


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _require_shape(name: str, tensor: torch.Tensor, fits: bool, expected: str, *sizes: int) -> None:
    if not fits:  # formatted only then, because a size in a string becomes a constant for `torch.compile`
        raise ValueError(f"`{name}` has shape {tuple(tensor.shape)}, expected {expected.format(*sizes)}.")


def embed(embeddings: Any, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Look up the embeddings of ids.

    Raises:
        IndexError: On a CPU, for an id without an embedding; GPUs raise their own error.
    """
    try:
        return embeddings(ids)
    except IndexError as error:
        most = embeddings.num_embeddings - 1
        raise IndexError(
            f"`{name}` must be from 0 to {most}, as there are {most + 1} embeddings; got ids from {ids.min()} to "
            f"{ids.max()}. Use the model's own tokenizer, or `model.resize_token_embeddings(len(tokenizer))`."
        ) from error


def check_token_types(token_type_ids: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """Raise `ValueError` unless there is an integer per token, for each row or for all rows."""
    check_integers("token_type_ids", token_type_ids)
    batch, length = inputs_embeds.shape[:2]
    fits = tuple(token_type_ids.shape) in ((batch, length), (1, length))
    _require_shape("token_type_ids", token_type_ids, fits, "({}, {})", batch, length)


def check_positions(position_ids: torch.Tensor, shape: tuple[int, int], max_length: int | None) -> None:
    """Raise `ValueError` for positions of a wrong shape or dtype, or (on a CPU) outside the model's range."""
    check_integers("position_ids", position_ids)
    fits = tuple(position_ids.shape) in (shape, (1, shape[1]))
    _require_shape("position_ids", position_ids, fits, "({}, {})", *shape)
    if position_ids.device.type != "cpu" or is_tracing(position_ids):
        return
    low, high = (int(position) for position in position_ids.aminmax())
    if low < 0 or (max_length is not None and high >= max_length):
        limit = "0 on" if max_length is None else f"0 to {max_length - 1}, below `max_position_embeddings`"
        raise ValueError(f"`position_ids` must be from {limit}; got positions from {low} to {high}.")


def check_cache(cache: Any) -> None:
    """Raise `ValueError` unless the value is `None` or a cache."""
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"`{CACHE_NAME}` must be a cache of Transformers, e.g. `DynamicCache`, got {_kind(cache)}.")


def check_encoder_states(states: Any, mask: torch.Tensor | None, batch: int, hidden_size: int) -> None:
    """Raise `ValueError` for encoder outputs that do not fit the decoder, or a mask that does not fit them."""
    _check_embeds("encoder_hidden_states", states, hidden_size)
    expected = "({}, length, hidden_size), one row for each of the decoder's"
    _require_shape("encoder_hidden_states", states, states.shape[0] == batch, expected, batch)
    if mask is not None and mask.ndim == 2:
        fits = mask.shape == states.shape[:2]
        _require_shape("attention_mask", mask, fits, "({}, {}), one number for each encoder token", *states.shape[:2])


def check_full_mask(mask: torch.Tensor, batch: int, length: int) -> None:
    """Raise `ValueError` for a four-dimensional mask that is not for `length` tokens without a cache."""
    fits = mask.shape[0] in (1, batch) and tuple(mask.shape[2:]) == (length, length)
    _require_shape("attention_mask", mask, fits, "({0} or 1, heads or 1, {1}, {1})", batch, length)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"A mask of pairs must be boolean or floating point, to add to logits; got {mask.dtype}.")


def check_choices(*inputs: torch.Tensor | None) -> None:
    """Raise `ValueError` for multiple choice inputs without a dimension for the choices."""
    for tensor in inputs:
        if tensor is not None:
            fits = tensor.ndim >= 3 and tensor.shape[1] > 0
            _require_shape("input_ids or inputs_embeds", tensor, fits, "(batch, choices, length, ...)")


def kept_tokens(logits_to_keep: int | torch.Tensor) -> slice | torch.Tensor:
    """The tokens whose logits to compute: the last ones, all for 0, or those at the given indices.

    Raises:
        ValueError: If the number is negative.
    """
    if isinstance(logits_to_keep, torch.Tensor):
        return logits_to_keep
    if not isinstance(logits_to_keep, int) or logits_to_keep < 0:
        raise ValueError(f"`logits_to_keep` must be an integer of at least 0 (0 keeps all), got {logits_to_keep}.")
    return slice(-logits_to_keep, None)


def check_modality(config: PreTrainedConfig, pixel_values: torch.Tensor | None, *text: torch.Tensor | None) -> None:
    """Raise `ValueError` for images if `config.image_size` is `None`, otherwise for text or missing images."""
    if config.image_size is None and pixel_values is not None:
        raise ValueError("`pixel_values` need a model with `config.image_size`, which is `None` here.")
    if config.image_size is not None and (pixel_values is None or any(tensor is not None for tensor in text)):
        raise ValueError("A model with `config.image_size` set takes `pixel_values`, and no text inputs.")
