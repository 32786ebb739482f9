"""What mixins for models see of the model that they are mixed into."""

from typing import TYPE_CHECKING


# At run time mixins have no base, so that those of a model may stand in any order before its `PreTrainedModel`.
if TYPE_CHECKING:
    from transformers import PreTrainedModel as ModelMixin
else:
    ModelMixin = object


__all__ = ["ModelMixin"]
