"""Wrong configurations: each is a `ValueError` with one sentence that names the field and the value."""

import json
import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tokenmixers import AMLPConfig, GMLPConfig, HybridBertConfig, MLPMixerConfig, SynthesizerConfig


NAN, INF = float("nan"), float("inf")
EVERY = (GMLPConfig, AMLPConfig, MLPMixerConfig, SynthesizerConfig)
SPATIAL = EVERY[:3]
HYBRID = (HybridBertConfig,)

SIZE = "`{name}` must be at least 1, got {value}"
TYPE = "Field '{name}' .*{value}"
RATE = "`{name}` must be a probability from 0 to 1, got {value}"
DEVIATION = "`{name}` must be finite and must not be negative, got {value}"
TOKEN = "`{name}` must be an id from 0 to {last}, below `vocab_size`, or `None`; got {value}"
LABELS = "`num_labels` must be an integer of at least 1, got {value}"
NAMES = "`id2label` must be a dictionary from the index of every class to its name, got {value}"
IMAGE = r"`image_size` must be one multiple of `patch_size=\d+`, or two \(height, width\), got {value}"
JAPANESE = "`{name}=True` belongs to a converted Japanese aMLP.* commit [0-9a-f]{7}"
NO_HEADS = "`{name}` cannot be set: tiny attention has one head, of width `attention_size`"

#: Fields of converted Japanese aMLPs, of versions before.
JAPANESE_FIELDS = ("attention_before_norm", "activate_block_output", "remove_final_norm", "lm_head_projection")
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")

