"""All tests of this folder are marked `gpu`. What they compare with is computed on the CPU in float32."""

import copy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tokenmixers.configuration.auto_classes import FAMILIES


CLASSES = sorted({name for family in FAMILIES.values() for name in family.models.values()})
#: Largest difference of outputs, relative to their norms.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 6e-2}
#: Gradients differ by more: a ReLU's input may be rounded to the other side of zero, and the models are narrow.
OF_GRADIENTS = 8


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("gpu")


def pytest_generate_tests(metafunc):
    if "class_name" in metafunc.fixturenames and not any(
        "class_name" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("class_name", CLASSES)


@pytest.fixture(autouse=True)
def _exact_and_clean(monkeypatch):
    """No TF32, which convolutions use by default; no kernels, which are for CPUs; graphs of a test for it alone.

    `TrainingArguments(torch_compile=True)` turns on TF32 and compilation for all that follows in the process.
    """
    exact()
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")
    monkeypatch.setenv("TOKENMIXERS_KERNELS", "0")
    yield
    exact()
    torch.compiler.reset()


def exact():
    """Products and convolutions in float32 are computed in float32."""
    torch.backends.cudnn.allow_tf32 = False
    for part in (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        part.fp32_precision = "ieee"


@pytest.fixture
def build(undropped_model):
    """`build(class_name, **changes)`: as `tiny_model`, with sizes that GPUs' matrix units take, and no dropout."""

    def model(name, **changes):
        sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64}
        sizes |= {"head_dim": 16} if "Synthesizer" in name else {"attention_size": 16} if "AMLP" in name else {}
        return undropped_model(name, **{**sizes, **changes}).eval()

    return model


@pytest.fixture
def labelled(tiny_inputs, labels_for):
    """`labelled(model, batch, length, masked=True)`: inputs with labels for the head of the model, if it has one."""

    def example(model, batch=3, length=9, masked=True):
        inputs = tiny_inputs(model, batch, length, masked)
        return {**inputs, **labels_for(model, inputs)}

    return example


def first_of(outputs, inputs):
    """The loss, or of a model without one the mean square of its states at real tokens."""
    if getattr(outputs, "loss", None) is not None:
        return outputs.loss
    states, mask = outputs[0], inputs.get("attention_mask")
    if isinstance(states, tuple):  # feature maps
        states = states[-1]
    return states.float().square().mean() if mask is None else states[mask != 0].float().square().mean()


def to(inputs, device):
    return {key: value.to(device) for key, value in inputs.items()}


@pytest.fixture(scope="session")
def placed():
    """`placed(inputs, device)`: the inputs on a device."""
    return to


def real(value, mask):
    """Without what stands at padding: nobody reads it."""
    per_token = mask is not None and value.dim() >= mask.dim() and value.shape[: mask.dim()] == mask.shape
    return value[mask.to(value.device) != 0] if per_token else value


@pytest.fixture(scope="session")
def assert_close():
    """`assert_close(found, expected, dtype, name)`: the norm of the difference is small against the norm."""

    def check(found, expected, dtype, name="output", floor=0.0, factor=1):
        found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
        assert found.isfinite().all(), f"{name}: not finite"
        allowed = factor * TOLERANCE[dtype] * max(expected.norm().item(), floor)
        difference = (found - expected).norm().item()
        assert difference <= allowed + 1e-12, f"{name}: differs by {difference:.2g}, {allowed:.2g} are allowed"

    return check


@pytest.fixture(scope="session")
def assert_same_outputs(assert_close):
    """`assert_same_outputs(found, expected, inputs, dtype)` for the outputs of a model, padding left out."""

    def check(found, expected, inputs, dtype):
        mask = inputs.get("attention_mask")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if name == "feature_maps":
                for one, other in zip(found[name], value, strict=True):
                    assert_close(one, other, dtype, name)
            if torch.is_tensor(value):
                assert_close(real(found[name], mask), real(value, mask), dtype, name)

    return check


@pytest.fixture
def agrees(device, assert_close, assert_same_outputs):
    """`agrees(model, inputs, dtype, autocast=False, run=None)`: outputs, loss and gradients are those of the CPU.

    The weights on the CPU are rounded to `dtype` and computed with in float32. With `autocast` the GPU has float32
    weights. `run(model)` returns what is called on the GPU, the model itself by default.
    """

    def check(model, inputs, dtype, autocast=False, run=None):
        ours = copy.deepcopy(model).to(device)
        expected_model = model
        if not autocast:
            ours = ours.to(dtype)
            expected_model = copy.deepcopy(model).to(dtype).float()
            inputs = {key: v.to(dtype).float() if v.is_floating_point() else v for key, v in inputs.items()}
        there = to(inputs, device)
        if not autocast:
            there = {key: value.to(dtype) if value.is_floating_point() else value for key, value in there.items()}
        call = ours if run is None else run(ours)
        with torch.autocast(device.type, dtype) if autocast else nullcontext():
            outputs = call(**there)
        expected = expected_model(**inputs)
        assert all(v.device.type == device.type for v in outputs.values() if torch.is_tensor(v))
        assert_same_outputs(outputs, expected, inputs, dtype)
        losses = first_of(outputs, there), first_of(expected, inputs)
        assert_close(*losses, dtype, "loss")
        for loss in losses:
            loss.backward()
        pairs = list(zip(ours.named_parameters(), expected_model.parameters(), strict=True))
        expected_gradients = [other.grad for _, other in pairs if other.grad is not None]
        assert expected_gradients
        whole = torch.stack([gradient.norm() for gradient in expected_gradients]).norm().item()
        for (name, parameter), other in pairs:
            assert (parameter.grad is None) == (other.grad is None), name
            if parameter.grad is not None:
                assert parameter.grad.device.type == device.type
                limits = {"floor": 0.05 * whole, "factor": OF_GRADIENTS}
                assert_close(parameter.grad, other.grad, dtype, f"gradient of {name}", **limits)
                other.grad = None

    return check
