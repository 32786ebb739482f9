"""Command lines and recipe files, alike for all scripts.

A script is called as `run_x.py [recipe.yaml] [--name value ...]`: the recipe (YAML or JSON, one flat mapping) sets
defaults, and the command line overrides it.
"""

import dataclasses
import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from transformers import HfArgumentParser


RECIPES = Path(__file__).parents[1] / "recipes"
ACCELERATE = Path(__file__).parents[1] / "accelerate"
MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
RECIPE_ENDINGS = (".yaml", ".yml", ".json")

#: The scripts that train.
SCRIPTS = ("run_mlm", "run_clm", "run_span_corruption", "run_seq2seq", "run_qa", "run_glue")
SCRIPTS += ("run_token_classification", "run_image_classification")


class UserError(SystemExit):
    """A mistake in what the user gave. Scripts end with the message alone and exit status 1."""

    def __init__(self, message: str):
        super().__init__(f"error: {message}")


class BadDataError(ValueError):
    """Damaged data, found while they are read; `report_bad_data` makes a `UserError` of it.

    That is no ordinary exception, so it would end a data loader's worker without a word.
    """


@contextmanager
def report_bad_data() -> Iterator[None]:
    """Turn a `BadDataError`, also one of a worker with its traceback, into a `UserError`."""
    try:
        yield
    except BadDataError as error:
        raise UserError(str(error).rpartition("BadDataError: ")[2].strip()) from error


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


#: Three ways to say one thing: what the command line says replaces whatever a recipe says.
PRECISION_ARGUMENTS = ("precision", "bf16", "fp16")


def install_hint(extra: str) -> str:
    """How to get the packages of an extra: by their own names or from a checkout, as no package index has this one."""
    from_checkout = f"pip install '.[{extra}]' in a checkout of tokenmixers"
    try:
        requirements = importlib.metadata.requires("tokenmixers") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder
        return from_checkout
    wanted = [name.partition(";")[0].strip() for name in requirements if f'extra == "{extra}"' in name]
    return f"pip install {' '.join(map(repr, wanted))}, or {from_checkout}" if wanted else from_checkout


def import_optional(module: str, extra: str, purpose: str) -> ModuleType:
    """A package that only some uses need.

    Args:
        module: What to import.
        extra: The extra of this package that brings it.
        purpose: What needs it, for the message.

    Raises:
        UserError: If it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    # A RuntimeError is what a torchvision raises that was built for another torch.
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"{purpose} needs {module}, which cannot be imported ({error}): {install_hint(extra)}."
        ) from error


def check_new_folder(path: str) -> Path:
    """The folder for a script's result, which must be new or empty.

    Raises:
        UserError: If there is something already.
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
    except ValueError as error:  # TrainingArguments explains itself
        raise UserError(str(error)) from error
    if unknown:
        raise UserError(f"unknown arguments: {' '.join(unknown)}. See --help.")
    return tuple(parsed)


def find_shipped(path: str, folder: Path, kind: str) -> Path:
    """A YAML file, looked for as given and then among those that come with this package.

    Args:
        path: File, or name of a shipped one.
        folder: Where the shipped ones are.
        kind: What it is, for the message.

    Raises:
        UserError: If there is none.
    """
    file = Path(path) if Path(path).is_file() else folder / path
    if not file.is_file():
        shipped = ", ".join(sorted(file.name for file in folder.glob("*.yaml")))
        raise UserError(f"there is no {kind} {path!r}. Shipped {kind}s: {shipped}.")
    return file


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
