"""Synthesizer ("Rethinking Self-Attention in Transformer Models", arXiv 2005.00743) with T5's architecture."""

import math
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationMixin
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..configuration.configuration_synthesizer import SynthesizerConfig
from .heads.classification import MultipleChoiceHead, SequenceClassificationHead, TokenClassificationHead
from .heads.image_backbone import ImageBackbone
from .heads.image_classification import ImageClassificationHead
from .heads.language_modeling import CausalLMHead, EndsWithWeights, MaskedLMHead
from .heads.losses import IGNORED_LABEL, with_loss_divisor
from .heads.pooling import pool_patches
from .heads.question_answering import QuestionAnsweringHead
from .heads.task_head import ModelMixin, require
from .inputs.attention_maps import visible_keys
from .inputs.attention_masks import with_interface_mask
from .inputs.caches import CACHE_NAME, accept_past_key_values, mask_for_generate
from .inputs.input_checks import (
    check_cache,
    check_encoder_states,
    check_modality,
    check_token_types,
    embed,
    embed_text,
    kept_tokens,
)
from .inputs.token_layout import TokenLayout, token_layout
from .layers.patch_embeddings import PatchEmbeddings
from .layers.rms_norm import SynthesizerRMSNorm
from .layers.synthetic_logits import (
    COMPONENTS,
    ComponentMixture,
    FactorizedDenseLogits,
    FactorizedRandomLogits,
    HasPositions,
    MeshFactorizedLogits,
    PerHeadLinear,
    RandomLogits,
    RelativePositionBias,
    Resize,
    resized_parameter,
)
from .mixins.package_features import PackageFeatures
from .mixins.synthesizer_resizing import ResizableSynthesizer
from .synthesizer_layers import SynthesizerAttention, SynthesizerCrossAttention, SynthesizerLayer


