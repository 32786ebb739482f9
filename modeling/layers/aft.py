"""The Attention Free Transformer (arXiv 2105.14103) with a score per head and key, in two forms with one result."""

import torch
from torch.nn import functional as F

from ..inputs.attention_maps import move_padding_right, take_tokens, visible_keys
from ..inputs.token_layout import TokenLayout
from .precision import no_autocast
from .synthetic_logits import OffsetLogits


def aft_weights(
    offsets: torch.Tensor, scores: torch.Tensor, mixture: torch.Tensor | None, mask: torch.Tensor | None
) -> torch.Tensor:
    """Weights of each sample: `sum_m p_im exp(w_ij + s_jm) / sum_j exp(w_ij + s_jm)` (after equation 2).

    Args:
        offsets: The logits w, shape `(batch or 1, heads, queries, keys)`.
        scores: The scores s, shape `(batch, heads, keys, M)`.
        mixture: The shares p, shape `(batch, heads, queries, M)`; `None` for M = 1.
        mask: Boolean, true for visible keys, or added to the logits, broadcastable to `offsets`; `None` if all are
            visible.

    Returns:
        Shape `(batch, heads, queries, keys)`, float32 or float64; zeros for queries that a mask lets see nothing.
    """
    exact_dtype = torch.promote_types(scores.dtype, torch.float32)
    logits = offsets.to(exact_dtype)[:, :, None] + scores.to(exact_dtype).mT[:, :, :, None]
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask[:, :, None], torch.finfo(exact_dtype).min)
    elif mask is not None:
        logits = logits + mask[:, :, None]
    weights = logits.softmax(dim=-1)
    if mixture is None:
        weights = weights.squeeze(2)
    else:
        weights = (mixture.to(exact_dtype).movedim(-1, 2)[..., None] * weights).sum(dim=2)
    return weights.masked_fill(~mask, 0) if mask is not None and mask.dtype == torch.bool else weights


def aft_attention(
    weights: torch.Tensor,
    scores: torch.Tensor,
    values: torch.Tensor,
    mixture: torch.Tensor | None,
    padding_mask: torch.Tensor | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """`aft_weights` times values, with exp(w) for the whole batch: `(E (t * V)) / (E t)`, E = exp(w), t = exp(s).

    For M = 1 both products have one matrix E for the whole batch. For M > 1 the weights of a sample are
    `E * ((p / (E t)) t^T)`. The result is exact up to rounding if the sum of some visible offset and score
    is within 80 of the sum of their maxima; smaller ones are raised to 105 below their maximum, and the result is
    finite. Dropout acts on keys, as in `shared_attention`.

    Args:
        weights: E, shape `(heads, queries, keys)`, from `scaled_exp` of the offsets' logits.
        scores: Shape `(batch, heads, keys, M)`.
        values: Shape `(batch, heads, keys, head_dim)`.
        mixture: Shape `(batch, heads, queries, M)`; `None` for M = 1.
        padding_mask: Boolean, true for real keys, shape `(batch, keys)`; `None` without padding.
        dropout: Dropout rate for keys.

    Returns:
        Shape `(batch, queries, heads, head_dim)`; zeros in rows of padding only.
    """
    batch, num_heads, num_keys, _ = values.shape
    dtype = values.dtype
    work_dtype = torch.float32 if dtype == torch.float16 else dtype  # whose range is too small for E
    weights = weights.to(work_dtype)
    # Heads and keys come first, as in the products.
    real = None if padding_mask is None else padding_mask.T[:, :, None]
    factors = scaled_exp(scores.permute(1, 2, 0, 3), 1, real).to(work_dtype).contiguous()
    columns = values.to(work_dtype).permute(1, 2, 0, 3)
    if dropout:
        columns = F.dropout(values.new_ones(num_heads, num_keys, batch, 1), dropout) * columns
    tiny = torch.finfo(torch.float32).tiny
    with no_autocast(values.device):
        totals = (weights @ factors.flatten(2)).clamp(min=tiny)
        if mixture is not None:
            # A map per sample has fewer numbers than M results per token, unless texts are long.
            totals = totals.unflatten(-1, (batch, -1)).permute(2, 0, 1, 3)
            weights = weights * ((mixture.to(work_dtype) / totals) @ factors.permute(2, 0, 3, 1))
            return (weights @ columns.permute(2, 0, 1, 3)).transpose(1, 2).to(dtype)
        mixed = (weights @ (factors * columns).flatten(2)).unflatten(-1, (batch, -1))
        return (mixed / totals[..., None]).permute(2, 1, 0, 3).to(dtype)


def scaled_exp(logits: torch.Tensor, dim: int, visible: torch.Tensor | None = None) -> torch.Tensor:
    """`exp` with the largest visible number scaled to e^20, and the others no further than 105 below; 0 if hidden.

    Returns:
        The shape of `logits`, float32 or float64.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shown = logits.detach()
    if visible is not None:
        shown = shown.masked_fill(~visible, torch.finfo(logits.dtype).min)
    scaled = (logits - (shown.amax(dim=dim, keepdim=True) - 20)).clamp(min=-85, max=20).exp()
    return scaled if visible is None else scaled.masked_fill(~visible, 0)


def aft_by_layout(
    logits: OffsetLogits,
    scores: torch.Tensor,
    values: torch.Tensor,
    mixture: torch.Tensor | None,
    layout: TokenLayout,
    dropout: float = 0.0,
) -> torch.Tensor:
    """`aft_attention` after left padding is moved to the right; the other arguments and the result as there.

    Rows share `layout` except for padding and given positions. E is looked up in exp of the offsets' logits, whose
    maxima are those of a head, over the offsets within the layout, and over all offsets in an exported graph.
    """
    layout, moves = move_padding_right(layout)
    if moves is not None:
        moved = (scores, values) if mixture is None else (scores, values, mixture)
        scores, values, *rest = (take_tokens(x.transpose(1, 2), moves[0]).transpose(1, 2) for x in moved)
        mixture = rest[0] if rest else None
    one_sample = values.shape[0] == 1 and mixture is None and not dropout
    if one_sample or (layout.positions is not None and len(layout.positions) > 1):
        # A map of its own for one sample takes the fewest operators. Positions may differ between rows.
        weights = aft_weights(logits(layout), scores, mixture, visible_keys(layout, values.device)).to(values.dtype)
        output = (F.dropout(weights, dropout) @ values).transpose(1, 2)
    else:
        weights = logits.entries(scaled_exp(logits.table(layout), 0), layout).squeeze(0)
        output = aft_attention(weights, scores, values, mixture, layout.padding_mask, dropout)
    return output if moves is None else take_tokens(output, moves[1])
