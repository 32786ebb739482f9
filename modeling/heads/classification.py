"""Classification of sequences, tokens and choices."""

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..inputs.input_checks import check_choices
from .losses import classification_loss, label_cross_entropy, with_loss_divisor
from .pooling import pool
from .task_head import TaskHead


class ClassificationHead(TaskHead):
    """Dropout and a linear layer with `num_scores` outputs, by default `config.num_labels`."""

    num_scores: int | None = None

    def _build_head(self, config: PreTrainedConfig) -> None:
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate)
        self.num_labels = config.num_labels
        self.classifier = nn.Linear(config.hidden_size, self.num_scores or config.num_labels)  # type: ignore[arg-type]  # 2 by default


class SequenceClassificationHead(ClassificationHead):
    """Predicts one label (or several, or a number) per sequence from the pooled output."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_function = classification_loss

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
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        pooled = pool(outputs.last_hidden_state, attention_mask, self.config.classifier_pooling)
        logits, loss = self.classifier(self.dropout(pooled)), None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class TokenClassificationHead(ClassificationHead):
    """Predicts one label per token."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_type = "ForTokenClassification"  # independent of a subclass's name

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
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the index of each token's document.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Class indices in `[0, num_labels)`; -100 is ignored by the loss.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, seq_idx=seq_idx, return_dict=True, **kwargs)
        logits, loss = self.classifier(self.dropout(outputs.last_hidden_state)), None
        if labels is not None:
            counted = with_loss_divisor(labels, kwargs)
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, **counted)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class MultipleChoiceHead(ClassificationHead):
    """Predicts one score per choice, where each choice is a sequence."""

    num_scores = 1

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_function = label_cross_entropy

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
            Positions of the tokens.
        inputs_embeds (`torch.FloatTensor` of shape `(batch_size, num_choices, sequence_length, hidden_size)`):
            Embeddings instead of `input_ids`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the correct choice, in `[0, num_choices)`.
        """
        check_choices(input_ids, inputs_embeds)
        tensors = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in tensors]
        outputs = self.model(*flat, return_dict=True, **kwargs)
        pooled = pool(outputs.last_hidden_state, flat[1], self.config.classifier_pooling)
        num_choices = next(tensor.shape[1] for tensor in (input_ids, inputs_embeds) if tensor is not None)
        logits, loss = self.classifier(self.dropout(pooled)).view(-1, num_choices), None
        if labels is not None:
            loss = self.loss_function(logits, labels, kwargs.get("num_items_in_batch"))
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)
