"""Weights with a position dimension: select the entries of a batch, or change the number of positions."""

import torch

from .exporting import is_exporting
from .token_layout import TokenLayout


def query_key_entries(weight: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Entries of `(heads, N, N)` for all pairs of a query and a key, `(batch or 1, heads, queries, keys)`."""
    if layout.positions is None:
        return first_entries(query_entries(weight, layout), 2, layout.key_length)[None]
    rows, columns = layout.query_positions(weight.device), layout.positions
    return weight[:, rows[:, :, None], columns[:, None, :]].transpose(0, 1)


def query_entries(weight: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Entries of `(heads, N, ...)` for the queries, `(heads, queries, ...)`; `layout.positions` must be `None`."""
    if isinstance(layout.new_tokens, slice) and not is_exporting():
        return weight[:, layout.past_length : layout.past_length + layout.query_length]
    return weight.index_select(1, layout.query_index(weight.device))


def first_entries(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """The first `length` entries along a dimension that is as long or longer."""
    if not is_exporting():
        # Unlike `narrow`, a tuple of indices drops slices that take everything, and the passes of their gradients.
        return tensor[(slice(None),) * dim + (slice(length),)]
    # A slice is contiguous only if it is the whole tensor, so an exported program would reject the maximum length.
    return tensor.index_select(dim, torch.arange(length, device=tensor.device))


def offset_entries(table: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Entries of `(2N - 1, ...)` for the offsets within a layout; all of them for given positions, and in a graph."""
    if _has_all_offsets(layout):
        return table
    return table.narrow(0, len(table) // 2 + 1 - layout.key_length, 2 * layout.key_length - 1)


def offset_rows(layout: TokenLayout, max_length: int, device: torch.device) -> torch.Tensor:
    """The row of each pair of tokens in `offset_entries` of `max_length` N, and the one after these for the first key.

    Returns:
        Shape `(batch or 1, queries, keys)`.
    """
    reach = max_length if _has_all_offsets(layout) else layout.key_length
    positions = torch.arange(layout.key_length, device=device)[None] if layout.positions is None else layout.positions
    return torch.where(positions[:, None] == 0, 2 * reach - 1, layout.distances(device) + (reach - 1))


def _has_all_offsets(layout: TokenLayout) -> bool:
    """Whether entries of all offsets are looked up: what is computed from all is a constant of a graph."""
    return layout.positions is not None or is_exporting()


def number_of_tiles(length: int, size: int) -> int | None:
    """Number of tiles of `size` that cover `length`; `None` (all tiles) in `torch.export`, whose length is dynamic."""
    return None if is_exporting() else (length + size - 1) // size


def resized(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """`tensor`, truncated along `dim` or extended by copies of its last entry."""
    index = torch.arange(length, device=tensor.device).clamp(max=tensor.shape[dim] - 1)
    return tensor.detach().index_select(dim, index)


def resampled(tensor: torch.Tensor, dim: int, rows: torch.Tensor) -> torch.Tensor:
    """`tensor`, interpolated along `dim` with the matrix `rows`, `(new, old)`."""
    rows = rows.to(torch.promote_types(tensor.dtype, torch.float32)).to(tensor.device)  # MPS has no float64
    return (tensor.detach().to(rows.dtype).movedim(dim, -1) @ rows.mT).movedim(-1, dim).to(tensor.dtype).contiguous()
