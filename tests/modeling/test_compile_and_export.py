"""Compilation without recompiling per length, export with free sizes.

To compile or export the smallest model takes seconds: of each such test one or two cases are fast.
"""

import re
from typing import get_args

import pytest
import torch

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


# Every kind of token mixing.
LANGUAGE_MODELS = pytest.mark.parametrize(
    ("class_name", "weight_type"),
    [
        ("GMLPForMaskedLM", "toeplitz"),
        ("GMLPForMaskedLM", "full"),
        ("GMLPForCausalLM", "toeplitz"),
        ("MLPMixerForMaskedLM", "full"),
    ],
)
COMPONENTS = ["vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random", "relative"]
# Every kind of token mixing, every head of gMLP, and as slow cases the heads of other families.
TEXT = [
    name for family in FAMILIES.values() for name in family.models.values() if not re.search("Image|Backbone", name)
]
MODELS = pytest.mark.parametrize(
    ("class_name", "changes"),
    [
        *((name, {}) for name in dict.fromkeys(TEXT) if name.startswith("GMLP")),
        *((f"GMLPFor{head}", {"spatial_weight_type": "full"}) for head in ("SequenceClassification", "CausalLM")),
        ("AMLPModel", {}),
        ("AMLPModel", {"spatial_weight_type": "full"}),
        ("MLPMixerModel", {}),
        *(("SynthesizerModel", {"attention_components": [component]}) for component in COMPONENTS),
        ("SynthesizerModel", {"attention_components": ["random", "dense", "vanilla"], "feed_forward_type": "swiglu"}),
        *(("HybridBertModel", {"token_mixers": [name]}) for name in get_args(TokenMixer)),
        *(
            pytest.param(name, {}, marks=pytest.mark.slow)
            for name in dict.fromkeys(TEXT)
            if re.search("^[^G].*For", name)
        ),
    ],
    ids=str,
)
# (batch, length); the model's maximum is 11. A size of one is always compiled apart by PyTorch.
SHAPES = [(2, 5), (3, 7), (2, 11), (5, 2), (4, 9), (3, 6), (7, 3), (2, 10), (6, 8)]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch.compiler.reset()
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def build(tiny_model):
    """`build(class_name, **changes)`: as `tiny_model`, but with one layer: graphs have as many copies of a layer."""

    def model(name="GMLPModel", **changes):
        if "CausalLM" in name or "ConditionalGeneration" in name:
            changes["use_cache"] = False  # tested apart
        if "Synthesizer" in name or "Mixer" in name:
            changes.pop("spatial_weight_type", None)
        return tiny_model(name, **{"num_hidden_layers": 1, **changes})

    return model


def _assert_same(outputs, expected, mask):
    for one, other in zip(outputs, expected, strict=True):
        # Only what is a tensor per token has anything at the padding, and that is nobody's business.
        per_token = mask is not None and one.shape[: mask.dim()] == mask.shape
        real = mask.bool() if per_token else ...
        torch.testing.assert_close(one[real], other[real], rtol=1e-4, atol=1e-5)


@pytest.mark.fast_cases(
    class_name=["AMLPModel", "HybridBertModel", "MLPMixerModel"], changes=[{}, {"token_mixers": ["aft"]}]
)
@MODELS
def test_compiles_whole_and_once_for_all_lengths(class_name, changes, build, tiny_inputs):
    """By default PyTorch makes a size symbolic when it first changes: the second compilation is the last."""
    from torch._dynamo.testing import CompileCounterWithBackend

    model = build(class_name, **changes)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for number, (batch, length) in enumerate(SHAPES):
        inputs = tiny_inputs(model, batch, length)
        _assert_same(compiled(**inputs).to_tuple(), model(**inputs).to_tuple(), inputs["attention_mask"])
        assert counter.frame_count <= min(number + 1, 2), f"compiled again for {(batch, length)}"


@pytest.mark.fast_cases(class_name="GMLPForCausalLM")
@LANGUAGE_MODELS
def test_compiles_once_when_told_that_lengths_change(class_name, weight_type, build, tiny_inputs):
    from torch._dynamo.testing import CompileCounterWithBackend

    model = build(class_name, spatial_weight_type=weight_type)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for masked in (True, False):
        for batch, length in SHAPES:
            inputs = tiny_inputs(model, batch, length, masked)
            inputs["labels"] = inputs["input_ids"]  # of length 2 too, of which decoders predict a single token
            _assert_same(compiled(**inputs).to_tuple(), model(**inputs).to_tuple(), inputs.get("attention_mask"))
        assert counter.frame_count == (1 if masked else 2)  # with a mask, and without


