"""One vector per sequence or image."""

from typing import Any

import torch
from torch.nn import functional as F

from ..inputs.token_layout import first_token_index


def pool(states: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector per sequence, shape `(batch, hidden_size)`.

    Args:
        states: The last states, shape `(batch, length, hidden_size)`.
        attention_mask: Shape `(batch, length)`, non-zero for real tokens; `None` if all are. A mask of pairs does not
            say which tokens are real: the first one is the one to pool, as in BERT.
        pooling: `"cls"`, the first real token, `"mean"`, the mean of the real tokens, or `"normalized_mean"`, that
            mean divided by its root mean square.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        if pooling != "cls":
            raise ValueError(f"`classifier_pooling` {pooling!r} needs an `attention_mask` of shape (batch, length).")
        attention_mask = None
    if pooling == "normalized_mean":  # half precision has no 1e-12
        return F.normalize(pool(states, attention_mask, "mean"), dim=-1, eps=1e-6) * states.shape[-1] ** 0.5
    if attention_mask is None:
        return states[:, 0] if pooling == "cls" else states.mean(dim=1)
    if pooling == "cls":
        rows = torch.arange(states.shape[0], device=states.device)
        return states[rows, first_token_index(attention_mask).to(states.device)]
    weights = (attention_mask != 0)[:, :, None].to(states)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def pool_patches(states: torch.Tensor, attention_mask: torch.Tensor | None, model: Any) -> torch.Tensor:
    """One vector per image: the class token after ViT's pre-logits layer, or a mean if the model has no such layer."""
    if (pre_logits := getattr(model, "pooler", None)) is None:
        return pool(states, attention_mask, model.config.classifier_pooling)
    return torch.tanh(pre_logits(states[:, 0]))
