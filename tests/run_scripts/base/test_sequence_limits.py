from types import SimpleNamespace

import pytest

from tokenmixers import GMLPConfig, SynthesizerConfig
from tokenmixers.run_scripts.base.sequence_limits import longest_sequence, longest_text


def test_models_with_learned_positions_have_a_longest_sequence():
    assert longest_sequence(GMLPConfig(max_position_embeddings=48)) == 48
    assert longest_sequence(SynthesizerConfig(attention_components=["vanilla"])) is None


@pytest.mark.parametrize(
    ("positions", "length", "expected"), [(64, 10, 10), (64, 10**30, 64), (None, 10**7, None), (None, 10**6, 10**6)]
)
def test_longest_text(positions, length, expected):
    config = SimpleNamespace(max_position_embeddings=positions)
    assert longest_text(config, SimpleNamespace(model_max_length=length)) == expected


def test_an_image_processor_has_no_length():
    assert longest_text(SimpleNamespace(), object()) is None
