"""Command lines and recipe files of all commands.

A command is called as `run_x [recipe.yaml] [--name value ...]`. The recipe (YAML or JSON, a flat mapping) sets
defaults that the command line overrides. In `config_overrides`, each field is overridden separately.
"""

import dataclasses
import difflib
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from ...configuration.shipped_models import REPLACED, shipped_configs, shipped_model, shipped_models
from .commands import TRAINING_COMMANDS, called_command, docstring_of
from .config_overrides import merge_overrides
from .errors import UserError, refuse_arguments
from .help_text import HelpFormatter, help_text
from .output import prepare_output
from .ranges import check_ranges
from .shipped_files import RECIPES, find_shipped


RECIPE_ENDINGS = (".yaml", ".yml", ".json")


@dataclass
class ModelArguments:
    """Model and tokenizer to start from."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Checkpoint to start from: a folder, a Hub id or a shipped model, e.g. gmlp-minilm."},
    )
    config_name: str | None = field(
        default=None,
        metadata={
            "help": "Configuration to train from scratch: a folder or Hub id with a config.json, or the name of "
            "a shipped configuration, e.g. gmlp-base."
        },
    )
    model_type: str | None = field(
        default=None,
        metadata={
            "help": "Model type of Transformers, to train from scratch with its default configuration, e.g. bert, vit."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Changes to the configuration, e.g. hidden_size=128,image_size=[112,448],gate_type=additive. They "
            "are added to those of a recipe; an empty text drops the recipe's. For a checkpoint only dropout rates "
            "and classifier_pooling, e.g. hidden_dropout_prob=0.1,classifier_pooling=mean."
        },
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer folder or Hub id; the model's own by default."}
    )
    train_tokenizer: int | None = field(
        default=None,
        metadata={
            "help": "Train a new cased Unigram tokenizer with this many ids on the first 10 million training texts."
        },
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of a Hub id."})
    token: str | None = field(
        default=None,
        metadata={"help": "Hub token for loading; by default the stored login. --push_to_hub uses --hub_token."},
    )
    fsdp_size: int | None = field(
        default=None,
        metadata={
            "help": "Split a checkpoint's parameters over this many processes (Transformers' FSDP2, also on CPUs); "
            "needs --save_only_model."
        },
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Allow a checkpoint to run its own code on this machine."}
    )

    def __post_init__(self):
        check_ranges(self, ("at least 1", "train_tokenizer fsdp_size"))

    def hub_arguments(self) -> dict[str, Any]:
        """Keyword arguments for every `from_pretrained`."""
        return {"revision": self.model_revision, "token": self.token, "trust_remote_code": self.trust_remote_code}


#: Arguments that name the model, of which exactly one is given.
MODEL_SOURCES = ("model_name_or_path", "config_name", "model_type")

#: Lists that may be empty; `HfArgumentParser` asks for at least one value.
EMPTY_LISTS = ("keep_layers",)

#: Arguments that name checkpoints, which may be shipped models.
CHECKPOINTS = ("model_name_or_path", "tokenizer_name", "teacher", "model", "models", "source")

#: Groups of alternatives: an argument on the command line replaces all arguments of its group in a recipe.
ALTERNATIVES = (
    ("precision", "bf16", "fp16"),
    ("train_tokenizer", "tokenizer_name"),
    (*MODEL_SOURCES, "keep_layers"),
    ("keep_layers", "copy_token_embeddings"),
)


def check_output_folder(path: str, argument: str = "--output_dir") -> Path:
    """Check that a command can write to a folder, without creating it."""
    try:
        folder = existing = Path(path).expanduser()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            place = "is a file" if existing == folder else f"lies under {str(existing)!r}, which is a file"
            raise UserError(f"{argument} {path!r} {place}: give a folder.")
        with tempfile.TemporaryFile(dir=existing):  # unnamed if the file system allows that
            pass
    except (OSError, ValueError, RuntimeError) as error:  # the others: a null character, "~" of an unknown user
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{argument} {path!r} cannot be written: {reason}.") from error
    return folder


def check_new_folder(path: str) -> Path:
    """Check that a command's output folder is new or empty, and writable."""
    folder = check_output_folder(path)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"the output folder {folder} exists and is not empty: give another one, or empty it first.")
    return folder


