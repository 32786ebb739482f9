"""Transformers' attention function for a configuration."""

from collections.abc import Callable

import torch
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..layers.attention import eager_attention_forward


class UsesAttentionInterface:
    """Mixin for attention modules with a `config`."""

    config: PreTrainedConfig

    def attention_function(self) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
        """Attention function for the configuration's `attn_implementation`."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
