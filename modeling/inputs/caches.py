"""What our decoders keep of earlier tokens, and how they read it, in terms of Transformers' `Cache`."""

from typing import Any

import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig


def cached_lengths(past_key_values: Cache | None, length: int, device: torch.device) -> tuple[int | torch.Tensor, int]:
    """How many tokens a cache holds, and how many it will return when `length` more are put into it.

    Returns:
        The first as a number, or as a tensor for a static cache in use (a copy: that cache counts in place); the
        second is all that a static cache has room for, used or not.
    """
    if past_key_values is None:
        return 0, length
    past_length = past_key_values.get_seq_length()
    if isinstance(past_length, torch.Tensor):
        past_length = past_length.to(device, copy=True)
    return past_length, past_key_values.get_mask_sizes(length, 0)[0]


def update_cache_without_keys(past_key_values: Cache, states: torch.Tensor, layer_idx: int) -> torch.Tensor:
    """Put the states of new tokens into a layer's cache that needs one tensor only.

    They go into its `keys`, from which Transformers takes the length; its `values` have no width.

    Args:
        past_key_values: The cache.
        states: Shape `(batch, heads, length, width)`.
        layer_idx: Index of the layer.

    Returns:
        The states of all tokens, those in the cache first, `(batch, heads, all tokens, width)`.
    """
    layers, width = past_key_values.layers, 0
    stored = getattr(layers[layer_idx], "values", None) if layer_idx < len(layers) else None
    if stored is not None:
        # A static cache can be allocated ahead of time (for export), with as many numbers in both tensors.
        width = stored.shape[-1] if stored.dim() == 4 else 0
    return past_key_values.update(states, states[..., :width], layer_idx)[0]


def mask_for_generate(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache,
    **kwargs: Any,
) -> torch.Tensor | None:
    """A `create_masks_for_generate`, which `generate` calls with static caches, for models that count positions.

    Positions follow from the mask with one number per token, which therefore stays as it is, at a constant length.
    """
    if attention_mask is None:
        return None
    length = past_key_values.get_mask_sizes(inputs_embeds.shape[1], 0)[0]
    return F.pad(attention_mask, (0, length - attention_mask.shape[1]))
