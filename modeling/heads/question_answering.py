"""Extractive question answering."""

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .losses import answer_loss
from .task_head import TaskHead


class QuestionAnsweringHead(TaskHead):
    """Predicts start and end scores of an answer span for every token."""

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.loss_function = answer_loss

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
        kwargs.pop("labels", None)  # counted by the Trainer, see `answer_loss`
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits, loss = self.qa_outputs(outputs.last_hidden_state), None
        is_padding = attention_mask is not None and attention_mask.ndim == 2
        if is_padding and getattr(self.config, "mask_padding", True):
            # Answers do not lie in padding, and the softmax over tokens must not depend on its length.
            padding = attention_mask[:, :, None].to(logits.device) == 0  # type: ignore[index]  # not `None`
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start, end = logits.unbind(dim=-1)
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)
