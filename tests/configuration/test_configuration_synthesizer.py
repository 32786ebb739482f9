from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tokenmixers import SynthesizerConfig, SynthesizerForConditionalGeneration
from tokenmixers.configuration.configuration_synthesizer import PRESETS


CARDS = Path(__file__).parents[2] / "model_cards"


@pytest.mark.parametrize("preset", PRESETS)
def test_card_of_each_preset(preset):
    folder = CARDS / f"synthesizer-{preset.replace('_', '-')}"
    config = AutoConfig.from_pretrained(folder)
    expected = SynthesizerConfig.from_preset(preset, architectures=["SynthesizerForConditionalGeneration"])
    assert config.to_diff_dict() | {"transformers_version": ""} == expected.to_diff_dict() | {
        "transformers_version": ""
    }
    with torch.device("meta"):
        parameters = SynthesizerForConditionalGeneration(config).num_parameters()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{parameters:,} parameters" in card and f'"model_cards/{folder.name}"' in card


def test_presets_are_the_rows_of_the_papers_table():
    rows = {tuple(settings["attention_components"]) for name, settings in PRESETS.items() if "mesh" not in name}
    assert rows == {
        ("vanilla",),
        ("fixed_random",),
        ("random",),
        ("factorized_random",),
        ("dense",),
        ("factorized_dense",),
        ("random", "dense"),
        ("dense", "vanilla"),
        ("random", "vanilla"),
        ("factorized_random", "vanilla"),
    }
    with pytest.raises(ValueError, match=r"no Synthesizer preset 'sparse'. Presets: vanilla, "):
        SynthesizerConfig.from_preset("sparse")


def test_presets_can_be_overridden():
    config = SynthesizerConfig.from_preset("random", is_encoder_decoder=False, is_decoder=True, hidden_size=24)
    assert (config.attention_components, config.is_decoder, config.hidden_size) == (["random"], True, 24)
    assert SynthesizerConfig.from_preset("random").hidden_size == 512


def test_t5_names():
    config = SynthesizerConfig(d_model=24, d_kv=3, d_ff=5, num_layers=2, num_heads=4, dropout_rate=0.2)
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (24, 3, 5)
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_dropout_prob) == (2, 4, 0.2)
    config.layer_norm_epsilon = 1e-5
    assert config.layer_norm_eps == 1e-5
    both = SynthesizerConfig(num_layers=3, is_encoder_decoder=True)
    assert (both.num_decoder_layers, both.stage_names) == (3, ["stem", "stage1", "stage2", "stage3"])


def test_sides_of_an_encoder_decoder(tmp_path):
    config = SynthesizerConfig(
        is_encoder_decoder=True,
        num_decoder_layers=3,
        decoder_attention_components=["vanilla"],
        decoder_num_attention_heads=2,
        decoder_max_position_embeddings=600,
        factorized_dense_factors=[25, 24],
    )
    config.save_pretrained(tmp_path)
    config = SynthesizerConfig.from_pretrained(tmp_path)
    encoder, decoder = config.get_text_config(encoder=True), config.get_text_config(decoder=True)
    assert not (encoder.is_decoder or encoder.is_encoder_decoder or decoder.is_encoder_decoder) and decoder.is_decoder
    assert (encoder.num_hidden_layers, decoder.num_hidden_layers) == (12, 3)
    assert (encoder.attention_components, decoder.attention_components) == (["random", "vanilla"], ["vanilla"])
    assert (encoder.num_attention_heads, decoder.num_attention_heads) == (12, 2)
    assert (encoder.max_sequence_length, decoder.max_sequence_length) == (512, None)
    assert config.cross_attention_shape == decoder.cross_attention_shape == (2, 64)
    assert config.get_text_config() is config and decoder.get_text_config(decoder=True) is decoder


def test_scale_follows_tying():
    assert SynthesizerConfig().scale_decoder_outputs
    assert not SynthesizerConfig(tie_word_embeddings=False).scale_decoder_outputs
    assert SynthesizerConfig(tie_word_embeddings=False, scale_decoder_outputs=True).scale_decoder_outputs


def test_two_names_of_a_field_must_agree():
    assert SynthesizerConfig(d_model=64, hidden_size=64).hidden_size == 64
    assert SynthesizerConfig.from_preset("random", d_model=64).hidden_size == 64  # whose preset has 512
    with pytest.raises(ValueError, match="`d_model=64` and `hidden_size=128` are two names for one field"):
        SynthesizerConfig(d_model=64, hidden_size=128)
