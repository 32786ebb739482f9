"""Change the sequence length or image size of Synthesizers."""

from functools import partial
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedConfig, PreTrainedModel

from ..inputs.entries_by_position import resampled, resized
from ..layers.synthetic_logits import Resize
from .grid_interpolation import grid_interpolation


@runtime_checkable
class PositionalStack(Protocol):
    """An encoder or decoder with weights that depend on positions."""

    config: PreTrainedConfig

    def resize_positions(self, length: int, resize: Resize) -> None:
        """Change the maximum length."""


class ResizableSynthesizer(PreTrainedModel):
    """A `PreTrainedModel` that contains `PositionalStack` modules."""

    def get_position_embeddings(self) -> tuple[int, int] | int:  # type: ignore[override]  # no embeddings
        """Maximum sequence length: one number, or those of encoder and decoder."""
        if not self.config.is_encoder_decoder:
            return self.config.max_position_embeddings
        encoder, decoder = self.config.get_text_config(encoder=True), self.config.get_text_config(decoder=True)
        return encoder.max_position_embeddings, decoder.max_position_embeddings

    def resize_position_embeddings(
        self,
        new_num_position_embeddings: int | tuple[int, int],
        new_num_decoder_position_embeddings: int | None = None,
    ) -> None:
        """Change the model's maximum length or image size in place.

        Text: outputs for sequences that fit both lengths stay the same. New positions start as copies of the last old
        position, in every component and in learned positions. Images: logits and learned positions are interpolated
        over the grid of patches (see `grid_interpolation`), except those of the class token.

        Args:
            new_num_position_embeddings: New `max_position_embeddings`; for images the new size in pixels, one number
                or (height, width).
            new_num_decoder_position_embeddings: New maximum length of the decoder; by default that of the encoder.

        Raises:
            ValueError: If a length is below 1, a decoder length is given to a model without one, or an image model
                has the component `factorized_dense`, whose factors do not belong to a grid.
        """
        config = self.config
        if config.image_size is not None:
            self._resize_images(new_num_position_embeddings)
            return
        if new_num_decoder_position_embeddings is not None and not config.is_encoder_decoder:
            raise ValueError("`new_num_decoder_position_embeddings` is for encoder-decoder models only.")
        if not isinstance(new_num_position_embeddings, int):
            raise ValueError(f"The new maximum length must be one number, got {new_num_position_embeddings!r}.")
        lengths = [new_num_position_embeddings, new_num_decoder_position_embeddings or new_num_position_embeddings]
        if min(lengths) < 1:
            raise ValueError(f"The new maximum length must be at least 1, got {min(lengths)}.")
        a, _ = config.dense_factors
        config.factorized_dense_factors = [a, -(-max(lengths) // a)]
        config.max_position_embeddings = lengths[0]
        if config.is_encoder_decoder:
            config.decoder_max_position_embeddings = new_num_decoder_position_embeddings
        for stack in self.modules():
            if isinstance(stack, PositionalStack):
                stack.config.factorized_dense_factors = config.factorized_dense_factors
                length = lengths[config.is_encoder_decoder and stack.config.is_decoder]
                stack.resize_positions(length, partial(resized, length=length))

    def _resize_images(self, image_size: int | tuple[int, int]) -> None:
        if "factorized_dense" in self.config.attention_components:
            raise ValueError(
                "The component `factorized_dense` of this model cannot be fitted to another image size: its two "
                f"factors belong to no grid of patches. Resize the images to {self.config.image_size} pixels."
            )
        old_grid = self.config.patch_grid
        configs: dict[int, Any] = {
            id(module.config): module.config for module in self.modules() if hasattr(module, "config")
        }
        for config in configs.values():
            config.set_image_size(image_size)
        rows, _ = grid_interpolation(old_grid, self.config.patch_grid, int(self.config.use_class_token))
        for stack in self.modules():
            if isinstance(stack, PositionalStack):
                stack.resize_positions(len(rows), partial(resampled, rows=rows))
