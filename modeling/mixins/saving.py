"""Checkpoints that load with Transformers alone.

A saved model includes the code that defines it, for `trust_remote_code=True`, and the map from each Auto class to it.
Models for question answering also include their pipeline. If this package is imported, its own model classes are used,
and only the pipeline's file is executed.
"""

import os
import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import create_repo
from transformers import PreTrainedModel
from transformers.utils import logging
from transformers.utils.hub import create_and_tag_model_card

from ...configuration.auto_classes import FAMILIES
from ...configuration.checkpoint_code import GENERATED, auto_map, checkpoint_code
from ...configuration.checkpoint_files import check_names_are_free, temporary_folder
from ..heads.question_answering import QuestionAnsweringHead


logger = logging.get_logger(__name__)

_PUSH_ARGUMENTS = ("commit_message", "commit_description", "private", "revision", "create_pr", "tags")


def _name_pipelines(model: PreTrainedModel) -> None:
    """Set `custom_pipelines`, because Transformers no longer has a question answering pipeline."""
    entries = dict(getattr(model.config, "custom_pipelines", {}))
    entries.pop("question-answering", None)  # from a model with another head
    if isinstance(model, QuestionAnsweringHead):
        impl = "question_answering.QuestionAnsweringPipeline"
        entries["question-answering"] = {"impl": impl, "pt": ["AutoModelForQuestionAnswering"]}
    if entries:
        model.config.custom_pipelines = entries
    elif hasattr(model.config, "custom_pipelines"):
        del model.config.custom_pipelines


def _warn_of_users_class(model: PreTrainedModel) -> None:
    """Warn that the code of a user's subclass is not saved, unless it was registered as Transformers documents."""
    package = __name__.partition(".modeling.")[0]
    # fully_shard derives a class in a module of PyTorch
    first, *bases = (cls for cls in type(model).__mro__ if not cls.__module__.startswith("torch."))
    if not first.__module__.startswith(f"{package}.") and type(model)._auto_class is None:
        ours = next(base.__name__ for base in bases if base.__module__.startswith(f"{package}."))
        ours = ours.replace("PreTrainedModel", "Model")  # known to the Auto classes
        logger.warning(
            f"{first.__name__} is a class of your own: the Auto classes load this checkpoint as {ours}, whose code is "
            f"saved with it. To save the code of {first.__name__} as well, call "
            f"`{first.__name__}.register_for_auto_class(...)` before, with the Auto class it is for."
        )


def _replace_checkpoint(complete: Path, target: Path, variant: str | None) -> None:
    """Move a complete checkpoint to `target`. An interruption never leaves a mixture of two that loads."""
    new = {path.name for path in complete.iterdir()}
    suffix = "" if variant is None else rf"\.{re.escape(variant)}"
    weights = re.compile(rf"model{suffix}(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index{suffix}\.json")
    # Without a configuration nothing loads, so it is removed first and moved last.
    configurations = [name for name in ("config.json", "adapter_config.json") if name in new]
    stale = ["generation_config.json"] if "config.json" in new else []
    if "config.json" in new and "adapter_config.json" not in new:  # otherwise an old adapter would be applied again
        stale += ["adapter_config.json", "adapter_model.safetensors"]
    if any(name.endswith(".py") for name in new):
        code = (path for path in target.glob("*.py") if path.name not in new)
        stale += [path.name for path in code if path.read_bytes().startswith(GENERATED.encode())]
    for name in [*configurations, *stale]:
        (target / name).unlink(missing_ok=True)
    if any(weights.fullmatch(name) for name in new):
        for path in target.iterdir():
            if weights.fullmatch(path.name) and path.name not in new:
                path.unlink()
    for name in [*sorted(new.difference(configurations)), *configurations]:
        os.replace(complete / name, target / name)


class SelfContained(PreTrainedModel):
    """A `PreTrainedModel` whose `save_pretrained` and `push_to_hub` write complete checkpoints.

    The files are first written to a temporary folder inside the target and then moved, `config.json` last. An
    interrupted save leaves the old checkpoint, or a folder that does not load. The next save removes the temporary
    folder of a killed process.
    """

    def save_pretrained(  # type: ignore[override]  # what `PreTrainedModel` takes beyond these goes by name
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save the model with its code; arguments as in `PreTrainedModel.save_pretrained`.

        Your own subclass is saved with the code of its base class in this package, unless you registered it with
        `register_for_auto_class`.

        Args:
            save_directory: Folder, created if it does not exist. Files of another checkpoint in it are replaced.
            is_main_process: Whether this process writes the files.
            state_dict: Tensors to save instead of the model's own.
            push_to_hub: Whether to push to the Hub after saving, to `repo_id` or the folder's name.
            **kwargs: Further arguments of `PreTrainedModel.save_pretrained`, such as `max_shard_size`.

        Raises:
            FileExistsError: If `save_directory` contains other files with the names of the model's code.
            NotADirectoryError: If `save_directory` is a file.
            ValueError: If `push_to_hub` is given with `state_dict` or `distributed_checkpoint`.
        """
        target = Path(save_directory)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        first = is_main_process and (not distributed or torch.distributed.get_rank() == 0)
        if push_to_hub:
            if state_dict is not None or kwargs.get("distributed_checkpoint"):
                raise ValueError(
                    "`push_to_hub` pushes the model's own weights as one checkpoint: leave `state_dict` and "
                    "`distributed_checkpoint` out, or push later."
                )
            repo_id = kwargs.pop("repo_id", target.name)
            pushing = {name: kwargs.pop(name) for name in _PUSH_ARGUMENTS if name in kwargs}
            before = self._get_files_timestamps(target) if target.is_dir() else {}
            self.save_pretrained(target, is_main_process, **kwargs)
            if first:  # if this fails, the saved model still exists
                self._push_saved(target, before, repo_id, token=kwargs.get("token"), **pushing)
            return
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(f"{target} is a file: give a folder to save the model in.")
        if self.config.model_type in FAMILIES:
            self.config.auto_map = auto_map(self.config)
            _name_pipelines(self)
            if first:
                _warn_of_users_class(self)
            if first and not getattr(self, "_hf_peft_config_loaded", False):
                check_names_are_free(checkpoint_code(self.config), target)  # saved with the configuration
        # All processes write parts of a distributed checkpoint, directly into the folder.
        if not first or kwargs.get("distributed_checkpoint"):
            super().save_pretrained(target, is_main_process, state_dict, **kwargs)
            return
        with temporary_folder(target) as folder:
            super().save_pretrained(folder, is_main_process, state_dict, **kwargs)
            _replace_checkpoint(folder, target, kwargs.get("variant"))

    def _push_saved(
        self,
        folder: Path,
        before: dict[str, float],
        repo_id: str,
        token: str | bool | None = None,
        private: bool | None = None,
        tags: list[str] | None = None,
        **commit: Any,
    ) -> None:
        """Push the files that are new or changed since `before`. Saving again would need all processes."""
        repo_id = create_repo(repo_id, private=private, token=token, exist_ok=True).repo_id
        if not (folder / "README.md").exists():
            tags = [*(self.model_tags or []), *(tags or [])] or None
            card = create_and_tag_model_card(repo_id, tags, token=token)  # type: ignore[arg-type]  # booleans as well
            card.save(folder / "README.md")
        self._upload_modified_files(folder, repo_id, before, token=token, **commit)
