"""How kernels are bound to models, and taken off; each is compared with its reference in a file of its own."""

import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel

from tokenmixers import GMLPModel
from tokenmixers.modeling import kernels
from tokenmixers.modeling.kernels import KERNELS, bind, fourier, use_kernels


HEADS = [
    "GMLPForMaskedLM",
    "GMLPForCausalLM",
    "GMLPForImageClassification",
    "AMLPForSequenceClassification",
    "MLPMixerForTokenClassification",
    "SynthesizerForQuestionAnswering",
    "SynthesizerForConditionalGeneration",
]


def bound_classes(model):
    """Names of the classes of which some module has a kernel in place of its own method."""
    return {
        type(module).__name__
        for module in model.modules()
        if type(module).__name__ in KERNELS and KERNELS[type(module).__name__].method in module.__dict__
    }


@pytest.fixture
def long_rows(every_kernel, monkeypatch):
    monkeypatch.setattr(fourier, "LENGTHS", (4, 6))


@pytest.mark.usefixtures("long_rows")
@pytest.mark.parametrize("name", HEADS)
def test_models_compute_the_same(name, tiny_model, tiny_inputs):
    model = tiny_model(name)
    plain = copy.deepcopy(model)
    use_kernels(plain, enabled=False)
    assert "Linear" in bound_classes(model) and not bound_classes(plain)
    inputs = tiny_inputs(model, 3, 7)
    with torch.no_grad():
        assert_close(model(**inputs)[0], plain(**inputs)[0], rtol=1e-4, atol=1e-5)
    for one in (model, plain):
        one(**inputs)[0].square().mean().backward()
    gradients = [{key: weight.grad for key, weight in one.named_parameters()} for one in (model, plain)]
    assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("long_rows")
def test_switched_off(tiny_model, monkeypatch):
    model = tiny_model("GMLPModel", spatial_weight_type="toeplitz")
    assert bound_classes(model) == {"Linear", "SpatialProjection"}
    use_kernels(model, enabled=False)
    assert not bound_classes(model)
    assert not bound_classes(copy.deepcopy(model).to(torch.float64).to(torch.float32))
    use_kernels(model)
    assert bound_classes(model) == {"Linear", "SpatialProjection"}
    for value in ("0", "false", "OFF"):
        monkeypatch.setenv("TOKENMIXERS_KERNELS", value)
        assert not bound_classes(tiny_model("GMLPModel"))
        assert not bound_classes(copy.deepcopy(model).to(torch.float64))
    monkeypatch.setenv("TOKENMIXERS_KERNELS", "1")
    assert bound_classes(tiny_model("GMLPModel"))


@pytest.mark.usefixtures("every_kernel")
def test_saved_and_loaded(tiny_model, tmp_path):
    tiny_model("GMLPForMaskedLM").save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is GMLPModel and "Linear" in bound_classes(loaded)


@pytest.mark.usefixtures("every_kernel")
def test_models_of_others_are_left_alone():
    bert = AutoModel.from_config(
        AutoConfig.for_model("bert", vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    )
    assert not bound_classes(bert)


@pytest.mark.usefixtures("every_kernel")
def test_small_layers_have_no_kernel(tiny_model, monkeypatch):
    monkeypatch.setattr("tokenmixers.modeling.kernels.linear.FEWEST_WEIGHTS", 10**6)
    assert not bound_classes(tiny_model("GMLPModel"))


@pytest.mark.usefixtures("every_kernel")
def test_layers_that_others_have_put_in_place_compute_as_they_do(tiny_model):
    """PEFT and PyTorch's quantisation have classes of the name `Linear` too; models move after they are wrapped."""
    peft = pytest.importorskip("peft")
    ids = torch.tensor([[1, 2, 3]])
    config = peft.LoraConfig(r=2, target_modules=["proj_in"], init_lora_weights=False)
    wrapped = peft.get_peft_model(tiny_model("GMLPForSequenceClassification"), config)
    quantised = torch.ao.quantization.quantize_dynamic(tiny_model("GMLPForSequenceClassification"), {nn.Linear})
    for model in (wrapped, quantised):
        with torch.no_grad():
            expected = model(ids).logits
            use_kernels(model.to("cpu"))
            assert_close(model(ids).logits, expected)
    wrapped(ids).logits.sum().backward()
    assert all(weight.grad is not None for name, weight in wrapped.named_parameters() if "lora" in name)


@pytest.mark.usefixtures("every_kernel")
def test_unpickled_models_are_bound_again(tiny_model):
    model = pickle.loads(pickle.dumps(tiny_model("GMLPModel"))).to("cpu")
    assert "Linear" in bound_classes(model)
    use_kernels(model, enabled=False)
    assert not bound_classes(model)


@pytest.mark.usefixtures("every_kernel")
def test_models_on_other_devices_lose_their_kernels(tiny_model):
    class OnDevice(nn.Module):
        """A model whose parameters say that they are elsewhere."""

        def __init__(self, model, device):
            super().__init__()
            self.model, self.device = model, device

        def parameters(self):
            return iter([SimpleNamespace(device=torch.device(self.device))])

    model = tiny_model("GMLPModel")
    bind(OnDevice(model, "cuda"))
    assert not bound_classes(model)
    bind(OnDevice(model, "cpu"))
    assert bound_classes(model)


@pytest.mark.usefixtures("every_kernel")
def test_a_forward_that_others_have_set_is_left_alone():
    hooks = pytest.importorskip("accelerate.hooks")
    layer, other = nn.Linear(4, 3), nn.Linear(4, 3)
    use_kernels(layer)
    for module in (layer, other):
        hooks.add_hook_to_module(module, hooks.ModelHook())
    wrapped = layer.forward, other.forward
    for enabled in (True, False):
        use_kernels(nn.Sequential(layer, other), enabled)
        assert (layer.forward, other.forward) == wrapped
    inputs = torch.randn(2, 3, 4)
    assert_close(layer(inputs), torch.nn.functional.linear(inputs, layer.weight, layer.bias))
    hooks.remove_hook_from_module(layer)
    assert layer.forward.__func__ is nn.Linear.forward  # switched off while the hook was there


@pytest.mark.slow  # imports everything anew
def test_models_run_without_the_folder(tmp_path):
    package = tmp_path / "tokenmixers"
    shutil.copytree(
        Path(kernels.__file__).parents[2], package, ignore=shutil.ignore_patterns(".*", "build", "outputs", "tests")
    )
    for path in (package / "modeling" / "kernels").glob("*.py"):
        path.unlink()  # as `git rm` does, which leaves what Python has cached
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, tokenmixers\n"
        "config = tokenmixers.GMLPConfig(hidden_size=8, intermediate_size=16, num_hidden_layers=1, vocab_size=9)\n"
        "print(tuple(tokenmixers.GMLPModel(config)(torch.tensor([[1, 2]]))[0].shape), tokenmixers.__file__)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.split(") ")[0] == "(1, 2, 8", found.stderr
    assert str(package) in found.stdout