#: Classes; field or fields; wrong values of the (first) field; the sentence.
TABLE: list[tuple[tuple[type, ...], str | dict[str, Any], list[Any], str]] = [
    *[(EVERY, name, [0, -2], SIZE) for name in (*SIZES, "patch_size", "num_channels")],
    *[(EVERY, name, ["12", 12.5, NAN, None, True], TYPE) for name in SIZES],
    *[(EVERY, name, [-0.1, 1.5, NAN, INF], RATE) for name in ("hidden_dropout_prob", "classifier_dropout")],
    (EVERY, "hidden_dropout_prob", ["none"], TYPE),
    (EVERY, "layer_norm_eps", [-1.0, NAN, INF], DEVIATION),
    (EVERY, "layer_norm_eps", ["small", None], TYPE),
    (EVERY, "type_vocab_size", [-1], "`type_vocab_size` must be at least 0, got {value}"),
    (EVERY, "pad_token_id", [-1, 40000], TOKEN),
    (EVERY, "bos_token_id", [-7, 40000], TOKEN),
    (EVERY, "eos_token_id", [40000, [1, 40000], [-1]], TOKEN),
    (EVERY, "pad_token_id", ["<pad>", 1.5], TYPE),
    (EVERY, "num_labels", [0, -1, "3", 2.5], LABELS),
    (EVERY, "id2label", [{}, 3, ["no", "yes"], {"no": 0}, {-1: "no"}], NAMES),
    (
        EVERY,
        "problem_type",
        ["nope", "classification", 3],
        "`problem_type` must be one of regression, .*; got {value}",
    ),
    (
        EVERY,
        {"problem_type": ..., "num_labels": 1},
        ["single_label_classification"],
        'problem_type="{value}"` requires `num_labels > 1`',
    ),
    (EVERY, "dtype", ["nope", "int64", 3], "`dtype` must be a floating point type of PyTorch .*, got {value}"),
    (EVERY, "image_size", [-16, 0, 17, [], [32, 17], [32, 32, 32]], IMAGE),
    (EVERY, "image_size", ["a", 32.0, [32, NAN], [32, "b"]], TYPE),
    (EVERY, {"patch_size": ..., "image_size": 32}, [0, -1], SIZE),
    (
        EVERY,
        {"patch_size": ..., "image_size": 32},
        [5],
        "`image_size` must be one multiple of `patch_size=5`.* got 32",
    ),
    (EVERY, {"num_channels": ..., "image_size": 32}, [0, -3], SIZE),
    (EVERY, "classifier_pooling", ["max", 3], TYPE),
    (EVERY, "is_decoder", ["yes", 1, None], TYPE),
    (EVERY, "use_cache", ["yes", 3], TYPE),
    (EVERY, "tie_word_embeddings", ["yes", None], TYPE),
    (EVERY, "sparse_prediction", ["yes"], TYPE),
    (SPATIAL, "hidden_act", ["nope", "", "GELU"], "`hidden_act` must be one of gelu, .*; got {value}"),
    (SPATIAL, "hidden_act", [3, None], TYPE),
    (SPATIAL, "initializer_range", [-0.5, NAN, INF], DEVIATION),
    (SPATIAL, "spatial_initializer_range", [-0.5, NAN, INF], DEVIATION),
    (SPATIAL, "drop_path_rate", [-0.1, 1.0, NAN], r"`drop_path_rate` must be in \[0, 1\), got {value}"),
    (SPATIAL, "mask_padding", ["yes"], TYPE),
    (SPATIAL, "spatial_weight_type", ["circulant", 3], TYPE),
    (SPATIAL, "is_encoder_decoder", [True], "`is_encoder_decoder=True` is not supported"),
    ((GMLPConfig, AMLPConfig), "gate_type", ["cubic", None], TYPE),
    ((GMLPConfig, AMLPConfig), "gate_layer_norm_eps", [-0.5, NAN], DEVIATION),
    ((GMLPConfig, AMLPConfig), "intermediate_size", [33], "`intermediate_size` must be even, got 33"),
    ((GMLPConfig, AMLPConfig), {"is_decoder": ..., "image_size": 32}, [True], "is for text: leave `image_size` out"),
    ((AMLPConfig,), "attention_size", [0, -4], SIZE),
    ((AMLPConfig,), "attention_probs_dropout_prob", [-1, 1.01, NAN], RATE),
    ((AMLPConfig,), "num_attention_heads", [2], NO_HEADS),
    ((AMLPConfig,), "head_dim", [32], NO_HEADS),
    *[((AMLPConfig,), name, [True], JAPANESE) for name in JAPANESE_FIELDS],
    ((MLPMixerConfig,), "token_mixing_size", [0, -1], SIZE),
    ((MLPMixerConfig,), "token_mixing_size", [1.5], TYPE),
    ((MLPMixerConfig,), "spatial_weight_type", ["toeplitz"], TYPE),
    ((MLPMixerConfig,), "gate_type", ["split"], "Field 'gate_type' .*None"),
    ((MLPMixerConfig,), "gate_layer_norm_eps", [1e-5], "Field 'gate_layer_norm_eps' .*None"),
    ((MLPMixerConfig,), "is_decoder", [True], "the token-mixing MLP is not causal"),
    *[
        ((SynthesizerConfig,), name, [0, -3], SIZE)
        for name in (
            "num_attention_heads",
            "head_dim",
            "num_decoder_layers",
            "factorized_random_rank",
            "decoder_num_attention_heads",
            "decoder_head_dim",
            "decoder_max_position_embeddings",
            "cross_attention_num_heads",
            "cross_attention_head_dim",
        )
    ],
    ((SynthesizerConfig,), "attention_dropout", [-1, 2, NAN], RATE),
    ((SynthesizerConfig,), "initializer_factor", [-1, NAN], DEVIATION),
    ((SynthesizerConfig,), "random_initializer_range", [-0.1, NAN, INF], DEVIATION),
    ((SynthesizerConfig,), "d_model", [-1], "`hidden_size` must be at least 1, got -1"),
    ((SynthesizerConfig,), "dropout_rate", [NAN], "`hidden_dropout_prob` must be a probability from 0 to 1, got nan"),
    ((SynthesizerConfig,), "decoder_start_token_id", [-5, 40000], TOKEN),
    *[
        ((SynthesizerConfig,), name, values, "`{name}` must name one or more different components .*got {value}")
        for name, values in (
            ("attention_components", [[], ["vanilla", "vanilla"]]),
            ("decoder_attention_components", [[], ["dense", "dense"]]),
        )
    ],
    ((SynthesizerConfig,), "attention_components", ["vanilla", ["nope"], 3, None], TYPE),
    ((SynthesizerConfig,), "mixture", ["mean"], TYPE),
    (
        (SynthesizerConfig,),
        {"attention_components": ..., "mixture": "sigmoid"},
        [["vanilla", "dense", "random"]],
        "`mixture='sigmoid'` mixes two components, but `attention_components` is {value}: use 'softmax'",
    ),
    ((SynthesizerConfig,), "position_embedding_type", ["rotary"], TYPE),
    ((SynthesizerConfig,), "relative_attention_num_buckets", [0, 3, -4], "must be even and at least 4, got {value}"),
    (
        (SynthesizerConfig,),
        "relative_attention_max_distance",
        [0, 16],
        "`relative_attention_max_distance` must be more than half of .*=32`, got {value}",
    ),
    (
        (SynthesizerConfig,),
        "factorized_dense_factors",
        [[1, 1], [-512, -1], [512], [0, 512]],
        r"must be two numbers \[a, b\] with a \* b at least the maximum length 512, got {value}",
    ),
    ((SynthesizerConfig,), "factorized_dense_factors", [5, [0.5, 2000]], TYPE),
    *[
        ((SynthesizerConfig,), name, ["nope"], TYPE)
        for name in ("feed_forward_type", "gelu_approximate", "dense_first_layer", "scale_decoder_outputs")
    ],
    (
        (SynthesizerConfig,),
        {"is_decoder": ..., "is_encoder_decoder": True},
        [True],
        "Set either `is_encoder_decoder` or `is_decoder`, not both",
    ),
    *[(HYBRID, name, [0, -2], SIZE) for name in (*SIZES, "num_attention_heads", "attention_size")],
    *[(HYBRID, name, [-0.1, 1.5, NAN], RATE) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")],
    *[(HYBRID, name, [-1.0, NAN], DEVIATION) for name in ("layer_norm_eps", "gate_layer_norm_eps")],
    *[(HYBRID, name, [32], "Field '{name}' .*None") for name in ("image_size", "patch_size", "num_channels")],
    (HYBRID, "token_mixers", [["mean"]], "`token_mixers` must be names among full_attention, .*; got 'mean'"),
    (HYBRID, "token_mixers", [3, [3]], TYPE),
    (HYBRID, {"num_hidden_layers": ..., "token_mixers": ["gmlp"]}, [2], "one name for each of .*=2`, got 1: gmlp"),
    (HYBRID, "hidden_size", [770], "`hidden_size=770` must be a multiple of `num_attention_heads=12`"),
    (HYBRID, {"intermediate_size": ..., "token_mixers": ["amlp"]}, [33], "`intermediate_size` must be even, got 33"),
    (HYBRID, "is_decoder", [True], "the model is an encoder"),
    *[
        ((SynthesizerConfig,), {name: ..., "image_size": 32}, [True], "A model with `image_size` set is an encoder")
        for name in ("is_decoder", "is_encoder_decoder")
    ],
]


def _cases():
    for classes, fields, values, sentence in TABLE:
        fields = {fields: ...} if isinstance(fields, str) else fields
        name = next(iter(fields))
        for config_class in classes:
            for value in values:
                last = config_class.vocab_size - 1
                pattern = sentence.replace("{name}", name).replace("{last}", str(last))
                shown = re.escape(str(value)) if not isinstance(value, str) else f"'?{re.escape(value)}'?"
                yield pytest.param(
                    config_class,
                    {**fields, name: value},
                    pattern.replace("{value}", shown),
                    id=f"{config_class.__name__}-{name}-{value}",
                )


CASES = list(_cases())


@pytest.mark.parametrize(("config_class", "fields", "sentence"), CASES)
def test_is_a_value_error_with_one_sentence(config_class, fields, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        config_class(**fields)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", "12"), ("gate_type", "cubic"), ("mask_padding", "yes"), ("pad_token_id", "<pad>")],
)
def test_types_are_checked_on_assignment(name, value):
    config = GMLPConfig()
    with pytest.raises(ValueError, match=f"Field '{name}' .*{value}"):
        setattr(config, name, value)


@pytest.mark.parametrize(
    ("config_class", "name", "value"),
    [
        (GMLPConfig, "intermediate_size", 33),
        (SynthesizerConfig, "attention_dropout", NAN),
        (AMLPConfig, "vocab_size", 0),
    ],
)
def test_is_checked_again_when_saving(config_class, name, value, tmp_path):
    config = config_class()
    setattr(config, name, value)
    with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("name", ["nope", "", "Random", "mesh_vanilla"])
def test_unknown_presets(name):
    with pytest.raises(ValueError, match=f"There is no Synthesizer preset '{name}'. Presets: vanilla, "):
        SynthesizerConfig.from_preset(name)


def test_the_ends_of_the_ranges_are_allowed():
    for config_class in EVERY:
        config = config_class(
            hidden_dropout_prob=1, layer_norm_eps=0.0, pad_token_id=config_class.vocab_size - 1, dtype=torch.bfloat16
        )
        assert (config.hidden_dropout_prob, config.dtype) == (1, torch.bfloat16)
        config_class(vocab_size=3, image_size=32, pad_token_id=40000)  # images have no tokens
    assert AMLPConfig(num_attention_heads=1, head_dim=64).head_dim == 64


def test_fields_of_japanese_amlps_that_are_off_are_dropped(tmp_path):
    fields = {"model_type": "amlp", "hidden_size": 8, **dict.fromkeys(JAPANESE_FIELDS, False)}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.hidden_size == 8 and not set(JAPANESE_FIELDS) & config.to_dict().keys()


def test_there_are_many():
    assert len(CASES) >= 200
    assert {case.values[0] for case in CASES} == {*EVERY, *HYBRID}
