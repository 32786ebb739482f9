"""timm's evaluation transform: resize, crop the centre, normalise.

Checkpoints converted from timm include this module, so it imports no other module of the package.
"""

from typing import Any

import numpy as np
from transformers import CLIPImageProcessorPil
from transformers.image_utils import SizeDict


class TimmImageProcessorPil(CLIPImageProcessorPil):
    """Prepare images with Pillow; the pixels equal those of timm and torchvision.

    Transformers rounds the corner of a centre crop down, while torchvision rounds to the nearest even number. It also
    cannot resize to cover a rectangle while keeping the aspect ratio.

    Args:
        crop_mode (`"center"` or `"squash"`, defaults to `"center"`):
            How to resize to `size={"height": ..., "width": ...}`: `"center"` gives the smallest image with the same
            aspect ratio that covers this size, `"squash"` exactly this size. It has no effect with
            `size={"shortest_edge": ...}`.
        kwargs: As in `CLIPImageProcessorPil`.

    Raises:
        ValueError: If `crop_mode` has another value.
    """

    crop_mode = "center"

    def __init__(self, crop_mode: str = "center", **kwargs: Any):
        if crop_mode not in ("center", "squash"):
            raise ValueError(f"`crop_mode` must be 'center' or 'squash', got {crop_mode!r}.")
        super().__init__(**kwargs)
        self.crop_mode = crop_mode

    def resize(self, image: np.ndarray, size: SizeDict, *args: Any, **kwargs: Any) -> np.ndarray:
        """Resize an image of shape `(channels, height, width)` according to `crop_mode`."""
        if size.height and size.width and self.crop_mode == "center":
            height, width = image.shape[-2:]
            ratio = min(height / size.height, width / size.width)
            size = SizeDict(height=round(height / ratio), width=round(width / ratio))
        return super().resize(image, size, *args, **kwargs)

    def center_crop(  # type: ignore[override]  # a mixin's method of the same name has other arguments
        self, image: np.ndarray, size: SizeDict, **kwargs: Any
    ) -> np.ndarray:
        """Crop the centre of an image of shape `(channels, height, width)`; smaller images are padded with zeros."""
        height, width = int(size.height or 0), int(size.width or 0)
        missing = [max(wanted - present, 0) for wanted, present in zip((height, width), image.shape[-2:], strict=True)]
        image = np.pad(image, [(0, 0), *((count // 2, (count + 1) // 2) for count in missing)])
        top, left = round((image.shape[-2] - height) / 2), round((image.shape[-1] - width) / 2)
        return image[:, top : top + height, left : left + width]


TimmImageProcessorPil.register_for_auto_class("AutoImageProcessor")


__all__ = ["TimmImageProcessorPil"]
