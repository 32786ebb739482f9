import re
from dataclasses import dataclass, field

import pytest

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
