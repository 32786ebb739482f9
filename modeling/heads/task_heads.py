"""Task heads shared by all families.

Each is a mixin over a family's `PreTrainedModel` and needs one class attribute, `backbone_class`:

    class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
        backbone_class = GMLPModel

Losses of token-level heads are divided by the Trainer's `num_items_in_batch`; heads with one loss term per example
take the mean and say so with `accepts_loss_kwargs = False`. Either way the gradient does not depend on how a batch is
split over accumulation steps and processes.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..inputs.caches import mask_for_generate
from ..inputs.padding import first_token_index
from ..mixins.typing import ModelMixin


def pool(last_hidden_state: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector per sequence.

    Args:
        last_hidden_state: Shape `(batch, length, hidden_size)`.
        attention_mask: Shape `(batch, length)`, non-zero for real tokens; `None` if all are.
        pooling: `"cls"`, the first real token, or `"mean"`, the mean of the real tokens.

    Returns:
        Shape `(batch, hidden_size)`.
    """
    if pooling == "cls":
        if attention_mask is None:
            return last_hidden_state[:, 0]
        rows = torch.arange(last_hidden_state.shape[0], device=last_hidden_state.device)
        return last_hidden_state[rows, first_token_index(attention_mask).to(last_hidden_state.device)]
    if attention_mask is None:
        return last_hidden_state.mean(dim=1)
    weights = (attention_mask != 0)[:, :, None].to(last_hidden_state)
    return (last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _classifier_dropout(config: PreTrainedConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


class _Head(ModelMixin):
    backbone_class: type[nn.Module]
    reads_images = False
    is_decoder = False

    def __init__(self, config: PreTrainedConfig):
        if config.is_decoder != self.is_decoder:
            raise ValueError(
                f"{type(self).__name__} needs a configuration with `is_decoder={self.is_decoder}`, "
                f"{'a decoder' if self.is_decoder else 'an encoder'}."
            )
        if (getattr(config, "image_size", None) is not None) != self.reads_images:
            wanted = "an image size, e.g. 224" if self.reads_images else "`None`: it reads text"
            raise ValueError(
                f"`{type(self).__name__}` needs `config.image_size` to be {wanted}; got {config.image_size}."
            )
        super().__init__(config)
        self.model = self.backbone_class(config)
        self._build_head(config)
        self.post_init()

    def _build_head(self, config: PreTrainedConfig) -> None:
        """Add the head's own modules."""
        raise NotImplementedError


class MaskedLMHead(_Head):
    """Masked language modelling: a linear map to the vocabulary with a bias, its matrix tied to the embeddings.

    With `config.sparse_prediction`, training steps (training mode, labels given) compute the vocabulary logits of the
    tokens to predict alone and return `logits=None`: the same loss in a fraction of the time and memory. Evaluation
    and inference always return all logits.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary; families that scale their outputs override this."""
        return self.lm_head(hidden_states)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""
        Labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Token ids to predict, in `[0, vocab_size)`; -100 where nothing is to be predicted.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states, loss = outputs.last_hidden_state, None
        targets: torch.Tensor | None = labels
        sparse = self.config.sparse_prediction and self.training and labels is not None
        if labels is not None and sparse:
            asked = labels != -100
            hidden_states, targets = hidden_states[asked], labels[asked]
        logits = self.compute_logits(hidden_states)
        if targets is not None:
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss,
            logits=None if sparse else logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class CausalLMHead(_Head):
    """Prediction of the next token: a linear map to the vocabulary, its matrix tied to the embeddings."""

    is_decoder = True
    create_masks_for_generate = staticmethod(mask_for_generate)
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def _build_head(self, config: PreTrainedConfig) -> None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        # `Trainer` shifts the labels for label smoothing only for classes whose name stands in this table: any other
        # decoder would learn to repeat its input.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(type(self).__name__, type(self).__name__)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary; families that scale their outputs override this."""
        return self.lm_head(hidden_states)

    # No `position_ids` in the signature, since `generate` would then pass its own: they are counted from the mask.
    # They can be given all the same.
    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Token ids as in `input_ids` (the shift by one happens here); -100 where there is nothing to predict.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.compute_logits(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class _ClassificationHead(_Head):
    def _build_head(self, config: PreTrainedConfig) -> None:
        self.num_labels = config.num_labels
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]  # 2 by default


class SequenceClassificationHead(_ClassificationHead):
    """One label (or several, or a number) per sequence, read from the pooled output."""

    accepts_loss_kwargs = False

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)`, *optional*):
            Class indices in `[0, num_labels)`; numbers if `num_labels == 1` (mean squared error); or one 0/1 number
            per label, shape `(batch_size, num_labels)`, for `problem_type="multi_label_classification"`.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        pooled = pool(outputs.last_hidden_state, attention_mask, self.config.classifier_pooling)
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class TokenClassificationHead(_ClassificationHead):
    """One label per token."""

    classifies_tokens = True

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        Labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Class indices in `[0, num_labels)`; -100 for tokens without a label.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class MultipleChoiceHead(_Head):
    """One score per choice, each choice being a sequence of its own."""

    accepts_loss_kwargs = False

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`):
            Token ids; the other inputs have the same leading dimensions.
        attention_mask (`torch.Tensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            1 for real tokens, 0 for padding.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Segment ids.
        position_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`, *optional*):
            Positions of the tokens in the spatial weights.
        inputs_embeds (`torch.FloatTensor` of shape `(batch_size, num_choices, sequence_length, hidden_size)`):
            Embeddings instead of `input_ids`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the right choice, in `[0, num_choices)`.
        """
        given = inputs_embeds if input_ids is None else input_ids
        if given is None:
            raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")
        flat_ids, flat_mask, *others = (
            None if tensor is None else tensor.flatten(0, 1)
            for tensor in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
        outputs = self.model(flat_ids, flat_mask, *others, **kwargs)
        pooled = pool(outputs.last_hidden_state, flat_mask, self.config.classifier_pooling)
        logits = self.classifier(self.dropout(pooled)).view(-1, given.shape[1])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits, labels.to(logits.device))
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _position_loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the tokens, mean of the rows whose position lies in the sequence; zero if there is none."""
    length = logits.shape[1]
    positions = positions.view(-1).to(logits.device).clamp(0, length)
    total = F.cross_entropy(logits.float(), positions, ignore_index=length, reduction="sum")
    return total / (positions < length).sum().clamp(min=1)


class QuestionAnsweringHead(_Head):
    """Start and end scores of an answer span for every token."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""
        start_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the answer's first token; indices past the sequence are ignored.
        end_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the answer's last token; indices past the sequence are ignored.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        if attention_mask is not None and getattr(self.config, "mask_padding", True):
            # No answer lies in the padding, and the softmax over tokens must not depend on how much of it there is.
            logits = logits.masked_fill(attention_mask[:, :, None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (_position_loss(start_logits, start_positions) + _position_loss(end_logits, end_positions)) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ImageClassificationHead(_ClassificationHead):
    """One label (or several, or a number) per image, read from the pooled output."""

    reads_images = True
    accepts_loss_kwargs = False
    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)`, *optional*):
            Class indices in `[0, num_labels)`; numbers if `num_labels == 1` (mean squared error); or one 0/1 number
            per label, shape `(batch_size, num_labels)`, for `problem_type="multi_label_classification"`.
        """
        outputs = self.model(pixel_values=pixel_values, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
