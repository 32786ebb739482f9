"""BERT (arXiv 1810.04805) with other token mixing in some of its layers, which `config.token_mixers` names."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..configuration.configuration_hybrid_bert import HybridBertConfig
from .heads.classification import MultipleChoiceHead, SequenceClassificationHead, TokenClassificationHead
from .heads.language_modeling import MaskedLMHead
from .heads.question_answering import QuestionAnsweringHead
from .inputs.attention_maps import move_padding_right, take_tokens, visible_keys
from .inputs.attention_masks import with_interface_mask
from .inputs.entries_by_position import offset_rows, resized
from .inputs.exporting import is_exporting
from .inputs.input_checks import check_token_types, embed, embed_text
from .inputs.token_layout import TokenLayout, token_layout
from .layers.aft import aft_by_layout, aft_weights
from .layers.attention import attention_from_logits, shared_attention_by_layout, softmax, split_heads
from .layers.precision import cast_once
from .layers.spatial_gating_unit import SpatialProjection
from .layers.synthetic_logits import DenseLogits, OffsetLogits, PerHeadLinear, resized_parameter
from .mixins.attention_interface import UsesAttentionInterface
from .mixins.package_features import PackageFeatures
from .mixins.resizing import ResizableTokens
from .modeling_amlp import AMLPAttention, AMLPLayer
from .modeling_gmlp import GMLPLayer


class HybridBertAttention(UsesAttentionInterface, nn.Module):
    """BERT's self-attention (`full_attention`), by Transformers' attention interface."""

    def __init__(self, config: HybridBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_causal = False
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens.

        Args:
            hidden_states: Shape `(batch, length, hidden_size)`.
            layout: Positions and visibility of the tokens.
            **kwargs: Passed to the attention implementation.

        Returns:
            The result, shape of `hidden_states`, and the weights, `(batch, heads, length, length)`, or `None` from
            implementations that do not return them.
        """
        hidden_states = cast_once(hidden_states)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (split_heads(project(hidden_states), self.head_dim) for project in projections)
        attended, weights = self.attention_function()(
            self,
            query,
            key,
            value,
            layout.attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(attended.flatten(2)), weights


LOGITS: dict[str, Callable[[HybridBertConfig], OffsetLogits | DenseLogits]] = {
    "random_synthesizer": lambda c: OffsetLogits(c.num_attention_heads, c.max_position_embeddings),
    "dense_synthesizer": DenseLogits,
}
"""Layer type -> the logits that stand in the place of queries times keys, created from the configuration."""


class HybridBertSynthesizer(nn.Module):
    """`softmax(B) V` with logits B other than queries times keys (Synthesizer, arXiv 2005.00743, section 3).

    Logits that do not depend on the input need one matrix product for the whole batch, see `shared_attention`.
    `"eager"`, which returns the weights, computes them for every sample.
    """

    def __init__(self, config: HybridBertConfig, token_mixer: str):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.dropout = config.attention_probs_dropout_prob
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.logits = LOGITS[token_mixer](config)
        self.is_shared = not isinstance(self.logits, DenseLogits)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens; arguments and results as in `HybridBertAttention`."""
        hidden_states = cast_once(hidden_states)
        values = split_heads(self.v_proj(hidden_states), self.head_dim)
        dropout = self.dropout if self.training else 0.0
        eager = self.config._attn_implementation == "eager"
        if self.is_shared and not eager and layout.is_shared:
            mixed, weights = shared_attention_by_layout(self.logits, values, layout, dropout), None
        else:
            logits = self.logits(layout, hidden_states=hidden_states)
            mixed, weights = attention_from_logits(logits, values, visible_keys(layout, values.device), dropout)
        return self.o_proj(mixed.flatten(2)), weights if eager else None

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New logits are copies of those of the farthest tokens."""
        self.logits.resize(partial(resized, length=max_length))


class HybridBertGate(nn.Linear):
    """A linear map that starts at zero."""


class HybridBertAFT(nn.Module):
    """An Attention Free Transformer with a score per head and key (`aft`; arXiv 2105.14103, equation 2).

    Head h gives token i `g_i sum_m p_im sum_j exp(w_ij + s_jm) v_j / sum_j exp(w_ij + s_jm)`. The logits w depend on
    the offset j - i, the scores s of M mean queries on the state of token j, and their shares p, a softmax over m, on
    that of token i. The gate `g_i = 2 sigmoid(x_i W + b)` is 1 at the start, and without `config.aft_gate` always.

    With one mean query this needs one matrix product for the whole batch, see `aft_attention`. `"eager"` returns the
    weights, which it computes for every sample.
    """

    def __init__(self, config: HybridBertConfig):
        super().__init__()
        heads, scores = config.num_attention_heads, config.num_attention_heads * config.num_mean_queries
        self.config = config
        self.head_dim = config.head_dim
        self.dropout = config.attention_probs_dropout_prob
        self.num_mean_queries = config.num_mean_queries
        self.score_proj = nn.Linear(config.hidden_size, scores, bias=False)
        self.share_proj = nn.Linear(config.hidden_size, scores) if config.num_mean_queries > 1 else None
        self.gate_proj = HybridBertGate(config.hidden_size, heads) if config.aft_gate else None
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.logits = OffsetLogits(heads, config.max_position_embeddings)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix tokens; arguments and results as in `HybridBertAttention`."""
        hidden_states = cast_once(hidden_states)
        values = split_heads(self.v_proj(hidden_states), self.head_dim)
        scores, shares = split_heads(self.score_proj(hidden_states), self.num_mean_queries), None
        if self.share_proj is not None:
            shares = softmax(split_heads(self.share_proj(hidden_states), self.num_mean_queries), values.dtype)
        dropout = self.dropout if self.training else 0.0
        eager = self.config._attn_implementation == "eager"
        if eager or not layout.is_shared:
            weights = aft_weights(self.logits(layout), scores, shares, visible_keys(layout, values.device))
            weights = weights.to(values.dtype)
            mixed = (F.dropout(weights, dropout) @ values).transpose(1, 2)
        else:
            mixed = aft_by_layout(self.logits, scores, values, shares, layout, dropout)
        if self.gate_proj is not None:
            mixed = mixed * (2 * self.gate_proj(hidden_states).sigmoid())[..., None]
        return self.o_proj(mixed.flatten(2)), weights if eager else None

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New logits are copies of those of the farthest tokens."""
        self.logits.resize(partial(resized, length=max_length))


MIXERS: dict[str, Callable[[HybridBertConfig], nn.Module]] = {
    "full_attention": HybridBertAttention,
    "aft": HybridBertAFT,
    **{name: partial(HybridBertSynthesizer, token_mixer=name) for name in LOGITS},
}
"""Token mixer -> its module in a layer of BERT."""


class HybridBertLayer(GradientCheckpointingLayer):
    """A layer of BERT: a token mixer and a feed-forward layer, each with a residual and a norm."""

    def __init__(self, config: HybridBertConfig, layer_idx: int = 0):
        super().__init__()
        self.self_attn = MIXERS[config.token_mixers[layer_idx]](config)  # type: ignore[index]  # `__post_init__` sets it
        self.self_attn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, layout: TokenLayout, **kwargs: Unpack[TransformersKwargs]
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape."""
        mixed, _ = self.self_attn(hidden_states, layout, **kwargs)
        hidden_states = self.self_attn_norm(self.dropout(mixed) + hidden_states)
        mixed = self.proj_out(self.activation(self.proj_in(hidden_states)))
        return self.mlp_norm(self.dropout(mixed) + hidden_states)


BLOCKS: dict[str, type[nn.Module]] = {"gmlp": GMLPLayer, "amlp": AMLPLayer}
"""Layer type -> the block in the place of a whole layer of BERT."""


class HybridBertPositions(nn.Embedding):
    """Learned position embeddings."""

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Change the maximum length. New positions are copies of the last."""
        self.weight = resized_parameter(self.weight, partial(resized, length=max_length), 0)
        self.num_embeddings = max_length


class HybridBertPreTrainedModel(PackageFeatures, ResizableTokens):
    """Base class of all models: initialization and supported features."""

    config: HybridBertConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["HybridBertLayer", "GMLPLayer", "AMLPLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_seq_idx = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": [HybridBertLayer, GMLPLayer],
        "attentions": [HybridBertAttention, HybridBertSynthesizer, HybridBertAFT, AMLPAttention],
    }
    _token_mixing_module = (SpatialProjection, HybridBertSynthesizer, HybridBertAFT, HybridBertPositions)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as it is: the configuration follows its layers, some of which may have been removed."""
        types = [layer.token_mixer for layer in self.base_model.layers]  # type: ignore[union-attr]
        self.config.token_mixers, self.config.num_hidden_layers = types, len(types)
        has_norm = not isinstance(self.base_model.norm, nn.Identity)
        self.config.final_norm = None if has_norm == (types[-1] in BLOCKS) else has_norm
        super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)
        elif isinstance(module, OffsetLogits | PerHeadLinear):
            init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, OffsetLogits):
            init.normal_(module.first, std=self.config.initializer_range)
        elif isinstance(module, PerHeadLinear) and module.bias is not None:
            init.zeros_(module.bias)
        elif isinstance(module, HybridBertGate):
            init.zeros_(module.weight)


class HybridBertModel(HybridBertPreTrainedModel):
    """The encoder: BERT's embeddings, the layers that `config.token_mixers` names, and a norm after a last MLP block.

    `output_attentions` gives the weights of those layers that have any.
    """

    def __init__(self, config: HybridBertConfig):
        super().__init__(config)
        config.validate_token_mixers()  # fields may have changed after the configuration was created
        width, types = config.hidden_size, config.token_mixers or []
        self.embed_tokens = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.embed_positions = HybridBertPositions(config.max_position_embeddings, width)
        self.embed_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers: Any = [BLOCKS.get(name, HybridBertLayer)(config, i) for i, name in enumerate(types)]
        for layer, name in zip(layers, types, strict=True):
            layer.token_mixer = name
        self.layers = nn.ModuleList(layers)
        has_norm = types[-1] in BLOCKS if config.final_norm is None else config.final_norm
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if has_norm else nn.Identity()
        self.has_attention = not {"full_attention", "amlp"}.isdisjoint(types)
        self.has_offsets = not {"aft", "random_synthesizer"}.isdisjoint(types)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document. Tokens see their own document only, and
            positions start at 0 in each document.
        """
        embeds = embed_text(self.embed_tokens, input_ids, inputs_embeds, self.config.hidden_size)
        layout, moves = token_layout(self.config, embeds, attention_mask, position_ids, None, seq_idx), None
        types: torch.Tensor | None = token_type_ids
        if self.has_offsets and is_exporting() and not self._returns_states(kwargs):
            # A graph has to move left padding always: once, and not in every layer.
            layout, moves = move_padding_right(layout)
        if moves is not None:
            embeds, attention_mask = take_tokens(embeds, moves[0]), layout.padding_mask
            types = None if types is None else types.gather(1, moves[0])
        if self.has_offsets:  # all layers share the rows
            rows = offset_rows(layout, self.config.max_position_embeddings, embeds.device)
            layout = layout._replace(offset_rows=rows)
        if self.has_attention:
            layout = with_interface_mask(layout, self.config, embeds, attention_mask, None)
        hidden_states = self.dropout(self.embed_norm(self._with_added_embeddings(embeds, types, layout)))
        for layer in self.layers:
            hidden_states = layer(hidden_states, layout=layout, **kwargs)
        hidden_states = self.norm(hidden_states)
        return BaseModelOutput(hidden_states if moves is None else take_tokens(hidden_states, moves[1]))

    def _returns_states(self, kwargs: Mapping[str, Any]) -> bool:
        names = (f"output_{name}" for name in self._can_record_outputs)
        return any(kwargs.get(name, getattr(self.config, name, False)) for name in names)

    def _with_added_embeddings(
        self, embeds: torch.Tensor, token_type_ids: torch.Tensor | None, layout: TokenLayout
    ) -> torch.Tensor:
        if self.config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = torch.zeros(1, embeds.shape[1], dtype=torch.long, device=embeds.device)
            check_token_types(token_type_ids, embeds)
            types = embed(self.token_type_embeddings, token_type_ids, "token_type_ids")
            embeds = embeds + types.to(embeds.device)  # a `device_map` may split them
        return embeds + self.embed_positions(layout.query_positions(embeds.device)).to(embeds.device)


class HybridBertForMaskedLM(MaskedLMHead, HybridBertPreTrainedModel):
    """The encoder with a language modelling head, tied to the embeddings by default."""

    backbone_class = HybridBertModel


class HybridBertForSequenceClassification(SequenceClassificationHead, HybridBertPreTrainedModel):
    """The encoder with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = HybridBertModel


class HybridBertForTokenClassification(TokenClassificationHead, HybridBertPreTrainedModel):
    """The encoder with a classification head on every token, e.g. for named entities."""

    backbone_class = HybridBertModel


class HybridBertForMultipleChoice(MultipleChoiceHead, HybridBertPreTrainedModel):
    """The encoder with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = HybridBertModel


class HybridBertForQuestionAnswering(QuestionAnsweringHead, HybridBertPreTrainedModel):
    """The encoder with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = HybridBertModel


__all__ = [
    "HybridBertForMaskedLM",
    "HybridBertForMultipleChoice",
    "HybridBertForQuestionAnswering",
    "HybridBertForSequenceClassification",
    "HybridBertForTokenClassification",
    "HybridBertModel",
    "HybridBertPreTrainedModel",
]
