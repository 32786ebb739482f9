import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tokenmixers.run_scripts.base import arguments
from tokenmixers.run_scripts.base.arguments import parse_arguments


@dataclass
class Example:
    steps: int = field()
    rate: float = 0.5
    files: list[str] | None = None
    flag: bool = False


def test_command_line_overrides_recipe_overrides_defaults(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("steps: 3\nrate: 1e-3\nfiles: [a, b]\n")
    (plain,) = parse_arguments((Example,), [str(recipe)])
    assert plain == Example(steps=3, rate=1e-3, files=["a", "b"], flag=False)
    (changed,) = parse_arguments((Example,), [str(recipe), "--steps", "7", "--flag", "--files", "c"])
    assert changed == Example(steps=7, rate=1e-3, files=["c"], flag=True)


def test_json_recipes(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"steps": 3, "flag": true}')
    assert parse_arguments((Example,), [str(recipe)]) == (Example(steps=3, flag=True),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step: 3", "unknown argument 'step'. Did you mean 'steps'?"),
        ("- 3", "must be one mapping"),
        ("steps: [", "cannot be read"),
    ],
)
def test_bad_recipes_are_explained(tmp_path, text, message):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(message)):
        parse_arguments((Example,), [str(recipe)])


def test_missing_recipe_names_the_shipped_ones():
    with pytest.raises(SystemExit, match=r"no recipe 'nothing.yaml'.*quickstart.yaml"):
        parse_arguments((Example,), ["nothing.yaml"])


def test_model_cards_are_where_scripts_look():
    assert (Path(arguments.MODEL_CARDS) / "gmlp-base" / "config.json").is_file()


def test_hints_need_no_checkout_where_the_package_is_installed(monkeypatch):
    def requires(name):
        assert name == "tokenmixers"
        return ["torch>=2.11", 'timm>=1.0; extra == "bench"', 'matplotlib>=3.9; extra == "plot"']

    monkeypatch.setattr(arguments.importlib.metadata, "requires", requires)
    assert arguments.install_hint("plot").startswith("pip install 'matplotlib>=3.9', or pip install '.[plot]' in a ")

    def not_installed(name):
        raise arguments.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(arguments.importlib.metadata, "requires", not_installed)
    assert arguments.install_hint("plot").startswith("pip install '.[plot]' in a ")


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_a_package_that_breaks_as_it_is_imported_is_named(tmp_path, monkeypatch, error):
    (tmp_path / f"broken_{error}.py").write_text(f'raise {error}("built for another torch")')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(arguments.UserError, match=f"the test needs broken_{error}, .*built for another torch.*bench"):
        arguments.import_optional(f"broken_{error}", "bench", "the test")
