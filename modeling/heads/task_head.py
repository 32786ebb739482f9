"""What all task heads have in common.

A head is a mixin over a family's `PreTrainedModel` that sets the class attribute `backbone_class`:

    class GMLPForMaskedLM(MaskedLMHead, GMLPPreTrainedModel):
        backbone_class = GMLPModel

Losses of heads with a label per token are divided by the Trainer's `num_items_in_batch`. Losses with one term per
example are means, with `accepts_loss_kwargs = False`. Gradients then do not depend on how a batch is split over
accumulation steps and processes.
"""

from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedConfig


# At run time heads have no base class, so that they may come before a family's `PreTrainedModel`.
if TYPE_CHECKING:
    from transformers import PreTrainedModel as ModelMixin
else:
    ModelMixin = object


class TaskHead(ModelMixin):
    """A model with a head, built by `_build_head`, on the backbone `self.model`."""

    backbone_class: type[nn.Module]
    reads_images = False
    is_decoder = False

    def __init__(self, config: PreTrainedConfig):
        if config.is_decoder != self.is_decoder:
            raise ValueError(
                f"{type(self).__name__} needs a configuration with `is_decoder={self.is_decoder}`, "
                f"{'a decoder' if self.is_decoder else 'an encoder'}."
            )
        if (getattr(config, "image_size", None) is not None) != self.reads_images:
            wanted = "an image size, e.g. 224" if self.reads_images else "`None`: it reads text"
            raise ValueError(
                f"`{type(self).__name__}` needs `config.image_size` to be {wanted}; got {config.image_size}."
            )
        super().__init__(config)
        self.model = self.backbone_class(config)
        self._build_head(config)
        self.post_init()

    def _build_head(self, config: PreTrainedConfig) -> None:
        """Add the head's own modules."""
        raise NotImplementedError
