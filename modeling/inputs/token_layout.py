"""The tokens that a forward pass computes, their positions, and the tokens they can see."""

from typing import NamedTuple

import torch
from torch.nn import functional as F
from transformers import Cache, PreTrainedConfig
from transformers.utils import is_tracing

from .caches import cached_lengths
from .input_checks import check_full_mask, check_length, check_positions


_READ_AT_ONCE = ("cpu",)  # devices
_SHORTEST_WITHOUT_INDEX = 1024  # such sequences may be mixed by Fourier transforms, in less memory


class TokenLayout(NamedTuple):
    """All that token mixing needs to know about a batch. "All tokens" are those in the cache, then the new ones.

    Attributes:
        query_length: Number of new tokens, the queries of attention.
        key_length: Number of all tokens, the keys of attention.
        new_tokens: Indices of the new tokens among all: a slice, or a tensor with a static cache in use.
        padding_mask: Boolean, true for real tokens, shape `(batch, key_length)`; `None` without padding.
        positions: Positions of all tokens, shape `(batch or 1, key_length)`; `None` for 0, 1, 2, ... in every row.
        shifted: Whether positions in a row (or in each of its documents) are 0, 1, 2, ... after left padding. The
            distance between two tokens is then the difference of their indices. Otherwise a user gave the positions.
        is_causal: Whether tokens see only themselves and earlier tokens.
        seq_idx: Index of each token's document, shape `(batch, key_length)`; tokens see their own document only.
            `None` if each row is one document.
        attention_mask: Mask for the attention implementation, which combines causal order, padding and documents.
        diagonal_index: Index of each entry's diagonal in a Toeplitz matrix, from 0 at the lower left, for all layers,
            shape `(query_length, key_length)`; `None` if no weights are such matrices, for given positions,
            and in models for long texts.
        offset_rows: What `entries_by_position.offset_rows` gives, for all layers; if `None`, a layer computes it.
        full_mask: A user's mask of pairs in the place of `padding_mask`, `(batch or 1, heads or 1, query_length,
            key_length)`: boolean, true for visible, or a number that is added to the logits.
    """

    query_length: int
    key_length: int
    new_tokens: slice | torch.Tensor = slice(None)
    padding_mask: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    shifted: bool = False
    is_causal: bool = False
    seq_idx: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    diagonal_index: torch.Tensor | None = None
    offset_rows: torch.Tensor | None = None
    full_mask: torch.Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether all queries of a row see the same tokens, but for causal order."""
        return self.seq_idx is None and self.full_mask is None

    @property
    def counts_positions(self) -> bool:
        """Whether the distance between two tokens of a document is the difference of their indices."""
        return self.positions is None or self.shifted

    @property
    def is_whole(self) -> bool:
        """Whether all tokens are new (the cache is empty)."""
        return isinstance(self.new_tokens, slice) and self.query_length == self.key_length

    @property
    def rows(self) -> slice | torch.Tensor:
        """`new_tokens` as indices of parameters that are longer than the sequence."""
        return slice(self.key_length) if self.is_whole else self.new_tokens

    @property
    def past_length(self) -> int:
        """Number of tokens in the cache; `new_tokens` must be a slice."""
        assert isinstance(self.new_tokens, slice)
        return 0 if self.new_tokens.start is None else self.new_tokens.start

    def query_index(self, device: torch.device) -> torch.Tensor:
        """Index of the new tokens among all, shape `(query_length,)`."""
        if isinstance(self.new_tokens, torch.Tensor):
            return self.new_tokens
        return torch.arange(self.query_length, device=device) + self.past_length

    def query_positions(self, device: torch.device) -> torch.Tensor:
        """Positions of the new tokens, shape `(query_length,)`, or `(batch or 1, query_length)` if not 0, 1, 2, ..."""
        return self.query_index(device) if self.positions is None else self.positions[:, self.new_tokens]

    def distances(self, device: torch.device) -> torch.Tensor:
        """Position of each token minus that of each new token, shape `(batch or 1, query_length, key_length)`."""
        if self.positions is None or self.shifted:
            return (torch.arange(self.key_length, device=device) - self.query_index(device)[:, None])[None]
        return self.positions[:, None, :] - self.positions[:, self.new_tokens, None]

    def causal_order(self, device: torch.device) -> torch.Tensor | None:
        """Boolean mask of the tokens up to each new one, `(query_length, key_length)`; `None` if these are all."""
        one_query = isinstance(self.new_tokens, slice) and self.key_length == self.past_length + 1
        if not self.is_causal or one_query:
            return None
        return torch.arange(self.key_length, device=device) <= self.query_index(device)[:, None]

    def visible(self, device: torch.device) -> torch.Tensor | None:
        """Boolean mask of the tokens that each new token can see: causal order, padding and documents.

        Returns:
            Shape `(query_length, key_length)` if rows agree, else `(batch, query_length or 1, key_length)`; `None` if
            all tokens are visible.
        """
        mask = self.causal_order(device)
        if self.padding_mask is not None:
            real = self.padding_mask[:, None, :]
            mask = real if mask is None else real & mask
        if self.seq_idx is not None:
            own_document = self.seq_idx[:, self.new_tokens, None] == self.seq_idx[:, None, :]
            mask = own_document if mask is None else own_document & mask
        return mask

    def at(self, position_ids: torch.Tensor, are_fixed: bool) -> "TokenLayout":
        """The layout with given positions of the new tokens, shape `(batch or 1, query_length)`.

        Args:
            position_ids: The positions.
            are_fixed: Whether cached states were computed at counted positions and cannot change.

        Raises:
            ValueError: If positions are fixed and differ from the given ones.
        """
        if self.query_length == self.key_length:
            return self._replace(positions=position_ids, shifted=False)
        index = torch.arange(self.key_length, device=position_ids.device)
        counted = index[None] if self.positions is None else self.positions
        if not are_fixed:
            counted = counted.expand(max(len(counted), len(position_ids)), -1)
            given = position_ids.expand(len(counted), -1).to(counted)
            return self._replace(positions=counted.index_copy(1, index[self.new_tokens], given), shifted=False)
        expected = counted[:, self.new_tokens]
        same = position_ids == expected
        if self.padding_mask is not None:
            same = same | ~self.padding_mask[:, self.new_tokens]
        if is_tracing(position_ids) or not bool(same.all()):
            raise ValueError(
                "The cache does not hold the positions of its tokens, so `position_ids` must be those that follow "
                f"from `attention_mask`, {expected.tolist()}; got {position_ids.tolist()}. Leave them out."
            )
        return self


def token_layout(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache: Cache | None = None,
    seq_idx: torch.Tensor | None = None,
) -> TokenLayout:
    """Make the `TokenLayout` of a forward pass, without its `attention_mask`.

    The first real token of a row has position 0, so padding on either side does not change the result.

    Args:
        config: Configuration of the encoder or decoder.
        inputs_embeds: New tokens, shape `(batch, length, hidden_size)`.
        attention_mask: Non-zero for real tokens, shape `(batch, all tokens)`, ignored if `config.mask_padding` is
            false; or a mask of pairs as `full_mask`, which leaves positions as they are; `None` without padding.
        position_ids: Positions of the new tokens, shape `(batch or 1, length)`; counted if `None`.
        cache: The self-attention cache.
        seq_idx: Index of each token's document, shape `(batch, length)`; `None` if each row is one document. Without a
            mask and cached tokens, decoders derive it from `position_ids`, as Transformers' decoders do.

    Raises:
        ValueError: If the sequence is too long, a shape is wrong, or `position_ids` contradict the cache.
    """
    batch, length, _ = inputs_embeds.shape
    new_tokens, key_length = _new_tokens(config, inputs_embeds, cache)
    is_toeplitz = getattr(config, "spatial_weight_type", None) == "toeplitz"
    if position_ids is not None:
        check_positions(position_ids, (batch, length), longest_sequence(config))
        if config.is_decoder and seq_idx is None and attention_mask is None and key_length == length:
            seq_idx = _documents(position_ids, batch)
    padding_mask, full_mask, left_padded = None, None, False
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 4:
        if cache is None:  # otherwise there may be room for more
            check_full_mask(attention_mask, batch, length)
        if seq_idx is not None:
            raise ValueError("Give `seq_idx` or an `attention_mask` of four dimensions, and not both.")
        full_mask = attention_mask[..., :key_length].to(inputs_embeds.device)
    elif attention_mask is not None and getattr(config, "mask_padding", True):
        padding_mask = _padding_mask(attention_mask, inputs_embeds, key_length, cache)
        is_padded, left_padded = _sides_with_padding(padding_mask, config.image_size is None, is_toeplitz)
        padding_mask = padding_mask if is_padded else None
    positions = None
    if seq_idx is not None:
        _check_seq_idx(seq_idx, inputs_embeds, cache)
        positions = positions_in_documents(seq_idx)
    elif padding_mask is not None and left_padded:
        index = torch.arange(key_length, device=padding_mask.device)
        positions = (index - first_token_index(padding_mask)[:, None]).clamp(min=0)
    shifted = positions is not None
    layout = TokenLayout(length, key_length, new_tokens, padding_mask, positions, shifted, config.is_decoder, seq_idx)
    layout = layout if position_ids is None else layout.at(position_ids, hasattr(config, "spatial_weight_type"))
    if is_toeplitz and config.max_position_embeddings < _SHORTEST_WITHOUT_INDEX and layout.counts_positions:
        layout = layout._replace(diagonal_index=layout.distances(inputs_embeds.device)[0] + (key_length - 1))
    return layout._replace(full_mask=full_mask)


def first_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Index of each row's first real token, shape `(batch,)`, i.e. the amount of left padding."""
    return (attention_mask != 0).long().argmax(dim=-1)


