"""Base class of the configurations in a checkpoint, whose code Transformers copies when it saves them."""

from transformers import PreTrainedConfig


class SelfContainedConfig(PreTrainedConfig):
    """A plain `PreTrainedConfig`."""
