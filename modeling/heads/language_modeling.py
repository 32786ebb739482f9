"""Masked and causal language modelling."""

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..inputs.caches import mask_for_generate
from .task_head import TaskHead


class MaskedLMHead(TaskHead):
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


class CausalLMHead(TaskHead):
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
