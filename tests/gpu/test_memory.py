"""Models that lie on several devices, are loaded onto the GPU, or have few bits."""

import copy
import importlib.util

import pytest
import torch
from torch.nn import functional as F
from transformers import BitsAndBytesConfig

from tokenmixers.configuration.auto_classes import FAMILIES


LANGUAGE_MODELS = [family.models["AutoModelForMaskedLM"] for family in FAMILIES.values()]
LANGUAGE_MODELS += ["GMLPForCausalLM", "AMLPForCausalLM", "SynthesizerForCausalLM"]


@pytest.fixture
def saved(build, tmp_path):
    """`saved(class_name, **changes)`: a model on the CPU, and the folder that it is saved in."""

    def save(name, **changes):
        model = build(name, **changes)
        model.save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return save


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_loading_onto_the_device(class_name, dtype, saved, labelled, device, placed, assert_same_outputs):
    model, folder = saved(class_name)
    loaded = type(model).from_pretrained(folder, dtype=dtype, device_map={"": device}).eval()
    assert {parameter.device.type for parameter in loaded.parameters()} == {device.type}
    inputs = labelled(model)
    there = {key: v.to(dtype) if v.is_floating_point() else v for key, v in placed(inputs, device).items()}
    with torch.no_grad():
        outputs, expected = loaded(**there), copy.deepcopy(model).to(dtype).float()(**inputs)
    assert_same_outputs(outputs, expected, inputs, dtype)


@pytest.mark.filterwarnings("ignore:The following device_map keys")
@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("class_name", [*LANGUAGE_MODELS, "GMLPForImageClassification"])
def test_offloaded_layers(class_name, place, saved, labelled, device, placed, assert_same_outputs, tmp_path):
    """The first layer in the memory of the CPU or on the disk, the rest on the device."""
    model, folder = saved(class_name, num_hidden_layers=3, tie_word_embeddings=False)
    layers = next(name for name, _ in model.named_modules() if name.endswith(".layers"))
    first = f"{layers}.0"
    parts = [name for name, _ in model.named_modules() if not f"{first}.".startswith(f"{name}.".lstrip("."))]
    parts = [name for name in parts if not name.startswith(f"{first}.") and name.rpartition(".")[0] not in parts]
    device_map = dict.fromkeys(parts, 0 if device.type == "cuda" else "cpu") | {first: place}
    loaded = type(model).from_pretrained(folder, device_map=device_map, offload_folder=tmp_path / "offloaded").eval()
    if device.type == "cuda" or place == "disk":
        assert all(parameter.is_meta for parameter in loaded.get_submodule(f"{layers}.0").parameters())
    inputs = labelled(model)
    with torch.no_grad():
        assert_same_outputs(loaded(**placed(inputs, device)), model(**inputs), inputs, torch.float32)


def test_kernels_of_the_cpu_stay_there(build, cuda, monkeypatch):
    monkeypatch.setenv("TOKENMIXERS_KERNELS", "1")
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "max_position_embeddings": 2048}
    model = build("GMLPModel", **sizes).to(cuda)
    bound = [name for name, module in model.named_modules() if {"forward", "_forward"} & module.__dict__.keys()]
    assert bound == []


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("class_name", LANGUAGE_MODELS)
def test_logits_in_few_bits(class_name, bits, saved, cuda):
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 128}  # bitsandbytes works on blocks of 64
    sizes |= {"num_attention_heads": 2, "head_dim": 32} if "Synthesizer" in class_name else {}
    model, folder = saved(class_name, **sizes)
    config = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    small = type(model).from_pretrained(folder, quantization_config=config, device_map=0).eval()
    assert small.get_memory_footprint() < model.get_memory_footprint()
    ids = torch.randint(1, 37, (2, 9))
    with torch.no_grad():
        expected, found = model(input_ids=ids).logits, small(input_ids=ids.to(cuda)).logits.float().cpu()
    assert F.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > (0.98 if bits == 8 else 0.9)
