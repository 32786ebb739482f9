"""Image fields shared by the configurations of models for text or images."""

from typing import Any, Literal

from transformers.backbone_utils import BackboneConfigMixin


class ImageInputs(BackboneConfigMixin):
    """Mixin for configurations with `image_size`, `patch_size`, `num_channels`, `classifier_pooling`."""

    image_size: int | list[int] | tuple[int, int] | None
    patch_size: int
    num_channels: int
    classifier_pooling: Literal["cls", "mean", "normalized_mean"]
    max_position_embeddings: int
    num_hidden_layers: int
    apply_layernorm: bool = True
    reshape_hidden_states: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As in any configuration, but without backbone stages that have their defaults."""
        stages = self.stage_names
        defaults = {"stage_names": stages, "out_features": stages[-1:], "out_indices": [len(stages) - 1]}
        fields = super().to_dict().items()
        return {key: value for key, value in fields if key not in defaults or value != defaults[key]}

    def set_stages(self, out_features: list[str] | None, out_indices: list[int] | None = None) -> None:
        """Set the stage names of a backbone, and the stages that it returns (by default the last)."""
        self.stage_names = ["stem", *(f"stage{index + 1}" for index in range(self.num_hidden_layers))]
        self.set_output_features_output_indices(out_features, out_indices)

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches; raises `ValueError` if `image_size` is `None`."""
        if self.image_size is None:
            raise ValueError("A configuration for text has no grid of patches: `image_size` is `None`.")
        height, width = (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def use_class_token(self) -> bool:
        """Whether there is a class token before the patches, and ViT's pre-logits layer after it."""
        return self.image_size is not None and self.classifier_pooling == "cls"

    def set_image_size(self, image_size: int | list[int] | tuple[int, int]) -> None:
        """Set the side of square images, or height and width, in pixels, and the resulting number of tokens.

        Raises:
            ValueError: If the size is not one or two positive multiples of `patch_size`.
        """
        sides = [image_size] if isinstance(image_size, int) else list(image_size)
        if self.patch_size < 1:
            raise ValueError(f"`patch_size` must be at least 1, got {self.patch_size}.")
        if len(sides) not in (1, 2) or any(side < 1 or side % self.patch_size for side in sides):
            raise ValueError(
                f"`image_size` must be one multiple of `patch_size={self.patch_size}`, or two (height, width), got "
                f"{image_size}."
            )
        self.image_size = sides[0] if len(sides) == 1 else sides
        rows, columns = self.patch_grid
        self.max_position_embeddings = rows * columns + self.use_class_token