def positions_in_documents(seq_idx: torch.Tensor) -> torch.Tensor:
    """Positions that start at 0 in every document; `seq_idx` and the result have shape `(batch, length)`."""
    index = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def _documents(position_ids: torch.Tensor, batch: int) -> torch.Tensor | None:
    """`seq_idx` of rows whose positions restart in every document; `None` if no row has several documents."""
    begins = F.pad(position_ids.diff(dim=-1) <= 0, (1, 0)).expand(batch, -1)
    return begins.cumsum(-1) if is_tracing(begins) or bool(begins.any()) else None


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Maximum sequence length; `None` if the model has no limit."""
    # Synthesizers have the first, which may be `None`; other models may have neither.
    return getattr(config, "max_sequence_length", getattr(config, "max_position_embeddings", None))


def _new_tokens(
    config: PreTrainedConfig, inputs_embeds: torch.Tensor, cache: Cache | None
) -> tuple[slice | torch.Tensor, int]:
    """`TokenLayout.new_tokens` and `TokenLayout.key_length`."""
    length = inputs_embeds.shape[1]
    past_length, room = cached_lengths(cache, length, inputs_embeds.device)
    max_length = longest_sequence(config)
    if isinstance(past_length, int):
        key_length = past_length + length
        if max_length is not None:
            check_length(key_length, max_length)
        return slice(None) if cache is None else slice(past_length, past_length + length), key_length
    if max_length is not None and room > max_length:  # otherwise there is no need to synchronize
        check_length(room if is_tracing(inputs_embeds) else int(past_length) + length, max_length)
        room = max_length
    return past_length + torch.arange(length, device=inputs_embeds.device), room


def _padding_mask(
    attention_mask: torch.Tensor, inputs_embeds: torch.Tensor, key_length: int, cache: Cache | None
) -> torch.Tensor:
    batch, length, _ = inputs_embeds.shape
    if not isinstance(attention_mask, torch.Tensor):
        raise ValueError(f"`attention_mask` must be a tensor, got a {type(attention_mask).__name__}.")
    mask = attention_mask.to(inputs_embeds.device) != 0
    if cache is not None and cache.is_compileable:
        mask = F.pad(mask, (0, key_length - mask.shape[1]))  # hides or cuts off unused slots of a static cache
    if mask.shape != (batch, key_length):
        raise ValueError(
            f"`attention_mask` has shape {tuple(mask.shape)}, expected {(batch, key_length)}: one number per token, "
            f"{'those in the cache included, ' if key_length > length else ''}1 for real tokens and 0 for padding."
        )
    return mask


def _check_seq_idx(seq_idx: torch.Tensor, inputs_embeds: torch.Tensor, cache: Cache | None) -> None:
    expected = tuple(inputs_embeds.shape[:2])
    if seq_idx.shape != expected:
        raise ValueError(f"`seq_idx` has shape {tuple(seq_idx.shape)}, expected {expected}: one number per token.")
    if cache is not None and cache.get_seq_length():
        raise ValueError("`seq_idx` is for whole rows: it cannot be given with tokens in a cache.")


def _sides_with_padding(padding_mask: torch.Tensor, may_shift: bool, is_toeplitz: bool) -> tuple[bool, bool]:
    """Whether there is padding, and whether some is on the left; true if this is unknown."""
    # Synchronize with a GPU only if positions matter: masks do not shift patches, a shift keeps Toeplitz weights.
    would_wait = padding_mask.device.type not in _READ_AT_ONCE and (is_toeplitz or not may_shift)
    if would_wait or is_tracing(padding_mask) or padding_mask.is_meta or torch._C._are_functorch_transforms_active():
        return True, may_shift
    full = int(padding_mask.all().int() + padding_mask[:, 0].all().int())  # 1: padding on the right only
    return full < 2, full == 0 and may_shift
