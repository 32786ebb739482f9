"""Convert a `TokenLayout` for attention maps. Queries are the new tokens, keys all tokens."""

import torch

from .token_layout import TokenLayout, first_token_index


def visible_keys(layout: TokenLayout, device: torch.device) -> torch.Tensor | None:
    """`layout.visible` with a dimension for the heads, `(batch or 1, 1, queries or 1, keys)`."""
    visible = layout.visible(device)
    if visible is None:
        return None
    return visible[None, None] if visible.ndim == 2 else visible[:, None]


def move_padding_right(layout: TokenLayout) -> tuple[TokenLayout, torch.Tensor | None]:
    """The layout with left padding moved to the right, so that positions are 0, 1, 2, ... in all rows.

    Returns:
        The new layout and, for each of its tokens, the index in the old layout, shape `(batch, keys)`; or the old
        layout and `None` if there is no left padding, or if some tokens are in a cache and cannot be moved.
    """
    if layout.padding_mask is None or not layout.shifted or not layout.is_whole:
        return layout, None
    index = torch.arange(layout.key_length, device=layout.padding_mask.device)
    index = index + first_token_index(layout.padding_mask)[:, None]
    # Without `%`, which the ONNX exporter does not support for dynamic lengths.
    index = torch.where(index < layout.key_length, index, index - layout.key_length)
    return layout._replace(positions=None, shifted=False, padding_mask=layout.padding_mask.gather(1, index)), index
