"""Attention logits that are not query times key (Synthesizer, arXiv 2005.00743), and attention with them.

Each component is a module that returns logits of shape `(batch or 1, heads, queries, keys)`; a batch dimension of 1
says that they do not depend on the input. `shared_attention` makes use of that: no map per sample is ever stored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig
from transformers.utils import is_tracing
from transformers.utils.generic import maybe_autocast

from ..inputs.caches import cached_lengths
from ..inputs.padding import check_length, check_seq_idx, first_token_index, positions_in_documents
from .attention import softmax


@dataclass(frozen=True)
class TokenLayout:
    """Which tokens a self-attention sees, and where they stand.

    Attributes:
        query_length: Number of tokens that attend.
        key_length: Number of tokens to attend to: with a cache, its tokens come first (a static cache counts whole).
        past_length: Number of tokens in the cache; a tensor if the cache is static.
        causal: Whether tokens see only themselves and those before.
        key_mask: Real tokens, boolean, `(batch, key_length)`, or `None` if all are.
        left_padding: Number of tokens before each row's first real token, `(batch,)`, or `None` if there are none.
            Positions are counted from that token.
        position_ids: The positions of the queries, `(batch or 1, query_length)`, or `None` to count.
        full_mask: A mask of `(batch or 1, heads or 1, query_length, key_length)` that the caller made, boolean or
            additive, in place of `causal` and `key_mask`.
        device: Device of the inputs.
    """

    query_length: int
    key_length: int
    past_length: int | torch.Tensor
    causal: bool
    device: torch.device
    key_mask: torch.Tensor | None = None
    left_padding: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    full_mask: torch.Tensor | None = None

    @property
    def counts_from_zero(self) -> bool:
        """Whether keys stand at 0, 1, 2, ... in all rows, so that what belongs to them is a slice."""
        return self.position_ids is None and self.left_padding is None

    @property
    def query_index(self) -> torch.Tensor:
        """Index of the queries among the keys, `(query_length,)`."""
        return torch.arange(self.query_length, device=self.device) + self.past_length

    @property
    def query_positions(self) -> torch.Tensor:
        """Shape `(query_length,)`, or `(batch, query_length)` where rows differ."""
        if self.position_ids is not None:
            return self.position_ids
        return self._shift(self.query_index)

    @property
    def key_positions(self) -> torch.Tensor:
        """Shape `(key_length,)`, or `(batch, key_length)` where rows differ."""
        positions = self._shift(torch.arange(self.key_length, device=self.device))
        if self.position_ids is not None:
            positions = positions.expand(self.position_ids.shape[0], -1)
            positions = positions.index_copy(1, self.query_index, self.position_ids.to(positions))
        return positions

    def _shift(self, index: torch.Tensor) -> torch.Tensor:
        if self.left_padding is None:
            return index
        return (index - self.left_padding[:, None]).clamp(min=0)

    @property
    def relative_positions(self) -> torch.Tensor:
        """Key position minus query position, `(queries, keys)` or `(batch, queries, keys)`; padding cancels out."""
        if self.position_ids is None:
            return torch.arange(self.key_length, device=self.device) - self.query_index[:, None]
        return self.key_positions[:, None, :] - self.query_positions[:, :, None]

    @property
    def visible(self) -> torch.Tensor | None:
        """Boolean mask, `(batch or 1, 1, queries or 1, keys)`, or `None` if every query sees every key."""
        mask = None if self.key_mask is None else self.key_mask[:, None, None, :]
        order = self.visible_by_order
        if order is None or mask is None:
            return mask if order is None else order[None, None]
        return mask & order

    @property
    def visible_by_order(self) -> torch.Tensor | None:
        """The causal part of `visible`, `(queries, keys)`; `None` if it hides nothing."""
        last_query_sees_all = isinstance(self.past_length, int) and self.key_length == self.past_length + 1
        if not self.causal or last_query_sees_all:
            return None
        return torch.arange(self.key_length, device=self.device) <= self.query_index[:, None]

    def rows_and_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """Entries of `(heads, N, N)` for these queries and keys, `(batch or 1, heads, queries, keys)`."""
        if self.counts_from_zero:
            return first_entries(self.rows(weight), 2, self.key_length)[None]
        rows, columns = self.query_positions, self.key_positions
        return weight[:, rows[:, :, None], columns[:, None, :]].transpose(0, 1)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Entries of `(heads, N, ...)` for the queries, where positions count from zero."""
        if isinstance(self.past_length, int) and not torch.compiler.is_exporting():
            return tensor.narrow(1, self.past_length, self.query_length)
        return tensor.index_select(1, self.query_index)

    def aligned(self) -> "tuple[TokenLayout, torch.Tensor | None]":
        """The same rows with padding moved from the left to the right, so that positions are 0, 1, 2, ... in all.

        Returns:
            The new layout and, for each of its tokens, the index of the token here, `(batch, key_length)`; `None` if
            nothing has to move (or cannot, because earlier tokens are in a cache).
        """
        whole = isinstance(self.past_length, int) and self.query_length == self.key_length
        if self.left_padding is None or self.position_ids is not None or not whole:
            return self, None
        index = torch.arange(self.key_length, device=self.device) + self.left_padding[:, None]
        # No remainder of a free length: the ONNX exporter does not know it.
        index = torch.where(index < self.key_length, index, index - self.key_length)
        key_mask = None if self.key_mask is None else self.key_mask.gather(1, index)
        return replace(self, left_padding=None, key_mask=key_mask), index


