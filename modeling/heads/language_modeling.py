"""Masked and causal language modelling."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Cache, GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, logging
from transformers.utils.generic import can_return_tuple

from ..inputs.caches import CACHE_NAME, accept_past_key_values, mask_for_generate
from ..inputs.input_checks import kept_tokens
from ..inputs.token_layout import longest_sequence
from .losses import IGNORED_LABEL, is_counted, with_loss_divisor
from .task_head import TaskHead


logger = logging.get_logger(__name__)


class EndsWithWeights:
    """Lets `generate` stop at the end of the model's weights, with a warning, however many tokens are asked for."""

    config: Any

    def _prepare_generated_length(self, *args: Any, **lengths: Any) -> GenerationConfig:
        # `generate` passes keywords: `input_ids_length`, and more for a prompt of embeddings.
        found = super()._prepare_generated_length(*args, **lengths)  # type: ignore[misc]
        longest, start = longest_sequence(self.config.get_text_config(decoder=True)), lengths["input_ids_length"]
        if longest is not None:
            embedded = lengths["inputs_tensor"].shape[1] if lengths["model_input_name"] == "inputs_embeds" else start
            most = max(longest + start - embedded, start) + 1  # nothing follows the last token
            if found.max_length > most:
                logger.warning_once(
                    f"`generate` stops after {most - start} tokens instead of {found.max_length - start}: the model's "
                    f"weights cover `max_position_embeddings={longest}`, see `model.resize_position_embeddings`."
                )
                found.max_length = most
        return found


class _LanguageModelingHead(TaskHead):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def _build_head(self, config: PreTrainedConfig) -> None:
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=not self.is_decoder)
        self.loss_type = "ForCausalLM" if self.is_decoder else "ForMaskedLM"  # independent of a subclass's name

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary; families that scale their outputs override this."""
        return self.lm_head(hidden_states)


class MaskedLMHead(_LanguageModelingHead):
    """Masked language modelling: a linear layer to the vocabulary with a bias, whose weight is tied to the embeddings.

    With `config.sparse_prediction`, training steps (training mode, labels given) compute logits only for the tokens to
    predict and return `logits=None`. The loss is the same with less time and memory.
    """

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
    ) -> MaskedLMOutput:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the number of each token's document.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, seq_idx=seq_idx, return_dict=True, **kwargs)
        hidden_states, loss = outputs.last_hidden_state, None
        targets: torch.Tensor | None = labels
        sparse = self.config.sparse_prediction and self.training and labels is not None
        if labels is not None and sparse:
            targets = labels.flatten().to(hidden_states.device)
            # This synchronizes once, to count them; a boolean index would do so for each tensor.
            to_predict = is_counted(targets, kwargs).nonzero().squeeze(1)
            hidden_states = hidden_states.flatten(0, 1).index_select(0, to_predict)
            targets = targets.index_select(0, to_predict)
        logits = self.compute_logits(hidden_states)
        if targets is not None:
            counted = with_loss_divisor(targets, kwargs)
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=self.config.vocab_size, **counted)
        return MaskedLMOutput(loss, None if sparse else logits, outputs.hidden_states, outputs.attentions)


class CausalLMHead(EndsWithWeights, _LanguageModelingHead):
    """Next-token prediction: a linear layer to the vocabulary, whose weight is tied to the embeddings."""

    is_decoder = True
    create_masks_for_generate = staticmethod(mask_for_generate)
    _get_static_cache_init_shape = staticmethod(lambda: None)  # has no heads: shapes are those of the first keys

    def _build_head(self, config: PreTrainedConfig) -> None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        # With label smoothing, `Trainer` shifts labels only for the classes in this table.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(type(self).__name__, type(self).__name__)
        super()._build_head(config)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported, because the paged cache stores only keys and values of attention."""
        raise NotImplementedError(f"{type(self).__name__} has no `generate_batch`: use `generate` with padded rows.")

    # `position_ids` is not in the signature because `generate` would pass its own. Users can pass it.
    @can_return_tuple
    @auto_docstring
    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        seq_idx: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        seq_idx (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            For rows of several documents: the number of each token's document.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Token ids, e.g. `input_ids`, which are shifted by one inside the model; -100 is ignored by the loss.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            seq_idx=seq_idx,
            return_dict=True,
            **kwargs,
        )
        logits, loss = self.compute_logits(outputs.last_hidden_state[:, kept_tokens(logits_to_keep), :]), None
        if labels is not None:
            shifted = kwargs.get("shift_labels")
            if shifted is None:  # as long as the labels, because compiled code specializes sizes of one
                shifted = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", IGNORED_LABEL))[..., 1:]
            counted = with_loss_divisor(shifted, kwargs)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **counted)
        cache = getattr(outputs, CACHE_NAME)
        return CausalLMOutputWithPast(loss, logits, cache, outputs.hidden_states, outputs.attentions)
