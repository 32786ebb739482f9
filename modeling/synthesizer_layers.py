"""The Synthesizer's block and its attention modules, for Transformers' attention interface and cache."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..configuration.configuration_synthesizer import SynthesizerConfig
from .inputs.attention_maps import visible_keys
from .inputs.caches import accept_past_key_values, update_cache_without_keys
from .inputs.token_layout import TokenLayout
from .layers.attention import attention_from_logits, shared_attention_by_layout, split_heads
from .layers.feed_forward import FeedForward
from .layers.precision import cast_once
from .layers.rms_norm import SynthesizerRMSNorm
from .layers.synthetic_logits import COMPONENTS, TOKEN_DEPENDENT, ComponentMixture
from .mixins.attention_interface import UsesAttentionInterface


class SynthesizerAttention(UsesAttentionInterface, nn.Module):
    """Self-attention whose logits are a mixture of components, `softmax(B) V` in the paper (section 3).

    The components decide how it is computed:

    - in general: `_synthetic`, with logits and weights for every sample;
    - if no logits depend on the input (`random`, `relative`, ...): `shared_attention`, one matrix product for the
      whole batch. `"eager"`, which returns the weights, uses `_synthetic`;
    - with `vanilla`, alone or mixed: `_vanilla`, Transformers' attention interface (`attn_implementation`), with the
      other components as an additive bias. Flash attention is not supported, because it takes no such bias.

    Without `vanilla` there are no keys. A layer's cache then stores the values as both, without a copy.
    """

    def __init__(self, config: SynthesizerConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = config.is_decoder
        self.head_dim = config.head_dim
        self.scaling = 1.0  # T5 scales the initial query weights instead
        self.dropout = config.attention_dropout
        names = config.attention_components
        self.has_keys = "vanilla" in names
        self.is_shared = not TOKEN_DEPENDENT & set(names)
        width = config.num_attention_heads * config.head_dim
        dense = {"dense", "factorized_dense"} & set(names)
        self.has_queries = self.has_keys or (bool(dense) and config.dense_first_layer == "query")
        if self.has_queries:
            self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
            self.q_proj.init_scale = config.head_dim**-0.5
        if self.has_keys:
            self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.components = nn.ModuleDict({name: COMPONENTS[name](config) for name in names if name != "vanilla"})
        self.mixture = ComponentMixture(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None,
        layout: TokenLayout,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens.

        Args:
            hidden_states: Shape `(batch, queries, hidden_size)`.
            position_bias: Added to the mixed logits, `(batch or 1, heads, queries, keys)`.
            layout: Positions and visibility of the tokens.
            cache: Self-attention cache.
            kwargs: Passed to the attention interface.

        Returns:
            Shape `(batch, queries, hidden_size)`, and the weights if the implementation is `"eager"`.
        """
        hidden_states = cast_once(hidden_states)
        queries = split_heads(self.q_proj(hidden_states), self.head_dim) if self.has_queries else None
        keys = split_heads(self.k_proj(hidden_states), self.head_dim) if self.has_keys else None
        values = split_heads(self.v_proj(hidden_states), self.head_dim)
        if cache is not None:
            keys, values = self._with_cached(keys, values, layout, cache)
        eager = self.config._attn_implementation == "eager"
        weights = None
        if keys is not None:
            bias = self._logits(layout, hidden_states, queries, position_bias)
            output, weights = self._vanilla(queries, keys, values, bias, layout, **kwargs)  # type: ignore[arg-type]
        elif self.is_shared and not eager and layout.attention_mask is None:
            output = shared_attention_by_layout(
                lambda moved: self._logits(moved, None, None, position_bias),  # type: ignore[arg-type,return-value]
                values,
                layout,
                self._dropout,
            )
        else:
            logits = self._logits(layout, hidden_states, queries, position_bias)
            output, weights = self._synthetic(logits, values, layout)  # type: ignore[arg-type]
        output = output.reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(output), weights if eager else None

    def _logits(
        self,
        layout: TokenLayout,
        hidden_states: torch.Tensor | None,
        queries: torch.Tensor | None,
        position_bias: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Position bias and all components except `vanilla`, weighted by the mixture; `None` for `vanilla` alone."""
        total = position_bias
        weights = self.mixture()
        for name, component in self.components.items():
            logits = component(layout, hidden_states=hidden_states, queries=queries)
            if weights[name] is not None:
                logits = weights[name] * logits
            total = logits if total is None else total + logits
        return total

    def _synthetic(
        self, logits: torch.Tensor, values: torch.Tensor, layout: TokenLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`softmax(logits) values`."""
        mask = layout.attention_mask
        mask = visible_keys(layout, values.device) if mask is None else mask[..., : layout.key_length]
        return attention_from_logits(logits, values, mask, self._dropout)

    def _vanilla(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        layout: TokenLayout,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`softmax(queries keys^T + bias) values`, with Transformers' attention interface."""
        weight = self.mixture()["vanilla"]
        if weight is not None:
            queries = queries * weight.to(queries.dtype)
        if bias is not None:
            if keys.shape[2] != bias.shape[-1]:  # masked unused slots of a static cache
                bias = F.pad(bias, (0, keys.shape[2] - bias.shape[-1]))
            # FlexAttention needs the batch dimension.
            batch = queries.shape[0] if self.config._attn_implementation == "flex_attention" else -1
            bias = bias.to(queries.dtype).expand(batch, -1, -1, -1)
        return self.attention_function()(
            self,
            queries,
            keys,
            values,
            layout.attention_mask,
            dropout=self._dropout,
            scaling=self.scaling,
            position_bias=bias,
            **kwargs,
        )

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _with_cached(
        self, keys: torch.Tensor | None, values: torch.Tensor, layout: TokenLayout, cache: Cache
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Keys (if any) and values of all tokens, those in the cache first."""
        if keys is not None:
            return cache.update(keys, values, self.layer_idx)
        values = update_cache_without_keys(cache, values, self.layer_idx)
        return None, values[:, :, : layout.key_length]  # without unused slots of a static cache


class SynthesizerCrossAttention(UsesAttentionInterface, nn.Module):
    """The decoder's attention to the encoder, which is always vanilla and has no position bias, as in T5."""

    def __init__(self, config: SynthesizerConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = False
        self.scaling = 1.0
        self.dropout = config.attention_dropout
        num_heads, self.head_dim = config.cross_attention_shape
        width = num_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.q_proj.init_scale = self.head_dim**-0.5
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `(batch, queries, hidden_size)` to `(batch, keys, hidden_size)`."""
        queries = split_heads(self.q_proj(hidden_states), self.head_dim)
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            keys, values = layer.keys, layer.values  # from the encoder, the same for all decoding steps
        else:
            keys = split_heads(self.k_proj(encoder_hidden_states), self.head_dim)
            values = split_heads(self.v_proj(encoder_hidden_states), self.head_dim)
            if cache is not None:
                keys, values = cache.cross_attention_cache.update(keys, values, self.layer_idx)
                cache.is_updated[self.layer_idx] = True
        output, weights = self.attention_function()(
            self,
            queries,
            keys,
            values,
            attention_mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights


def _clamp_to_float16(hidden_states: torch.Tensor) -> torch.Tensor:
    # Hidden states of T5 models can exceed the range of float16.
    if hidden_states.dtype != torch.float16:
        return hidden_states
    return hidden_states.clamp(-torch.finfo(torch.float16).max + 1000, torch.finfo(torch.float16).max - 1000)


class SynthesizerLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention (in encoder-decoders) and feed-forward layer, each with a residual."""

    def __init__(self, config: SynthesizerConfig, layer_idx: int, has_cross_attention: bool = False):
        super().__init__()
        self.self_attn_norm = SynthesizerRMSNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = SynthesizerAttention(config, layer_idx)
        self.has_cross_attention = has_cross_attention
        if has_cross_attention:
            self.cross_attn_norm = SynthesizerRMSNorm(config.hidden_size, config.layer_norm_eps)
            self.cross_attn = SynthesizerCrossAttention(config, layer_idx)
        self.mlp_norm = SynthesizerRMSNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = FeedForward(
            config.hidden_size,
            config.intermediate_size,
            config.feed_forward_type,
            config.hidden_dropout_prob,
            config.gelu_approximate,
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    @accept_past_key_values
    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        *,
        layout: TokenLayout,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape; arguments as in the attention modules."""
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        mixed, _ = self.self_attn(self.self_attn_norm(hidden_states), position_bias, layout, own_cache, **kwargs)
        hidden_states = _clamp_to_float16(hidden_states + self.dropout(mixed))
        if self.has_cross_attention and encoder_hidden_states is not None:
            mixed, _ = self.cross_attn(
                self.cross_attn_norm(hidden_states),
                encoder_hidden_states,
                encoder_attention_mask,
                cache,
                **kwargs,
            )
            hidden_states = _clamp_to_float16(hidden_states + self.dropout(mixed))
        mixed = self.mlp(self.mlp_norm(hidden_states))
        return _clamp_to_float16(hidden_states + self.dropout(mixed))