def first_entries(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """The first `length` entries along a dimension: a slice, but by index in `torch.export`.

    A slice is contiguous only when it is the whole, which would make the maximum length a case of its own.
    """
    if torch.compiler.is_exporting():
        return tensor.index_select(dim, torch.arange(length, device=tensor.device))
    return tensor.narrow(dim, 0, length)


def token_layout(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: Cache | None = None,
    seq_idx: torch.Tensor | None = None,
) -> TokenLayout:
    """Turn a model's inputs into a `TokenLayout`.

    Args:
        config: Configuration of this side of the model.
        inputs_embeds: Shape `(batch, length, hidden_size)`.
        attention_mask: Shape `(batch, keys)` with the tokens in the cache first, non-zero for real tokens; or a mask
            of four dimensions as in `TokenLayout.full_mask`.
        position_ids: Shape `(batch or 1, length)`.
        past_key_values: The self-attention cache.
        seq_idx: Number of each token's document, shape `(batch, length)`; `None` if a row is one document.

    Raises:
        ValueError: If there are more tokens than the model has positions for, or shapes do not match.
    """
    batch, length, _ = inputs_embeds.shape
    past_length, key_length = cached_lengths(past_key_values, length, inputs_embeds.device)
    if config.max_sequence_length is not None:
        check_length(key_length, config.max_sequence_length, "position-dependent weights")
    if position_ids is not None and (position_ids.dim() != 2 or position_ids.shape[1] != length):
        raise ValueError(f"`position_ids` has shape {tuple(position_ids.shape)}, expected {(batch, length)}.")
    if seq_idx is not None:
        check_seq_idx(seq_idx, inputs_embeds, past_key_values)
        position_ids = positions_in_documents(seq_idx) if position_ids is None else position_ids
        visible = seq_idx[:, :, None] == seq_idx[:, None, :]
        if attention_mask is not None:
            visible = visible & (attention_mask != 0)[:, None, :]
        attention_mask = (visible.tril() if config.is_decoder else visible)[:, None]
    layout = TokenLayout(
        length, key_length, past_length, config.is_decoder, inputs_embeds.device, None, None, position_ids
    )
    if attention_mask is None:
        return layout
    if attention_mask.dim() == 4:
        return replace(layout, full_mask=attention_mask)
    static = isinstance(past_length, torch.Tensor)
    if attention_mask.shape[0] != batch or not (attention_mask.shape[1] == key_length or static):
        raise ValueError(
            f"`attention_mask` has shape {tuple(attention_mask.shape)}, expected {(batch, key_length)}: one number "
            "per token, those in the cache included, 1 for real tokens and 0 for padding."
        )
    key_mask = attention_mask.to(inputs_embeds.device) != 0
    if static:
        key_mask = F.pad(key_mask, (0, key_length - key_mask.shape[1]))
    if is_tracing(key_mask) or key_mask.is_meta or not bool(key_mask[:, 0].all()):
        position_ids = None if position_ids is None else position_ids.expand(batch, -1)
        left_padding = first_token_index(key_mask)
        return replace(layout, key_mask=key_mask, left_padding=left_padding, position_ids=position_ids)
    return replace(layout, key_mask=key_mask)


class RandomLogits(nn.Module):
    """A matrix of logits per head, the same for all inputs: `weight`, `(heads, N, N)`, query first.

    Args:
        num_heads: Number of heads.
        max_length: The paper's N.
        trainable: `False` for Fixed Random.
    """

    def __init__(self, num_heads: int, max_length: int, trainable: bool = True):
        super().__init__()
        weight = torch.zeros(num_heads, max_length, max_length)
        if trainable:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        return layout.rows_and_columns(self.weight)

    def resize(self, fit: "Fit") -> None:
        """Change N; see `SynthesizerPreTrainedModel.resize_position_embeddings`."""
        weight = fit(fit(self.weight, 1), 2)
        self.weight = nn.Parameter(weight) if isinstance(self.weight, nn.Parameter) else weight


class FactorizedRandomLogits(nn.Module):
    """The product of two thin matrices per head: `query_factor` and `key_factor`, each `(heads, N, rank)`."""

    def __init__(self, num_heads: int, max_length: int, rank: int):
        super().__init__()
        self.query_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))
        self.key_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        if layout.counts_from_zero:
            queries = layout.rows(self.query_factor)[None]
            keys = first_entries(self.key_factor, 1, layout.key_length)[None]
        else:
            queries = self.query_factor[:, layout.query_positions].transpose(0, 1)
            keys = self.key_factor[:, layout.key_positions].transpose(0, 1)
        return queries @ keys.transpose(-1, -2)

    def resize(self, fit: "Fit") -> None:
        """Change N."""
        self.query_factor = nn.Parameter(fit(self.query_factor, 1))
        self.key_factor = nn.Parameter(fit(self.key_factor, 1))


