"""What self-attention does with the rows of a batch: its inputs, its weights, and which pairs of tokens count."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import nn

from ..heads.losses import IGNORED_LABEL
from ..inputs.attention_maps import visible_keys
from ..inputs.token_layout import TokenLayout
from ..layers.attention import split_heads
from ..modeling_synthesizer import SynthesizerForConditionalGeneration, SynthesizerStack
from ..recorded_inputs import record_inputs
from ..synthesizer_layers import SynthesizerAttention


Batch = Mapping[str, torch.Tensor]


class AttentionInputs(NamedTuple):
    """What a self-attention module was called with."""

    hidden_states: torch.Tensor
    position_bias: torch.Tensor | None
    layout: TokenLayout


def longest_row(batches: Collection[Batch], side: str) -> int:
    """Most tokens of a row in `"encoder"` or `"decoder"`."""
    names = ("input_ids",) if side == "encoder" else ("labels", "decoder_input_ids")
    return max(batch[name].shape[1] for batch in batches for name in names if name in batch)


def attention_pairs(
    teacher: SynthesizerForConditionalGeneration, student: SynthesizerForConditionalGeneration, sides: list[str]
) -> list[tuple[SynthesizerStack, SynthesizerAttention, SynthesizerAttention]]:
    """The student's stack, and the self-attention of teacher and student, of all layers to fit."""
    result = []
    for side in sides:
        ours, theirs = getattr(student.model, side), getattr(teacher.model, side)
        pairs = zip(theirs.layers, ours.layers, strict=True)
        result += [(ours, old.self_attn, new.self_attn) for old, new in pairs]
    return result


def attention_inputs(model: SynthesizerForConditionalGeneration, batch: Batch) -> dict[nn.Module, AttentionInputs]:
    """What the self-attention modules of a model are called with for a batch, by module."""
    modules = [module for module in model.modules() if isinstance(module, SynthesizerAttention)]
    with record_inputs(modules) as inputs:
        _forward(model, batch)
    return {module: AttentionInputs(*arguments[:3]) for module, arguments in inputs.items()}


def _forward(model: SynthesizerForConditionalGeneration, batch: Batch) -> None:
    """Run encoder and decoder without the head."""
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    for name in ("attention_mask", "decoder_attention_mask"):
        if name in batch and bool((batch[name].diff(dim=1) > 0).any()):
            raise ValueError(f"The calibration batches are padded on the left (`{name}`): pad them on the right.")
    if "labels" in batch:
        labels = batch.pop("labels")
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        batch.setdefault("decoder_attention_mask", (labels != IGNORED_LABEL).long())
    model.model(**batch, use_cache=False)


def attention_weights(attention: SynthesizerAttention, inputs: AttentionInputs) -> torch.Tensor:
    """The attention weights of a `vanilla` self-attention, `(batch, heads, queries, keys)`, in float32."""
    queries, keys = (
        split_heads(projection(inputs.hidden_states), attention.head_dim)
        for projection in (attention.q_proj, attention.k_proj)
    )
    return masked_log_softmax(queries @ keys.mT, inputs).exp()


def masked_log_softmax(logits: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
    """Logarithm of the attention weights, given the logits without position bias, `(batch, heads, queries, keys)`."""
    if inputs.position_bias is not None:
        logits = logits + inputs.position_bias
    visible = visible_keys(inputs.layout, logits.device)
    if visible is not None:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    return logits.log_softmax(dim=-1)


def visible_pairs(inputs: AttentionInputs) -> torch.Tensor:
    """True for a real query and a key that it sees, `(batch, 1, queries, keys)`."""
    layout, (batch, length) = inputs.layout, inputs.hidden_states.shape[:2]
    pairs = inputs.hidden_states.new_ones(batch, 1, length, length, dtype=torch.bool)
    visible = visible_keys(layout, pairs.device)
    if visible is not None:
        pairs = pairs & visible
    return pairs if layout.padding_mask is None else pairs & layout.padding_mask[:, None, :, None]
