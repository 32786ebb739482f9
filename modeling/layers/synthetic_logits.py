"""Attention logits other than query times key (Synthesizer, arXiv 2005.00743): components and their mixture.

Each component is a module that returns logits of shape `(batch or 1, heads, queries, keys)`. A batch dimension of 1
means that they do not depend on the input; `attention.shared_attention` then stores no map per sample.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from ..inputs.entries_by_position import (
    first_entries,
    number_of_tiles,
    offset_entries,
    offset_rows,
    query_entries,
    query_key_entries,
    resized,
)
from ..inputs.token_layout import TokenLayout
from .attention import split_heads


Resize = Callable[[torch.Tensor, int], torch.Tensor]
"""Returns a tensor with another length along a position dimension."""


def resized_parameter(parameter: torch.Tensor, resize: Resize, *dims: int) -> nn.Parameter:
    """A parameter with other lengths along some dimensions; a frozen one stays frozen."""
    is_trained = parameter.requires_grad
    for dim in dims:
        parameter = resize(parameter, dim)
    return nn.Parameter(parameter, requires_grad=is_trained)


@runtime_checkable
class HasPositions(Protocol):
    """A component whose weights depend on positions."""

    def resize(self, resize: Resize) -> None:
        """Change N."""


class RandomLogits(nn.Module):
    """A matrix of logits per head, shared by all inputs: `weight`, `(heads, N, N)`, query first.

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
        # Even without gradients, a view of a parameter claims to require one, and PyTorch's module trackers fail.
        weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
        return query_key_entries(weight, layout)

    def resize(self, resize: Resize) -> None:
        """Change N; see `ResizableSynthesizer.resize_position_embeddings`."""
        if isinstance(self.weight, nn.Parameter):
            self.weight = resized_parameter(self.weight, resize, 1, 2)
        else:
            self.weight = resize(resize(self.weight, 1), 2)


class OffsetLogits(nn.Module):
    """A logit per head and offset between two tokens, and one per head for the first token as key.

    Args:
        num_heads: Number of heads.
        max_length: The paper's N.

    Shapes:
        `weight` `(2N - 1, heads)`: row `N - 1 + offset`, where the offset is the key's position minus the query's;
        `first` `(heads,)`: for the key at position 0, such as BERT's `[CLS]`, in place of that of its offset.
    """

    def __init__(self, num_heads: int, max_length: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2 * max_length - 1, num_heads))
        self.first = nn.Parameter(torch.zeros(num_heads))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        return self.entries(self.table(layout), layout)

    def table(self, layout: TokenLayout) -> torch.Tensor:
        """The logits of offsets below L, see `offset_entries`, and last that of the first token, `(2L, heads)`."""
        return torch.cat([offset_entries(self.weight, layout), self.first[None]])

    def entries(self, table: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """Numbers in the order of `table`, `(2L, heads)`, as a map of shape `(batch or 1, heads, queries, keys)`."""
        rows = layout.offset_rows
        if rows is None:
            rows = offset_rows(layout, self.weight.shape[0] // 2 + 1, table.device)
        return F.embedding(rows, table).permute(0, 3, 1, 2)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        before, after = self.weight[: len(self.weight) // 2 + 1].flip(0), self.weight[len(self.weight) // 2 :]
        weight = torch.cat([resize(before, 0).flip(0)[:-1], resize(after, 0)])
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)


class FactorizedRandomLogits(nn.Module):
    """The product of two thin matrices per head: `query_factor` and `key_factor`, each `(heads, N, rank)`."""

    def __init__(self, num_heads: int, max_length: int, rank: int):
        super().__init__()
        self.query_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))
        self.key_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        if layout.positions is None:
            queries = query_entries(self.query_factor, layout)[None]
            keys = first_entries(self.key_factor, 1, layout.key_length)[None]
        else:
            queries = self.query_factor[:, layout.query_positions(self.query_factor.device)].transpose(0, 1)
            keys = self.key_factor[:, layout.positions].transpose(0, 1)
        return queries @ keys.transpose(-1, -2)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        self.query_factor = resized_parameter(self.query_factor, resize, 1)
        self.key_factor = resized_parameter(self.key_factor, resize, 1)


