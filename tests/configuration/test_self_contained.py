import pytest
from transformers import AutoConfig, AutoModelForMaskedLM

from tokenmixers import GMLPConfig, GMLPForMaskedLM, GMLPForQuestionAnswering
from tokenmixers.configuration.checkpoint_code import checkpoint_code


@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, GMLPForQuestionAnswering])
def test_a_saved_configuration_has_the_code_that_it_names(model_class, tiny_config, tmp_path):
    model_class(tiny_config()).save_pretrained(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model", trust_remote_code=True)
    config.save_pretrained(tmp_path / "config")
    assert {path.name for path in (tmp_path / "config").iterdir()} == {"config.json", *checkpoint_code(config)}
    for path in (tmp_path / "config").iterdir():
        assert path.read_bytes() == (tmp_path / "model" / path.name).read_bytes()
    assert type(AutoModelForMaskedLM.from_config(config)) is GMLPForMaskedLM


def test_a_configuration_without_a_map_has_no_code(tmp_path):
    GMLPConfig().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
