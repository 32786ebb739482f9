"""Transformers' exporters on every class, in `make test-extras`."""

import copy
import importlib.util
import re
from typing import get_args

import pytest
import torch
from transformers import AutoModelForMaskedLM, TorchAoConfig
from transformers.exporters.auto import AutoHfExporter
from transformers.exporters.configs import ExecutorchConfig, OnnxConfig, OpenVINOConfig
from transformers.exporters.utils import decompose_for_generation

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, about its own exporters
LENGTH = 24  # the models' maximum
ONNX = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("onnxscript", "onnxruntime")), reason="needs the extra `export`"
)
CLASSES = {name: family.config for family in FAMILIES.values() for name in family.models.values()}
GENERATING = [
    "GMLPForCausalLM",
    "AMLPForCausalLM",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
]


@pytest.fixture
def build(tiny_model):
    sizes = {"max_position_embeddings": LENGTH, "num_hidden_layers": 1}
    return lambda name, **changes: tiny_model(name, **{**sizes, **changes})


def flat(outputs):
    maps = {f"feature_maps.{index}": value for index, value in enumerate(outputs.get("feature_maps") or ())}
    return {**outputs, **maps}


def check(exported, model, inputs, rtol=1e-5):
    with torch.no_grad():
        expected = model(**inputs)
    found, mask = exported(**inputs), inputs.get("attention_mask")
    compared = 0
    found, expected = flat(found), flat(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            # Nobody reads what a model says about padding.
            per_token = mask is not None and value.shape[: mask.dim()] == mask.shape
            real = mask.bool() if per_token else ...
            scale = value[real].abs().max().item()
            torch.testing.assert_close(found[key][real], value[real], rtol=0, atol=rtol * scale)
            compared += 1
    assert compared


def export(model, config, inputs):
    if getattr(model.config, "is_decoder", False) or model.config.is_encoder_decoder:
        model.config.use_cache = False
    return AutoHfExporter.from_config(config).export(model, inputs, config=config)


@ONNX
@pytest.mark.slow  # the fast export to ONNX is that of `run_scripts/export/test_formats.py`
@pytest.mark.parametrize(
    "name, changes",
    [
        ("GMLPForMaskedLM", {}),
        ("GMLPForSequenceClassification", {"spatial_weight_type": "full"}),
        ("AMLPForQuestionAnswering", {}),
        ("MLPMixerForTokenClassification", {}),
        ("SynthesizerForMaskedLM", {"attention_components": ["dense", "random", "vanilla"]}),
        ("SynthesizerForMaskedLM", {"attention_components": ["random"]}),
        ("SynthesizerForMultipleChoice", {}),
        ("HybridBertForMaskedLM", {"token_mixers": get_args(TokenMixer), "num_hidden_layers": None}),
    ],
)
def test_onnx_with_any_batch_and_length(name, changes, build, tmp_path, tiny_inputs):
    model = build(name, **changes)
    exported = export(model, OnnxConfig(dynamic=True), tiny_inputs(model, 3, 5))
    for batch, length in ((2, 9), (4, 2), (3, LENGTH)):
        check(exported, model, tiny_inputs(model, batch, length))
    exported.save_pretrained(tmp_path)
    check(type(exported).from_pretrained(tmp_path), model, tiny_inputs(model, 2, 7))


@ONNX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [*((name, True) for name in CLASSES), *((name, False) for name in CLASSES if re.search("Image|Backbone", name))],
)
def test_onnx_of_every_class(name, dynamic, build, tiny_inputs):
    model = build(name)
    inputs = tiny_inputs(model, 3, 5)
    exported = export(model, OnnxConfig(dynamic=dynamic), inputs)
    check(exported, model, tiny_inputs(model, 2, 9) if dynamic else inputs)


@ONNX
@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATING)
def test_onnx_of_generation(name, build):
    model, config = build(name), OnnxConfig(dynamic=True)
    prompt = {"input_ids": torch.randint(3, 37, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    exported = AutoHfExporter.from_config(config).export_for_generation(model, prompt, config=config)
    longer = {"input_ids": torch.randint(3, 37, (3, 8)), "attention_mask": torch.ones(3, 8, dtype=torch.long)}
    parts = decompose_for_generation(model, longer)
    assert set(parts) == {"prefill", "decode"}
    for part, (module, inputs) in parts.items():
        with torch.no_grad():
            expected = module(**copy.deepcopy(inputs))["logits"]
        found = exported.runners[part](**copy.deepcopy(inputs))["logits"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLASSES if "Conditional" not in name])
def test_openvino(name, build, tiny_inputs):
    pytest.importorskip("openvino")
    model = build(name)
    text = not re.search("Image|Backbone", name)
    inputs = tiny_inputs(model, 3, 5)
    exported = export(model, OpenVINOConfig(dynamic=text), inputs)
    exported.to(config={"INFERENCE_PRECISION_HINT": "f32"})  # bf16 by itself where the processor has it
    check(exported, model, tiny_inputs(model, 2, 9) if text else inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLASSES if "Conditional" not in name])
def test_executorch_with_a_fixed_shape(name, build, tiny_inputs):
    pytest.importorskip("executorch")
    model = build(name)
    inputs = tiny_inputs(model, 2, LENGTH)
    check(export(model, ExecutorchConfig(), inputs), model, tiny_inputs(model, 2, LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_torchao_int8_can_be_saved_and_loaded_again(model_type, tiny_model, tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    model = tiny_model(FAMILIES[model_type].models["AutoModelForMaskedLM"])
    model.save_pretrained(tmp_path / "float32")
    config = TorchAoConfig(quantization.Int8DynamicActivationInt8WeightConfig())
    int8 = AutoModelForMaskedLM.from_pretrained(tmp_path / "float32", quantization_config=config).eval()
    modules = dict(int8.base_model.named_modules()).items()
    linear = [module.weight for name, module in modules if "layers." in name and type(module) is torch.nn.Linear]
    assert linear and all(weight.qdata.dtype == torch.int8 for weight in linear)
    int8.save_pretrained(tmp_path / "int8")
    again, ids = AutoModelForMaskedLM.from_pretrained(tmp_path / "int8").eval(), torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected, found = model(ids).logits, again(ids).logits
        assert torch.equal(found, int8(ids).logits)
    assert (found - expected).norm() < 0.1 * expected.norm()
