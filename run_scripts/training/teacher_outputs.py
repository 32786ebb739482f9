"""A teacher's forward pass: which inputs it takes, and its logits of the masked tokens alone."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ...modeling.heads.losses import IGNORED_LABEL


#: What the batch has for the student's loss, and the decoder's inputs, which each model makes of the labels itself.
TARGETS = ("labels", "start_positions", "end_positions", "decoder_input_ids")


def teacher_inputs(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part of a student's batch that another model takes, without labels."""
    names = {*inspect.signature(model.forward).parameters, *(["seq_idx"] if supports_seq_idx(model) else [])}
    return {name: tensor for name, tensor in batch.items() if name in names and name not in TARGETS}


def supports_seq_idx(model: PreTrainedModel) -> bool:
    """Whether a model can keep the documents of a row apart."""
    return bool(getattr(model, "_supports_seq_idx", False))


def masked_token_logits(
    model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], labels: torch.Tensor
) -> torch.Tensor:
    """The logits of a masked language model for the tokens to predict, without computing those of the others.

    The model's head gets the hidden states of these tokens only. Where the base model does not return a state for each
    token, the logits of all tokens are computed.

    Args:
        model: Any masked language model, in evaluation mode.
        inputs: Its inputs, without labels.
        labels: Shape `(batch, length)`, -100 = not to predict.

    Returns:
        Shape `(tokens to predict, vocab_size)`, in the order of the flattened labels.
    """
    chosen = (labels.flatten() != IGNORED_LABEL).nonzero().squeeze(1)

    def select(module: nn.Module, args: Any, outputs: Any) -> Any:
        states = getattr(outputs, "last_hidden_state", None)
        if states is not None and states.shape[:2] == labels.shape:
            outputs["last_hidden_state"] = states.flatten(0, 1).index_select(0, chosen)[None]
        return outputs

    hook = model.base_model.register_forward_hook(select)
    try:
        logits = model(**inputs).logits
    finally:
        hook.remove()
    if logits.shape[:2] == (1, len(chosen)):
        return logits[0]
    return logits.flatten(0, 1).index_select(0, chosen)