class MeshFactorizedLogits(nn.Module):
    """`sum_k R1[h, j, k] R2[h, j, k]`: what the authors' code computes in place of `R1 R2^T`, with its parameters."""

    def __init__(self, num_heads: int, max_length: int, rank: int):
        super().__init__()
        self.first_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))
        self.second_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        by_position = (self.first_factor * self.second_factor).sum(dim=-1)
        if layout.counts_from_zero:
            logits = first_entries(by_position, 1, layout.key_length)[None, :, None]
        else:
            logits = by_position[:, layout.key_positions].transpose(0, 1)[:, :, None]
        return logits.expand(-1, -1, layout.query_length, -1)

    def resize(self, fit: "Fit") -> None:
        """Change N."""
        self.first_factor = nn.Parameter(fit(self.first_factor, 1))
        self.second_factor = nn.Parameter(fit(self.second_factor, 1))


class RelativePositionBias(nn.Module):
    """T5's relative position bias (arXiv 1910.10683, section 2.1): one number per head and bucket of distances.

    Half of the buckets hold one distance each, the others ranges that grow logarithmically up to `max_distance`. In
    both directions, each direction has half of the buckets; in causal attention the past has all of them.
    """

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, causal: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.max_distance = max_distance
        self.causal = causal

    def buckets(self, relative_positions: torch.Tensor) -> torch.Tensor:
        """Bucket of each "key position minus query position"."""
        num_buckets = self.weight.shape[0]
        offset: torch.Tensor | int = 0
        if self.causal:
            distance = (-relative_positions).clamp(min=0)
        else:
            num_buckets //= 2
            distance, offset = relative_positions.abs(), (relative_positions > 0) * num_buckets
        num_exact = num_buckets // 2
        # In float32 and in this order: rounding decides the bucket where ranges meet, and T5's weights rely on it.
        progress = torch.log(distance.clamp(min=1).float() / num_exact) / math.log(self.max_distance / num_exact)
        logarithmic = num_exact + (progress * (num_buckets - num_exact)).long()
        return offset + torch.where(distance < num_exact, distance, logarithmic.clamp(max=num_buckets - 1))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        relative_positions = layout.relative_positions
        if relative_positions.dim() == 2:
            relative_positions = relative_positions[None]
        # All layers read it: with the heads last in memory, each of them takes several times as long for it.
        return F.embedding(self.buckets(relative_positions), self.weight).permute(0, 3, 1, 2).contiguous()


