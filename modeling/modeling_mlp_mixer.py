"""MLP-Mixer (arXiv 2105.01601), the baseline of "Pay Attention to MLPs" for text, and timm's `mixer_*` for images."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..configuration.configuration_mlp_mixer import MLPMixerConfig
from .heads.classification import MultipleChoiceHead, SequenceClassificationHead, TokenClassificationHead
from .heads.image_backbone import ImageBackbone
from .heads.image_classification import ImageClassificationHead
from .heads.language_modeling import MaskedLMHead
from .heads.question_answering import QuestionAnsweringHead
from .inputs.token_layout import TokenLayout
from .layers.drop_path import DropPath
from .layers.token_mixing import TokenMixingMLP
from .modeling_gmlp import GMLPModel, GMLPPreTrainedModel


class MLPMixerLayer(GradientCheckpointingLayer):
    """One block: an MLP over the tokens, then an MLP over the channels, each with a preceding norm and a residual.

    Padding gets zero token-mixing weights, so it adds exactly zero to every token. Outputs at padding are not zero.
    """

    def __init__(self, config: MLPMixerConfig, layer_idx: int = 0):
        super().__init__()
        self.token_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.token_mixing = TokenMixingMLP(config.max_position_embeddings, config.token_mixing_size, config.hidden_act)
        self.channel_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(config.drop_path_rate)

    def forward(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Map `(batch, length, hidden_size)` to the same shape."""
        tokens = self.token_norm(hidden_states)
        hidden_states = hidden_states + self.drop_path(self.dropout(self.token_mixing(tokens, layout)))
        channels = self.activation(self.proj_in(self.channel_norm(hidden_states)))
        channels = self.proj_out(channels)
        return hidden_states + self.drop_path(self.dropout(channels))


class MLPMixerPreTrainedModel(GMLPPreTrainedModel):
    """Base class of all MLP-Mixer models."""

    config: MLPMixerConfig
    _no_split_modules = ["MLPMixerLayer"]
    _can_record_outputs = {"hidden_states": MLPMixerLayer}
    _token_mixing_module = TokenMixingMLP
    _supports_seq_idx = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TokenMixingMLP):
            for weight in (module.weight_in, module.weight_out):
                init.normal_(weight, std=self.config.spatial_initializer_range)
            for bias in (module.bias_in, module.bias_out):
                init.zeros_(bias)


class MLPMixerModel(MLPMixerPreTrainedModel, GMLPModel):
    """The MLP-Mixer encoder: `GMLPModel` with other blocks."""

    layer_class = MLPMixerLayer

    def _token_layout(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
        seq_idx: torch.Tensor | None,
    ) -> TokenLayout:
        if seq_idx is not None:
            raise ValueError(
                "MLP-Mixer does not support `seq_idx`: its token mixing sums over all tokens before the activation, "
                "so documents in a row cannot be separated. Give each document a row of its own."
            )
        layout = super()._token_layout(hidden_states, attention_mask, position_ids, cache, seq_idx)
        if layout.full_mask is not None:
            raise ValueError(
                "MLP-Mixer's token mixing has no weight for a pair of tokens: give an `attention_mask` of shape "
                "(batch, length) instead of one of four dimensions."
            )
        return layout


class MLPMixerForMaskedLM(MaskedLMHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a language modelling head, tied to the embeddings by default."""

    backbone_class = MLPMixerModel


class MLPMixerForSequenceClassification(SequenceClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = MLPMixerModel


class MLPMixerForTokenClassification(TokenClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a classification head on every token, e.g. for named entities."""

    backbone_class = MLPMixerModel


class MLPMixerForMultipleChoice(MultipleChoiceHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = MLPMixerModel


class MLPMixerForQuestionAnswering(QuestionAnsweringHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = MLPMixerModel


class MLPMixerForImageClassification(ImageClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with an image classification head, e.g. for ImageNet."""

    backbone_class = MLPMixerModel


class MLPMixerBackbone(ImageBackbone, MLPMixerPreTrainedModel):
    """MLP-Mixer backbone for detection and segmentation, which returns feature maps of selected blocks."""

    backbone_class = MLPMixerModel


__all__ = [
    "MLPMixerBackbone",
    "MLPMixerForImageClassification",
    "MLPMixerForMaskedLM",
    "MLPMixerForMultipleChoice",
    "MLPMixerForQuestionAnswering",
    "MLPMixerForSequenceClassification",
    "MLPMixerForTokenClassification",
    "MLPMixerModel",
    "MLPMixerPreTrainedModel",
]