#: Arguments of Transformers' example scripts, and earlier ones of Transformers and this package -> equivalent
#: arguments here. Commands may have only some of several names.
OTHER_NAMES = {
    "layer_types": ("token_mixers",),
    "text_column_name": ("text_column_names",),
    "text_column": ("text_column_names", "source_column"),
    "text_pair_column": ("text_column_names",),
    "tokens_column": ("text_column_names",),
    "label_column": ("label_column_name",),
    "tags_column": ("label_column_name",),
    "image_column": ("image_column_name",),
    "regression": ("do_regression",),
    "summary_column": ("target_column",),
    "source_lang": ("source_column",),
    "target_lang": ("target_column",),
    "val_max_target_length": ("max_target_length",),
    "validation_split_percentage": ("train_val_split",),
    "block_size": ("max_seq_length",),
    "max_seq_length": ("block_size",),
    "max_length": ("max_seq_length", "block_size"),
    "max_test_samples": ("max_predict_samples",),
    "model": ("model_name_or_path",),
    "model_name_or_path": ("model",),
    "batch_size": ("per_device_train_batch_size",),
    "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size",),
    "evaluation_strategy": ("eval_strategy",),
    "group_by_length": ("train_sampling_strategy group_by_length",),
    "adafactor": ("optim adafactor",),
    "dtype": ("precision",),
    "torch_dtype": ("precision",),
    "no_cuda": ("use_cpu",),
    "warmup_ratio": ("warmup_steps",),
    "tokenizer": ("tokenizer_name",),
    "use_auth_token": ("token",),
    "push_to_hub_model_id": ("hub_model_id",),
    "push_to_hub_token": ("hub_token",),
    "test_dir": ("validation_dir",),
}
#: Arguments without a replacement -> reason.
REMOVED = {
    "overwrite_output_dir": "nothing is overwritten: give a new --output_dir, or remove the old folder",
    "overwrite_cache": "data that change are prepared again",
    "cache_dir": "set the environment variable HF_HOME",
    "use_fast_tokenizer": "tokenizers are fast ones wherever there is one",
    "pad_to_max_length": "batches are padded to their longest row",
    "save_safetensors": "weights are always saved as safetensors",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "fp16_opt_level": "precision has one level",
    "fp16_backend": "precision has one backend",
    "ignore_mismatched_sizes": "a head of another size is always made anew for training",
    "low_cpu_mem_usage": "that is always so",
}


def _hint(argument: str, known: Iterable[str]) -> str:
    """A hint for an unknown argument: its name here, or why it is missing; empty if no argument is similar.

    Args:
        argument: As given, with or without `--` and a value.
        known: Names of the existing arguments.
    """
    name, known = argument.removeprefix("--").partition("=")[0].replace("-", "_"), [*known]
    if name in REMOVED:
        return f" --{name} does not exist: {REMOVED[name]}."
    others = [other for other in OTHER_NAMES.get(name, ()) if other.split()[0] in known]
    others = others or difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f" For --{name}, did you mean {' or '.join(f'--{other}' for other in others)}?" if others else ""


