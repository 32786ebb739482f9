"""The models of the papers, by name: numbers of parameters, and that they train."""

import pytest
import torch
from transformers import T5Config

from tokenmixers import SynthesizerConfig, SynthesizerForConditionalGeneration
from tokenmixers.configuration.configuration_synthesizer import PRESETS
from tokenmixers.modeling.conversion.t5 import convert_t5_config
from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES, parameter_matched_width


def t5_count(n_heads, head_dim, components, d=768, d_ff=3072, layers=12, cross=768, vocabulary=32128, buckets=32):
    """Parameters of an encoder-decoder, added up from the shapes in the papers."""
    width = n_heads * head_dim
    attention = {
        "vanilla": 4 * d * width,
        "random": 2 * d * width + n_heads * 512**2,
        "factorized": 2 * d * width + 2 * 16 * n_heads * 512,
        "dense": 3 * d * width + head_dim * 512,
        "random_plus": 4 * d * width + n_heads * 512**2,
        "random_plus_alpha": 4 * d * width + n_heads * 512**2 + 1,
        "dense_plus": 4 * d * width + head_dim * 512,
        "dense_plus_alpha": 4 * d * width + head_dim * 512 + 1,
    }[components]
    encoder_layer = attention + 2 * d * d_ff + 2 * d
    decoder_layer = encoder_layer + 4 * d * cross + d
    return vocabulary * d + layers * (encoder_layer + decoder_layer) + 2 * d + 2 * buckets * n_heads


def count(preset, **kwargs):
    with torch.device("meta"):
        return SynthesizerForConditionalGeneration(SynthesizerConfig.from_preset(preset, **kwargs)).num_parameters()


@pytest.mark.parametrize(
    ("preset", "millions", "exact"),
    [
        ("dense", 224.47, 224_476_160),
        ("dense_plus", 243.35, 243_350_528),
        ("factorized", 207.17, 207_174_656),
        ("random", 254.36, 254_360_576),
        ("random_plus", 292.11, 292_109_312),
        ("random_plus_alpha", 292.11, 292_109_336),
        ("dense_plus_alpha", 243.35, 243_350_552),
    ],
)
def test_parameters_of_the_authors_code(preset, millions, exact):
    """Published: 224, 243, 207, 254 and 292 million (arXiv 2102.11972)."""
    number = count(f"mesh_{preset}")
    assert number == t5_count(8, 128, preset) == exact
    assert abs(number / 1e6 - millions) < 0.01


@pytest.mark.parametrize("kind", FEED_FORWARD_TYPES)
def test_every_feed_forward_layer_gives_t5_base_as_many_parameters(kind):
    """Section 3.1 of arXiv 2002.05202: three matrices of 2048 are as large as two of 3072."""
    config = SynthesizerConfig.from_preset(f"t5_base_{kind}")
    assert (config.feed_forward_type, config.gelu_approximate) == (kind, "none")
    assert config.intermediate_size == parameter_matched_width(3072, kind)
    assert count(f"t5_base_{kind}") == t5_count(12, 64, "vanilla") == 222_903_552


def test_t5_base_of_the_feed_forward_presets_is_that_of_transformers():
    t5 = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
    assert convert_t5_config(t5).to_diff_dict() == SynthesizerConfig.from_preset("t5_base_relu").to_diff_dict()


def test_parameters_of_the_factorized_models_of_t5_base_size():
    """Without the query and key projections of T5-base, by the formulas of the Synthesizer paper's Table 1."""
    d, width, n, heads, layers = 768, 8 * 128, 512, 8, 24
    rest = t5_count(8, 128, "vanilla") - layers * 2 * d * width
    assert count("t5_base_factorized_random") == rest + layers * 2 * 8 * n * heads
    a, b = 16, 32
    first, second = d * width + width, width * (a + b) + heads * (a + b)
    assert count("t5_base_factorized_dense") == rest + layers * (first + second)


def test_differences_of_the_translation_models():
    """What the paper's table shows: 67M to 61M without queries and keys, 6.29M for R, the control as big as R + V."""
    numbers = {name: count(name) for name in PRESETS if not name.startswith(("mesh_", "t5_base_"))}
    layers, d, n, heads = 12, 512, 256, 8
    assert numbers["vanilla"] - numbers["random"] + heads * n * n * layers == 2 * d * d * layers == 6_291_456
    weights = heads * 2 * layers  # of the mixtures
    assert numbers["random_vanilla"] - numbers["vanilla"] == heads * n * n * layers + weights
    assert numbers["vanilla_wide"] + weights == numbers["random_vanilla"]
    assert numbers["factorized_random"] - numbers["fixed_random"] == 2 * 8 * n * heads * layers
    assert numbers["dense"] - numbers["fixed_random"] == (d * d + d + d * n + heads * n) * layers
    assert numbers["factorized_dense"] - numbers["fixed_random"] == (d * d + d + d * 32 + heads * 32) * layers
    assert numbers["factorized_random_vanilla"] - numbers["vanilla"] == 2 * 8 * n * heads * layers + weights


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_run_and_train_all_their_weights(preset, tiny, randomise):
    config = SynthesizerConfig.from_preset(preset, **{**tiny, "is_encoder_decoder": True})
    model = randomise(SynthesizerForConditionalGeneration(config)).train()
    model(torch.randint(3, 40, (2, 7)), labels=torch.randint(3, 40, (2, 5))).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
