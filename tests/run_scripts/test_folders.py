"""`run_scripts/` holds commands, its folders hold libraries, and modules import downwards only."""

import ast
import functools
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tokenmixers import run_scripts


FOLDER = Path(run_scripts.__file__).parent
PACKAGE = ("tokenmixers", "run_scripts")

#: Folder -> the folders whose modules it may import.
BELOW = {
    "base": set(),
    "data": {"base"},
    "metrics": {"base"},
    "demos": {"base", "data", "exports"},
    "small_data": {"base"},
    "training": {"base", "data", "metrics"},
    "exports": {"base", "training"},
    "benchmarks": {"base", "data", "metrics", "training", "exports", "small_data"},
    "embeddings": {"base", "data", "metrics", "training", "exports", "benchmarks"},
    "studies": {"base", "data", "metrics", "training", "benchmarks", "embeddings"},
}


def sources() -> dict[tuple[str, ...], ast.Module]:
    """The syntax trees of all modules, by their path in `run_scripts` without the ending."""
    files = sorted(FOLDER.rglob("*.py"))
    return {file.relative_to(FOLDER).with_suffix("").parts: ast.parse(file.read_text("utf-8")) for file in files}


SOURCES = sources()
COMMANDS = [name for name in SOURCES if len(name) == 1 and name[0] not in ("__init__", "__main__")]


@functools.cache
def imported(name: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The modules of `run_scripts` that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = (*PACKAGE, *name)[: -node.level] if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            found |= {module, *((*module, alias.name) for alias in node.names)}
    return {module[2:] for module in found if module[:2] == PACKAGE and module[2:] in SOURCES}


def test_imports_are_found():
    assert ("base", "errors") in imported(("data", "loading"))
    assert ("training", "hyperparameter_grid") in imported(("run_glue",))
    assert imported(("base", "errors")) == set()


def test_every_folder_with_modules_is_known():
    assert {name[0] for name in SOURCES if len(name) > 1} == BELOW.keys()
    assert all(len(name) <= 2 for name in SOURCES)


@pytest.mark.parametrize("name", COMMANDS, ids=".".join)
def test_commands_can_be_run_and_are_imported_by_nobody(name):
    tree = SOURCES[name]
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    main()"
    description = ast.get_docstring(tree).split("\n")[0]
    assert description[0].isupper() and description.endswith(".")
    assert 20 < len(description) <= 90  # it has to fit into a line of `tokenmixers --help`
    assert [other for other in SOURCES if name in imported(other)] == []


@pytest.mark.parametrize("folder", BELOW)
def test_folders_import_downwards_only(folder):
    for name in (name for name in SOURCES if name[0] == folder):
        reached = {module[0] for module in imported(name)}
        assert reached <= {folder, *BELOW[folder]}, name


def test_no_module_imports_itself_by_way_of_others():
    order = list(TopologicalSorter({name: imported(name) for name in SOURCES}).static_order())  # raises CycleError
    assert set(order) == set(SOURCES)


def test_loaders_of_texts_and_of_images_do_not_meet():
    texts = {
        ("data", name) for name in ("text_corpus", "text_stream", "text_pairs", "packing", "collators", "masking")
    }
    images = {("data", name) for name in ("images", "image_augmentation")}
    assert texts | images <= SOURCES.keys()
    assert not any(imported(name) & images for name in texts)
    assert not any(imported(name) & texts for name in images)
