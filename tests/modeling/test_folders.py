"""The folders of `modeling/` import downwards only, and the papers' equations know nothing of processors."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

import tokenmixers


MODELING = Path(tokenmixers.__file__).parent / "modeling"
# Folders import from themselves and from those on their left; "." stands for the modules beside the folders.
ORDER = ["pipelines", "inputs", "layers", "heads", "mixins", "kernels", ".", "conversion"]
MODULES = sorted(path.relative_to(MODELING) for path in MODELING.rglob("*.py") if path.name != "__init__.py")


def imports(module: Path) -> list[tuple[str, list[str]]]:
    """Absolute name of each module that is imported, and the names taken from it; `modeling.` for our own."""
    found = []
    for node in ast.walk(ast.parse((MODELING / module).read_text())):
        if isinstance(node, ast.ImportFrom):
            above = ["modeling", *module.parts[:-1]]
            parts = [] if not node.level else above[: len(above) - node.level + 1] if node.level <= len(above) else []
            found.append((".".join([*parts, node.module or ""]), [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return found


def own_imports(module: Path) -> list[Path]:
    names = [name.split(".")[1:] for name, _ in imports(module) if name.startswith("modeling.")]
    return [Path(*name).with_suffix(".py") for name in names]


def folder(module: Path) -> str:
    return module.parent.as_posix()


def test_the_walk_sees_imports():
    assert Path("inputs/token_layout.py") in own_imports(Path("modeling_gmlp.py"))
    assert Path("inputs/caches.py") in own_imports(Path("inputs/token_layout.py"))
    assert ("transformers.activations", ["ACT2FN"]) in imports(Path("modeling_gmlp.py"))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_downwards(module):
    for target in own_imports(module):
        assert (MODELING / target).is_file()
        assert ORDER.index(folder(target)) <= ORDER.index(folder(module)), f"{module} imports {target}"


def test_there_are_no_cycles():
    graph = {module: own_imports(module) for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())
    folders = {folder(module): {folder(target) for target in own_imports(module)} for module in MODULES}
    list(graphlib.TopologicalSorter({name: below - {name} for name, below in folders.items()}).static_order())


@pytest.mark.parametrize("module", [module for module in MODULES if folder(module) == "layers"], ids=str)
def test_layers_are_equations_in_plain_torch(module):
    assert {folder(target) for target in own_imports(module)} <= {"layers", "inputs"}
    for name, names in imports(module):
        if name.split(".")[0] == "transformers":
            assert name == "transformers.activations" or names == ["PreTrainedConfig"]
    text = (MODELING / module).read_text()
    assert not re.search(
        r"mkldnn|onednn|mkl\b|\bAMD\b|\bIntel\b|avx|processor|is_(exporting|compiling|tracing)", text, re.IGNORECASE
    )
