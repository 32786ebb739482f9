"""The code of a checkpoint: one file for the configuration and one for the models, generated from this package.

The modules of a family are concatenated, dependencies first. Definitions that the checkpoint does not use and sections
of docstrings are left out. Names must be unique across these modules, and relative imports must import names from a
module (not `from . import module`).
"""

import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Iterator, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from .auto_classes import FAMILIES


GENERATED = "# Part of tokenmixers"
"""The first words of every code file in a checkpoint."""

_PACKAGE = Path(__file__).parents[1]

PIPELINE_FILE = _PACKAGE / "modeling" / "pipelines" / "question_answering.py"
"""The pipeline that question answering checkpoints include."""

_REPLACED_IN_CHECKPOINTS = {
    "package_features.py": "checkpoint_features.py",
    "self_contained.py": "self_contained_in_checkpoints.py",
}
_NOT_EXECUTED = """

if TYPE_CHECKING:  # not executed: it makes Transformers copy that file as well, which config.json names
    from .{module} import {name}
"""
_LINE_LENGTH = 119
_INDENTED: dict[str, Any] = {"initial_indent": " " * 4, "subsequent_indent": " " * 4}
_IMAGES = {"AutoModelForImageClassification", "AutoBackbone"}
_DECODERS = {"AutoModelForCausalLM"}
_TEXT_TO_TEXT = {"AutoModelForSeq2SeqLM"}
_CONSTANTS = r"(?m)^([^ #@].*)\n\n\n(?=\w+(:.*)? = )"  # one after another
_SECTIONS = re.compile(r"\n\n *(Args|Attributes|Returns|Raises|Shapes|Example):\n.*", re.DOTALL)
"""Sections of a docstring, which only the package keeps."""


def auto_map(config: PreTrainedConfig) -> dict[str, str]:
    """Where Transformers finds the classes of a checkpoint.

    Args:
        config: Configuration of one of the `FAMILIES`.

    Returns:
        Auto class name -> `"<module>.<class>"`, for the configuration and the heads that fit it: those for images,
        text to text, decoders or encoders.
    """
    family, model_type = FAMILIES[config.model_type], config.model_type
    heads: Set[str] = family.models.keys() - _IMAGES - _DECODERS - _TEXT_TO_TEXT
    if config.image_size is not None:
        heads = _IMAGES
    elif config.is_encoder_decoder:
        heads = _TEXT_TO_TEXT
    elif config.is_decoder:
        heads = _DECODERS
    return {
        "AutoConfig": f"configuration_{model_type}.{family.config}",
        **{
            auto: f"modeling_{model_type}.{name}"
            for auto, name in family.models.items()
            if auto in heads or auto == "AutoModel"
        },
    }


def checkpoint_code(config: PreTrainedConfig) -> dict[str, str]:
    """The files that define a checkpoint's classes.

    Args:
        config: Configuration of one of the `FAMILIES`. If its `custom_pipelines` name a question answering pipeline,
            that pipeline's file is included.

    Returns:
        File name -> source code, which imports only PyTorch, Transformers, their dependencies and these files.

    Raises:
        ValueError: If two modules of the package define the same name, or a module has statements besides definitions.
    """
    names = frozenset(entry.rpartition(".")[2] for entry in auto_map(config).values())
    return dict(_code(config.model_type, names, "question-answering" in getattr(config, "custom_pipelines", {})))


def named_code(config: PreTrainedConfig) -> dict[str, str]:
    """`checkpoint_code(config)` if the configuration's `auto_map` names one of its files, else an empty dictionary.

    Configurations that do not come from a saved model have no `auto_map`; others may name code in another repository.
    """
    if config.model_type not in FAMILIES:
        return {}
    entries = (getattr(config, "auto_map", None) or {}).values()
    modules = {f"{entry.partition('.')[0]}.py" for entry in entries if isinstance(entry, str)}
    code = checkpoint_code(config)
    return code if modules & code.keys() else {}


@lru_cache
def _code(model_type: str, names: frozenset[str], answers_questions: bool) -> dict[str, str]:
    models = _Bundle(_PACKAGE / "modeling" / f"modeling_{model_type}.py", names)
    used = names | models.used | {"TYPE_CHECKING"}
    configurations = _Bundle(_PACKAGE / "configuration" / f"configuration_{model_type}.py", used)
    outside = sorted(models.used & configurations.defined)
    source = models.source(f"from .configuration_{model_type} import {', '.join(outside)}\n")
    model = FAMILIES[model_type].models["AutoModel"]
    configuration = configurations.source() + _NOT_EXECUTED.format(module=f"modeling_{model_type}", name=model)
    files = {f"configuration_{model_type}.py": configuration}
    if answers_questions:
        source += _NOT_EXECUTED.format(module="question_answering", name="QuestionAnsweringPipeline")
        files[PIPELINE_FILE.name] = _header(PIPELINE_FILE) + PIPELINE_FILE.read_text(encoding="utf-8")
    return {**files, f"modeling_{model_type}.py": source}


def _header(path: Path, remark: str = "") -> str:
    version = importlib.import_module(__name__.rpartition(".configuration.")[0]).__version__
    return (
        f"{GENERATED} {version}, generated from {path.relative_to(_PACKAGE).as_posix()}{remark}.\n"
        "# Licensed under the Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).\n\n"
    )


