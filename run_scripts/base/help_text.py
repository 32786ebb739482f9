"""`--help` of the training commands, read from their source, because importing them takes much longer.

The text shows the arguments that this package adds, grouped by dataclass. `--help_all` also shows the many arguments
of Transformers' Trainer.
"""

import argparse
import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .commands import docstring_of, file_of


#: File and dataclass of the arguments that all training commands share; the Trainer's arguments follow them.
SHARED = (
    ("training/hyperparameter_grid.py", "GridArguments"),
    ("base/arguments.py", "ModelArguments"),
)

EPILOG = """\
The command also accepts all arguments of Transformers' Trainer, e.g. --output_dir, --do_train, --do_eval,
--do_predict, --num_train_epochs, --max_steps, --per_device_train_batch_size, --learning_rate, --warmup_steps, --seed,
--eval_strategy, --save_strategy and --push_to_hub. Use --help_all to show them.
"""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formats `--help`: shows defaults and keeps the line breaks of docstrings."""


def help_text(command: str, others: Iterable[argparse.Action] = ()) -> str:
    """The text of `--help`."""
    others, shown = list(others), set()
    parser = argparse.ArgumentParser(
        prog=f"tokenmixers {command}",
        usage="%(prog)s [recipe.yaml] [arguments]",
        description=docstring_of(command),
        epilog=None if others else EPILOG,
        formatter_class=HelpFormatter,
        add_help=False,
    )
    for path, name in argument_classes(command):
        group = parser.add_argument_group(_title(path, name))
        for field in fields_of(path, name):
            shown.add(field["dest"])
            group.add_argument(f"--{field.pop('dest')}", **field)
    group = parser.add_argument_group("Transformers' TrainingArguments")
    for action in others:
        if action.dest not in shown and action.dest != "help":
            shown.add(action.dest)
            default = argparse.SUPPRESS if action.default is None else action.default
            group.add_argument(f"--{action.dest}", default=default, help=action.help, metavar="VALUE")
    return parser.format_help()


def argument_classes(command: str) -> list[tuple[Path, str]]:
    """The argument dataclasses of a training command, as file and name: its own, then those of all commands."""
    root, file = file_of("run_mlm").parent, file_of(command)
    task = next(node for node in _module(file).body if isinstance(node, ast.ClassDef) and _value(node, "arguments"))
    own = [_find(file, name.id) for name in _value(task, "arguments").elts]
    shared = [(root / path, name) for path, name in SHARED]
    return [*own, *shared, _inherited(file, task, "training_arguments")]


def fields_of(path: Path, name: str) -> list[dict[str, Any]]:
    """The fields of an argument dataclass as arguments of `add_argument`; bases in this package come first."""
    node, found = _class(path, name), {}
    for base in reversed(node.bases):  # the first of several counts
        place = _find(path, base.id)
        if place is not None:
            found |= {field["dest"]: field for field in fields_of(*place)}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation) and item.value:
            found[item.target.id] = _field(path, item)
    return list(found.values())


def _field(path: Path, item: ast.AnnAssign) -> dict[str, Any]:
    kind, value = ast.unparse(item.annotation), item.value
    options = {word.arg: word.value for word in value.keywords} if isinstance(value, ast.Call) else {"default": value}
    metadata = options.get("metadata")
    parts = dict(zip(map(ast.literal_eval, metadata.keys), metadata.values, strict=True)) if metadata else {}
    default = options.get("default", getattr(options.get("default_factory"), "body", ast.Constant(None)))
    default = ast.literal_eval(default)
    return {
        "dest": item.target.id,
        "help": _constant(path, parts["help"]).replace("%", "%%") if "help" in parts else None,
        "default": argparse.SUPPRESS if default in (None, []) else default,
        "metavar": _metavar(kind),
        "nargs": "+" if kind.startswith("list") else None,
    }


def _metavar(kind: str) -> str:
    if "Literal[" in kind:
        names = ast.literal_eval(kind.partition("Literal[")[2].partition("]")[0] + ",")
        return f"{{{','.join(names)}}}"
    words = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "bool": "BOOL"}
    return next((word for name, word in words.items() if name in kind), "VALUE")


def _constant(path: Path, node: ast.expr) -> str:
    """A string, or the value of the constant with this name."""
    while isinstance(node, ast.Name):
        path, name = _find(path, node.id)
        node = next(_assigned(_module(path).body, name))
    return ast.literal_eval(node)


def _title(path: Path, name: str) -> str:
    """The first line of a dataclass's docstring."""
    return (ast.get_docstring(_class(path, name)) or name).partition("\n")[0].rstrip(".")


def _inherited(path: Path, node: ast.ClassDef, name: str) -> tuple[Path, str]:
    """Where the class is defined that is an attribute of a class or its bases."""
    value = _value(node, name)
    if value is not None:
        return _find(path, value.id)
    places = [_find(path, base.id) for base in node.bases]
    return next(_inherited(place, _class(place, base), name) for place, base in filter(None, places))


def _value(node: ast.ClassDef, name: str) -> Any:
    return next(_assigned(node.body, name), None)


def _assigned(body: Iterable[ast.stmt], name: str) -> Iterator[ast.expr]:
    for item in body:
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and item.value:
            yield item.value


def _class(path: Path, name: str) -> ast.ClassDef:
    return next(node for node in _module(path).body if isinstance(node, ast.ClassDef) and node.name == name)


def _find(path: Path, name: str) -> tuple[Path, str] | None:
    """The file that defines a module's name, and the name; `None` if it is not from this package."""
    for node in _module(path).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            if not node.level:
                return None
            folder = path.parents[node.level - 1]
            return _find(folder.joinpath(*(node.module or "").split(".")).with_suffix(".py"), name)
    return path, name


@cache
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