class MeshFactorizedLogits(nn.Module):
    """`sum_k R1[h, j, k] R2[h, j, k]`, which the authors' code computes in place of `R1 R2^T`."""

    def __init__(self, num_heads: int, max_length: int, rank: int):
        super().__init__()
        self.first_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))
        self.second_factor = nn.Parameter(torch.zeros(num_heads, max_length, rank))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        by_position = (self.first_factor * self.second_factor).sum(dim=-1)
        if layout.positions is None:
            logits = first_entries(by_position, 1, layout.key_length)[None, :, None]
        else:
            logits = by_position[:, layout.positions].transpose(0, 1)[:, :, None]
        return logits.expand(-1, -1, layout.query_length, -1)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        self.first_factor = resized_parameter(self.first_factor, resize, 1)
        self.second_factor = resized_parameter(self.second_factor, resize, 1)


class RelativePositionBias(nn.Module):
    """T5's relative position bias (arXiv 1910.10683, section 2.1): one number per head and bucket of distances.

    Half of the buckets hold one distance each, the others logarithmically growing ranges up to `max_distance`.
    Bidirectional attention uses half of the buckets for each direction, causal attention all of them for the past.
    """

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, causal: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.max_distance = max_distance
        self.causal = causal

    def buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """Bucket of each difference "key position minus query position"."""
        num_buckets = self.weight.shape[0]
        offset: torch.Tensor | int = 0
        if self.causal:
            distance = (-distances).clamp(min=0)
        else:
            num_buckets //= 2
            distance, offset = distances.abs(), (distances > 0) * num_buckets
        num_exact = num_buckets // 2
        # In float32 and in this order, as in T5, because rounding decides the bucket at the limits of ranges.
        progress = torch.log(distance.clamp(min=1).float() / num_exact) / math.log(self.max_distance / num_exact)
        logarithmic = num_exact + (progress * (num_buckets - num_exact)).long()
        return offset + torch.where(distance < num_exact, distance, logarithmic.clamp(max=num_buckets - 1))

    def forward(self, layout: TokenLayout, **kwargs: Any) -> torch.Tensor:
        buckets = self.buckets(layout.distances(self.weight.device))
        # Contiguous, because all layers read it, which is slower with the heads last in memory.
        return F.embedding(buckets, self.weight).permute(0, 3, 1, 2).contiguous()


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
            return F.relu(queries)  # type: ignore[arg-type]  # not `None` in this case
        return split_heads(F.relu(self.first_proj(hidden_states)), self.head_dim)


class PerHeadLinear(nn.Module):
    """One linear layer per head (or one for all): `weight`, `(heads or 1, outputs, head_dim)`."""

    def __init__(self, config: PreTrainedConfig, outputs: int):
        super().__init__()
        num_maps = 1 if config.dense_shared_across_heads else config.num_attention_heads
        self.weight = nn.Parameter(torch.zeros(num_maps, outputs, config.head_dim))
        self.bias = nn.Parameter(torch.zeros(num_maps, outputs)) if config.dense_bias else None

    def forward(self, inputs: torch.Tensor, outputs: int | None = None) -> torch.Tensor:
        """Map `(batch, heads, tokens, head_dim)` to `(batch, heads, tokens, outputs)`, using the first `outputs`."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        if outputs is not None:
            weight = first_entries(weight, 1, outputs)
            bias = None if bias is None else first_entries(bias, 1, outputs)
        if bias is None:
            return inputs @ weight.transpose(1, 2)
        batch, heads = inputs.shape[:2]
        weights, biases = weight.transpose(1, 2).expand(heads, -1, -1), bias[:, None].expand(heads, -1, -1)
        rows = [tensor.repeat(batch, 1, 1) for tensor in (biases, weights)]
        return torch.baddbmm(rows[0], inputs.flatten(0, 1), rows[1]).unflatten(0, (batch, heads))

    def resize(self, resize: Resize) -> None:
        """Change the number of outputs."""
        self.weight = resized_parameter(self.weight, resize, 1)
        if self.bias is not None:
            self.bias = resized_parameter(self.bias, resize, 1)


class DenseLogits(nn.Module):
    """Computes a row of logits from each token alone: `W2 ReLU(W1 x + b1) + b2`; output j is for key j."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.first = _DenseFirstLayer(config)
        self.second = PerHeadLinear(config, config.max_position_embeddings)

    def forward(
        self, layout: TokenLayout, hidden_states: torch.Tensor, queries: torch.Tensor | None = None
    ) -> torch.Tensor:
        first = self.first(hidden_states, queries)
        if layout.positions is None:
            return self.second(first, layout.key_length)
        # A user's positions may exceed the number of tokens.
        logits = self.second(first, layout.key_length if layout.shifted else None)
        return _columns(logits, layout.positions)

    def resize(self, resize: Resize) -> None:
        """Change N."""
        self.second.resize(resize)


