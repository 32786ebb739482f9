"""One vector per sequence or image."""

import torch
from torch import nn
from torch.nn import functional as F

from ..inputs.token_layout import first_token_index


def pool(last_hidden_state: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector per sequence.

    Args:
        last_hidden_state: Shape `(batch, length, hidden_size)`.
        attention_mask: Shape `(batch, length)`, non-zero for real tokens; `None` if all are.
        pooling: `"cls"`, the first real token, `"mean"`, the mean of the real tokens, or `"normalized_mean"`, that
            mean divided by its root mean square.

    Returns:
        Shape `(batch, hidden_size)`.
    """
    if pooling == "cls":
        if attention_mask is None:
            return last_hidden_state[:, 0]
        rows = torch.arange(last_hidden_state.shape[0], device=last_hidden_state.device)
        return last_hidden_state[rows, first_token_index(attention_mask).to(last_hidden_state.device)]
    if attention_mask is None:
        mean = last_hidden_state.mean(dim=1)
    else:
        weights = (attention_mask != 0)[:, :, None].to(last_hidden_state)
        mean = (last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "normalized_mean":  # of padding alone it is 0: half precision has no 1e-12
        mean = F.normalize(mean, dim=-1, eps=1e-6) * mean.shape[-1] ** 0.5
    return mean


def pool_patches(
    last_hidden_state: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str, pre_logits: nn.Linear | None
) -> torch.Tensor:
    """One vector per image: the class token after ViT's pre-logits layer, or a mean if there is no such layer."""
    if pre_logits is None:
        return pool(last_hidden_state, attention_mask, pooling)
    return torch.tanh(pre_logits(last_hidden_state[:, 0]))
