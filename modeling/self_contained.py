"""Checkpoints that load with nothing but Transformers.

Every saved model carries the modules that define it, as flat files that `trust_remote_code=True` can follow, and the
map from each Auto class to them; models for question answering name their pipeline too. Where this package is
imported, its own model classes are used, and these files are not executed.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import torch

from ..configuration.auto_classes import FAMILIES
from .task_heads import QuestionAnsweringHead


_RELATIVE_IMPORT = re.compile(r"^([ \t]*)from (\.+)((?:\w+\.)*)(\w+) import", re.MULTILINE)
_TRAINER_CHECKPOINT = re.compile(r"checkpoint-\d+")
_HEADER = "# Part of tokenmixers"
_PUSH_ARGUMENTS = ("commit_message", "commit_description", "private", "revision", "create_pr", "tags")


def auto_map(model_type: str) -> dict[str, str]:
    """Where Transformers finds the classes of a family in a checkpoint.

    Args:
        model_type: A key of `FAMILIES`.

    Returns:
        Auto class name -> `"<module>.<class>"`, for the configuration and every kind of model.
    """
    family = FAMILIES[model_type]
    return {
        "AutoConfig": f"configuration_{model_type}.{family.config}",
        **{auto_class: f"modeling_{model_type}.{name}" for auto_class, name in family.models.items()},
    }


def flat_modules(model_type: str) -> dict[str, str]:
    """The modules that define a family, to stand beside each other in one folder.

    Args:
        model_type: A key of `FAMILIES`.

    Returns:
        File name -> source, as in this package but for a header and for the relative imports, which all become
        `from .module import ...`. In a checkpoint's own copy of this module: that checkpoint's files, unchanged.
    """
    modules: dict[str, str] = {}
    pending = [Path(__file__).with_name(f"modeling_{model_type}.py")]
    while pending:
        path = pending.pop()
        if path.name in modules:
            continue
        source = path.read_text(encoding="utf-8")
        for _, dots, folders, name in _RELATIVE_IMPORT.findall(source):
            folder = path.parents[len(dots) - 1].joinpath(*folders.split(".")[:-1])
            pending.append(folder / f"{name}.py")
        if not source.startswith(_HEADER):
            version = sys.modules[__name__.partition(".")[0]].__version__
            source = (
                f"{_HEADER} {version}, generated from its {path.parent.name}/{path.name}; not used where that package "
                "is imported.\n# Licensed under the Apache License, Version 2.0 "
                "(https://www.apache.org/licenses/LICENSE-2.0).\n\n"
            ) + _RELATIVE_IMPORT.sub(r"\1from .\4 import", source)
        modules[path.name] = source
    return dict(sorted(modules.items()))


def _name_pipelines(model: torch.nn.Module) -> None:
    """Set what the configuration says about pipelines: Transformers itself can no longer answer questions."""
    entries = dict(getattr(model.config, "custom_pipelines", {}))
    entries.pop("question-answering", None)  # of the model with another head that this one was made from
    if isinstance(model, QuestionAnsweringHead):
        # Imported here because it imports Transformers' pipelines; it is among the `flat_modules` all the same.
        from .question_answering import QuestionAnsweringPipeline

        impl = f"question_answering.{QuestionAnsweringPipeline.__name__}"
        entries["question-answering"] = {"impl": impl, "pt": ["AutoModelForQuestionAnswering"]}
    if entries:
        model.config.custom_pipelines = entries
    elif hasattr(model.config, "custom_pipelines"):
        del model.config.custom_pipelines


def _replace_checkpoint(complete: Path, target: Path, variant: str | None) -> None:
    """Move a complete checkpoint over what is in `target`, which at no moment loads as a mixture of the two."""
    new = {path.name for path in complete.iterdir()}
    suffix = "" if variant is None else rf"\.{re.escape(variant)}"
    weights = re.compile(rf"model{suffix}(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index{suffix}\.json")
    # Without a configuration nothing loads: it goes first and comes last.
    configurations = [name for name in ("config.json", "adapter_config.json") if name in new]
    stale = ["generation_config.json"] if "config.json" in new else []
    if "config.json" in new and "adapter_config.json" not in new:  # an adapter left beside would be applied again
        stale += ["adapter_config.json", "adapter_model.safetensors"]
    for name in [*configurations, *stale]:
        (target / name).unlink(missing_ok=True)
    if any(weights.fullmatch(name) for name in new):
        for path in target.iterdir():
            if weights.fullmatch(path.name) and path.name not in new:
                path.unlink()
    for name in [*sorted(new.difference(configurations)), *configurations]:
        os.replace(complete / name, target / name)


class SelfContained:
    """Mixin, to stand before `PreTrainedModel`, whose `save_pretrained` and `push_to_hub` write complete checkpoints.

    The files are first written to the folder `.incomplete` inside the target and then moved, `config.json` last, so
    that an interrupted save leaves what was there before, or a folder that does not load.
    """

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict | None = None,
        push_to_hub: bool = False,
        **kwargs,
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, whose arguments it takes, together with the model's code.

        Args:
            save_directory: Folder, made if it does not exist. Files of another checkpoint in it are replaced.
            is_main_process: Whether this process is the one that writes.
            state_dict: Tensors to save instead of the model's own.
            push_to_hub: Whether to push to the Hub after saving, to `repo_id` or the folder's name.
            **kwargs: Further arguments of `PreTrainedModel.save_pretrained`, such as `max_shard_size`.

        Raises:
            NotADirectoryError: If `save_directory` is a file.
            ValueError: If both `state_dict` and `push_to_hub` are given.
        """
        target = Path(save_directory)
        if push_to_hub:
            if state_dict is not None:
                raise ValueError(
                    "`push_to_hub` pushes the model's own weights: leave `state_dict` out, or push later."
                )
            repo_id = kwargs.pop("repo_id", target.name)
            pushing = {name: kwargs.pop(name) for name in _PUSH_ARGUMENTS if name in kwargs}
            shared = {name: kwargs[name] for name in ("token", "max_shard_size") if name in kwargs}
            self.save_pretrained(target, is_main_process, **kwargs)
            if is_main_process:  # a lost connection leaves what was saved
                self.push_to_hub(repo_id, **pushing, **shared)
            return
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(f"{target} is a file: give a folder to save the model in.")
        family = self.config.model_type if self.config.model_type in FAMILIES else None
        if family is not None:
            self.config.auto_map = auto_map(family)
            _name_pipelines(self)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        first = is_main_process and (not distributed or torch.distributed.get_rank() == 0)
        # The parts of a distributed checkpoint are written by all processes, straight into the folder.
        if not first or kwargs.get("distributed_checkpoint"):
            super().save_pretrained(target, is_main_process, state_dict, **kwargs)
            return
        incomplete = target / ".incomplete"
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(parents=True)
        try:
            if family is not None and not getattr(self, "_hf_peft_config_loaded", False):
                for name, source in flat_modules(family).items():
                    (incomplete / name).write_text(source, encoding="utf-8")
            super().save_pretrained(incomplete, is_main_process, state_dict, **kwargs)
            code = {path.name: path.read_bytes() for path in incomplete.glob("*.py")}
            _replace_checkpoint(incomplete, target, kwargs.get("variant"))
        finally:
            shutil.rmtree(incomplete, ignore_errors=True)
        if _TRAINER_CHECKPOINT.fullmatch(target.name):
            # A Trainer with push_to_hub sends weights and configuration from the folder above, but no code of its own.
            for name, source in code.items():
                present = target.parent / name
                if not present.exists() or present.read_bytes().startswith(_HEADER.encode()):
                    present.write_bytes(source)
