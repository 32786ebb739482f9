"""gMLP ("Pay Attention to MLPs", arXiv 2105.08050)."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..configuration.configuration_gmlp import GMLPConfig
from .padding import padding_and_positions
from .spatial_gating_unit import SpatialGatingUnit, SpatialProjection, TokenPositions
from .task_heads import (
    MaskedLMHead,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)


class GMLPLayer(GradientCheckpointingLayer):
    """One gMLP block (Figure 1): norm, channel expansion, activation, spatial gating unit, projection, residual."""

    def __init__(self, config: GMLPConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.sgu = SpatialGatingUnit(
            config.intermediate_size,
            config.max_position_embeddings,
            config.spatial_weight_type,
            config.gate_layer_norm_eps,
        )
        self.proj_out = nn.Linear(config.intermediate_size // 2, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None = None,
        positions: TokenPositions | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Shapes: `hidden_states` and result `(batch, length, hidden_size)`, `padding_mask` `(batch, length, 1)`."""
        residual = hidden_states
        hidden_states = self.activation(self.proj_in(self.norm(hidden_states)))
        hidden_states = self.sgu(hidden_states, padding_mask, positions)
        return residual + self.dropout(self.proj_out(hidden_states))


class GMLPPreTrainedModel(PreTrainedModel):
    """What all gMLP models share: initialisation, and what Transformers needs to know of the architecture."""

    config: GMLPConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPLayer"]
    _can_record_outputs = {"hidden_states": GMLPLayer}
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)


class GMLPModel(GMLPPreTrainedModel):
    """The gMLP encoder: token embeddings, blocks, final norm. No positional encoding: the spatial weights carry it."""

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList([GMLPLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        hidden_states = inputs_embeds
        if self.config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = torch.zeros(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
            hidden_states = hidden_states + self.token_type_embeddings(token_type_ids)

        padding_mask, positions = padding_and_positions(self.config, hidden_states, attention_mask, position_ids)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, padding_mask=padding_mask, positions=positions, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))


class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
    """gMLP with a language modelling head, tied to the embeddings by default."""

    backbone_class = GMLPModel


class GMLPForSequenceClassification(SequenceClassificationHead, GMLPPreTrainedModel):
    """gMLP with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = GMLPModel


class GMLPForTokenClassification(TokenClassificationHead, GMLPPreTrainedModel):
    """gMLP with a classification head on every token, e.g. for named entities."""

    backbone_class = GMLPModel


class GMLPForMultipleChoice(MultipleChoiceHead, GMLPPreTrainedModel):
    """gMLP with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = GMLPModel


class GMLPForQuestionAnswering(QuestionAnsweringHead, GMLPPreTrainedModel):
    """gMLP with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = GMLPModel


__all__ = [
    "GMLPForMaskedLM",
    "GMLPForMultipleChoice",
    "GMLPForQuestionAnswering",
    "GMLPForSequenceClassification",
    "GMLPForTokenClassification",
    "GMLPModel",
    "GMLPPreTrainedModel",
]
