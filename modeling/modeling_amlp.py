"""aMLP: gMLP with tiny attention ("Pay Attention to MLPs", arXiv 2105.08050, section 4.3)."""

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..configuration.configuration_amlp import AMLPConfig
from .heads.classification import MultipleChoiceHead, SequenceClassificationHead, TokenClassificationHead
from .heads.image_backbone import ImageBackbone
from .heads.image_classification import ImageClassificationHead
from .heads.language_modeling import CausalLMHead, MaskedLMHead
from .heads.question_answering import QuestionAnsweringHead
from .inputs.attention_masks import with_interface_mask
from .inputs.caches import accept_past_key_values
from .inputs.token_layout import TokenLayout
from .layers.precision import cast_once
from .mixins.attention_interface import UsesAttentionInterface
from .modeling_gmlp import GMLPLayer, GMLPModel, GMLPPreTrainedModel


class AMLPAttention(UsesAttentionInterface, nn.Module):
    """Tiny attention (Figure 6): one small head on the normalised block input, projected to the gate's width."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.attention_size
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_causal = config.is_decoder
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_size)
        self.out_proj = nn.Linear(config.attention_size, config.gate_size)

    def project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Map `(batch, length, hidden_size)` to queries, keys and values, `(batch, 1, length, attention_size)`."""
        query, key, value = self.qkv_proj(hidden_states)[:, None].chunk(3, dim=-1)
        return query, key, value

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend.

        Args:
            query: From `project`, shape `(batch, 1, length, attention_size)`.
            key: Keys of all tokens, those in the cache first, shape `(batch, 1, keys, attention_size)`.
            value: Shape of `key`.
            attention_mask: Mask for the attention implementation.
            **kwargs: Passed to the attention implementation.

        Returns:
            The result, shape `(batch, length, gate_size)`, and the weights, shape `(batch, 1, length, keys)`, or
            `None` from implementations that do not return them.
        """
        attended, weights = self.attention_function()(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(attended.flatten(2)), weights


class AMLPLayer(GMLPLayer):
    """One aMLP block: a gMLP block whose gate is the sum of the spatial projection and tiny attention (Figure 6)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__(config, layer_idx)
        self.attention = AMLPAttention(config)

    @accept_past_key_values
    def forward(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape."""
        residual = hidden_states
        hidden_states = cast_once(self.norm(hidden_states))
        query, key, value = self.attention.project(hidden_states)
        hidden_states = self.activation(self.proj_in(hidden_states))
        gates = None
        if cache is not None:
            # Transformers' caches expect one update per layer, so keys and values are concatenated.
            gates = self.sgu.gate_inputs(hidden_states)[:, None]
            gates = gates.to(key.dtype)  # GPUs normalise in float32 under autocast, but a cache has one dtype
            gates, both = cache.update(gates, torch.cat([key, value], dim=-1), self.layer_idx)
            gates, (key, value) = gates[:, 0], both.chunk(2, dim=-1)
        attention_mask = None if layout is None else layout.attention_mask
        tiny_attention, _ = self.attention(query, key, value, attention_mask, **kwargs)
        hidden_states = self.sgu(hidden_states, layout, tiny_attention, gates)
        return residual + self.drop_path(self.dropout(self.proj_out(hidden_states)))


class AMLPPreTrainedModel(GMLPPreTrainedModel):
    """Base class of all aMLP models."""

    config: AMLPConfig
    _no_split_modules = ["AMLPLayer"]
    _can_record_outputs = {"hidden_states": AMLPLayer, "attentions": AMLPAttention}
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True


class AMLPModel(AMLPPreTrainedModel, GMLPModel):
    """The aMLP encoder, or decoder: `GMLPModel` with tiny attention in every block."""

    layer_class = AMLPLayer

    def _token_layout(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
        seq_idx: torch.Tensor | None,
    ) -> TokenLayout:
        layout = super()._token_layout(hidden_states, attention_mask, position_ids, cache, seq_idx)
        return with_interface_mask(layout, self.config, hidden_states, attention_mask, cache)


class AMLPForMaskedLM(MaskedLMHead, AMLPPreTrainedModel):
    """aMLP with a language modelling head, tied to the embeddings by default."""

    backbone_class = AMLPModel


class AMLPForCausalLM(CausalLMHead, AMLPPreTrainedModel, GenerationMixin):
    """aMLP decoder with a language modelling head, tied to the embeddings by default.

    A layer's cache stores the inputs of its spatial projection in `keys`, and the concatenated keys and values of tiny
    attention in `values`.
    """

    backbone_class = AMLPModel


class AMLPForSequenceClassification(SequenceClassificationHead, AMLPPreTrainedModel):
    """aMLP with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = AMLPModel


class AMLPForTokenClassification(TokenClassificationHead, AMLPPreTrainedModel):
    """aMLP with a classification head on every token, e.g. for named entities."""

    backbone_class = AMLPModel


class AMLPForMultipleChoice(MultipleChoiceHead, AMLPPreTrainedModel):
    """aMLP with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = AMLPModel


class AMLPForQuestionAnswering(QuestionAnsweringHead, AMLPPreTrainedModel):
    """aMLP with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = AMLPModel


class AMLPForImageClassification(ImageClassificationHead, AMLPPreTrainedModel):
    """aMLP with an image classification head, e.g. for ImageNet."""

    backbone_class = AMLPModel


class AMLPBackbone(ImageBackbone, AMLPPreTrainedModel):
    """aMLP backbone for detection and segmentation, which returns feature maps of selected blocks."""

    backbone_class = AMLPModel


__all__ = [
    "AMLPBackbone",
    "AMLPForCausalLM",
    "AMLPForImageClassification",
    "AMLPForMaskedLM",
    "AMLPForMultipleChoice",
    "AMLPForQuestionAnswering",
    "AMLPForSequenceClassification",
    "AMLPForTokenClassification",
    "AMLPModel",
    "AMLPPreTrainedModel",
]
