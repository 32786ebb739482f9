"""Command lines and recipe files of all commands.

A command is called as `run_x [recipe.yaml] [--name value ...]`: the recipe (YAML or JSON, one flat mapping) sets
defaults, and the command line overrides it.
"""

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from .errors import UserError
from .shipped_files import RECIPES, find_shipped


RECIPE_ENDINGS = (".yaml", ".yml", ".json")


@dataclass
class ModelArguments:
    """Which model and tokenizer to start from."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Checkpoint to start from: a folder or a Hub id."}
    )
    config_name: str | None = field(
        default=None,
        metadata={
            "help": "Configuration to train from scratch: a folder or Hub id with a config.json, or the name of "
            "a shipped model card, e.g. gmlp-base."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Changes to config_name, e.g. hidden_size=128,num_hidden_layers=6,spatial_weight_type=full. Of a "
            "checkpoint the dropout rates can be changed, e.g. hidden_dropout_prob=0.1."
        },
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer folder or Hub id; the model's own by default."}
    )
    train_tokenizer: int | None = field(
        default=None,
        metadata={"help": "Train a new cased Unigram tokenizer with this many ids on the training text."},
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of a Hub id."})
    token: str | None = field(default=None, metadata={"help": "Hub token; the stored login by default."})
    fsdp_size: int | None = field(
        default=None,
        metadata={
            "help": "Split a checkpoint's parameters over this many processes (FSDP2 by Transformers alone, on CPUs "
            "too); give --save_only_model as well."
        },
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Allow a checkpoint to run its own code on this machine."}
    )

    def hub_arguments(self) -> dict[str, Any]:
        """Keyword arguments for every `from_pretrained`."""
        return {"revision": self.model_revision, "token": self.token, "trust_remote_code": self.trust_remote_code}


#: Arguments that all set the precision: any of them on the command line replaces all of them in a recipe.
PRECISION_ARGUMENTS = ("precision", "bf16", "fp16")


def check_new_folder(path: str) -> Path:
    """Check that the folder for a command's result is new or empty.

    Raises:
        UserError: If the path exists and is not an empty folder.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"the output folder {folder} exists and is not empty: give another one, or empty it first.")
    return folder


def parse_arguments(dataclass_types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Read the command line, and the recipe that may stand first on it.

    Args:
        dataclass_types: Argument dataclasses, one instance of each is returned.
        argv: Arguments; `sys.argv[1:]` by default. A first one ending in .yaml, .yml or .json is a recipe file, looked
            for as given and then among the shipped recipes.

    Raises:
        UserError: If the recipe is missing, malformed, or has an unknown key, or if an argument is unknown or refused.
    """
    parser = HfArgumentParser(dataclass_types)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0].endswith(RECIPE_ENDINGS):
        names = [f.name for dataclass_type in dataclass_types for f in dataclasses.fields(dataclass_type) if f.init]
        recipe = read_recipe(arguments.pop(0), names)
        if any(argument.partition("=")[0].removeprefix("--") in PRECISION_ARGUMENTS for argument in arguments):
            recipe = {name: value for name, value in recipe.items() if name not in PRECISION_ARGUMENTS}
        parser.set_defaults(**recipe)
        for action in parser._actions:
            if action.dest in recipe:
                action.required = False
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(args=arguments, return_remaining_strings=True)
    except ValueError as error:  # of TrainingArguments, with a full explanation
        raise UserError(str(error)) from error
    if unknown:
        raise UserError(f"unknown arguments: {' '.join(unknown)}. See --help.")
    return tuple(parsed)


def read_recipe(path: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Read a recipe file and check its keys.

    Args:
        path: File, or name of a shipped recipe.
        allowed: Argument names that the recipe may set.

    Raises:
        UserError: If the file is missing, is not a mapping, or has a key that is not in `allowed`.
    """
    file = find_shipped(path, RECIPES, "recipe")
    try:
        recipe = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON is YAML
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe {file} cannot be read: {error}") from error
    if not isinstance(recipe, dict):
        raise UserError(f"the recipe {file} must be one mapping of argument names to values.")
    for key in recipe:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " See --help for the names."
            raise UserError(f"the recipe {file} sets an unknown argument {key!r}.{hint}")
    return recipe
