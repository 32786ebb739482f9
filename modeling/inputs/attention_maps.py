"""Convert a `TokenLayout` for attention maps. Queries are the new tokens, keys all tokens."""

import torch

from .token_layout import TokenLayout, first_token_index


def visible_keys(layout: TokenLayout, device: torch.device) -> torch.Tensor | None:
    """`layout.visible` with a dimension for the heads, `(batch or 1, 1, queries or 1, keys)`; or its `full_mask`."""
    if layout.full_mask is not None:
        return layout.full_mask
    visible = layout.visible(device)
    if visible is None:
        return None
    return visible[None, None] if visible.ndim == 2 else visible[:, None]


def move_padding_right(layout: TokenLayout) -> tuple[TokenLayout, tuple[torch.Tensor, torch.Tensor] | None]:
    """The layout with left padding moved to the right, so that positions are 0, 1, 2, ... in all rows.

    Returns:
        The new layout; for each of its tokens the index in the old layout, shape `(batch, keys)`, and the reverse. Or
        the old layout and `None` if there is no left padding, or if some tokens are in a cache and cannot be moved.
    """
    if layout.padding_mask is None or not layout.shifted or not layout.is_whole:
        return layout, None
    length, place = layout.key_length, torch.arange(layout.key_length, device=layout.padding_mask.device)
    first = first_token_index(layout.padding_mask)[:, None]
    # Without `%`, which the ONNX exporter does not support for dynamic lengths.
    index = torch.where(place + first < length, place + first, place + first - length)
    back = torch.where(place >= first, place - first, place - first + length)
    padding_mask = layout.padding_mask.gather(1, index)
    return layout._replace(positions=None, shifted=False, padding_mask=padding_mask, offset_rows=None), (index, back)


def take_tokens(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The tokens of `(batch, tokens, ...)` at `index`, `(batch, tokens)`: whole rows, faster than `gather`."""
    batch, length = index.shape
    rows = index + length * torch.arange(batch, device=index.device)[:, None]
    return tensor.flatten(0, 1).index_select(0, rows.flatten()).view_as(tensor)