@pytest.mark.slow
@LANGUAGE_MODELS
def test_compiled_training_gives_the_same_gradients(class_name, weight_type, build, tiny_inputs):
    from torch._dynamo.testing import CompileCounterWithBackend

    model = build(class_name, spatial_weight_type=weight_type).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for batch, length in SHAPES[:3]:
        inputs = tiny_inputs(model, batch, length)
        inputs["labels"] = torch.where(inputs["attention_mask"].bool(), inputs["input_ids"], -100)
        gradients = [
            torch.autograd.grad(run(**inputs, num_items_in_batch=torch.tensor(17)).loss, list(model.parameters()))
            for run in (compiled, model)
        ]
        for (name, _), one, other in zip(model.named_parameters(), *gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        frames.add(counter.frame_count)
    assert len(frames) == 1, "compiled again for another length"


@pytest.mark.slow
@LANGUAGE_MODELS
def test_inductor(class_name, weight_type, build, tiny_inputs):
    model = build(class_name, spatial_weight_type=weight_type).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for number, (batch, length) in enumerate(SHAPES):
        inputs = tiny_inputs(model, batch, length)
        labels = torch.where(inputs["attention_mask"].bool(), inputs["input_ids"], -100)
        losses = [run(**inputs, labels=labels).loss for run in (compiled, model)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        if number == 1:
            torch.compiler.set_stance("fail_on_recompile")


@pytest.mark.slow
@pytest.mark.parametrize("class_name", ["GMLPModel", "AMLPModel"])
def test_a_layer_is_its_products_and_three_kernels(class_name, build, monkeypatch):
    """Norm; activation and gate norm; gating: everything between the matrix products is one kernel each."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("TOKENMIXERS_KERNELS", "0")  # which differ between processors
    found = []
    for layers in (2, 3):
        torch.compiler.reset()
        compiled = torch.compile(build(class_name, num_hidden_layers=layers, hidden_dropout_prob=0.0).eval())
        with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
            _, (code,) = run_and_get_code(compiled, input_ids=torch.randint(1, 37, (2, 11)))
        calls = re.findall(r"^ +(cpp_fused|extern_kernels)\S*\(", code[code.index("def call(") :], re.MULTILINE)
        found.append((calls.count("cpp_fused"), calls.count("extern_kernels")))
    kernels, products = (more - less for less, more in zip(*found, strict=True))
    # Tiny attention has a projection for queries, keys and values, one of its result, and two products or a fused one.
    assert kernels <= (3 if class_name == "GMLPModel" else 5)
    assert products >= 3


def _export(model, example):
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=11)
    sizes = {0: batch, example["input_ids"].dim() - 1: length}
    return torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, sizes))


@pytest.mark.fast_cases(
    class_name=["GMLPForCausalLM", "AMLPModel", "MLPMixerModel", "HybridBertModel"],
    changes=[{}, {"token_mixers": ["aft"]}],
)
@MODELS
def test_exports_with_free_batch_and_length(class_name, changes, build, tiny_inputs):
    model = build(class_name, **changes)
    program = _export(model, tiny_inputs(model, 3, 5)).module()
    for batch, length in SHAPES:
        inputs = tiny_inputs(model, batch, length)
        _assert_same(program(**inputs).to_tuple(), model(**inputs).to_tuple(), inputs["attention_mask"])
    with pytest.raises((RuntimeError, AssertionError), match="11"):  # the model's maximum
        program(**tiny_inputs(model, 3, 12))


@pytest.mark.fast_cases(class_name="MLPMixerForImageClassification")
@pytest.mark.parametrize(
    "class_name",
    [
        family.models[head]
        for family in FAMILIES.values()
        for head in ("AutoModelForImageClassification", "AutoBackbone")
        if head in family.models
    ],
)
def test_image_models_compile_and_export_with_a_free_batch(class_name, build):
    model = build(class_name)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    example, sizes = {"pixel_values": torch.randn(3, 3, 8, 8)}, {"pixel_values": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(model, (), example, dynamic_shapes=sizes).module()
    for batch in (2, 5):
        inputs = {"pixel_values": torch.randn(batch, 3, 8, 8)}
        for run in (compiled, program):
            torch.testing.assert_close(run(**inputs)[0], model(**inputs)[0], rtol=1e-4, atol=1e-5)