class _DenseFirstLayer(nn.Module):
    """`ReLU(W1 x + b1)`, split into heads; or the ReLU of the query (see `dense_first_layer`)."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.head_dim = config.head_dim
        if config.dense_first_layer == "own":
            width = config.num_attention_heads * config.head_dim
            self.first_proj: nn.Linear | None = nn.Linear(config.hidden_size, width, bias=config.dense_bias)
        else:
            self.first_proj = None

    def forward(self, hidden_states: torch.Tensor, queries: torch.Tensor | None) -> torch.Tensor:
        if self.first_proj is None:
            return F.relu(queries)  # type: ignore[arg-type]  # given, as `has_queries` of the attention says
        first = F.relu(self.first_proj(hidden_states))
        return first.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class _PerHeadLinear(nn.Module):
    """One linear map per head (or one for all): `weight`, `(heads or 1, outputs, head_dim)`."""

    def __init__(self, config: PreTrainedConfig, outputs: int):
        super().__init__()
        num_maps = 1 if config.dense_shared_across_heads else config.num_attention_heads
        self.weight = nn.Parameter(torch.zeros(num_maps, outputs, config.head_dim))
        self.bias = nn.Parameter(torch.zeros(num_maps, outputs)) if config.dense_bias else None

    def forward(self, inputs: torch.Tensor, outputs: int | None = None) -> torch.Tensor:
        """Map `(batch, heads, tokens, head_dim)` to the first `outputs` numbers of each token."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        if outputs is not None:
            weight = first_entries(weight, 1, outputs)
            bias = None if bias is None else first_entries(bias, 1, outputs)
        result = inputs @ weight.transpose(1, 2)
        return result if bias is None else result + bias[:, None]

    def resize(self, fit: "Fit") -> None:
        """Change the number of outputs."""
        self.weight = nn.Parameter(fit(self.weight, 1))
        if self.bias is not None:
            self.bias = nn.Parameter(fit(self.bias, 1))


