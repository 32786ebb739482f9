import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from tokenmixers import GMLPConfig


SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"]

configs = st.builds(
    GMLPConfig,
    vocab_size=st.integers(1, 1000),
    hidden_size=st.integers(1, 64),
    intermediate_size=st.integers(1, 64).map(lambda half: 2 * half),
    num_hidden_layers=st.integers(1, 5),
    max_position_embeddings=st.integers(1, 64),
    hidden_act=st.sampled_from(["gelu", "relu", "silu"]),
    hidden_dropout_prob=st.floats(0, 0.9),
    classifier_dropout=st.none() | st.floats(0, 0.9),
    classifier_pooling=st.sampled_from(["cls", "mean"]),
    spatial_weight_type=st.sampled_from(["toeplitz", "full"]),
    spatial_initializer_range=st.floats(0, 1),
    mask_padding=st.booleans(),
    layer_norm_eps=st.floats(0, 1e-3),
    gate_layer_norm_eps=st.floats(0, 1e-3),
    type_vocab_size=st.integers(0, 3),
    tie_word_embeddings=st.booleans(),
    pad_token_id=st.none() | st.just(0),
    bos_token_id=st.none() | st.just(0),
    eos_token_id=st.none() | st.just(0) | st.just([0]),
    id2label=st.dictionaries(st.integers(0, 5), st.text(min_size=1), min_size=1, max_size=4),
)


@given(config=configs)
def test_survives_json(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    config.save_pretrained(folder)
    for loaded in (
        GMLPConfig.from_pretrained(folder),
        AutoConfig.from_pretrained(folder),
        GMLPConfig(**json.loads(config.to_json_string(use_diff=False))),
    ):
        assert type(loaded) is GMLPConfig
        assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gmlp"


def test_auto_config_builds_it_by_name():
    config = AutoConfig.for_model("gmlp", num_hidden_layers=3)
    assert type(config) is GMLPConfig
    assert config.num_hidden_layers == 3


def test_defaults_are_gmlp_base():
    config = GMLPConfig()
    assert [getattr(config, name) for name in SIZES] == [32000, 512, 3072, 48, 512]
    assert (config.layer_norm_eps, config.gate_layer_norm_eps) == (1e-6, 1e-5)
    assert (config.spatial_weight_type, config.type_vocab_size, config.tie_word_embeddings) == ("toeplitz", 0, True)


def test_keeps_the_settings_of_transformers():
    config = GMLPConfig(num_labels=5, problem_type="multi_label_classification", output_hidden_states=True)
    assert (config.num_labels, config.problem_type, config.output_hidden_states) == (
        5,
        "multi_label_classification",
        True,
    )
    assert GMLPConfig(id2label={0: "no", 1: "yes", 2: "perhaps"}).num_labels == 3
    count = np.array([0, 2]).max() + 1
    assert GMLPConfig(num_labels=count).to_dict()["id2label"] == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
