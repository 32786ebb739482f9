"""Base class of all task heads.

A head is a mixin that comes before a family's `PreTrainedModel` and needs the class attribute `backbone_class`:

    class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
        backbone_class = GMLPModel

Losses are in `losses.py`.
"""

from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedConfig


if TYPE_CHECKING:
    from transformers import PreTrainedModel as ModelMixin
else:
    ModelMixin = object


def require(condition: bool, model: nn.Module, wanted: str) -> None:
    """Raise `ValueError` if a model's configuration is not as `wanted`."""
    if not condition:
        raise ValueError(f"{type(model).__name__} needs a configuration with {wanted}.")


class TaskHead(ModelMixin):
    """A head, created by `_build_head`, on the base model `self.model`."""

    backbone_class: type[nn.Module]
    reads_images = False
    is_decoder = False
    accepts_loss_kwargs = True  # `Trainer` passes `num_items_in_batch`

    def __init__(self, config: PreTrainedConfig):
        kind = "a decoder" if self.is_decoder else "an encoder"
        require(config.is_decoder == self.is_decoder, self, f"`is_decoder={self.is_decoder}`, {kind}")
        size = "`image_size` set, e.g. to 224" if self.reads_images else "`image_size=None`, for text"
        require((config.image_size is not None) == self.reads_images, self, f"{size}; got {config.image_size}")
        super().__init__(config)
        self.model = self.backbone_class(config)
        self._build_head(config)
        self.post_init()

    def _build_head(self, config: PreTrainedConfig) -> None:
        """Create the head's own modules."""
        raise NotImplementedError
