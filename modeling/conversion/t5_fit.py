"""Synthesizers without query-key attention that start from what a T5's self-attention does on a calibration text.

Everything but self-attention's queries and keys stays T5's: embeddings, relative position biases, values, outputs,
cross-attention, feed-forward layers. The new logits are added to the position bias. They are chosen, layer by layer,
to minimise the mean Kullback-Leibler divergence KL(T5's attention weights || new weights) over the real tokens:

- `random`: the logarithm of the mean attention weights, which is the minimum, minus the position bias.
- `factorized_random`: that matrix by its singular values, then Adam on the divergence from the mean weights.
- `dense`, `factorized_dense`: Adam on the divergence, layer-wise distillation.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ...configuration.configuration_synthesizer import SynthesizerConfig
from ..heads.losses import IGNORED_LABEL
from ..inputs.attention_maps import causal_order, visible_keys
from ..inputs.token_layout import TokenLayout
from ..layers.attention import split_heads
from ..layers.synthetic_logits import DenseLogits, FactorizedDenseLogits, FactorizedRandomLogits, RelativePositionBias
from ..modeling_synthesizer import SynthesizerForConditionalGeneration, SynthesizerStack
from ..recorded_inputs import record_inputs
from ..synthesizer_layers import SynthesizerAttention
from .t5 import check_shapes, convert_t5_config, load_t5, synthesizer_from_t5, to_dtype


#: The attention components that can be fitted.
FITTED_COMPONENTS = ("random", "dense", "factorized_random", "factorized_dense")

Batch = Mapping[str, torch.Tensor]
#: The least attention weight that counts: logarithms stay finite.
_LEAST_WEIGHT = 1e-10
_FACTORIZATION_STEPS = 100


class AttentionInputs(NamedTuple):
    """What a self-attention module was called with."""

    hidden_states: torch.Tensor
    position_bias: torch.Tensor | None
    layout: TokenLayout


class MeanAttention:
    """The mean attention weights of a layer, summed up batch by batch.

    Tokens that see few keys share their weight among few. With right padding the visible keys of a row of the map are
    0 to T - 1, T depending on the sample, so that a sample says nothing about how the keys from T on compare with
    those before. The estimate is that of maximum likelihood for data that are truncated like this: the share of key j
    among keys 0 to j, from the samples where j is visible (D. Lynden-Bell, 1971). Without padding it is the mean.

    Args:
        num_heads: Number of heads.
        length: Number of positions N.
        device: Where the two sums are held, each `(num_heads, N, N)` in float32.
    """

    def __init__(self, num_heads: int, length: int, device: torch.device):
        self.here = torch.zeros(num_heads, length, length, device=device)
        self.before = torch.zeros_like(self.here)

    def add(self, weights: torch.Tensor, visible: torch.Tensor) -> None:
        """Add a batch.

        Args:
            weights: Attention weights, `(batch, heads, queries, keys)`.
            visible: Boolean, true for pairs of a real query and a key that it sees, `(batch, 1, queries, keys)`.
        """
        weights = weights.float().clamp(min=_LEAST_WEIGHT)
        queries, keys = weights.shape[2:]
        before = F.pad(weights[..., :-1].cumsum(dim=-1), (1, 0))
        self.here[:, :queries, :keys] += (weights * visible).sum(0)
        self.before[:, :queries, :keys] += (before * visible).sum(0)

    @property
    def seen(self) -> torch.Tensor:
        """Whether there was a sample, boolean, `(N, N)`."""
        return self.here[0] > 0

    def log_weights(self) -> torch.Tensor:
        """Logarithm of the mean weights, `(heads, N, N)`; entries that are not `seen` have no meaning."""
        total = (self.here + self.before).log()
        # The probability that it is none of the later keys. Key 0 is later than none.
        not_this = torch.where(self.seen, self.before.log() - total, 0.0)
        not_this[..., 0] = 0.0
        not_later = not_this.flip(-1).cumsum(-1).flip(-1) - not_this
        return self.here.log() - total + not_later


def fit_synthesizer(
    source: str | os.PathLike | PreTrainedModel,
    batches: Collection[Batch],
    component: str,
    *,
    epochs: int = 4,
    learning_rate: float = 1e-2,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> SynthesizerForConditionalGeneration:
    """Load a T5 model as a Synthesizer whose self-attention imitates T5's on a calibration text.

    Positions that no calibration row has get T5's position bias plus what pairs of the same distance have on average
    (the random components), or logits like the mean of the other keys (the dense ones).

    Args:
        source: Hub id or folder of a T5 model, or a `T5ForConditionalGeneration`.
        batches: Calibration data, read `epochs` times by the dense components and once by the others. Each has
            `input_ids` and either `labels` (-100 for padding) or `decoder_input_ids`, and optionally `attention_mask`
            and `decoder_attention_mask`, all `(batch, length)` and padded on the right.
        component: One of `FITTED_COMPONENTS`.
        epochs: Passes over the calibration data, of the dense components.
        learning_rate: Of Adam at the start; it falls linearly to 0. Of the dense components.
        dtype: Type of the weights; `None` means the type they are saved in. Fitting is in float32.
        device: Where to fit; where the model is by default.
        overrides: Fields of the new configuration, e.g. `max_position_embeddings=512`. With
            `decoder_attention_components=["vanilla"]` the decoder stays T5's, with `attention_components` the encoder.

    Returns:
        The model, in evaluation mode, with T5's generation settings.

    Raises:
        ValueError: If the model is not a T5 model, the component cannot be fitted or is mixed with others, or the
            batches are empty, longer than the model's positions, or padded on the left.
    """
    if component not in FITTED_COMPONENTS:
        raise ValueError(f"{component!r} cannot be fitted; these can: {', '.join(FITTED_COMPONENTS)}.")
    t5 = load_t5(source, dtype)
    teacher = synthesizer_from_t5(t5, dtype=torch.float32)
    overrides.setdefault("attention_components", [component])
    config = convert_t5_config(t5.config, tied_head=teacher.config.tie_word_embeddings, **overrides)
    sides = sides_to_fit(config, component)
    if not len(batches):
        raise ValueError("There are no calibration batches.")
    _check_lengths(batches, config, sides)
    device = torch.device(device or t5.device)
    student = _with_weights_of(teacher, config).eval()
    for model in (teacher, student):
        model.to(device)  # type: ignore[arg-type]  # taken for a function, because it is wrapped
    if component in ("random", "factorized_random"):
        _fit_to_mean(teacher, student, batches, sides)
    else:
        distil_attention(teacher, student, batches, sides, epochs, learning_rate)
    student.generation_config = t5.generation_config
    to_dtype(student, dtype or t5.dtype)
    return student.eval()


def sides_to_fit(config: SynthesizerConfig, component: str) -> list[str]:
    """Those of `"encoder"` and `"decoder"` whose attention has the component; the other has T5's.

    Raises:
        ValueError: If a side has another component, or neither has this one.
    """
    sides = []
    for side in ("encoder", "decoder"):
        names = config.get_text_config(**{side: True}).attention_components
        if names == [component]:
            sides.append(side)
        elif names != ["vanilla"]:
            raise ValueError(
                f"The {side} is to have the components {names}, but {component!r} can be fitted only alone, and a "
                "side with 'vanilla' alone stays as it is."
            )
    if not sides:
        raise ValueError(f"Neither the encoder nor the decoder has the component {component!r} that is to be fitted.")
    return sides


def _longest(batches: Collection[Batch], side: str) -> int:
    names = ("input_ids",) if side == "encoder" else ("labels", "decoder_input_ids")
    return max(batch[name].shape[1] for batch in batches for name in names if name in batch)


def _check_lengths(batches: Collection[Batch], config: SynthesizerConfig, sides: list[str]) -> None:
    for side in sides:
        most, longest = config.get_text_config(**{side: True}).max_position_embeddings, _longest(batches, side)
        if longest > most:
            raise ValueError(
                f"The calibration rows have up to {longest} tokens in the {side}, which has `max_position_embeddings="
                f"{most}`: cut the rows, or take more positions."
            )


def _with_weights_of(
    teacher: SynthesizerForConditionalGeneration, config: SynthesizerConfig
) -> SynthesizerForConditionalGeneration:
    student = SynthesizerForConditionalGeneration(config)
    weights = teacher.state_dict()
    own = student.state_dict()
    check_shapes(weights, own)
    student.load_state_dict({name: weights.get(name, tensor) for name, tensor in own.items()})
    return student


def _pairs(
    teacher: SynthesizerForConditionalGeneration, student: SynthesizerForConditionalGeneration, sides: list[str]
) -> list[tuple[SynthesizerStack, SynthesizerAttention, SynthesizerAttention]]:
    """The student's stack, and the self-attention of teacher and student, of all layers to fit."""
    result = []
    for side in sides:
        ours, theirs = getattr(student.model, side), getattr(teacher.model, side)
        pairs = zip(theirs.layers, ours.layers, strict=True)
        result += [(ours, old.self_attn, new.self_attn) for old, new in pairs]
    return result