class DenseLogits(nn.Module):
    """A row of logits from each token alone: `W2 ReLU(W1 x + b1) + b2`, output j for the key at position j."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.first = _DenseFirstLayer(config)
        self.second = _PerHeadLinear(config, config.max_position_embeddings)

    def forward(
        self, layout: TokenLayout, hidden_states: torch.Tensor, queries: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = self.second(self.first(hidden_states, queries), layout.key_length)
        if layout.counts_from_zero:
            return logits
        if layout.position_ids is not None:  # these may go beyond the number of tokens
            logits = self.second(self.first(hidden_states, queries))
        return _columns(logits, layout.key_positions)

    def resize(self, fit: "Fit") -> None:
        """Change N."""
        self.second.resize(fit)


class FactorizedDenseLogits(nn.Module):
    """Two short rows A (`a` numbers) and B (`b` numbers) from each token; key j gets `A[j mod a] * B[j div a]`.

    A is tiled and B repeated, so that all `a * b` positions differ. Both are `W ReLU(W1 x + b1) + b`.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.first = _DenseFirstLayer(config)
        a, b = config.dense_factors
        self.tiled = _PerHeadLinear(config, a)
        self.repeated = _PerHeadLinear(config, b)

    def forward(
        self, layout: TokenLayout, hidden_states: torch.Tensor, queries: torch.Tensor | None = None
    ) -> torch.Tensor:
        first = self.first(hidden_states, queries)
        a = self.tiled.weight.shape[1]
        if layout.counts_from_zero:
            tiles = None if torch.compiler.is_exporting() else (layout.key_length + a - 1) // a
            products = self.repeated(first, tiles)[..., None] * self.tiled(first)[..., None, :]
            return first_entries(products.flatten(-2), 3, layout.key_length)
        columns = layout.key_positions
        return _columns(self.tiled(first), columns % a) * _columns(self.repeated(first), columns // a)

    def resize(self, length: int) -> None:
        """Change N: the number of tiles changes, their size stays."""
        tiles = -(-length // self.tiled.weight.shape[1])
        self.repeated.resize(lambda tensor, dim: resized(tensor, dim, tiles))


def _columns(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Entries of `(batch, heads, queries, outputs)` at `columns`, `(batch or 1, keys)`."""
    batch, heads, queries, _ = logits.shape
    return logits.gather(-1, columns[:, None, None, :].expand(batch, heads, queries, -1))


def resized(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """`tensor` cut along `dim`, or lengthened by copies of its last entry."""
    index = torch.arange(length, device=tensor.device).clamp(max=tensor.shape[dim] - 1)
    return tensor.detach().index_select(dim, index)


def resampled(tensor: torch.Tensor, dim: int, rows: torch.Tensor) -> torch.Tensor:
    """`tensor` interpolated along `dim`: `rows`, `(new, old)`, makes each new entry of the old ones."""
    rows = rows.to(tensor.device)
    return (tensor.detach().to(rows.dtype).movedim(dim, -1) @ rows.mT).movedim(-1, dim).to(tensor.dtype).contiguous()


Fit = Callable[[torch.Tensor, int], torch.Tensor]
"""Gives a tensor another length along a dimension that stands for positions."""


@runtime_checkable
class HasPositions(Protocol):
    """A component with weights that belong to positions."""

    def resize(self, fit: Fit) -> None:
        """Change N."""


COMPONENTS: dict[str, Callable[[PreTrainedConfig], nn.Module]] = {
    "dense": DenseLogits,
    "random": lambda c: RandomLogits(c.num_attention_heads, c.max_position_embeddings),
    "fixed_random": lambda c: RandomLogits(c.num_attention_heads, c.max_position_embeddings, trainable=False),
    "factorized_dense": FactorizedDenseLogits,
    "factorized_random": lambda c: FactorizedRandomLogits(
        c.num_attention_heads, c.max_position_embeddings, c.factorized_random_rank
    ),
    "mesh_factorized": lambda c: MeshFactorizedLogits(
        c.num_attention_heads, c.max_position_embeddings, c.factorized_random_rank
    ),
    "relative": lambda c: RelativePositionBias(
        c.num_attention_heads, c.relative_attention_num_buckets, c.relative_attention_max_distance, c.is_decoder
    ),
}
"""Module of each attention component, given the configuration. `"vanilla"` needs none."""

TOKEN_DEPENDENT = {"vanilla", "dense", "factorized_dense"}
"""Components whose logits depend on the input."""


class ComponentMixture(nn.Module):
    """Weights of the components of an attention, by `config.mixture`.

    `"softmax"`: `logits`, `(heads, components)`, through a softmax over components; `"sigmoid"`: `alpha`, one number,
    gives the first component `sigmoid(alpha)` and the second the rest; `"sum"`, or a single component: all ones.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.names = config.attention_components
        self.kind = config.mixture if len(self.names) > 1 else "sum"
        if self.kind == "softmax":
            self.logits = nn.Parameter(torch.zeros(config.num_attention_heads, len(self.names)))
        elif self.kind == "sigmoid":
            self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self) -> dict[str, torch.Tensor | None]:
        """Weight by component: `None` for one, a number, or `(heads, 1, 1)`."""
        if self.kind == "sum":
            return dict.fromkeys(self.names)
        if self.kind == "sigmoid":
            share = torch.sigmoid(self.alpha)
            return dict(zip(self.names, (share, 1 - share), strict=True))
        weights = self.logits.softmax(dim=-1).transpose(0, 1)[:, :, None, None]
        return dict(zip(self.names, weights.unbind(0), strict=True))


def shared_attention(
    logits: torch.Tensor, values: torch.Tensor, layout: TokenLayout, dropout: float = 0.0
) -> torch.Tensor:
    """Attention from logits that all samples share: `(E (m * V)) / (E m)` with `E = exp(logits)` and key mask `m`.

    One matrix product per head serves the whole batch, and nothing of size queries x keys exists per sample. Exact for
    every mask, up to rounding, as long as some visible logit is within 115 of the row's largest one; logits further
    below that are raised to it. Dropout acts on keys, that is, on whole columns of the weights, as in the authors'
    code.

    Args:
        logits: Shape `(1, heads, queries, keys)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        layout: Where the tokens stand; without `left_padding` (see `TokenLayout.aligned`) and `full_mask`.
        dropout: Rate of dropout on keys.

    Returns:
        Shape `(batch, queries, heads, head_dim)`; zeros for queries that see nothing.
    """
    batch, num_heads, num_keys, head_dim = values.shape
    dtype = values.dtype
    # Float16 has too little range for E, also where autocast asks for it: its smallest number is e^-17.
    work_dtype = torch.float32 if dtype == torch.float16 else dtype
    exact_dtype = torch.promote_types(dtype, torch.float32)
    logits, order = logits[0], layout.visible_by_order
    if order is not None:
        logits = logits.masked_fill(~order, -torch.inf)
    if layout.key_mask is None:
        weights, total = softmax(logits, work_dtype), None
    else:
        logits = logits.to(exact_dtype)
        # The row's largest number is moved to e^30 rather than 1, to leave room below for rows in which padding hides
        # the large ones: a normal float32 goes down to e^-87.
        peak = logits.detach().amax(dim=-1, keepdim=True)
        weights = (logits - peak).clamp(min=-115).add(30).exp()
        if order is not None:
            weights = weights.masked_fill(~order, 0)
        weights = weights.to(work_dtype)
        key_mask = layout.key_mask.to(work_dtype)
        with maybe_autocast(values.device.type, enabled=False):
            total = (weights.to(exact_dtype) @ key_mask.T.to(exact_dtype)).permute(2, 1, 0)[..., None]
        values = values.masked_fill(~layout.key_mask[:, None, :, None], 0)
    if dropout:
        values = F.dropout(values.new_ones(batch, num_heads, num_keys, 1), dropout) * values
    values = values.to(work_dtype)
    with maybe_autocast(values.device.type, enabled=False):
        if layout.query_length == 1:  # when decoding, most of the work would be to put the values side by side
            output = (weights @ values).transpose(1, 2)
        else:
            columns = values.permute(1, 2, 0, 3).reshape(num_heads, num_keys, batch * head_dim)
            output = (weights @ columns).view(num_heads, -1, batch, head_dim).permute(2, 1, 0, 3)
    if total is not None:
        output = output / total.clamp(min=torch.finfo(torch.float32).tiny)
    return output.to(dtype)
