"""Image patches as tokens, as in ViT (arXiv 2010.11929)."""

import torch
from torch import nn
from transformers import PreTrainedConfig


class PatchEmbeddings(nn.Module):
    """Linear embeddings of non-overlapping square patches, after a learned class token if `config.use_class_token`."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config = config
        side = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=side, stride=side)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size)) if config.use_class_token else None

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Map images `(batch, num_channels, height, width)` to `(batch, tokens, hidden_size)`, patches row by row."""
        rows, columns = self.config.patch_grid
        side = self.config.patch_size
        channels, height, width = self.config.num_channels, rows * side, columns * side
        if not isinstance(pixel_values, torch.Tensor) or not pixel_values.is_floating_point():
            kind = getattr(pixel_values, "dtype", type(pixel_values).__name__)
            raise ValueError(
                f"`pixel_values` must be a tensor of floating point numbers, got {kind}: normalise images."
            )
        if pixel_values.ndim != 4 or pixel_values.shape[1:] != (channels, height, width):
            raise ValueError(
                f"`pixel_values` has shape {tuple(pixel_values.shape)}, expected (batch, {channels} channels, height "
                f"{height}, width {width}). Resize the images, or fit the model to another image size with "
                "`model.resize_position_embeddings((height, width))`."
            )
        patches = self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2)
        if self.cls_token is None:
            return patches
        return torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1)
