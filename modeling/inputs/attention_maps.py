"""Positions and masks of a `TokenLayout` as attention maps over queries and keys need them.

Queries are the new tokens, keys all tokens.
"""

import torch

from .token_layout import TokenLayout, first_token_index


def query_index(layout: TokenLayout, device: torch.device) -> torch.Tensor:
    """Index of the queries among the keys, shape `(queries,)`."""
    if isinstance(layout.new_tokens, torch.Tensor):
        return layout.new_tokens
    return torch.arange(layout.query_length, device=device) + past_length(layout)


def past_length(layout: TokenLayout) -> int:
    """Number of tokens in the cache, of a layout whose `new_tokens` are a slice."""
    assert isinstance(layout.new_tokens, slice)
    return 0 if layout.new_tokens.start is None else layout.new_tokens.start


def query_positions(layout: TokenLayout, device: torch.device) -> torch.Tensor:
    """Positions of the queries, shape `(queries,)`, or `(batch or 1, queries)` if they are not counted from 0."""
    return query_index(layout, device) if layout.positions is None else layout.positions[:, layout.new_tokens]


def relative_positions(layout: TokenLayout, device: torch.device) -> torch.Tensor:
    """Key position minus query position, shape `(batch or 1, queries, keys)`."""
    if layout.positions is None or layout.shifted:
        return (torch.arange(layout.key_length, device=device) - query_index(layout, device)[:, None])[None]
    return layout.positions[:, None, :] - layout.positions[:, layout.new_tokens, None]


def causal_order(layout: TokenLayout, device: torch.device) -> torch.Tensor | None:
    """Boolean mask of the keys up to each query, shape `(queries, keys)`; `None` if these are all keys."""
    one_query = isinstance(layout.new_tokens, slice) and layout.key_length == past_length(layout) + 1
    if not layout.is_causal or one_query:
        return None
    return torch.arange(layout.key_length, device=device) <= query_index(layout, device)[:, None]


def visible_keys(layout: TokenLayout, device: torch.device) -> torch.Tensor | None:
    """Boolean mask of shape `(batch or 1, 1, queries or 1, keys)`; `None` if every query sees every key."""
    order = causal_order(layout, device)
    mask = None if layout.padding_mask is None else layout.padding_mask[:, None, None, :]
    masks = [mask, None if order is None else order[None, None]]
    if layout.seq_idx is not None:
        masks.append((layout.seq_idx[:, layout.new_tokens, None] == layout.seq_idx[:, None, :])[:, None])
    visible = None
    for mask in masks:
        if mask is not None:
            visible = mask if visible is None else visible & mask
    return visible


def move_padding_right(layout: TokenLayout) -> tuple[TokenLayout, torch.Tensor | None]:
    """The layout of the same rows with left padding moved to the right, so that positions are 0, 1, 2, ... in all.

    Returns:
        The new layout and, for each of its tokens, its index in the old one, shape `(batch, keys)`. The layout itself
        and `None` if there is no left padding, or if some tokens are in a cache and cannot be moved.
    """
    whole = isinstance(layout.new_tokens, slice) and layout.query_length == layout.key_length
    if layout.padding_mask is None or not layout.shifted or not whole:
        return layout, None
    index = torch.arange(layout.key_length, device=layout.padding_mask.device)
    index = index + first_token_index(layout.padding_mask)[:, None]
    # Not `%`: the ONNX exporter does not support it for lengths that vary.
    index = torch.where(index < layout.key_length, index, index - layout.key_length)
    return layout._replace(positions=None, shifted=False, padding_mask=layout.padding_mask.gather(1, index)), index