class SynthesizerPreTrainedModel(PackageFeatures, ResizableSynthesizer):
    """Base class of all Synthesizers: initialization and supported features."""

    config: SynthesizerConfig
    base_model_prefix = "model"
    _input_embed_layer = "shared"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SynthesizerLayer"]
    _supports_seq_idx = True
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _keep_in_fp32_modules = ["down_proj"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = False  # does not support an additive bias
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": SynthesizerLayer,
        "attentions": OutputRecorder(SynthesizerAttention, index=1),
        "cross_attentions": OutputRecorder(SynthesizerCrossAttention, index=1),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # For classes outside Transformers, this is called only with modules that own weights.
        super()._init_weights(module)
        config, factor = self.config, self.config.initializer_factor
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=factor * getattr(module, "init_scale", 1.0) * module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            # T5's embeddings have standard deviation 1, and its tied head scales its input down to compensate.
            unscaled_head = config.tie_word_embeddings and not config.scale_decoder_outputs
            init.normal_(module.weight, std=factor * (config.hidden_size**-0.5 if unscaled_head else 1.0))
        elif isinstance(module, nn.Conv2d):  # of patches, initialized like T5's embeddings
            init.normal_(module.weight, std=factor * module.weight[0].numel() ** -0.5)
        elif isinstance(module, PatchEmbeddings) and module.cls_token is not None:
            init.normal_(module.cls_token, std=factor)
        elif isinstance(module, SynthesizerRMSNorm):
            init.constant_(module.weight, factor)
        elif isinstance(module, RelativePositionBias):
            init.normal_(module.weight, std=factor * config.hidden_size**-0.5)
        elif isinstance(module, RandomLogits):
            init.normal_(module.weight, std=config.random_initializer_range)
        elif isinstance(module, FactorizedRandomLogits | MeshFactorizedLogits):
            for weight in module.parameters():
                # A sum of `rank` products of two numbers has the standard deviation sqrt(rank) * std^2.
                init.normal_(weight, std=(config.random_initializer_range / weight.shape[-1] ** 0.5) ** 0.5)
        elif isinstance(module, PerHeadLinear):
            init.normal_(module.weight, std=factor * module.weight.shape[-1] ** -0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ComponentMixture):
            for weight in module.parameters():
                init.zeros_(weight)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings of both encoder and decoder."""
        self.base_model.set_input_embeddings(value)  # type: ignore[operator]  # a method of `SynthesizerModel`


class SynthesizerStack(SynthesizerPreTrainedModel):
    """An encoder, or a decoder if `config.is_decoder`: embeddings, layers and final norm."""

    _input_embed_layer = "embed_tokens"

    def __init__(self, config: SynthesizerConfig, has_cross_attention: bool = False, embed_tokens: bool = True):
        """`config` is from `SynthesizerConfig.get_text_config`. Image embeddings are outside of this class."""
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens: nn.Module | None = nn.Embedding(config.vocab_size, width) if embed_tokens else None
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        learned, relative = (config.position_embedding_type == name for name in ("learned", "relative"))
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width) if learned else None
        self.relative_attention_bias = COMPONENTS["relative"](config) if relative else None
        layers = [SynthesizerLayer(config, index, has_cross_attention) for index in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = SynthesizerRMSNorm(width, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.has_cross_attention = has_cross_attention
        self.gradient_checkpointing = False
        self.post_init()
        # Tensor parallelism splits only the feed-forward layers, because mixed logits need all heads at once.
        names = [name for name, _ in layers[0].mlp.named_children() if name.endswith("_proj")]
        split = {f"layers.*.mlp.{name}": "rowwise" if name == "down_proj" else "colwise" for name in names}
        if embed_tokens:
            split["embed_tokens"] = "embedding_rowwise"
        self._tp_plan = {**(self._tp_plan or {}), **split}
        self._fsdp_plan = {**(self._fsdp_plan or {}), "layers.*": "free_full_weight", "norm": "keep_full_weight"}

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def resize_positions(self, length: int, resize: Resize) -> None:
        """Change the maximum length; call the model's `resize_position_embeddings` instead."""
        self.config.max_position_embeddings = length
        attentions = [module for module in self.modules() if isinstance(module, SynthesizerAttention)]
        for component in [component for attention in attentions for component in attention.components.values()]:
            if isinstance(component, FactorizedDenseLogits):
                component.resize(math.prod(self.config.dense_factors))
            elif isinstance(component, HasPositions):
                component.resize(resize)
        if self.embed_positions is not None:
            self.embed_positions.weight = resized_parameter(self.embed_positions.weight, resize, 0)
            self.embed_positions.num_embeddings = length

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
        encoder_hidden_states: torch.FloatTensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document. Tokens see their own document only, and
            positions start at 0 in each document.
        """
        if self.has_cross_attention and seq_idx is not None:
            raise ValueError("Encoder-decoders do not support `seq_idx`: give each pair of texts a row of its own.")
        prefix = "decoder_" if self.has_cross_attention else ""
        # Images are already embedded.
        embeds = embed_text(self.embed_tokens, input_ids, inputs_embeds, self.config.hidden_size, prefix)
        if encoder_hidden_states is not None:
            shape = embeds.shape[0], self.config.hidden_size
            check_encoder_states(encoder_hidden_states, encoder_attention_mask, *shape)
        check_cache(cache)
        cache = self._prepare_cache(cache, use_cache)
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        layout = self._token_layout(embeds, attention_mask, position_ids, own_cache, seq_idx)
        encoder_mask = None
        if self.has_cross_attention and encoder_hidden_states is not None:
            encoder_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=embeds,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        if token_type_ids is not None and self.token_type_embeddings is not None:
            check_token_types(token_type_ids, embeds)
        more = {"encoder_attention_mask": encoder_mask, CACHE_NAME: cache}
        embeds = embeds + self._added_embeddings(layout, token_type_ids, embeds.device)
        hidden_states = self._apply_layers(embeds, layout, encoder_hidden_states, **more, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(self.dropout(self.norm(hidden_states)), cache)

    def _apply_layers(
        self,
        hidden_states: torch.Tensor,
        layout: TokenLayout,
        encoder_hidden_states: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        position_bias = None if self.relative_attention_bias is None else self.relative_attention_bias(layout)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers[: self.config.num_hidden_layers]:  # fewer in self-speculative decoding
            # Reentrant checkpointing only finds gradients of positional arguments.
            hidden_states = layer(hidden_states, position_bias, encoder_hidden_states, layout=layout, **kwargs)
        return hidden_states

    def _prepare_cache(self, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        if not self.config.is_decoder:
            return None
        if cache is None:
            cache = DynamicCache(config=self.config) if use_cache else None
        if self.has_cross_attention and cache is not None and not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        return cache

    def _token_layout(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
        seq_idx: torch.Tensor | None,
    ) -> TokenLayout:
        """Create the layout for all layers."""
        layout = token_layout(self.config, inputs_embeds, attention_mask, position_ids, cache, seq_idx)
        if "vanilla" in self.config.attention_components:
            return with_interface_mask(layout, self.config, inputs_embeds, attention_mask, cache)
        mask = None if layout.is_shared else visible_keys(layout, inputs_embeds.device)
        return layout._replace(attention_mask=mask)

    def _added_embeddings(
        self, layout: TokenLayout, token_type_ids: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor | float:
        added: torch.Tensor | float = 0.0
        if self.embed_positions is not None:
            added = self.embed_positions(layout.query_positions(device))
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(1, 1, dtype=torch.long, device=device)
            added = added + embed(self.token_type_embeddings, token_type_ids, "token_type_ids")
        return added.to(device) if isinstance(added, torch.Tensor) else added  # a `device_map` may split them


class SynthesizerModel(SynthesizerPreTrainedModel):
    """The Synthesizer without a head: encoder, decoder or both, depending on the configuration.

    With `config.image_size`, it encodes images, and `pooler_output` is the input of the classifier, shape
    `(batch, hidden_size)`: the class token after ViT's pre-logits layer, or the mean of the patches.
    """

    def __init__(self, config: SynthesizerConfig):
        super().__init__(config)
        reads_text, both = config.image_size is None, config.is_encoder_decoder
        if config.image_size is None:
            self.shared: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            config.set_image_size(config.image_size)  # it may have changed after the configuration was created
            self.main_input_name = "pixel_values"
            self.input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too
            self._input_embed_layer = "embed_patches"
            self.embed_patches: nn.Module = PatchEmbeddings(config)
            if config.use_class_token:
                self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        if both or not config.is_decoder:
            self.encoder = SynthesizerStack(config.get_text_config(encoder=True), embed_tokens=reads_text)
        if both or config.is_decoder:
            self.decoder = SynthesizerStack(config.get_text_config(decoder=True), has_cross_attention=both)
        sides = [name for name in ("encoder", "decoder") if hasattr(self, name) and reads_text]
        self._tied_weights_keys = {f"{name}.embed_tokens.weight": "shared.weight" for name in sides}
        self.post_init()
        if reads_text:
            # As in the encoder and decoder, which share it.
            self._tp_plan = {**(self._tp_plan or {}), "shared": "embedding_rowwise"}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Encoder and decoder share the embeddings; `tie_word_embeddings` concerns only the head."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys)

    def set_input_embeddings(self, value: nn.Module) -> None:
        if self.config.image_size is not None:
            self.embed_patches = value
            return
        self.shared = value
        for name in ("encoder", "decoder"):
            if hasattr(self, name):
                getattr(self, name).set_input_embeddings(value)

    @can_return_tuple
    @auto_docstring
    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        encoder_outputs: tuple[torch.Tensor, ...] | BaseModelOutput | None = None,
        cache: Cache | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        pixel_values: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions | BaseModelOutputWithPooling | Seq2SeqModelOutput:
        r"""
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Token ids of the decoder, for encoder-decoders. They start with `decoder_start_token_id`.
        decoder_attention_mask (`torch.Tensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            1 for real decoder tokens, 0 for padding.
        decoder_position_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Positions of the decoder tokens; by default counted from the first real one.
        """
        check_modality(self.config, pixel_values, input_ids, token_type_ids, position_ids, inputs_embeds)
        if pixel_values is not None:
            return self._encode_images(pixel_values, attention_mask, **kwargs)
        kwargs["return_dict"] = True
        use_cache = self.config.use_cache if use_cache is None else use_cache  # the decoder's configuration is a copy
        if self.config.is_encoder_decoder:
            if encoder_outputs is None:
                encoded = self.encoder(
                    input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs
                )
            elif isinstance(encoder_outputs, ModelOutput):
                encoded = encoder_outputs
            else:
                encoded = BaseModelOutput(*encoder_outputs[:3])  # type: ignore[arg-type]  # all but the first are tuples
            decoder_outputs = self.decoder(
                decoder_input_ids,
                decoder_attention_mask,
                None,
                decoder_position_ids,
                decoder_inputs_embeds,
                encoder_hidden_states=encoded[0],
                encoder_attention_mask=attention_mask,
                cache=cache,
                use_cache=use_cache,
                **kwargs,
            )
            return Seq2SeqModelOutput(
                decoder_outputs.last_hidden_state,
                getattr(decoder_outputs, CACHE_NAME),
                decoder_hidden_states=decoder_outputs.hidden_states,
                decoder_attentions=decoder_outputs.attentions,
                cross_attentions=decoder_outputs.cross_attentions,
                encoder_last_hidden_state=encoded.last_hidden_state,
                encoder_hidden_states=encoded.get("hidden_states"),
                encoder_attentions=encoded.get("attentions"),
            )
        if not self.config.is_decoder:
            return self.encoder(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        return self.decoder(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )

    def _encode_images(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        patches = self.embed_patches(pixel_values)
        outputs = self.encoder(None, attention_mask, inputs_embeds=patches, return_dict=True, **kwargs)
        hidden_states = outputs.last_hidden_state
        pooled = pool_patches(hidden_states, attention_mask, self)
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states,
            pooler_output=pooled,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class _EncoderHead(ModelMixin):
    """A head on an encoder."""

    backbone_class: type[nn.Module] = SynthesizerModel

    def __init__(self, config: SynthesizerConfig):
        encoder_only = not (config.is_decoder or config.is_encoder_decoder)
        require(encoder_only, self, "`is_decoder=False` and `is_encoder_decoder=False`, an encoder")
        super().__init__(config)


class _ScaledLanguageModelingHead(ModelMixin):
    """A language modelling head, tied to the embeddings by default, that scales its input like T5."""

    lm_head: nn.Linear
    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary (see `scale_decoder_outputs`)."""
        if self.config.scale_decoder_outputs:
            hidden_states = hidden_states * self.config.hidden_size**-0.5
        return self.lm_head(hidden_states)


class SynthesizerForMaskedLM(_EncoderHead, _ScaledLanguageModelingHead, MaskedLMHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder with a language modelling head, tied to the embeddings by default."""


class SynthesizerForSequenceClassification(_EncoderHead, SequenceClassificationHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder with a sequence classification or regression head, e.g. for GLUE."""


class SynthesizerForTokenClassification(_EncoderHead, TokenClassificationHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder with a classification head on every token, e.g. for named entities."""


class SynthesizerForMultipleChoice(_EncoderHead, MultipleChoiceHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder with a multiple choice head, e.g. for COPA or SWAG."""


class SynthesizerForQuestionAnswering(_EncoderHead, QuestionAnsweringHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder with a span head for extractive question answering, e.g. SQuAD."""


class SynthesizerForImageClassification(_EncoderHead, ImageClassificationHead, SynthesizerPreTrainedModel):
    """Synthesizer encoder of image patches with a classification head, e.g. for ImageNet."""


class SynthesizerBackbone(_EncoderHead, ImageBackbone, SynthesizerPreTrainedModel):
    """Synthesizer backbone for detection and segmentation, which returns feature maps of selected blocks."""

    def encode_patches(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor:
        encoder, patches = self.model.encoder, self.model.embed_patches(pixel_values)
        layout = encoder._token_layout(patches, attention_mask, None, None, None)
        patches = patches + encoder._added_embeddings(layout, None, patches.device)
        return encoder._apply_layers(patches, layout, **kwargs)


class SynthesizerForCausalLM(_ScaledLanguageModelingHead, CausalLMHead, SynthesizerPreTrainedModel, GenerationMixin):
    """Synthesizer decoder with a language modelling head, tied to the embeddings by default."""

    backbone_class = SynthesizerModel


class SynthesizerForConditionalGeneration(
    EndsWithWeights, _ScaledLanguageModelingHead, SynthesizerPreTrainedModel, GenerationMixin
):
    """Synthesizer encoder-decoder with a language modelling head: with `vanilla` alone, T5."""

    create_masks_for_generate = staticmethod(mask_for_generate)

    def __init__(self, config: SynthesizerConfig):
        require(config.is_encoder_decoder, self, "`is_encoder_decoder=True`")
        super().__init__(config)
        self.model = SynthesizerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss_type = "ForMaskedLM"  # cross entropy without a shift, because the decoder inputs are shifted
        self.post_init()

    @can_return_tuple
    @auto_docstring
    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor, ...] | BaseModelOutput | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Token ids of the decoder, starting with `decoder_start_token_id`; by default created from `labels`.
        decoder_attention_mask (`torch.Tensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            1 for real decoder tokens, 0 for padding.
        labels (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*):
            Token ids to predict, one per decoder token; -100 is ignored by the loss.
        """
        decoder_ids: torch.Tensor | None = decoder_input_ids
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            decoder_input_ids=decoder_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        logits, loss = self.compute_logits(outputs.last_hidden_state[:, kept_tokens(logits_to_keep), :]), None
        if labels is not None:
            counted = with_loss_divisor(labels, kwargs)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **counted)
        return Seq2SeqLMOutput(
            loss,
            logits,
            getattr(outputs, CACHE_NAME),
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift labels right by one, after `decoder_start_token_id`; -100 becomes `pad_token_id`.

        Raises:
            ValueError: If the configuration lacks one of the two ids.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError("Making decoder inputs from labels needs `decoder_start_token_id` and `pad_token_id`.")
        shifted = torch.cat([torch.full_like(labels[..., :1], start), labels[..., :-1]], dim=-1)
        return shifted.masked_fill(shifted == IGNORED_LABEL, pad)


__all__ = [
    "SynthesizerBackbone",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForImageClassification",
    "SynthesizerForMaskedLM",
    "SynthesizerForMultipleChoice",
    "SynthesizerForQuestionAnswering",
    "SynthesizerForSequenceClassification",
    "SynthesizerForTokenClassification",
    "SynthesizerModel",
    "SynthesizerPreTrainedModel",
]
