import re
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.modeling.kernels import use_kernels


SIZES = {
    "vocab_size": 23,
    "hidden_size": 10,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "max_position_embeddings": 12,
    "num_labels": 3,
}
EXTRA = {
    "gmlp": {},
    "amlp": {"attention_size": 6},
    "mlp_mixer": {"token_mixing_size": 7},
    "synthesizer": {"num_attention_heads": 3, "head_dim": 4},
    "hybrid_bert": {"num_attention_heads": 2, "attention_size": 6},
}


TYPES = [name for name in get_args(TokenMixer) if name != "aft"]  # whose product is not that of "eager"


def counted(model: torch.nn.Module, mode=torch.no_grad, **inputs: torch.Tensor) -> int:
    # PyTorch has no formula for the attention of CPUs, FFTs and other kernels: let it count the plain products.
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    use_kernels(model, False)
    with mode(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return counter.get_total_flops()


def head_classes(family: str) -> list[str]:
    return sorted({name for name in FAMILIES[family].models.values() if "Conditional" not in name})


@pytest.mark.fast_cases
@pytest.mark.parametrize("name", [name for family in FAMILIES for name in head_classes(family)])
@given(batch=st.integers(1, 3), length=st.integers(1, 12), data=st.data())
def test_every_head_counts_what_torch_counts(name, batch, length, data):
    model_class = getattr(tokenmixers, name)
    family = model_class.config_class.model_type
    fields = {**SIZES, **EXTRA[family]}
    if family in ("gmlp", "amlp"):
        fields["gate_type"] = data.draw(st.sampled_from(["split", "linear", "additive", "multiplicative"]))
        fields["spatial_weight_type"] = data.draw(st.sampled_from(["toeplitz", "full"]))
    if family == "hybrid_bert":
        fields["token_mixers"] = data.draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=2))
    if "Causal" in name:
        fields["is_decoder"] = True
    if re.search("Image|Backbone", name):
        fields |= {
            "image_size": (8, 12),
            "patch_size": 4,
            "classifier_pooling": data.draw(st.sampled_from(["cls", "mean"])),
        }
        model = model_class(model_class.config_class(**fields)).eval()
        assert model.forward_flops(batch) == counted(model, pixel_values=torch.randn(batch, 3, 8, 12))
        return
    model = model_class(model_class.config_class(**fields)).eval()
    shape = (batch, 2, length) if "MultipleChoice" in name else (batch, length)
    inputs = {"input_ids": torch.ones(shape, dtype=torch.long)}
    found = counted(model, **inputs)
    assert model.forward_flops(batch * (2 if "MultipleChoice" in name else 1), length) == found


@given(batch=st.integers(1, 3), length=st.integers(1, 12), num_mean_queries=st.integers(1, 3), aft_gate=st.booleans())
def test_aft_counts_the_product_for_the_batch(batch, length, num_mean_queries, aft_gate):
    fields = {**SIZES, **EXTRA["hybrid_bert"], "num_mean_queries": num_mean_queries, "aft_gate": aft_gate}
    model = tokenmixers.HybridBertModel(tokenmixers.HybridBertConfig(token_mixers=["aft"] * 2, **fields)).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.ones(batch, length, dtype=torch.long))
    assert counter.get_total_flops() == model.forward_flops(batch, length)


COMPONENTS = ["vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random", "relative"]


@given(
    components=st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=4, unique=True),
    batch=st.integers(1, 3),
    length=st.integers(1, 12),
    target=st.integers(1, 12),
    first=st.sampled_from(["own", "query"]),
    feed_forward=st.sampled_from(["relu", "geglu"]),
)
def test_synthesizers_of_every_component(components, batch, length, target, first, feed_forward):
    fields = {**SIZES, **EXTRA["synthesizer"], "attention_components": components}
    fields |= {"dense_first_layer": first, "feed_forward_type": feed_forward, "factorized_random_rank": 5}
    if first == "query" and not {"vanilla", "dense", "factorized_dense"} & set(components):
        fields["dense_first_layer"] = "own"
    config = tokenmixers.SynthesizerConfig(**fields, is_encoder_decoder=True, num_decoder_layers=1)
    model = tokenmixers.SynthesizerForConditionalGeneration(config).eval()
    ids = torch.ones(batch, max(length, target), dtype=torch.long)
    inputs = {"input_ids": ids[:, :length], "decoder_input_ids": ids[:, :target]}
    found = counted(model, **inputs, use_cache=False)
    assert model.forward_flops(batch, length, target) == found


