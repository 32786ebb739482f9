import pytest

from tokenmixers import MLPMixerConfig


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
