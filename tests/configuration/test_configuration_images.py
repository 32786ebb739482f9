"""Image fields of the configurations."""

import pytest

from tokenmixers import AMLPConfig, GMLPConfig, MLPMixerConfig


@pytest.mark.parametrize("config_class", [GMLPConfig, AMLPConfig, MLPMixerConfig])
@pytest.mark.parametrize(
    ("kwargs", "tokens"),
    [
        ({"image_size": 224, "classifier_pooling": "cls"}, 197),
        ({"image_size": 224, "classifier_pooling": "mean"}, 196),
        ({"image_size": (64, 96), "patch_size": 32, "classifier_pooling": "mean"}, 6),
        ({"image_size": [64, 96], "patch_size": 32, "classifier_pooling": "cls", "max_position_embeddings": 3}, 7),
    ],
)
def test_number_of_tokens_follows_from_the_image_size(config_class, kwargs, tokens, tmp_path):
    config = config_class(**kwargs)
    assert config.max_position_embeddings == tokens
    assert config.spatial_weight_type == "full"
    config.save_pretrained(tmp_path)
    assert config_class.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_class_tokens_are_the_default_where_the_paper_has_them():
    poolings = {config_class(image_size=32).classifier_pooling for config_class in (GMLPConfig, AMLPConfig)}
    assert (poolings, MLPMixerConfig(image_size=32).classifier_pooling) == ({"cls"}, "mean")


def test_text_keeps_toeplitz_weights_and_its_own_length():
    config = GMLPConfig(max_position_embeddings=77)
    assert (config.spatial_weight_type, config.max_position_embeddings) == ("toeplitz", 77)
    assert not config.use_class_token
