"""Dense components by layer-wise distillation of attention weights: see `t5_fit.py`."""

from collections.abc import Collection

import torch
from torch import nn
from torch.nn import functional as F

from ..layers.attention import split_heads
from ..layers.synthetic_logits import DenseLogits, FactorizedDenseLogits
from ..modeling_synthesizer import SynthesizerForConditionalGeneration, SynthesizerStack
from ..synthesizer_layers import SynthesizerAttention
from .attention_inputs import (
    AttentionInputs,
    Batch,
    attention_inputs,
    attention_pairs,
    attention_weights,
    longest_row,
    masked_log_softmax,
    visible_pairs,
)


def distil_attention(
    teacher: SynthesizerForConditionalGeneration,
    student: SynthesizerForConditionalGeneration,
    batches: Collection[Batch],
    sides: list[str],
    epochs: int,
    learning_rate: float,
) -> list[float]:
    """Train the dense components of each layer on the attention weights of the teacher's layer.

    Args:
        teacher: A Synthesizer with `vanilla` attention.
        student: The same with one dense component instead, changed in place.
        batches: See `fit_synthesizer`.
        sides: Which of `"encoder"` and `"decoder"` to train.
        epochs: Passes over the batches.
        learning_rate: Of Adam, at the start.

    Returns:
        The mean divergence from the teacher's weights of each epoch, over tokens, heads and layers, in nats.
    """
    pairs = attention_pairs(teacher, student, sides)
    for _, old, new in pairs:
        _start_dense(old, new)
    parameters = [weight for _, _, new in pairs for weight in _dense_parameters(new)]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * len(batches))
    history = []
    for _ in range(epochs):
        total = 0.0
        for batch in batches:
            optimizer.zero_grad()
            total += _distil_batch(teacher, batch, pairs)
            optimizer.step()
            schedule.step()
        history.append(total / len(batches))
    for _, _, new in pairs:
        _fill_unseen(new, longest_row(batches, "decoder" if new.is_causal else "encoder"))
    return history


def _dense_parameters(attention: SynthesizerAttention) -> list[nn.Parameter]:
    """The weights that the logits depend on."""
    names = ("v_proj", "o_proj")  # the others
    return [weight for name, weight in attention.named_parameters() if name.partition(".")[0] not in names]


@torch.no_grad()
def _start_dense(old: SynthesizerAttention, new: SynthesizerAttention) -> None:
    """T5's queries as the first layer, and logits of zero."""
    (component,) = new.components.values()
    assert isinstance(component, DenseLogits | FactorizedDenseLogits)
    first = component.first.first_proj
    if first is not None:
        first.weight.copy_(old.q_proj.weight)
        if first.bias is not None:
            first.bias.zero_()
    if isinstance(component, DenseLogits):
        component.second.weight.zero_()
        return
    # Not both zero: their product would have no gradient.
    component.tiled.weight.zero_()
    if component.repeated.bias is not None:
        component.repeated.weight.zero_()
        component.repeated.bias.fill_(1.0)


def _distil_batch(
    teacher: SynthesizerForConditionalGeneration,
    batch: Batch,
    pairs: list[tuple[SynthesizerStack, SynthesizerAttention, SynthesizerAttention]],
) -> float:
    """Add the gradients of one batch; returns the mean divergence.

    All layers read T5's hidden states. With those of the converted layers below them, which is what they read later,
    the converted model had the same loss, in twice the time.
    """
    with torch.no_grad():
        inputs = attention_inputs(teacher, batch)
    total = 0.0
    for stack, old, new in pairs:
        with torch.no_grad():
            target = attention_weights(old, inputs[old])
        own = inputs[old] if stack.relative_attention_bias is not None else inputs[old]._replace(position_bias=None)
        divergence = _divergence(target, _new_log_weights(new, own), visible_pairs(own))
        divergence.backward()
        total += divergence.item()
    return total / len(pairs)


def _new_log_weights(attention: SynthesizerAttention, inputs: AttentionInputs) -> torch.Tensor:
    hidden_states, queries = inputs.hidden_states, None
    if attention.has_queries:
        queries = split_heads(attention.q_proj(hidden_states), attention.head_dim)
    (component,) = attention.components.values()
    return masked_log_softmax(component(inputs.layout, hidden_states=hidden_states, queries=queries), inputs)


def _divergence(target: torch.Tensor, log_weights: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Mean of KL(target || weights) over real queries and heads."""
    divergences = F.kl_div(log_weights, target, reduction="none").masked_fill(~visible, 0.0)
    return divergences.sum() / (visible.any(dim=-1).sum() * target.shape[1])


@torch.no_grad()
def _fill_unseen(attention: SynthesizerAttention, length: int) -> None:
    """Give keys from position `length` on, which no row had, the mean logit of the others."""
    (component,) = attention.components.values()
    assert isinstance(component, DenseLogits | FactorizedDenseLogits)
    outputs = component.second if isinstance(component, DenseLogits) else component.repeated
    if isinstance(component, FactorizedDenseLogits):
        length = -(-length // component.tiled.weight.shape[1])
    for weight in outputs.parameters():
        weight[:, length:] = weight[:, :length].mean(dim=1, keepdim=True)
