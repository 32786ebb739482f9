"""The base class of configurations; checkpoints contain `self_contained_in_checkpoints.py` instead of this module."""

import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from .checkpoint_code import named_code
from .checkpoint_files import check_names_are_free, write_code


class SelfContainedConfig(PreTrainedConfig):
    """Base class of all configurations. `save_pretrained` also writes the code that they name."""

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save `config.json` and the modules that its `auto_map` names.

        Configurations loaded from a saved model have an `auto_map`.

        Args:
            save_directory: Folder, created if it does not exist.
            push_to_hub: Whether to push to the Hub after saving, to `repo_id` or the folder's name.
            **kwargs: Further arguments of `PreTrainedConfig.push_to_hub`.

        Raises:
            FileExistsError: If `save_directory` contains other files with the names of these modules.
        """
        modules = named_code(self)
        if modules:
            check_names_are_free(modules, Path(save_directory))
            write_code(modules, Path(save_directory))
        if push_to_hub and modules:  # `PreTrainedConfig` does not push files that already exist
            super().save_pretrained(save_directory)
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)
        else:
            super().save_pretrained(save_directory, push_to_hub, **kwargs)
