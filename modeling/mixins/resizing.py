"""Other sequence lengths and image sizes for learned token-mixing weights."""

from typing import Protocol

import torch
from transformers import PreTrainedModel

from ..layers.spatial_gating_unit import SpatialProjection
from .grid_interpolation import grid_interpolation


class TokenMixing(Protocol):
    """A module whose learned weights belong to positions."""

    def set_max_length(self, max_length: int) -> None:
        """Cover sequences of another length."""

    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Cover another grid of patches, see `grid_interpolation`."""


class ResizableTokens(PreTrainedModel):
    """A `PreTrainedModel` whose token mixing is a learned matrix: another maximum length or image size.

    `_token_mixing_module` is the class of the modules that hold such matrices.
    """

    _token_mixing_module: type[TokenMixing]

    def resize_position_embeddings(self, new_num_position_embeddings: int | tuple[int, int]) -> None:
        """Fit the token-mixing weights to another maximum length or image size, keeping what they have learned.

        Text: a longer maximum length adds weights that are zero (and biases as at the start of training), a shorter
        one drops those of the last tokens; outputs for sequences that fit both stay the same. Images: the weights are
        resampled over both token axes, see `grid_interpolation`; the class token's stay. Do this before creating an
        optimizer.

        Args:
            new_num_position_embeddings: For text the new `max_position_embeddings`; for images the new image size in
                pixels, one number or (height, width).

        Raises:
            ValueError: If the number is not positive, the image size is no multiple of the patch size, or an image
                model has Toeplitz weights (call `to_full_spatial_weights` first).
        """
        config = self.config
        mixing_modules = self.get_position_embeddings()
        if config.image_size is None:
            if not isinstance(new_num_position_embeddings, int) or new_num_position_embeddings < 1:
                raise ValueError(
                    f"The new maximum length must be a positive integer, got {new_num_position_embeddings!r}."
                )
            for module in mixing_modules:
                module.set_max_length(new_num_position_embeddings)
            config.max_position_embeddings = new_num_position_embeddings
            return
        if config.spatial_weight_type == "toeplitz":
            raise ValueError(
                "Toeplitz spatial weights cannot be resampled over a grid of patches, as the result is not Toeplitz. "
                "Call `model.to_full_spatial_weights()` first."
            )
        old_grid = config.patch_grid
        config.set_image_size(new_num_position_embeddings)
        rows, columns = grid_interpolation(old_grid, config.patch_grid, int(config.use_class_token))
        for module in mixing_modules:
            module.resample(rows, columns)

    def get_position_embeddings(self) -> tuple[TokenMixing, ...]:  # type: ignore[override]  # no embeddings
        """The modules that hold the token-mixing weights, which know positions instead of position embeddings."""
        return tuple(module for module in self.modules() if isinstance(module, self._token_mixing_module))

    def to_full_spatial_weights(self) -> None:
        """Store every spatial weight as a full matrix from now on; outputs stay the same. Full ones are left alone.

        Training then need not keep the matrices Toeplitz. Do this before creating an optimizer.
        """
        if self.config.spatial_weight_type == "full":
            return
        for module in self.modules():
            if isinstance(module, SpatialProjection):
                module.to_full()
        self.config.spatial_weight_type = "full"
