import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from tokenmixers import MLPMixerConfig


configs = st.builds(
    MLPMixerConfig,
    vocab_size=st.integers(1, 1000),
    hidden_size=st.integers(1, 64),
    intermediate_size=st.integers(1, 64),
    token_mixing_size=st.integers(1, 64),
    num_hidden_layers=st.integers(1, 5),
    max_position_embeddings=st.integers(1, 64),
    classifier_pooling=st.sampled_from([None, "cls", "mean"]),
    image_size=st.sampled_from([None, 32, (16, 48)]),
    mask_padding=st.booleans(),
    id2label=st.dictionaries(st.integers(0, 5), st.text(min_size=1), min_size=1, max_size=4),
)


@given(config=configs)
def test_survives_json(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    config.save_pretrained(folder)
    for loaded in (
        MLPMixerConfig.from_pretrained(folder),
        AutoConfig.from_pretrained(folder),
        MLPMixerConfig(**json.loads(config.to_json_string(use_diff=False))),
    ):
        assert type(loaded) is MLPMixerConfig
        assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "mlp_mixer"


def test_defaults_are_the_baseline_of_table_3():
    config = MLPMixerConfig()
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (24, 768, 3072)
    assert (config.token_mixing_size, config.max_position_embeddings, config.hidden_act) == (384, 128, "gelu")


@pytest.mark.parametrize(
    ("fields", "pooling", "tokens"),
    [
        ({}, "cls", 128),
        ({"classifier_pooling": "mean"}, "mean", 128),
        ({"image_size": 224}, "mean", 196),
        ({"image_size": 224, "classifier_pooling": "cls"}, "cls", 197),
    ],
)
def test_pooling_follows_from_the_input(fields, pooling, tokens):
    config = MLPMixerConfig(**fields)
    assert (config.classifier_pooling, config.max_position_embeddings) == (pooling, tokens)
