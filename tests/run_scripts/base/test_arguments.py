import re
from dataclasses import dataclass, field

import pytest
import yaml

from tokenmixers.run_scripts.base.arguments import ModelArguments, check_output_folder, parse_arguments, read_recipe
from tokenmixers.run_scripts.base.config_overrides import merge_overrides, parse_overrides
from tokenmixers.run_scripts.base.shipped_files import RECIPES
from tokenmixers.run_scripts.training.model_loading import load_config


@dataclass
class Example:
    steps: int = field()
    rate: float = 0.5
    files: list[str] | None = None
    flag: bool = False


@pytest.fixture
def recipe(tmp_path):
    """`recipe(text)`: the name of a recipe."""

    def write(text: str) -> str:
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        return str(file)

    return write


def test_command_line_overrides_recipe_overrides_defaults(recipe):
    file = recipe("steps: 3\nrate: 1e-3\nfiles: [a, b]\n")
    (plain,) = parse_arguments((Example,), [file])
    assert plain == Example(steps=3, rate=1e-3, files=["a", "b"], flag=False)
    (changed,) = parse_arguments((Example,), [file, "--steps", "7", "--flag", "--files", "c"])
    assert changed == Example(steps=7, rate=1e-3, files=["c"], flag=True)


def test_a_tokenizer_of_the_command_line_replaces_a_recipes(recipe):
    """Whether it is loaded or trained."""
    for written, given in (("train_tokenizer: 99", "tokenizer_name"), ("tokenizer_name: mine", "train_tokenizer")):
        file = recipe(f"config_name: gmlp-base\n{written}\n")
        (arguments,) = parse_arguments((ModelArguments,), [file, f"--{given}=7"])
        assert (str(getattr(arguments, given)), arguments.config_name) == ("7", "gmlp-base")
        assert getattr(arguments, written.partition(":")[0]) is None


def test_an_older_recipe_names_token_mixers_otherwise(tmp_path):
    (tmp_path / "old.json").write_text('{"layer_types": ["gmlp"]}')
    assert read_recipe(str(tmp_path / "old.json"), ["token_mixers"]) == {"token_mixers": ["gmlp"]}


@pytest.mark.parametrize("given", ["model_name_or_path", "config_name", "model_type"])
def test_a_model_on_the_command_line_replaces_that_of_a_recipe(recipe, given):
    for own in ("model_name_or_path", "config_name", "model_type"):
        file = recipe(f"{own}: old\ntokenizer_name: kept\n")
        for argument in ([f"--{given}", "new"], [f"--{given}=new"], [f"--{given.replace('_', '-')}=new"]):
            (chosen,) = parse_arguments((ModelArguments,), [file, *argument])
            assert chosen == ModelArguments(**{given: "new"}, tokenizer_name="kept")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step: 3", "unknown argument 'step'. For --step, did you mean --steps?"),
        ("- 3", "must be one mapping"),
        ("steps: [", "cannot be read"),
    ],
)
def test_bad_recipes_are_explained(recipe, text, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        parse_arguments((Example,), [recipe(text)])


def test_a_recipe_is_converted_as_a_command_line_is(recipe):
    file = recipe("steps: '3'\nrate: 1\nfiles: one.txt\nflag: 'no'\n")
    assert parse_arguments((Example,), [file]) == (Example(steps=3, rate=1.0, files=["one.txt"], flag=False),)
    file = recipe("steps: 3\nrate: null\nfiles: [-1, 2]\n")  # null: the default
    assert parse_arguments((Example,), [file]) == (Example(steps=3, files=["-1", "2"]),)


def config_of(*argv: str):
    (arguments,) = parse_arguments((ModelArguments,), argv)
    return load_config(arguments)


def test_overrides_of_the_command_line_are_added_to_a_recipes(recipe):
    overrides = yaml.safe_load((RECIPES / "realnews_mlm_ablations.yaml").read_text())["config_overrides"]
    shipped = recipe(f"config_name: gmlp-base\nconfig_overrides: {overrides}\n")
    config = config_of(shipped, "--config_overrides", "gate_type=linear")
    assert (config.num_hidden_layers, config.max_position_embeddings, config.gate_type) == (36, 128, "linear")
    config = config_of(shipped, "--config_overrides", "gate_type=linear,num_hidden_layers=3")
    assert (config.num_hidden_layers, config.max_position_embeddings, config.gate_type) == (3, 128, "linear")
    assert config_of(shipped).num_hidden_layers == 36
    assert config_of(shipped, "--config_overrides", "").num_hidden_layers == 48  # none of the recipe's


@pytest.mark.parametrize(
    "written",
    [
        "config_overrides: attention_components=[vanilla,relative],num_hidden_layers=2,layer_norm_eps=1e-5",
        "config_overrides: {attention_components: [vanilla, relative], num_hidden_layers: 2, layer_norm_eps: 1e-5}",
        "config_overrides:\n  attention_components: [vanilla, relative]\n  num_hidden_layers: 2\n"
        "  layer_norm_eps: 1e-5",
    ],
)
def test_overrides_can_be_lists_and_mappings(written, recipe):
    file = recipe(f"config_name: synthesizer-random\n{written}\n")
    config = config_of(file, "--config_overrides", "is_encoder_decoder=false,factorized_dense_factors=[32, 16]")
    assert (config.attention_components, config.factorized_dense_factors) == (["vanilla", "relative"], [32, 16])
    assert (config.num_hidden_layers, config.layer_norm_eps, config.is_encoder_decoder) == (2, 1e-5, False)
    config = config_of("--config_name", "gmlp-s16-224", "--config_overrides", "image_size=[112,448],patch_size=16")
    assert (config.image_size, config.patch_grid) == ([112, 448], (7, 28))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("a=1,b=x", {"a": 1, "b": "x"}),
        (" a = 1 , b = [x, y] ", {"a": 1, "b": ["x", "y"]}),
        ("a=[[1,2],[3]],b='x,y',c=\"[\"", {"a": [[1, 2], [3]], "b": "x,y", "c": "["}),
        ("a={0: no, 1: 'yes, sir'},b=true", {"a": {0: False, 1: "yes, sir"}, "b": True}),
        ("a=1e-5,b=[1e-5,2],c=null", {"a": 1e-5, "b": [1e-5, 2], "c": None}),
        ("{a: 1, b: [x, 1e-4]}", {"a": 1, "b": ["x", 1e-4]}),
        ("", {}),
    ],
)
def test_overrides_are_yaml(text, overrides):
    assert parse_overrides(text) == overrides
    merged = parse_overrides(merge_overrides("z=0", text) or "")
    assert {str(key) for key in merged} == ({"z", *overrides} if text else set())


def test_an_output_folder_that_can_be_made_is_not_made(tmp_path):
    folder = check_output_folder(str(tmp_path / "a" / "b"))
    assert folder == tmp_path / "a" / "b" and not list(tmp_path.iterdir())
