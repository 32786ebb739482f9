"""gMLP ("Pay Attention to MLPs", arXiv 2105.08050)."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..configuration.configuration_gmlp import GMLPConfig
from .heads.classification import MultipleChoiceHead, SequenceClassificationHead, TokenClassificationHead
from .heads.image_backbone import ImageBackbone
from .heads.image_classification import ImageClassificationHead
from .heads.language_modeling import CausalLMHead, MaskedLMHead
from .heads.pooling import pool_patches
from .heads.question_answering import QuestionAnsweringHead
from .inputs.caches import CACHE_NAME, accept_past_key_values, update_cache_without_keys
from .inputs.input_checks import check_cache, check_modality, check_token_types, embed, embed_text
from .inputs.token_layout import TokenLayout, token_layout
from .layers.drop_path import DropPath
from .layers.patch_embeddings import PatchEmbeddings
from .layers.spatial_gating_unit import SpatialGatingUnit, SpatialProjection
from .mixins.package_features import PackageFeatures
from .mixins.resizing import ResizableTokens


class GMLPLayer(GradientCheckpointingLayer):
    """One gMLP block (Figure 1): norm, channel expansion, activation, spatial gating unit, projection, residual."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int = 0):
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.sgu = SpatialGatingUnit(
            config.intermediate_size,
            config.max_position_embeddings,
            config.spatial_weight_type,
            config.gate_layer_norm_eps,
            config.gate_type,
            config.is_decoder,
        )
        self.proj_out = nn.Linear(config.gate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(config.drop_path_rate)

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
        hidden_states = self.activation(self.proj_in(self.norm(hidden_states)))
        gates = None
        if cache is not None:
            gates = self.sgu.gate_inputs(hidden_states)[:, None]
            gates = update_cache_without_keys(cache, gates, self.layer_idx)[:, 0]
        hidden_states = self.sgu(hidden_states, layout, gate_inputs=gates)
        return residual + self.drop_path(self.dropout(self.proj_out(hidden_states)))


class GMLPPreTrainedModel(PackageFeatures, ResizableTokens):
    """Base class of all gMLP models: initialization and supported features."""

    config: GMLPConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GMLPLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _can_record_outputs = {"hidden_states": GMLPLayer}
    _can_compile_fullgraph = True
    _token_mixing_module: type[nn.Module] | tuple[type[nn.Module], ...] = SpatialProjection
    _supports_seq_idx = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SpatialProjection):
            init.normal_(module.weight, std=self.config.spatial_initializer_range)
            init.ones_(module.bias)
        elif isinstance(module, PatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=self.config.initializer_range)


class GMLPModel(GMLPPreTrainedModel):
    """The gMLP encoder, or decoder: token or patch embeddings, blocks, final norm.

    Spatial weights replace position embeddings. For images, `pooler_output` is the input of the classifier, shape
    `(batch, hidden_size)`: the class token after ViT's pre-logits layer, or the mean of the patches.
    """

    layer_class: type[nn.Module] = GMLPLayer

    def __init__(self, config: GMLPConfig):
        super().__init__(config)
        if config.image_size is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
            if config.type_vocab_size:
                self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        else:
            config.set_image_size(config.image_size)  # it may have changed after the configuration was created
            self.main_input_name = "pixel_values"
            self.input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too
            self._input_embed_layer = "embed_patches"
            self.embed_patches = PatchEmbeddings(config)
            if config.use_class_token:
                self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers = [self.layer_class(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document. Tokens see their own document only, and
            positions start at 0 in each document.
        attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            1 for real tokens, 0 for padding; includes the tokens in the cache. For images: one number for the class
            token, if there is one, and for each patch; patches with 0 do not change the others.
        """
        check_modality(self.config, pixel_values, input_ids, token_type_ids, position_ids, inputs_embeds, seq_idx)
        if pixel_values is None:
            hidden_states = self._embed_text(input_ids, token_type_ids, inputs_embeds)
        else:
            hidden_states = self.embed_patches(pixel_values)
        check_cache(cache)
        if not self.config.is_decoder:
            cache = None
        elif cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        layout = self._token_layout(hidden_states, attention_mask, position_ids, cache, seq_idx)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers[: self.config.num_hidden_layers]:  # fewer in self-speculative decoding
            hidden_states = layer(hidden_states, layout=layout, **{CACHE_NAME: cache}, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None
        if pixel_values is not None:
            pooled = pool_patches(hidden_states, attention_mask, self)
        return BaseModelOutputWithPoolingAndCrossAttentions(hidden_states, pooled, None, cache)

    def _token_layout(self, hidden_states: torch.Tensor, *inputs: Any) -> TokenLayout:
        """Create the layout for all layers; `inputs` as in `token_layout`."""
        return token_layout(self.config, hidden_states, *inputs)

    def _embed_text(
        self, input_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        embeddings = getattr(self, "embed_tokens", None)
        hidden_states = embed_text(embeddings, input_ids, inputs_embeds, self.config.hidden_size)
        if self.config.type_vocab_size:
            if token_type_ids is None:
                token_type_ids = torch.zeros(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
            check_token_types(token_type_ids, hidden_states)
            hidden_states = hidden_states + embed(self.token_type_embeddings, token_type_ids, "token_type_ids")
        return hidden_states


class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
    """gMLP with a language modelling head, tied to the embeddings by default."""

    backbone_class = GMLPModel


class GMLPForCausalLM(CausalLMHead, GMLPPreTrainedModel, GenerationMixin):
    """gMLP decoder with a language modelling head, tied to the embeddings by default.

    The spatial weights are lower-triangular. A layer's cache stores the inputs of its spatial projection in `keys`.
    """

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


class GMLPForImageClassification(ImageClassificationHead, GMLPPreTrainedModel):
    """gMLP with an image classification head, e.g. for ImageNet."""

    backbone_class = GMLPModel


class GMLPBackbone(ImageBackbone, GMLPPreTrainedModel):
    """gMLP backbone for detection and segmentation, which returns feature maps of selected blocks."""

    backbone_class = GMLPModel


__all__ = [
    "GMLPBackbone",
    "GMLPForCausalLM",
    "GMLPForImageClassification",
    "GMLPForMaskedLM",
    "GMLPForMultipleChoice",
    "GMLPForQuestionAnswering",
    "GMLPForSequenceClassification",
    "GMLPForTokenClassification",
    "GMLPModel",
    "GMLPPreTrainedModel",
]