def parse_arguments(
    dataclass_types: Sequence[type],
    argv: Sequence[str] | None = None,
    usage: str = "[recipe.yaml] [arguments]",
    epilog: str | None = None,
) -> tuple[Any, ...]:
    """Parse the command line and the recipe that may be its first argument.

    Args:
        dataclass_types: Argument dataclasses; one instance of each is returned.
        argv: Arguments; `sys.argv[1:]` by default. A first argument ending in .yaml, .yml or .json is a recipe: a
            file, or the name of a shipped recipe.
        usage: Text after the command's name in `--help`, which also shows the docstring of the command's module.
        epilog: The end of `--help`.
    """
    prepare_output()  # here for `python -m`, which does not run `__main__.py`
    command = called_command()
    parser = HfArgumentParser(
        dataclass_types,
        allow_abbrev=False,
        description=None if command is None else docstring_of(command),
        epilog=epilog,
        formatter_class=HelpFormatter,
        usage=f"%(prog)s {usage}",
    )
    parser.error = refuse_arguments
    for action in parser._actions:
        action.nargs = "*" if action.dest in EMPTY_LISTS else action.nargs
    arguments = list(sys.argv[1:] if argv is None else argv)
    if command in TRAINING_COMMANDS and {"--help", "-h", "--help_all"} & {*arguments}:
        print(help_text(command, parser._actions if "--help_all" in arguments else ()))
        raise SystemExit(0)
    recipe = {}
    if arguments and arguments[0].endswith(RECIPE_ENDINGS):
        names = [f.name for dataclass_type in dataclass_types for f in dataclasses.fields(dataclass_type) if f.init]
        recipe = read_recipe(arguments.pop(0), names)
        given = {argument.partition("=")[0].removeprefix("--").replace("-", "_") for argument in arguments}
        replaced = {name for group in ALTERNATIVES if given & {*group} for name in group}
        recipe = {name: value for name, value in recipe.items() if name not in replaced}
    overrides = recipe.pop("config_overrides", None)
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            args=[*_as_arguments(recipe, parser), *arguments], return_remaining_strings=True
        )
    except (ValueError, TypeError, OSError, ImportError) as error:  # raised by TrainingArguments
        raise UserError(str(error)) from error
    if unknown:
        known = [action.dest for action in parser._actions]
        hints = "".join(_hint(name, known) for name in unknown if name.startswith("--"))
        raise UserError(f"unknown arguments: {' '.join(unknown)}.{hints or ' See --help.'}")
    for given in parsed:
        if hasattr(given, "config_overrides"):
            given.config_overrides = merge_overrides(overrides, given.config_overrides)
        for name in CHECKPOINTS:
            if (value := getattr(given, name, None)) is not None:
                setattr(given, name, list(map(_folder_of, value)) if isinstance(value, list) else _folder_of(value))
    return tuple(parsed)


def _folder_of(checkpoint: str) -> str:
    """The folder of a shipped model, unless a local folder has this name; other names are returned unchanged."""
    check_spelling(checkpoint)
    return checkpoint if checkpoint not in shipped_models() or Path(checkpoint).exists() else shipped_model(checkpoint)


def check_spelling(name: str) -> None:
    """Reject an earlier name, and one that is almost that of a model or configuration, before the Hub is asked."""
    if name in REPLACED and not Path(name).exists():
        raise UserError(f"{name!r} is not in this package any more: {REPLACED[name]!r} took its place.")
    near = difflib.get_close_matches(name, shipped_configs(), n=3, cutoff=0.75)
    if near and name not in near and "/" not in name and not Path(name).exists():
        raise UserError(f"there is no {name!r}. Did you mean {' or '.join(map(repr, near))}, which this package has?")


def _as_arguments(recipe: dict[str, Any], parser: HfArgumentParser) -> list[str]:
    """Convert a recipe to command line arguments, whose values are then checked; `null` keeps the default."""
    arguments = []
    for name, value in recipe.items():
        if isinstance(value, list):
            if parser._option_string_actions[f"--{name}"].nargs not in ("+", "*"):
                raise UserError(f"the recipe sets {name} to the list {value}: it takes one value.")
            arguments += [f"--{name}", *map(str, value)]
        elif value is not None:
            arguments.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return arguments


def read_recipe(path: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Read a recipe file and check its keys."""
    file = find_shipped(path, RECIPES, "recipe")
    try:
        recipe = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON is YAML
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe {file} cannot be read: {error}") from error
    if not isinstance(recipe, dict):
        raise UserError(f"the recipe {file} must be one mapping of argument names to values.")
    if "layer_types" in recipe and "token_mixers" in allowed:  # its name in older recipes
        recipe["token_mixers"] = recipe.pop("layer_types")
    for key in recipe:
        if key not in allowed:
            hint = _hint(str(key), allowed) or " See --help for the names."
            raise UserError(f"the recipe {file} sets an unknown argument {key!r}.{hint}")
    return recipe
