"""Random components from the mean attention weights of a layer: see `t5_fit.py`."""

from collections.abc import Collection, Mapping

import torch
from torch.nn import functional as F

from ..inputs.attention_maps import causal_order
from ..inputs.token_layout import TokenLayout
from ..layers.synthetic_logits import FactorizedRandomLogits, RelativePositionBias
from ..modeling_synthesizer import SynthesizerForConditionalGeneration
from ..synthesizer_layers import SynthesizerAttention
from .attention_inputs import Batch, attention_inputs, attention_pairs, attention_weights, visible_pairs


#: The least attention weight that counts: logarithms stay finite.
_LEAST_WEIGHT = 1e-10
_FACTORIZATION_STEPS = 100


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
        inputs = attention_inputs(teacher, batch)
        for attention, mean in means.items():
            mean.add(attention_weights(attention, inputs[attention]), visible_pairs(inputs[attention]))
    return means


def fit_to_mean(
    teacher: SynthesizerForConditionalGeneration,
    student: SynthesizerForConditionalGeneration,
    batches: Collection[Batch],
    sides: list[str],
) -> None:
    """Set the random components of a Synthesizer so that its attention weights are the teacher's mean weights.

    Args:
        teacher: A Synthesizer with `vanilla` attention.
        student: The same with one random component instead, changed in place.
        batches: See `fit_synthesizer`.
        sides: Which of `"encoder"` and `"decoder"` to fit.
    """
    pairs = attention_pairs(teacher, student, sides)
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
