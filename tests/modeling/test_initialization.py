"""The standard deviation that every weight starts with, as the configurations document it."""

import re
from typing import get_args

import pytest
import torch

import tokenmixers
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


RANGE, SPATIAL, FACTOR, RANDOM = 0.03, 0.011, 0.7, 1.3
CONSTANT = {
    "norm.weight": 1.0,
    "norm.bias": 0.0,
    r"(proj|proj_in|proj_out|qkv_proj|pooler|classifier|lm_head).bias": 0.0,
}
GMLP = {
    r"spatial_proj\.bias": 1.0,
    r"token_mixing\.bias_(in|out)": 0.0,
    "projection.bias": 0.0,
    **CONSTANT,
    r"spatial_proj\.weight": ("std", SPATIAL),
    r"token_mixing\.weight_(in|out)": ("std", SPATIAL),
    ".*": ("std", RANGE),
}
WIDTH, HEAD, INNER, RANK = 40, 12, 56, 8
SYNTHESIZER = {
    r"norm\.weight": FACTOR,
    r"bias": 0.0,
    r"mixture\.(logits|alpha)": 0.0,
    # T5 scales the initial query weights instead of the logits.
    "q_proj.weight": ("std", FACTOR * (WIDTH * HEAD) ** -0.5),
    "(k_proj|v_proj|first_proj|gate_proj|up_proj|pooler|classifier).weight": ("std", FACTOR * WIDTH**-0.5),
    "o_proj.weight": ("std", FACTOR * (3 * HEAD) ** -0.5),
    "down_proj.weight": ("std", FACTOR * INNER**-0.5),
    r"relative(_attention_bias)?\.weight": ("std", FACTOR * WIDTH**-0.5),
    r"\.(random|fixed_random)\.weight": ("std", RANDOM),
    "(query|key|first|second)_factor": ("std", (RANDOM / RANK**0.5) ** 0.5),
    r"(second|tiled|repeated)\.weight": ("std", FACTOR * HEAD**-0.5),
    "cls_token": ("std", FACTOR),
    "projection.weight": ("std", FACTOR * (3 * 4 * 4) ** -0.5),
    "(shared|embed_tokens|token_type_embeddings|embed_positions).weight": ("std", FACTOR),
}


def check(model, table):
    seen = set()
    for name, weight in model.state_dict().items():
        pattern = next((pattern for pattern in table if re.search(f"{pattern}$", name)), None)
        assert pattern is not None, name
        seen.add(pattern)
        if isinstance(table[pattern], float):
            assert torch.equal(weight, torch.full_like(weight, table[pattern])), name
            continue
        expected, count = table[pattern][1], weight.numel()
        # The estimate of a deviation from n numbers has itself the relative deviation 1 / sqrt(2 n).
        assert weight.std().item() == pytest.approx(expected, rel=5 / (2 * count) ** 0.5), name
        assert abs(weight.mean().item()) < 5 * expected / count**0.5, name
    return seen


IMAGES = {"image_size": 16, "patch_size": 4, "num_labels": 4, "classifier_pooling": "cls"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("GMLPForMaskedLM", {"spatial_weight_type": "toeplitz", "type_vocab_size": 9}),
        ("GMLPForImageClassification", {"spatial_weight_type": "full", **IMAGES}),
        ("AMLPForSequenceClassification", {"attention_size": 16}),
        ("MLPMixerForTokenClassification", {"token_mixing_size": 24}),
    ],
)
def test_gmlp_amlp_and_mlp_mixer(name, changes):
    torch.manual_seed(0)
    model_class = getattr(tokenmixers, name)
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "pad_token_id": None}
    ranges = {"initializer_range": RANGE, "spatial_initializer_range": SPATIAL}
    config = model_class.config_class(**sizes, **ranges, max_position_embeddings=30, vocab_size=90, **changes)
    check(model_class(config), GMLP)


def test_hybrid_bert():
    torch.manual_seed(0)
    table = {
        r"norm\.weight": 1.0,
        r"spatial_proj\.bias": 1.0,
        r"(norm|proj|proj_in|proj_out|second|lm_head)\.bias": 0.0,
        r"spatial_proj\.weight": ("std", SPATIAL),
        ".*": ("std", RANGE),
    }
    config = tokenmixers.HybridBertConfig(
        token_mixers=get_args(TokenMixer),
        hidden_size=WIDTH,
        num_attention_heads=4,
        intermediate_size=INNER,
        max_position_embeddings=30,
        vocab_size=90,
        pad_token_id=None,
        initializer_range=RANGE,
        spatial_initializer_range=SPATIAL,
    )
    assert check(tokenmixers.HybridBertForMaskedLM(config), table) == set(table)


def synthesizer(name, **changes):
    torch.manual_seed(0)
    model_class = getattr(tokenmixers, name)
    config = tokenmixers.SynthesizerConfig(
        **{
            "vocab_size": 90,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "head_dim": HEAD,
            "max_position_embeddings": 30,
            "factorized_random_rank": RANK,
            "initializer_factor": FACTOR,
            "random_initializer_range": RANDOM,
            "feed_forward_type": "geglu",
            "type_vocab_size": 9,
            **changes,
        }
    )
    return model_class(config)


SYNTHESIZERS = [
    ("SynthesizerModel", {"attention_components": ["vanilla", "dense", "random"]}),
    ("SynthesizerModel", {"attention_components": ["factorized_dense", "factorized_random"], "mixture": "sigmoid"}),
    ("SynthesizerModel", {"attention_components": ["fixed_random", "mesh_factorized"]}),
    ("SynthesizerModel", {"attention_components": ["vanilla"], "position_embedding_type": "learned"}),
    ("SynthesizerForImageClassification", {**IMAGES, "type_vocab_size": 0}),
]


def test_synthesizer():
    seen = set().union(*(check(synthesizer(name, **changes), SYNTHESIZER) for name, changes in SYNTHESIZERS))
    assert seen == set(SYNTHESIZER)


def test_embeddings_of_a_tied_head_without_scaling_are_small():
    for changes, expected in (
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, FACTOR * WIDTH**-0.5),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, FACTOR),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": False}, FACTOR),
    ):
        model = synthesizer("SynthesizerForMaskedLM", type_vocab_size=0, **changes)
        weight = model.get_input_embeddings().weight
        assert weight.std().item() == pytest.approx(expected, rel=0.05)
