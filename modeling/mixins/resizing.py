"""Change the sequence length or image size of learned token-mixing weights."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..layers.spatial_gating_unit import SpatialProjection
from .grid_interpolation import grid_interpolation


class ResizableTokens(PreTrainedModel):
    """A `PreTrainedModel` that mixes tokens with learned matrices, in `_token_mixing_module`."""

    _token_mixing_module: type[nn.Module] | tuple[type[nn.Module], ...]

    def resize_position_embeddings(self, new_num_position_embeddings: int | tuple[int, int]) -> None:
        """Adapt the token-mixing weights to another maximum length or image size. Call before creating an optimizer.

        Text: outputs for sequences that fit both lengths stay the same. New spatial weights are zero, new biases have
        their initial values, others are copies of the outermost ones. Images: `grid_interpolation` over both axes.

        Args:
            new_num_position_embeddings: New `max_position_embeddings` for text; new image size in pixels for images,
                one number or (height, width).

        Raises:
            ValueError: If the number is not positive, the image size is not a multiple of the patch size, or an image
                model has Toeplitz weights.
        """
        config, modules = self.config, self.get_position_embeddings()
        if config.image_size is None:
            if not isinstance(new_num_position_embeddings, int) or new_num_position_embeddings < 1:
                raise ValueError(f"The new length must be a positive integer, got {new_num_position_embeddings!r}.")
            for module in modules:
                module.set_max_length(new_num_position_embeddings)
            config.max_position_embeddings = new_num_position_embeddings
            return
        if config.spatial_weight_type == "toeplitz":
            raise ValueError(
                "Toeplitz spatial weights cannot be interpolated over a grid of patches, because the result is not "
                "Toeplitz. Call `model.to_full_spatial_weights()` first."
            )
        old_grid = config.patch_grid
        config.set_image_size(new_num_position_embeddings)
        rows, columns = grid_interpolation(old_grid, config.patch_grid, int(config.use_class_token))
        for module in modules:
            module.resample(rows, columns)

    def get_position_embeddings(self) -> tuple[Any, ...]:
        """The modules with the token-mixing weights, which replace position embeddings."""
        return tuple(module for module in self.modules() if isinstance(module, self._token_mixing_module))

    def to_full_spatial_weights(self) -> None:
        """Store spatial weights as full matrices; outputs do not change. Call before creating an optimizer.

        Training then no longer keeps the matrices Toeplitz.
        """
        if self.config.spatial_weight_type == "toeplitz":
            for module in self.modules():
                if isinstance(module, SpatialProjection):
                    module.to_full()
        self.config.spatial_weight_type = "full"
