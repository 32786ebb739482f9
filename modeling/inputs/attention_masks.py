"""Four-dimensional attention masks."""

from typing import Any

import torch
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, packed_sequence_mask_function

from .token_layout import TokenLayout


def with_interface_mask(
    layout: TokenLayout,
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
) -> TokenLayout:
    """Add the mask for `config._attn_implementation` to a layout; arguments as in `token_layout`, which has made it.

    Returns:
        The layout, whose `attention_mask` is a tensor, `None`, or an object of that implementation, such as
        FlexAttention's `BlockMask`.

    Raises:
        ValueError: If documents are packed and the implementation does not support such masks.
    """
    if layout.padding_mask is None and layout.full_mask is None:
        attention_mask = None
    inputs = config, inputs_embeds, attention_mask
    documents: dict[str, Any] = {}
    if layout.seq_idx is not None:
        if "flash" in config._attn_implementation:
            raise ValueError(
                f"Packed documents (`seq_idx`) are not possible with attn_implementation="
                f"{config._attn_implementation!r}, which has no mask for them: use 'sdpa' or 'flex_attention'."
            )
        documents["and_mask_function"] = packed_sequence_mask_function(layout.seq_idx)
    mask: Any
    if config.is_decoder:
        mask = create_causal_mask(*inputs, cache, **documents)
    else:
        mask = create_bidirectional_mask(*inputs, **documents)
    return layout._replace(attention_mask=mask)
