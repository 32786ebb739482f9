"""How decoders read and update Transformers' `Cache`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, StaticLayer
from transformers.modeling_outputs import BaseModelOutputWithPast


CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the cache in arguments and outputs of the installed Transformers: `past_key_values` before 5.24."""


def accept_past_key_values(function: Callable) -> Callable:
    """Let a `forward` accept `cache` under its older name too. Its signature has `CACHE_NAME`."""

    @functools.wraps(function)
    def wrapper(*args: Any, past_key_values: Cache | None = None, **kwargs: Any) -> Any:
        if past_key_values is None:
            return function(*args, **kwargs)
        return function(*args, cache=past_key_values, **kwargs)  # `TypeError` if both are given

    parameters = inspect.signature(function).parameters.values()
    named = [each.replace(name=CACHE_NAME) if each.name == "cache" else each for each in parameters]
    wrapper.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return wrapper


def cached_lengths(cache: Cache | None, length: int, device: torch.device) -> tuple[int | torch.Tensor, int]:
    """Number of tokens in a cache, and number of tokens that it returns after an update with `length` more tokens.

    Returns:
        The first is a tensor for a static cache in use (a copy, because that cache counts in place). The second
        includes the unused slots of a static cache.
    """
    if cache is None:
        return 0, length
    past_length = cache.get_seq_length()
    if isinstance(past_length, torch.Tensor):
        past_length = past_length.to(device, copy=True)
    return past_length, cache.get_mask_sizes(length, 0)[0]


def update_cache_without_keys(cache: Cache, states: torch.Tensor, layer_idx: int) -> torch.Tensor:
    """Store one tensor as both keys and values without a copy: `layer.values` is `layer.keys` after each update.

    Args:
        cache: Any cache. Layers other than Transformers' `DynamicLayer` and `StaticLayer`, and layers allocated in
            advance (for export), store the tensor twice.
        states: States of the new tokens, shape `(batch, heads, length, width)`.
        layer_idx: Index of the layer.

    Returns:
        The states of all tokens, those in the cache first, `(batch, heads, all tokens, width)`. Other code finds two
        tensors of the expected shape in the cache. Code that changes them one by one (beam search, offloading)
        separates them until the next update.
    """
    layers: list[Any] = cache.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    layer_class = cache.layer_class_to_replicate if layer is None else type(layer)
    was_initialized = layer is not None and layer.is_initialized
    values = states
    if layer_class is DynamicLayer:
        values = states[..., :0]  # nothing to append
        if was_initialized:
            layers[layer_idx].values = layers[layer_idx].keys[..., :0]
    states = cache.update(states, values, layer_idx)[0]
    if layer_class is DynamicLayer or (layer_class is StaticLayer and not was_initialized):
        layers[layer_idx].values = layers[layer_idx].keys
    return states


@accept_past_key_values
def mask_for_generate(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Used as `create_masks_for_generate`: a two-dimensional mask, padded to the length of a static cache."""
    if attention_mask is None:
        return None
    length = cache.get_mask_sizes(inputs_embeds.shape[1], 0)[0]
    return F.pad(attention_mask, (0, length - attention_mask.shape[1]))