class _Piece(NamedTuple):
    """A top-level statement of a module, with the names it defines and the names it uses."""

    source: str
    defines: set[str]
    uses: set[str]


class _Bundle:
    """A module and the modules it imports from its top folder, reduced to the definitions that `names` need.

    Attributes:
        used: Names that the remaining definitions use.
        defined: Names that they define.
    """

    def __init__(self, path: Path, names: Set[str]):
        self.modules: dict[Path, list[_Piece]] = {}
        self.imports: dict[str, tuple[str, str]] = {}  # name -> its module, and its name there
        self._add(path)
        pieces = [piece for module in self.modules.values() for piece in module]
        of_name: dict[str, _Piece] = {}
        for piece in pieces:
            for name in piece.defines:
                if name in of_name or name in self.imports:
                    raise ValueError(f"{path.name} and the modules it imports define {name!r} more than once.")
                of_name[name] = piece
        self.used: set[str] = set()
        pending = [*names]
        while pending:
            name = pending.pop()
            if name not in self.used:
                self.used.add(name)
                pending += of_name[name].uses if name in of_name else ()
        self.defined = self.used & of_name.keys()

    def _add(self, path: Path) -> None:
        """Add a module after the modules of the same top folder that it imports."""
        path = path.with_name(_REPLACED_IN_CHECKPOINTS.get(path.name, path.name))
        if path in self.modules:
            return
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level:
                imported = path.parents[node.level - 1].joinpath(*(node.module or "").split(".")).with_suffix(".py")
                if _top_folder(imported) == _top_folder(path):
                    self._add(imported)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                for alias in node.names:
                    self.imports.setdefault(alias.asname or alias.name, (module, alias.name))
        self.modules[path] = list(_pieces(text, tree))

    def source(self, own_imports: str = "") -> str:
        """The file's text, with `own_imports` after the others."""
        parts = []
        for path, pieces in self.modules.items():
            kept = [piece.source for piece in pieces if piece.defines & self.used]
            if kept:
                title = f"# --- {path.relative_to(_PACKAGE).as_posix()}\n" if len(self.modules) > 1 else ""
                parts.append(title + re.sub(_CONSTANTS, r"\1\n", "\n\n\n".join(kept)))
        imports = self._import_lines() + (f"\n{own_imports}" if own_imports else "")
        header = _header(next(reversed(self.modules)), "; not used where that package is imported")
        return header + imports + "\n\n" + "\n\n\n".join(parts) + "\n"

    def _import_lines(self) -> str:
        statements: dict[str, list[str]] = {}
        plain = []
        for name in sorted(self.imports.keys() & self.used):
            module, original = self.imports[name]
            text = original if original == name else f"{original} as {name}"
            if module:
                statements.setdefault(module, []).append(text)
            else:
                plain.append(f"import {text}")
        lines = [(text.split()[1], text) for text in plain]
        for module, names in statements.items():
            line = f"from {module} import {', '.join(names)}"
            if len(line) > _LINE_LENGTH:
                line = f"from {module} import (\n{textwrap.fill(', '.join(names), _LINE_LENGTH, **_INDENTED)},\n)"
            lines.append((module, line))
        groups: list[list[str]] = [[], []]
        for module, line in sorted(lines):
            groups[module.partition(".")[0] not in sys.stdlib_module_names].append(line)
        return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _top_folder(path: Path) -> str:
    return path.relative_to(_PACKAGE).parts[0]


def _pieces(text: str, tree: ast.Module) -> Iterator[_Piece]:
    """The definitions of a module in order, each with the comments above it."""
    lines = text.split("\n")
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node, following in zip(body, [*body[1:], None], strict=True):
        defines = _defined(node)
        if not defines and not isinstance(node, ast.Expr) and not _is_for_type_checkers(node):
            raise ValueError(f"Line {node.lineno} is not a definition and would be lost: {ast.unparse(node)[:80]!r}.")
        if not defines or "__all__" in defines:
            continue
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        end = node.end_lineno or node.lineno
        if isinstance(following, ast.Expr) and not isinstance(node, ast.ClassDef | ast.FunctionDef):
            end = following.end_lineno or end  # the documentation of a constant
        used = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
        # Forward references are strings.
        strings = [item.value for item in ast.walk(node) if isinstance(item, ast.Constant)]
        used |= {value for value in strings if isinstance(value, str) and re.fullmatch(r"\w+", value)}
        yield _Piece("\n".join(_without_sections(node, lines, first, end)), defines, used)


def _without_sections(node: ast.AST, lines: list[str], first: int, end: int) -> list[str]:
    """Lines `first` to `end`, with docstrings of functions and classes cut before their first section."""
    kept = dict(enumerate(lines[first:end], first))
    for definition in ast.walk(node):
        if not isinstance(definition, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(definition) is None:
            continue
        text = definition.body[0]
        start, stop = text.lineno - 1, text.end_lineno or text.lineno
        found = _SECTIONS.search("\n".join(lines[start:stop]))
        if found:
            rest = start + found.string[: found.start()].count("\n") + 1
            if rest == start + 1:
                kept[start] += '"""'
            else:
                kept[rest] = " " * text.col_offset + '"""'
                rest += 1
            for line in range(rest, stop):
                del kept[line]
    return list(kept.values())


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _defined(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.If):
        return set().union(*(_defined(item) for item in [*node.body, *node.orelse]))
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return set()
