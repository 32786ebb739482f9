"""Classification of sequences, tokens, choices and images."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.modeling_outputs import (
    ImageClassifierOutput,
    MultipleChoiceModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .pooling import pool
from .task_head import TaskHead


def _classifier_dropout(config: PreTrainedConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


class _ClassificationHead(TaskHead):
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


class MultipleChoiceHead(TaskHead):
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
