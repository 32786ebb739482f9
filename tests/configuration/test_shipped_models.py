"""Models that come with the package are found by name."""

import re

import pytest

import tokenmixers
from tokenmixers.configuration import shipped_models
from tokenmixers.run_scripts.base.arguments import ModelArguments, parse_arguments
from tokenmixers.run_scripts.base.errors import UserError


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of model cards with a model, and a configuration without weights."""
    for name in ("gmlp-tiny", "gmlp-bare"):
        (tmp_path / "cards" / name).mkdir(parents=True)
        (tmp_path / "cards" / name / "config.json").write_text("{}")
    (tmp_path / "cards" / "gmlp-tiny" / "model.safetensors").touch()
    monkeypatch.setattr(shipped_models, "MODEL_CARDS", tmp_path / "cards")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cards" / "gmlp-tiny"


def test_python_finds_a_model_and_a_configuration_by_name(shipped):
    assert tokenmixers.shipped_models() == ["gmlp-tiny"]
    assert tokenmixers.shipped_configs() == ["gmlp-bare", "gmlp-tiny"]
    assert tokenmixers.shipped_model("gmlp-tiny") == tokenmixers.shipped_config("gmlp-tiny") == str(shipped)
    assert tokenmixers.shipped_config("gmlp-bare") == str(shipped.with_name("gmlp-bare"))


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        ("model", "gmlp-tinny", "no shipped model is called 'gmlp-tinny'. Did you mean 'gmlp-tiny'?"),
        ("model", "gmlp-bare", "without weights: use AutoConfig.from_pretrained(shipped_config('gmlp-bare'))"),
        ("config", "gmlp-bar", "no shipped config is called 'gmlp-bar'. Did you mean 'gmlp-bare'?"),
        ("model", "gmlp-minilm-small", "is called 'gmlp-minilm-small'. 'aft-minilm-small' took its place."),
        ("config", "other", "no shipped config is called 'other'. tokenmixers.shipped_configs() lists all."),
    ],
)
def test_unknown_names_are_named_with_close_ones(function, name, message, shipped):
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(tokenmixers, f"shipped_{function}")(name)


def test_commands_find_a_model_by_name(shipped, tmp_path):
    (arguments,) = parse_arguments((ModelArguments,), ["--model_name_or_path", "gmlp-tiny"])
    assert arguments.model_name_or_path == str(shipped)
    (tmp_path / "gmlp-tiny").mkdir()  # a user's own folder comes first
    (arguments,) = parse_arguments((ModelArguments,), ["--model_name_or_path", "gmlp-tiny"])
    assert arguments.model_name_or_path == "gmlp-tiny"
    (arguments,) = parse_arguments((ModelArguments,), ["--model_name_or_path", "me/other"])
    assert arguments.model_name_or_path == "me/other"


def test_commands_answer_the_name_of_an_earlier_model(shipped, tmp_path):
    with pytest.raises(UserError, match="'hybrid-minilm-small' is not in this package any more: 'aft-minilm"):
        parse_arguments((ModelArguments,), ["--model_name_or_path", "hybrid-minilm-small"])
    (tmp_path / "hybrid-minilm-small").mkdir()
    (arguments,) = parse_arguments((ModelArguments,), ["--model_name_or_path", "hybrid-minilm-small"])
    assert arguments.model_name_or_path == "hybrid-minilm-small"


def test_replaced_models_have_left_and_their_successors_come_with_the_package():
    assert not {*shipped_models.REPLACED} & {*tokenmixers.shipped_configs()}
    assert {*shipped_models.REPLACED.values()} <= {*tokenmixers.shipped_models()}