class FactorizedDenseLogits(nn.Module):
    """Computes two short rows A (`a` numbers) and B (`b` numbers) per token; key j gets `A[j mod a] * B[j div a]`.

    A is tiled and B is repeated, so that all `a * b` positions differ. Both are `W ReLU(W1 x + b1) + b`.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.first = _DenseFirstLayer(config)
        a, b = config.dense_factors
        self.tiled = PerHeadLinear(config, a)
        self.repeated = PerHeadLinear(config, b)

    def forward(
        self, layout: TokenLayout, hidden_states: torch.Tensor, queries: torch.Tensor | None = None
    ) -> torch.Tensor:
        first = self.first(hidden_states, queries)
        a = self.tiled.weight.shape[1]
        if layout.positions is None:
            tiles = number_of_tiles(layout.key_length, a)
            products = self.repeated(first, tiles)[..., None] * self.tiled(first)[..., None, :]
            return first_entries(products.flatten(-2), 3, layout.key_length)
        tiled, repeated = _columns(self.tiled(first), layout.positions % a), layout.positions // a
        return tiled * _columns(self.repeated(first), repeated)

    def resize(self, length: int) -> None:
        """Change N, which changes the number of tiles but not their size."""
        tiles = -(-length // self.tiled.weight.shape[1])
        self.repeated.resize(lambda tensor, dim: resized(tensor, dim, tiles))


def _columns(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Entries of `(batch, heads, queries, outputs)` at `columns`, `(batch or 1, keys)`."""
    batch, heads, queries, _ = logits.shape
    return logits.gather(-1, columns[:, None, None, :].expand(batch, heads, queries, -1))


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
"""Attention component -> its module, created from the configuration. `"vanilla"` needs none."""

TOKEN_DEPENDENT = {"vanilla", "dense", "factorized_dense"}
"""Components whose logits depend on the input."""


class ComponentMixture(nn.Module):
    """Weights of an attention's components, by `config.mixture`.

    `"softmax"`: `logits`, `(heads, components)`, through a softmax over components; `"sigmoid"`: `alpha`, `(1,)`,
    gives the first component `sigmoid(alpha)` and the second the rest; `"sum"`, or a single component: all ones.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.names = config.attention_components
        self.kind = config.mixture if len(self.names) > 1 else "sum"
        if self.kind == "softmax":
            self.logits = nn.Parameter(torch.zeros(config.num_attention_heads, len(self.names)))
        elif self.kind == "sigmoid":
            self.alpha = nn.Parameter(torch.zeros(1))  # not a scalar, because FSDP cannot split scalars

    def forward(self) -> dict[str, torch.Tensor | None]:
        """The weight of each component: `None` for one, a number, or shape `(heads, 1, 1)`."""
        if self.kind == "sum":
            return dict.fromkeys(self.names)
        if self.kind == "sigmoid":
            share = torch.sigmoid(self.alpha[0])
            return dict(zip(self.names, (share, 1 - share), strict=True))
        weights = self.logits.softmax(dim=-1).transpose(0, 1)[:, :, None, None]
        return dict(zip(self.names, weights.unbind(0), strict=True))