MIXTURES = [["vanilla"], ["random"], ["fixed_random", "vanilla"], ["mesh_factorized", "dense"], ["relative"]]
MIXTURES += [["factorized_random", "factorized_dense"]]


def check_the_number(family, length, mode, implementation, components=None):
    fields = {**SIZES, **EXTRA[family], "max_position_embeddings": length, "num_hidden_layers": 1}
    if components is not None:
        fields |= {"attention_components": components, "num_attention_heads": 1}
    model_class = getattr(tokenmixers, FAMILIES[family].models["AutoModelForMaskedLM"])
    model = model_class(model_class.config_class(**fields)).eval()
    if implementation == "sdpa" and not model_class._supports_sdpa:
        return
    model.set_attn_implementation(implementation)
    inputs = {"input_ids": torch.ones(1, length, dtype=torch.long)}
    with mode(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    expected = model.forward_flops(1, length)
    assert 0 < counter.get_total_flops() <= expected
    assert counted(model, mode, **inputs) == expected == model.forward_flops(1, length)


@pytest.mark.fast_cases
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_is_the_same_whatever_runs(family, mode, implementation):
    """And PyTorch's counter runs, also where it has no formula."""
    for components in MIXTURES if family == "synthesizer" else [None]:
        check_the_number(family, 9, mode, implementation, components)


@pytest.mark.parametrize("family", ["gmlp", pytest.param("amlp", marks=pytest.mark.slow)])
def test_products_by_fft_count_as_matrix_products(family):
    check_the_number(family, 2050, torch.no_grad, "eager")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"batch_size": -2}, "`batch_size` must be at least 1, got -2"),
        (
            {"sequence_length": 0},
            "must be from 1 to the model's `max_position_embeddings=12`, got 0",
        ),
        ({"sequence_length": -5}, "`sequence_length` must be from 1 to .*, got -5"),
        ({"sequence_length": 13}, "`sequence_length` must be from 1 to .*, got 13"),
        ({"target_length": 0}, "`target_length` must be from 1 to .*, got 0"),
        ({"target_length": 13}, "`target_length` must be from 1 to .*, got 13"),
    ],
)
def test_impossible_numbers_are_errors(arguments, message):
    fields = {**SIZES, **EXTRA["synthesizer"], "attention_components": ["random"]}
    config = tokenmixers.SynthesizerConfig(**fields, is_encoder_decoder=True)
    model = tokenmixers.SynthesizerForConditionalGeneration(config)
    assert model.forward_flops(1) == model.forward_flops(1, 12, 12)
    with pytest.raises(ValueError, match=message):
        model.forward_flops(**arguments)


class OwnConfig(tokenmixers.GMLPConfig):
    """A user's class of configurations."""

    model_type = "own_gmlp"


def test_lengths_and_classes_that_a_user_may_choose():
    config = tokenmixers.SynthesizerConfig(**SIZES, **EXTRA["synthesizer"], attention_components=["vanilla"])
    model = tokenmixers.SynthesizerModel(config)  # has no longest sequence
    assert model.forward_flops(1, 20) == counted(model, input_ids=torch.ones(1, 20, dtype=torch.long))
    models = [tokenmixers.GMLPModel(config_class(**SIZES)) for config_class in (OwnConfig, tokenmixers.GMLPConfig)]
    assert models[0].forward_flops(1, 5) == models[1].forward_flops(1, 5)


def test_a_target_needs_a_decoder():
    model = tokenmixers.GMLPModel(tokenmixers.GMLPConfig(**SIZES))
    with pytest.raises(ValueError, match="`target_length=3` is for encoder-decoders"):
        model.forward_flops(1, 5, 3)


def test_backward_costs_twice_the_forward_pass():
    # But for the first layer, which needs no gradient of its input: token ids have none.
    model = tokenmixers.GMLPForMaskedLM(tokenmixers.GMLPConfig(**SIZES, spatial_weight_type="full"))
    ids = torch.ones(2, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=torch.randn(2, 9, 10, requires_grad=True), labels=ids).loss.backward()
    assert counter.get_total_flops() == 3 * model.forward_flops(2, 9)
