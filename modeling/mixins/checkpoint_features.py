"""Base class of the models in a checkpoint, which Transformers saves together with the code that was loaded."""

from typing import Any

from transformers import PreTrainedModel


class PackageFeatures(PreTrainedModel):
    """A `PreTrainedModel` whose class is registered, so that Transformers saves its code and `auto_map` again."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save like `PreTrainedModel.save_pretrained`."""
        own = type(self)
        if own.__module__.startswith("torch."):  # derived by `fully_shard`; Transformers would save PyTorch's code
            base = next(base for base in own.__mro__ if not base.__module__.startswith("torch."))
            own.__module__, own.__name__ = base.__module__, base.__name__
        entries = getattr(self.config, "auto_map", {}).items()
        names = [name for name, entry in entries if str(entry).endswith(f".{own.__name__}")]
        if names and self._auto_class is None:
            self.register_for_auto_class(names[0])
        super().save_pretrained(*args, **kwargs)
