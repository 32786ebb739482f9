"""Attention Free Transformer layers that start with the attention of a BERT.

A logit of attention is `q_i k_j = q_m k_j + (q_i - q_m) k_j` (without the scale). With a head's mean query q_m, the
first term is a score of token j. The rest is approximated by one number per offset. With several mean queries (of
k-means clusters), token i mixes their results by how near its query is to each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..modeling_hybrid_bert import HybridBertAFT


_ITERATIONS = 50  # of k-means
_EQUAL = 1e-10  # squared distance of equal queries, as a share of the variance of all queries
_LEAST_VARIANCE = 1e-4  # of a cluster, as a share of the variance of all queries


@torch.no_grad()
def start_aft(
    mixer: HybridBertAFT, bert: PreTrainedModel, layer: int, batches: Sequence[Mapping[str, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give a layer the scores and shares that are nearest to a BERT's attention, and find its logits of offsets.

    Args:
        mixer: Changed in place, but for its offsets.
        bert: A `BertModel`.
        layer: Number of its layer.
        batches: Texts, padded on the right.

    Returns:
        Logits of the offsets `-(n - 1)` to `n - 1`, shape `(2n - 1, heads)`, and of the first token as key,
        `(heads,)`, the least squares solution for all texts; n is the length of the longest text. Offsets that do
        not occur have the value of the next smaller distance.

    Raises:
        ValueError: If a head has fewer different queries than the layer has mean queries.
    """
    encoder: Any = bert.encoder
    attention = encoder.layer[layer].attention.self
    heads, count, scale = attention.num_attention_heads, mixer.num_mean_queries, mixer.head_dim**-0.5
    measured = _queries_and_keys(bert, attention, batches)
    queries = torch.cat([query[real] for query, _, real in measured])
    centers = torch.stack([_mean_queries(queries[:, head], count) for head in range(heads)])
    nearest = torch.stack([torch.cdist(queries[:, head], centers[head]).amin(-1) for head in range(heads)])
    spread = (queries - queries.mean(dim=0)).square().sum(-1).mean(dim=0)
    variance = torch.maximum(nearest.square().mean(dim=1), _LEAST_VARIANCE * spread) / mixer.head_dim
    variance = variance.clamp(min=torch.finfo(torch.float32).tiny)[:, None]

    def products(linear: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean queries times a projection's weight and bias, `(heads, M, hidden_size)` and `(heads, M)`."""
        weight, bias = linear.weight.double().unflatten(0, (heads, -1)), linear.bias.double().unflatten(0, (heads, -1))
        return centers @ weight, (centers @ bias[..., None]).squeeze(-1)

    mixer.score_proj.weight.copy_((products(attention.key)[0] * scale).flatten(0, 1))
    squares = centers.square().sum(-1) / 2
    if mixer.share_proj is not None:
        weight, bias = products(attention.query)
        mixer.share_proj.weight.copy_((weight / variance[..., None]).flatten(0, 1))
        mixer.share_proj.bias.copy_(((bias - squares) / variance).flatten())
    residuals = []
    for query, key, real in measured:
        shares = ((torch.einsum("blhd,hmd->blhm", query, centers) - squares) / variance).softmax(dim=-1)
        residuals.append((query - torch.einsum("blhm,hmd->blhd", shares, centers), key * scale, real))
    return _offsets_of(residuals, heads)


def _queries_and_keys(
    bert: PreTrainedModel, attention: Any, batches: Iterable[Mapping[str, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries and keys of each batch, `(batch, length, heads, head_dim)`, and its mask, `(batch, length)`."""
    training = bert.training
    found: dict[torch.nn.Module, torch.Tensor] = {}
    parts = (attention.query, attention.key)
    hooks = [part.register_forward_hook(lambda module, _, output: found.update({module: output})) for part in parts]
    measured = []
    try:
        bert.eval()
        for batch in batches:
            bert(**{name: tensor.to(bert.device) for name, tensor in batch.items()})
            shape = (attention.num_attention_heads, -1)
            query, key = (found[part].double().unflatten(-1, shape) for part in parts)
            measured.append((query, key, batch["attention_mask"].bool().to(query.device)))
    finally:
        bert.train(training)
        for hook in hooks:
            hook.remove()
    return measured


def _mean_queries(queries: torch.Tensor, count: int) -> torch.Tensor:
    """The centers of `count` clusters of `(tokens, head_dim)`, by k-means (k-means++, Lloyd's iterations)."""
    if count == 1:
        return queries.mean(dim=0, keepdim=True)
    generator = torch.Generator(queries.device).manual_seed(0)
    distances = (queries - queries.mean(dim=0)).square().sum(-1)
    equal = _EQUAL * distances.mean()  # a text in another batch gives queries that differ by rounding
    found, distances = [int(distances.argmin())], torch.full_like(distances, torch.inf)
    for _ in range(1, min(count, len(queries))):
        distances = torch.minimum(distances, (queries - queries[found[-1]]).square().sum(-1))
        distances = distances.where(distances > equal, 0)
        if not distances.any():
            break
        found.append(int(torch.multinomial(distances, 1, generator=generator)))
    if len(found) < count:
        raise ValueError(
            f"`num_mean_queries={count}` must be at most the number of different queries of a head in the given "
            f"texts, {len(found)}."
        )
    centers = queries[found]
    for _ in range(_ITERATIONS):
        nearest = torch.cdist(queries, centers).argmin(dim=-1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, queries)
        sizes = nearest.bincount(minlength=count)[:, None]
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1), centers)
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers


def _offsets_of(
    residuals: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve `r_ij = a_i + w_(j-i)` for w: the normal equations without a, to which softmax over j is blind.

    Each token's row of logits has equal weight, whatever the length of its text.
    """
    n = max(real.shape[1] for _, _, real in residuals)
    normal = torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    wanted = torch.zeros(2 * n, heads, dtype=torch.float64)
    for query, key, real in residuals:
        length = real.shape[1]
        index = torch.arange(length)
        places = torch.where(index == 0, 2 * n - 1, n - 1 + index - index[:, None])  # the last is for the first token
        logits = torch.einsum("bihd,bjhd->bhij", query, key).cpu()
        pairs = (real[:, None, :, None] & real[:, None, None, :]).cpu()
        logits = logits.where(pairs, 0)
        means = logits.sum(-1, keepdim=True) / pairs.sum(-1, keepdim=True).clamp(min=1)
        lengths = real.sum(1).cpu()
        centred = ((logits - means) / lengths[:, None, None, None]).where(pairs, 0).sum(0)
        wanted.index_add_(0, places.flatten(), centred.flatten(1).mT)
        for size, count in zip(*(found.tolist() for found in lengths.unique(return_counts=True)), strict=True):
            used = torch.zeros(size, 2 * n, dtype=torch.float64).scatter_(1, places[:size, :size], 1.0)
            normal += count / size * (used.sum(0).diag() - used.mT @ used / size)
    seen = normal.diag() > 0
    solution = torch.zeros_like(wanted)
    solution[seen] = torch.linalg.pinv(normal[seen][:, seen], hermitian=True, rtol=1e-9) @ wanted[seen]
    return filled(solution[: 2 * n - 1], seen[: 2 * n - 1]), solution[-1]


def filled(offsets: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """`offsets`, `(2n - 1, heads)`; those not `seen` have the value of the next smaller distance."""
    middle = len(offsets) // 2
    for step in (1, -1):  # outwards from offset 0 to both sides
        place = middle
        while 0 <= place + step < len(offsets):
            if not seen[place + step]:
                offsets[place + step] = offsets[place]
            place += step
    return offsets
