"""Where a forward pass waits for its device: nowhere, but for the places listed here.

No GPU is needed to see it. On the CPU a dispatch mode records every operation whose result the processor has to know:
numbers read from tensors, and sizes that depend on values. The meta device takes the GPU's part for copies between
devices. `tests/gpu` asks CUDA itself.
"""

import re
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.modeling.inputs import token_layout


aten = torch.ops.aten
# What returns a number of Python, or a size that depends on values.
WAITING = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.item,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.repeat_interleave,
    aten.bincount,
}
CLASSES = sorted({name for family in FAMILIES.values() for name in family.models.values()})
TEXT = [name for name in CLASSES if not re.search("Image|Backbone", name)]
DECODERS = [name for name in TEXT if name.endswith(("CausalLM", "ConditionalGeneration"))]
# The places, and why they remain: the table in modeling/README.md.
PADDING = "_sides_with_padding"
ATTENTION_MASK = "transformers.masking_utils"


def place() -> str:
    """The innermost function of this package, or module of Transformers, that runs now."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("transformers."):
            return module
        if module.startswith("tokenmixers."):
            return frame.f_code.co_name
        frame = frame.f_back
    return "?"


class Waits(TorchDispatchMode):
    """Collects the places at which a GPU's results would be waited for."""

    def __init__(self):
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [value for value in torch.utils._pytree.tree_leaves((args, kwargs)) if torch.is_tensor(value)]
        by_mask = func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func.overloadpacket in WAITING or by_mask:
            self.places.append(place())
        result = func(*args, **kwargs)
        if func.overloadpacket in (aten._to_copy, aten.copy_) and torch.is_tensor(result):
            devices = {tensor.device for tensor in (*tensors, result)}
            if len(devices) > 1 or torch.device(kwargs.get("device") or result.device) not in devices:
                self.places.append(place())
        return result


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setenv("TOKENMIXERS_KERNELS", "0")  # for the CPU alone
    monkeypatch.setattr(token_layout, "_READ_AT_ONCE", ())  # masks are read where that is free


@pytest.fixture
def waits(tiny_model):
    """`waits(model, **inputs)`: names of the functions that wait in a forward pass."""

    def run(model, **inputs):
        with Waits() as found:
            model(**inputs)
        return found.places

    return run


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CLASSES)
def test_no_class_waits_for_rows_without_padding(name, training, tiny_model, tiny_inputs, labels_for, waits):
    model = tiny_model(name).train(training)
    inputs = tiny_inputs(model, 2, 6, masked=False)
    inputs |= labels_for(model, inputs) if training else {}
    inputs |= {"num_items_in_batch": torch.tensor(5)} if training and not name.endswith(("Model", "Backbone")) else {}
    assert waits(model, **inputs) == []


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_copied_between_devices(name, tiny_model, tiny_inputs, labels_for, waits):
    model = tiny_model(name).train()
    inputs = tiny_inputs(model, 2, 6, masked=False)
    inputs = {key: value.to("meta") for key, value in (inputs | labels_for(model, inputs)).items()}
    assert waits(model.to("meta"), **inputs) == []


@pytest.mark.parametrize("name", TEXT)
def test_who_looks_at_the_padding(name, tiny_model, tiny_inputs, waits):
    model = tiny_model(name)
    allowed = {"GMLP": [], "AMLP": [ATTENTION_MASK], "MLPMixer": [PADDING], "Synthesizer": [PADDING, ATTENTION_MASK]}
    allowed["HybridBert"] = [ATTENTION_MASK]
    expected = allowed[next(family for family in allowed if name.startswith(family))]
    assert list(dict.fromkeys(waits(model, **tiny_inputs(model, 2, 6)))) == expected


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", [name for name in DECODERS if "Causal" in name])
def test_no_step_with_a_cache_waits(name, cache_class, tiny_model, waits):
    model = tiny_model(name)
    cache = cache_class(config=model.config, **({"max_cache_len": 9} if cache_class is StaticCache else {}))
    ids = torch.randint(37, (2, 4))
    assert waits(model, input_ids=ids, past_key_values=cache) == []
    assert waits(model, input_ids=ids[:, :1], past_key_values=cache) == []


def test_what_a_cache_does_not_know_is_read(tiny_model, waits):
    model, ids = tiny_model("GMLPForCausalLM"), torch.randint(37, (2, 4))
    cache = StaticCache(config=model.config, max_cache_len=20)  # the model has 11 positions
    for tokens in (ids, ids[:, :1]):
        found = waits(model, input_ids=tokens, past_key_values=cache)
    assert set(found) == {"_new_tokens"}
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    found = waits(model, input_ids=ids[:, :1], past_key_values=cache, position_ids=torch.tensor([[4]]))
    assert "at" in found  # beside `check_positions`, on CPUs alone
    assert "_documents" in waits(model, input_ids=ids, position_ids=torch.arange(4)[None])


@pytest.mark.parametrize("name", ["GMLPForMaskedLM", "AMLPForMaskedLM", "SynthesizerForMaskedLM", "GMLPForCausalLM"])
def test_packed_documents_do_not_wait(name, tiny_model, waits):
    ids = torch.randint(37, (2, 6))
    assert waits(tiny_model(name), input_ids=ids, seq_idx=torch.tensor([[0, 0, 1, 1, 1, 2]] * 2)) == []


def test_given_positions_are_not_read_on_a_gpu(tiny_model, waits):
    model = tiny_model("GMLPModel").to("meta")
    ids = torch.zeros(2, 6, dtype=torch.long, device="meta")
    assert waits(model, input_ids=ids, position_ids=ids) == []


def test_sparse_prediction_waits_once(tiny_model, tiny_inputs, waits):
    model = tiny_model("GMLPForMaskedLM", sparse_prediction=True).train()
    inputs = tiny_inputs(model, 2, 6, masked=False)
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["input_ids"] % 2 == 0, -100)
    assert waits(model, **inputs) == ["forward"]


@pytest.mark.parametrize("spatial_weight_type", ["toeplitz", "full"])
def test_full_weights_look_at_the_padding(spatial_weight_type, tiny_model, tiny_inputs, waits):
    model = tiny_model("GMLPModel", spatial_weight_type=spatial_weight_type)
    expected = [PADDING] if spatial_weight_type == "full" else []
    assert waits(model, **tiny_inputs(model, 2, 6)) == expected


def test_what_would_wait_is_seen():
    numbers = torch.arange(4)
    for wait in (
        numbers.max().item,
        lambda: bool((numbers > 1).all()),
        lambda: numbers[numbers > 1],
        lambda: numbers.to("meta"),
        lambda: torch.zeros(4, device="meta").copy_(numbers),
    ):
        with Waits() as found:
            wait()
        assert found.places, wait
    with Waits() as found:
        numbers[:2] + numbers.max()
        numbers.to(torch.float32)
        numbers[torch.tensor([1, 2])]
    assert found.places == []
    with pytest.raises(RuntimeError):  # is not dispatched: only the meta device refuses it
        numbers.to("meta").tolist()
