import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import TrainingArguments

from tokenmixers.run_scripts import arguments
from tokenmixers.run_scripts.arguments import ModelArguments, parse_arguments, read_recipe
from tokenmixers.run_scripts.run_image_classification import ImageDataArguments
from tokenmixers.run_scripts.run_mlm import MaskingArguments
from tokenmixers.run_scripts.text_data import TextDataArguments


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


@pytest.mark.parametrize("recipe", sorted(arguments.RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_recipe_parses(recipe):
    reads_images = "run_image_classification" in recipe.read_text()
    own = (ImageDataArguments,) if reads_images else (TextDataArguments, MaskingArguments)
    types = (ModelArguments, *own, TrainingArguments)
    parsed = parse_arguments(types, [str(recipe)])
    names = [name for part in parsed for name in vars(part)]
    for key, value in read_recipe(str(recipe), names).items():
        found = next(getattr(part, key) for part in parsed if hasattr(part, key))
        found = getattr(found, "value", found)  # enumerations
        assert str(found) == str(value) or math.isclose(found, float(value)), key


def test_model_cards_are_where_scripts_look():
    assert (Path(arguments.MODEL_CARDS) / "gmlp-base" / "config.json").is_file()