def _attention_inputs(model: SynthesizerForConditionalGeneration, batch: Batch) -> dict[nn.Module, AttentionInputs]:
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
    return _log_softmax(queries @ keys.mT, inputs).exp()


def _log_softmax(logits: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
    if inputs.position_bias is not None:
        logits = logits + inputs.position_bias
    visible = visible_keys(inputs.layout, logits.device)
    if visible is not None:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    return logits.log_softmax(dim=-1)


def _visible_pairs(inputs: AttentionInputs) -> torch.Tensor:
    """True for a real query and a key that it sees, `(batch, 1, queries, keys)`."""
    layout, (batch, length) = inputs.layout, inputs.hidden_states.shape[:2]
    pairs = inputs.hidden_states.new_ones(batch, 1, length, length, dtype=torch.bool)
    visible = visible_keys(layout, pairs.device)
    if visible is not None:
        pairs = pairs & visible
    return pairs if layout.padding_mask is None else pairs & layout.padding_mask[:, None, :, None]


# --- random and factorized_random --------------------------------------------------------------------------------


@torch.no_grad()
def mean_attention(
    teacher: SynthesizerForConditionalGeneration,
    batches: Collection[Batch],
    lengths: Mapping[SynthesizerAttention, int],
) -> dict[SynthesizerAttention, MeanAttention]:
    """The mean attention weights of a Synthesizer with `vanilla` attention, in one pass over the batches.

    Args:
        teacher: The model.
        batches: See `fit_synthesizer`.
        lengths: Number of positions of the maps, for each self-attention module in question.
    """
    means = {
        attention: MeanAttention(attention.config.num_attention_heads, length, teacher.device)
        for attention, length in lengths.items()
    }
    for batch in batches:
        inputs = _attention_inputs(teacher, batch)
        for attention, mean in means.items():
            mean.add(attention_weights(attention, inputs[attention]), _visible_pairs(inputs[attention]))
    return means


def _fit_to_mean(
    teacher: SynthesizerForConditionalGeneration,
    student: SynthesizerForConditionalGeneration,
    batches: Collection[Batch],
    sides: list[str],
) -> None:
    pairs = _pairs(teacher, student, sides)
    means = mean_attention(teacher, batches, {old: new.config.max_position_embeddings for _, old, new in pairs})
    position_biases = {side: getattr(teacher.model, side).relative_attention_bias for side in sides}
    for stack, old, new in pairs:
        length = new.config.max_position_embeddings
        layout = TokenLayout(length, length, is_causal=new.is_causal)
        own = stack.relative_attention_bias
        own_bias = None if own is None else own(layout)
        relative = position_biases["decoder" if new.is_causal else "encoder"]
        with torch.no_grad():
            logits = _logits_over_bias(means.pop(old), relative, own_bias, layout)
        (component,) = new.components.values()
        if isinstance(component, FactorizedRandomLogits):
            _factorize(component, logits, own_bias, layout)
        else:
            component.load_state_dict({"weight": logits})


def _logits_over_bias(
    mean: MeanAttention, relative: RelativePositionBias, own_bias: torch.Tensor | None, layout: TokenLayout
) -> torch.Tensor:
    """Logits that, added to `own_bias`, give the mean weights, `(heads, N, N)`."""
    # The distance explains most of T5's bias, so that this is what is extrapolated.
    log_weights, bias = mean.log_weights(), relative(layout)[0]
    index = torch.arange(layout.key_length, device=bias.device)
    buckets = relative.buckets(index - index[:, None])
    num_buckets = relative.weight.shape[0]
    future = None if relative.causal else num_buckets // 2
    logits = extrapolate(log_weights - bias, log_weights.exp(), mean.seen, buckets, num_buckets, future)
    return logits if own_bias is not None else logits + bias


def extrapolate(
    logits: torch.Tensor,
    weights: torch.Tensor,
    seen: torch.Tensor,
    buckets: torch.Tensor,
    num_buckets: int,
    first_future: int | None,
) -> torch.Tensor:
    """Fill what was not seen with what pairs of the same distance have on average, and centre the rows.

    Each row has a constant of its own, which the softmax ignores. Constants and means by distance are those of the
    weighted least squares fit `logits[i, j] = constant[i] + mean[bucket[i, j]]`.

    Args:
        logits: Shape `(heads, N, N)`.
        weights: Of the same shape: how much each entry counts.
        seen: Boolean, `(N, N)`.
        buckets: Bucket of each pair's distance, `(N, N)`.
        num_buckets: Number of buckets. One without seen pairs gets the mean of the one before it.
        first_future: The first bucket of positive distances, which has no bucket before it; `None` if there is none.

    Returns:
        Logits less the constant of their row where seen, the mean of the bucket elsewhere.
    """
    heads = logits.shape[0]
    logits, weights = (torch.where(seen, tensor, 0.0) for tensor in (logits, weights))
    flat = buckets.flatten().expand(heads, -1)
    means = logits.new_zeros(heads, num_buckets)
    by_bucket = means.scatter_add(1, flat, weights.flatten(1))
    by_row = weights.sum(-1, keepdim=True)
    constants = torch.zeros_like(by_row)
    for _ in range(50):  # alternating least squares
        explained = means.gather(1, flat).view_as(logits)
        constants = (weights * (logits - explained)).sum(-1, keepdim=True) / by_row.clamp(min=1e-30)
        sums = torch.zeros_like(means).scatter_add(1, flat, (weights * (logits - constants)).flatten(1))
        means = sums / by_bucket.clamp(min=1e-30)
    for bucket in range(1, num_buckets):
        if bucket - 1 != first_future and bucket != first_future:  # at that, distance 0, there are no pairs
            means[:, bucket] = torch.where(by_bucket[:, bucket] > 0, means[:, bucket], means[:, bucket - 1])
    return torch.where(seen, logits - constants, means.gather(1, flat).view_as(logits))


def _factorize(
    component: FactorizedRandomLogits, logits: torch.Tensor, position_bias: torch.Tensor | None, layout: TokenLayout
) -> None:
    """Set `query_factor` and `key_factor` so that their product gives nearly the weights of `logits`."""
    bias = 0.0 if position_bias is None else position_bias.detach()[0]
    order = causal_order(layout, logits.device)
    hidden = torch.zeros_like(logits[0], dtype=torch.bool) if order is None else ~order
    wanted = (logits + bias).masked_fill(hidden, -torch.inf).softmax(dim=-1)
    left, values, right = torch.linalg.svd(logits, full_matrices=False)
    factors = [component.query_factor, component.key_factor]
    for factor, vectors in zip(factors, (left, right.mT), strict=True):
        rank = min(factor.shape[-1], values.shape[-1])
        factor.data.zero_()
        factor.data[..., :rank] = vectors[..., :rank] * values[:, None, :rank].sqrt()
    optimizer = torch.optim.Adam(factors, lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, _FACTORIZATION_STEPS)
    with torch.enable_grad():
        for _ in range(_FACTORIZATION_STEPS):
            product = component(layout)[0] + bias
            log_weights = product.masked_fill(hidden, torch.finfo(product.dtype).min).log_softmax(dim=-1)
            optimizer.zero_grad()
            (-(wanted * log_weights).sum(-1).mean()).backward()
            optimizer.step()
            schedule.step()


# --- dense and factorized_dense ----------------------------------------------------------------------------------


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
    pairs = _pairs(teacher, student, sides)
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
        _fill_unseen(new, _longest(batches, "decoder" if new.is_causal else "encoder"))
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
        inputs = _attention_inputs(teacher, batch)
    total = 0.0
    for stack, old, new in pairs:
        with torch.no_grad():
            target = attention_weights(old, inputs[old])
        own = inputs[old] if stack.relative_attention_bias is not None else inputs[old]._replace(position_bias=None)
        divergence = _divergence(target, _new_log_weights(new, own), _visible_pairs(own))
        divergence.backward()
        total += divergence.item()
    return total / len(pairs)


def _new_log_weights(attention: SynthesizerAttention, inputs: AttentionInputs) -> torch.Tensor:
    hidden_states, queries = inputs.hidden_states, None
    if attention.has_queries:
        queries = split_heads(attention.q_proj(hidden_states), attention.head_dim)
    (component,) = attention.components.values()
    return _log_softmax(component(inputs.layout, hidden_states=hidden_states, queries=queries), inputs)


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
