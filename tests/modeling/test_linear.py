"""Linear layers as convolutions: parity with the layers themselves, and who is left alone.

To compile a model, be it the smallest, takes seconds: of tests that do, as few cases are fast as show every setting.
"""

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.activations import ACT2FN
from transformers.utils import is_tracing

from tokenmixers.modeling import linear as linear_module
from tokenmixers.modeling.linear import (
    is_in_graph,
    is_plain,
    linear,
    pointwise_convolution,
    swapped_product,
    types_for_convolution,
)
from tokenmixers.modeling.spatial_gating_unit import SpatialProjection, TokenPositions


def _recorded_on_any_processor(product, monkeypatch):
    """The shapes of `product`'s calls, which any processor now has a reason for."""
    shapes = []

    def recorded(inputs, weight, bias):
        shapes.append((*inputs.shape, *weight.shape))
        return product(inputs, weight, bias)

    monkeypatch.setattr(linear_module, "types_for_convolution", lambda: {torch.float32, torch.bfloat16})
    monkeypatch.setattr(linear_module, product.__name__, recorded)
    return shapes


@pytest.fixture
def convolutions(monkeypatch):
    """Any processor prefers convolutions, for any number of rows; the list holds the shapes that were convolved."""
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS", {torch.float32: 1, torch.bfloat16: 1})
    monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: 1, torch.bfloat16: 1})
    # Stands in for "oneDNN would take it", which small shapes and the single thread of the tests never reach.
    monkeypatch.setattr(linear_module, "reaches_onednn", lambda inputs, images: True)
    return _recorded_on_any_processor(pointwise_convolution, monkeypatch)


@pytest.mark.parametrize("product", [pointwise_convolution, swapped_product])
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    width=st.integers(1, 9),
    outputs=st.integers(1, 9),
    bias=st.booleans(),
    contiguous=st.booleans(),
)
def test_equals_the_sum_written_out(product, shape, width, outputs, bias, contiguous):
    inputs = torch.randn(*shape, width, dtype=torch.double)
    if not contiguous:
        inputs = torch.cat([inputs, inputs], -1)[..., width:]
    weight = torch.randn(outputs, width, dtype=torch.double)
    leaves = [inputs.requires_grad_(), weight.requires_grad_()]
    offset = torch.randn(outputs, dtype=torch.double, requires_grad=True) if bias else None
    leaves += [offset] if bias else []
    found = product(inputs, weight, offset)
    expected = torch.einsum("...i,oi->...o", inputs, weight) + (offset if bias else 0)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    gradients = [torch.autograd.grad((out * direction).sum(), leaves) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, "gelu", "relu", "gelu_python"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_equals_the_layer(dtype, activation, mode, convolutions):
    layer = nn.Linear(6, 5).to(dtype)
    activation = activation and ACT2FN[activation]
    inputs = torch.randn(2, 3, 6, dtype=dtype)
    kept = inputs.clone()
    with mode():
        found = linear(layer, inputs, activation)
        expected = layer(inputs) if activation is None else activation(layer(inputs))
    # Backward passes of convolutions lose more in bfloat16 than the bias costs.
    trains_in_bfloat16 = mode is torch.enable_grad and dtype == torch.bfloat16
    assert convolutions == [] if trains_in_bfloat16 else [(2, 3, 6, 5, 6)]
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(found, expected, **tolerance)
    assert torch.equal(inputs, kept)


class _Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _gelus(function):
    with _Operators() as operators:
        function()
    return {name for name in operators.names if name.startswith("gelu")}


def test_gelu_takes_no_memory_where_nobody_can_notice():
    layer, gelu, inputs = nn.Linear(4, 4), ACT2FN["gelu"], torch.randn(2, 4)

    def call(layer=layer, gelu=gelu):
        return _gelus(lambda: linear(layer, inputs, gelu))

    assert call() == {"gelu"}  # gradients need the inputs of GELU
    with torch.no_grad():
        assert call() == {"gelu_"}
        seen = []
        handle = layer.register_forward_hook(lambda module, args, output: seen.append(output))
        assert call() == {"gelu"}
        handle.remove()
        torch.testing.assert_close(seen, [layer(inputs)])
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
        assert call() == {"gelu"}
        handle.remove()
        gelu.register_forward_hook(lambda module, args, output: output + 1)
        assert call() == {"gelu"}
        torch.testing.assert_close(linear(layer, inputs, gelu), F.gelu(layer(inputs)) + 1)
        assert call(gelu=ACT2FN["gelu"]) == {"gelu_"}
        assert call(nn.Sequential(layer), ACT2FN["gelu"]) == {"gelu"}


class _Replacement(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) + 1


class _Subclass(torch.Tensor):
    pass


def test_what_is_not_plain_is_left_alone(convolutions, monkeypatch):
    inputs = torch.randn(3, 4)

    def stays(layer, inputs=inputs):
        expected = layer(inputs)
        torch.testing.assert_close(linear(layer, inputs), expected, rtol=0, atol=0)
        return not convolutions

    assert stays(_Replacement(4, 2))
    hooked = nn.Linear(4, 2)
    hooked.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    assert stays(hooked)
    offloaded = nn.Linear(4, 2)
    offloaded.forward = lambda inputs: torch.zeros(3, 2)
    assert stays(offloaded)
    pruned = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    assert stays(pruned)
    quantised = nn.Linear(4, 2)
    quantised.weight = nn.Parameter(quantised.weight.detach().as_subclass(_Subclass))
    assert stays(quantised)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        sparse = nn.Linear(4, 2, bias=False)
        sparse.weight = nn.Parameter(sparse.weight.to_sparse(layout=layout), requires_grad=False)
        assert stays(sparse)
    assert stays(nn.Linear(4, 2).double(), inputs.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert stays(nn.Linear(4, 2))
    with torch.backends.mkldnn.flags(enabled=False):
        assert stays(nn.Linear(4, 2))
    layer = nn.Linear(4, 2)
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS", {torch.float32: 4})
    assert stays(layer)
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS", {torch.float32: 3})
    monkeypatch.setattr(linear_module, "CONVOLUTION_BYTES", 31)
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS_OF_LARGER", {torch.float32: 4})
    assert stays(layer)
    monkeypatch.setattr(linear_module, "CONVOLUTION_BYTES", 32)
    monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: 25})
    assert stays(layer)
    monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: 24})
    assert not stays(layer) and convolutions == [(3, 4, 2, 4)]
    monkeypatch.setattr(linear_module, "CONVOLUTION_BYTES", 31)
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS_OF_LARGER", {torch.float32: 3})
    assert not stays(layer) and len(convolutions) == 2


def test_those_who_asked_for_faster_products_get_them(convolutions):
    layer, inputs = nn.Linear(4, 2), torch.randn(3, 4)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        linear(layer, inputs)
        assert not convolutions
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.conv.fp32_precision = "bf16"
        linear(layer, inputs)
        assert not convolutions
        torch.backends.mkldnn.conv.fp32_precision = "none"
        linear(layer, inputs)
        assert convolutions
    finally:
        torch.backends.mkldnn.conv.fp32_precision = "none"
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "name",
    ["GMLPForMaskedLM", "AMLPForCausalLM", "SynthesizerForConditionalGeneration", "MLPMixerForImageClassification"],
)
def test_models_stay_the_same(name, tiny_model, tiny_inputs, convolutions, monkeypatch):
    model = tiny_model(name)
    inputs = tiny_inputs(model, 2, 6)

    def run():
        model.zero_grad()
        logits = model(**inputs).logits
        logits.square().sum().backward()
        with torch.no_grad():
            again = model(**inputs).logits
        return logits, again, {name: parameter.grad for name, parameter in model.named_parameters()}

    found = run()
    assert len(convolutions) >= 4
    monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
    convolutions.clear()
    expected = run()
    assert not convolutions
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
def test_spatial_products_stay_the_same(weight_type, convolutions, tiny_model, tiny_inputs, monkeypatch):
    model = tiny_model("GMLPForMaskedLM", spatial_weight_type=weight_type)
    inputs = tiny_inputs(model, 3, 7)
    called = []
    conv1d = F.conv1d
    monkeypatch.setattr(F, "conv1d", lambda *args: called.append(1) or conv1d(*args))
    found = model(**inputs).logits
    assert called or weight_type == "full"  # rows with padding on the left have a full matrix each
    called.clear()
    found_alone = model(inputs["input_ids"]).logits
    assert called
    monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
    torch.testing.assert_close(found, model(**inputs).logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_alone, model(inputs["input_ids"]).logits, rtol=1e-4, atol=1e-5)


def test_hooks_see_what_the_gate_was(tiny_model):
    model = tiny_model("GMLPModel")
    projection = model.layers[0].sgu.spatial_proj
    inputs, seen = torch.randint(37, (2, 6)), []
    with torch.no_grad():
        expected = model(inputs).last_hidden_state
        projection.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
        torch.testing.assert_close(model(inputs).last_hidden_state, expected, rtol=0, atol=0)
        mixed, gate = seen[0]
        torch.testing.assert_close(
            gate, torch.einsum("ij,bjc->bic", projection.matrix(6), mixed) + projection.bias[:6, None]
        )


@pytest.fixture
def threads():
    """`threads(n)` lets PyTorch use them, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _runs_onednn(function):
    with torch.profiler.profile() as profiler:
        function()
    return any(event.key == "aten::mkldnn_convolution" for event in profiler.key_averages())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows, width", [((2, 152), 96), ((2, 136), 64), ((305,), 96), ((256,), 64)])
def test_parity_of_onednn(count, rows, width, threads, monkeypatch):
    """With the library itself, which PyTorch calls for the shapes that `reaches_onednn` names, and no others."""
    threads(count)
    layer, inputs = nn.Linear(width, 80), torch.randn(*rows, width, requires_grad=True)
    leaves = (inputs, layer.weight, layer.bias)
    found = pointwise_convolution(*leaves)
    expected = torch.einsum("...i,oi->...o", inputs.double(), layer.weight.double()) + layer.bias.double()
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(found)
    gradients = [torch.autograd.grad((out * direction).sum(), leaves) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    reaches = linear_module.reaches_onednn(inputs, linear_module.images_for(inputs.shape[:-1].numel()))
    assert _runs_onednn(lambda: pointwise_convolution(*leaves)) == reaches
    monkeypatch.setattr(linear_module, "types_for_convolution", lambda: {torch.float32})
    monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: 256 * 64 * 80})
    assert _runs_onednn(lambda: linear(layer, inputs)) == reaches


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN")
@pytest.mark.parametrize("count, batch", [(1, 2), (1, 16), (2, 2)])
def test_spatial_parity_of_onednn(count, batch, threads, monkeypatch, randomise):
    threads(count)
    projection, inputs = randomise(SpatialProjection(300, "toeplitz")), torch.randn(batch, 300, 70, requires_grad=True)
    leaves = (inputs, projection.weight, projection.bias)
    monkeypatch.setattr(linear_module, "types_for_convolution", lambda: {torch.float32})
    monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: 2 * 300 * 300 * 70})
    assert _runs_onednn(lambda: projection(inputs)) == (count > 1 or batch >= 16)
    found = projection(inputs)
    matrix = projection.matrix(300).double()
    expected = torch.einsum("ij,bjc->bic", matrix, inputs.double()) + projection.bias.double()[:, None]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    direction = torch.randn_like(found)
    gradients = [torch.autograd.grad((out * direction).sum(), leaves) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def _graph(model, inputs):
    """The model's outputs, compiled, and its graph."""
    graphs = []
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(graph.code) or graph)
    return compiled(inputs), graphs[0]


@pytest.mark.fast_cases(dtype=torch.float32)
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_compiled_inference(dtype, rtol, tiny_model, convolutions, monkeypatch):
    """The graph of an AMD processor holds our operators."""
    model = tiny_model("GMLPForMaskedLM", num_hidden_layers=1).to(dtype)
    inputs = torch.randint(37, (2, 6))
    expected = model(inputs).logits
    for types, has_operators in (({dtype}, True), (frozenset(), False)):
        monkeypatch.setattr(linear_module, "types_for_convolution", lambda types=types: types)
        convolutions.clear()
        with torch.no_grad():
            outputs, graph = _graph(model, inputs)
        torch.testing.assert_close(outputs.logits, expected, rtol=rtol, atol=rtol / 10)
        # Two linear layers, of which GELU follows one, and a spatial projection per layer, and the prediction head.
        # None has gradients to keep something for.
        layers = model.config.num_hidden_layers
        found = [graph.count(f"{linear_module._OPERATOR}{end}.default(") for end in ("", "_gelu", "_inference")]
        products = 3 * layers + 1 if dtype == torch.float32 else 2 * layers + 1
        assert found == [0, 0, products * has_operators] and bool(convolutions) == has_operators


@pytest.mark.fast_cases(types=[{torch.float32}])  # where operators could get in
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("types", [{torch.float32}, frozenset()], ids=["AMD", "others"])
def test_exported_programs_hold_none_of_our_operators(types, strict, tiny_model, convolutions, monkeypatch):
    """On either kind of processor, and they run on the other one."""
    model = tiny_model("GMLPForMaskedLM", num_hidden_layers=1)
    inputs = torch.randint(37, (2, 6))
    expected = model(inputs).logits
    monkeypatch.setattr(linear_module, "types_for_convolution", lambda: types)
    with torch.no_grad():
        program = torch.export.export(copy.deepcopy(model), (inputs,), strict=strict)
    assert "tokenmixers" not in program.graph_module.code
    convolutions.clear()
    torch.testing.assert_close(program.module()(inputs).logits, expected, rtol=1e-4, atol=1e-5)
    assert not convolutions


@pytest.mark.fast_cases(frozen=[None, "weight"])
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_compiled_training(dtype, rtol, frozen, tiny_model, convolutions, monkeypatch):
    model = tiny_model("GMLPForMaskedLM", num_hidden_layers=1).to(dtype)
    inputs = torch.randint(37, (2, 6))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen is None or not name.endswith(frozen))

    def gradients(logits):
        model.zero_grad()
        logits.float().square().mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    graphs = {}
    for types in ({dtype}, frozenset()):
        monkeypatch.setattr(linear_module, "types_for_convolution", lambda types=types: types)
        outputs, graphs[bool(types)] = _graph(model, inputs)
        found = gradients(outputs.logits)
        assert set(found) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        torch.testing.assert_close(found, gradients(model(inputs).logits), rtol=rtol, atol=rtol / 10)
    assert "tokenmixers" not in graphs[False]
    # Two linear layers and a spatial projection per layer, and the prediction head. In bfloat16 backward passes of
    # convolutions are slow.
    found = [graphs[True].count(f"{linear_module._OPERATOR}{end}.default(") for end in ("", "_gelu", "_inference")]
    layers = model.config.num_hidden_layers
    assert found == ([3 * layers + 1, 0, 0] if dtype == torch.float32 else [0, layers, 0])


@pytest.mark.parametrize("dtype, autocast", [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("grad", [False, True])
def test_gelu_in_graphs(dtype, autocast, grad, convolutions):
    """In bfloat16, by autocast as well, it is PyTorch's own, whose gradients are known."""
    layer, gelu = nn.Linear(4, 2, dtype=torch.float32 if autocast else dtype), ACT2FN["gelu"]
    inputs = torch.randn(3, 4, dtype=layer.weight.dtype, requires_grad=grad)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, enabled=autocast):
        outputs, graph = _graph(lambda inputs: linear(layer, inputs, gelu), inputs)
        expected = F.gelu(layer(inputs))
    torch.testing.assert_close(outputs, expected)
    operators = ["_gelu.default(" in graph, "_inference.default(" in graph]
    # The fused operator is for inference, and in the type of its weights.
    assert operators == [dtype == torch.bfloat16 and (grad or autocast), not (grad or autocast)]
    if grad:
        leaves = (inputs, *layer.parameters())
        found = [torch.autograd.grad(out.float().square().sum(), leaves) for out in (outputs, expected)]
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("is_spatial", [False, True])
def test_the_compiler_keeps_products_of_few_rows(is_spatial, convolutions, monkeypatch, randomise):
    """And of large weights: where the operator would call the same routine, the compiler's own costs less."""
    module = randomise(SpatialProjection(6, "toeplitz")) if is_spatial else nn.Linear(3, 4)
    inputs, rows, multiplications = torch.randn(2, 6, 3), 6 if is_spatial else 12, 12 * 3 * (6 if is_spatial else 4)
    monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS_OF_LARGER", {torch.float32: rows + 1})
    for fewest, least, most_bytes, has_operator in (
        (rows, multiplications, 144, True),
        (rows + 1, multiplications, 144, False),
        (rows, multiplications + 1, 144, False),
        (rows, multiplications, 47, False),
    ):
        monkeypatch.setattr(linear_module, "CONVOLUTION_ROWS", {torch.float32: fewest})
        monkeypatch.setattr(linear_module, "CONVOLUTION_MULTIPLICATIONS", {torch.float32: least})
        monkeypatch.setattr(linear_module, "CONVOLUTION_BYTES", most_bytes)
        outputs, graph = _graph(lambda inputs: module(inputs) if is_spatial else linear(module, inputs), inputs)
        torch.testing.assert_close(outputs, module(inputs))
        assert ("tokenmixers.product" in graph) == has_operator


@pytest.fixture
def swapped(monkeypatch):
    """On any processor two to four float32 rows are swapped, three from a width of 9 on; the list holds shapes."""
    monkeypatch.setattr(linear_module, "SWAPPED_WIDTH", 9)
    return _recorded_on_any_processor(swapped_product, monkeypatch)


@pytest.mark.fast_cases
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [8, 9])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1), (1, 2), (3,), (4, 1), (2, 2), (5, 1), (0, 2)])
def test_products_of_two_to_four_rows_are_swapped(shape, width, bias, swapped, monkeypatch):
    layer, inputs = nn.Linear(width, 5, bias=bias), torch.randn(*shape, width)
    few = inputs.shape[:-1].numel() in ((2, 3) if width == 9 else (2, 3, 4))
    expected, found = layer(inputs), linear(layer, inputs)
    assert swapped == []  # with gradients
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        found = linear(layer, inputs)
        assert swapped == ([(*shape, width, 5, width)] if few else [])
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous()  # otherwise what follows is slow: attention takes PyTorch's slowest way
        swapped.clear()
        linear(copy.deepcopy(layer).bfloat16(), inputs.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            linear(layer, inputs)
        assert swapped == []
        torch.testing.assert_close(_graph(lambda inputs: linear(layer, inputs), inputs)[0], expected)
        assert len(swapped) == few  # the graph's
        swapped.clear()
        torch.export.export(_Linear(layer), (inputs,))
        monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
        linear(layer, inputs)
    assert swapped == []


class _Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return linear(self.layer, inputs)


def test_other_graphs_and_tensors_do_without(swapped):
    """Traced programs and ragged tensors do not know their rows, and who wants less precise products has them."""
    layer, inputs = nn.Linear(8, 5), torch.randn(3, 8)
    with torch.no_grad():
        traced = torch.jit.trace(_Linear(layer), (inputs,))
        longer = torch.randn(7, 8)
        torch.testing.assert_close(traced(longer), layer(longer))
        ragged = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(1, 8)], layout=torch.jagged)
        torch.testing.assert_close(linear(layer, ragged).values(), layer(ragged.values()))
        assert linear(nn.Linear(0, 5), torch.randn(3, 0)).shape == (3, 5)
        swapped.clear()
        before = torch.backends.mkldnn.matmul.fp32_precision
        try:
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
            linear(layer, inputs)
            _graph(lambda inputs: linear(layer, inputs), inputs)
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = before
    assert swapped == []


def test_graphs_do_not_ask_for_the_number_of_rows(swapped):
    """A graph for all batches has none of them: it would be another graph for two to four rows."""
    layer, frames = nn.Linear(8, 5), []
    torch.compiler.reset()
    compiled = torch.compile(
        lambda inputs: linear(layer, inputs),
        fullgraph=True,
        dynamic=True,
        backend=lambda graph, _: frames.append(1) or graph,
    )
    with torch.no_grad():
        for batch in (7, 2, 3, 4, 6):
            inputs = torch.randn(batch, 8)
            torch.testing.assert_close(compiled(inputs), layer(inputs))
    assert len(frames) == 1


def test_compiled_layers_that_are_not_plain(convolutions):
    """The operator would not run their hooks and does not know their weights."""
    replaced, hooked, quantised = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
    replaced.forward = lambda inputs: inputs[..., :2] * 2
    hooked.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    quantised.weight = nn.Parameter(quantised.weight.detach().as_subclass(_Subclass))
    inputs = torch.randn(3, 4)
    with torch.no_grad():
        for layer in (replaced, hooked, quantised, _Replacement(4, 2)):
            outputs, graph = _graph(lambda inputs, layer=layer: linear(layer, inputs), inputs)
            torch.testing.assert_close(outputs, layer(inputs))
            assert "tokenmixers.product" not in graph
        layer = nn.Linear(4, 2)
        assert "tokenmixers.product" in _graph(lambda inputs: linear(layer, inputs), inputs)[1]


@pytest.mark.fast_cases
@pytest.mark.parametrize("is_spatial", [False, True])
@pytest.mark.parametrize("is_convolution", [False, True])
@pytest.mark.parametrize("leaves", [("inputs",), ("weight",), ("inputs", "weight", "bias"), ("weight", "bias"), ()])
def test_the_product_in_graphs(is_spatial, is_convolution, leaves, convolutions, monkeypatch):
    """Forward and backward, the weight a part of a larger one, as those of shorter texts are."""
    if not is_convolution:
        monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
    given = {"inputs": torch.randn(2, 5, 4), "weight": torch.randn(9, 9), "bias": torch.randn(3)}
    for name in leaves:
        given[name].requires_grad_()
    inputs, weight, bias = given["inputs"], given["weight"][:3, : 5 if is_spatial else 4], given["bias"]
    bias = bias if "bias" in leaves else None
    torch.library.opcheck(linear_module.product_in_graph, (inputs, weight, bias, is_spatial))
    expected = torch.einsum("bti,ot->boi" if is_spatial else "bti,oi->bto", inputs, weight)
    if bias is not None:
        expected = expected + (bias[:, None] if is_spatial else bias)
    found = linear_module.product_in_graph(inputs, weight, bias, is_spatial)
    torch.testing.assert_close(found, expected)
    if not leaves:
        return
    convolved, backward = [], linear_module._convolution_backward
    monkeypatch.setattr(
        linear_module, "_convolution_backward", lambda *args: convolved.append(backward(*args)) or convolved[-1]
    )
    direction = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((out * direction).sum(), [given[name] for name in leaves]) for out in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
    assert len(convolved) == len({"inputs", "weight"} & set(leaves))
    assert all((part is not None) == is_convolution for part in convolved)


@pytest.mark.parametrize("is_convolution", [False, True])
@pytest.mark.parametrize("is_spatial", [False, True])
def test_gradients_in_graphs_are_well_defined(is_spatial, is_convolution, convolutions, monkeypatch):
    if not is_convolution:
        monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
    inputs, weight = torch.randn(2, 5, 4), torch.randn(9, 9)[:3, : 5 if is_spatial else 4]
    gradients = torch.randn(2, 3, 4) if is_spatial else torch.randn(2, 5, 3)
    torch.library.opcheck(linear_module.inputs_gradient_in_graph, (gradients, weight, is_spatial))
    torch.library.opcheck(linear_module.weight_gradient_in_graph, (gradients, inputs, weight, is_spatial))
    # Autocast that begins between forward and backward must not change the types that the graph was made for.
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_module.inputs_gradient_in_graph(gradients, weight, is_spatial).dtype == torch.float32
        assert linear_module.weight_gradient_in_graph(gradients, inputs, weight, is_spatial).dtype == torch.float32


@pytest.mark.fast_cases
@pytest.mark.parametrize("is_spatial", [False, True])
@pytest.mark.parametrize("is_convolution", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_the_product_of_inference(is_spatial, is_convolution, dtype, batch, convolutions, monkeypatch):
    """With and without GELU and bias, the weight a part of a larger one, as those of shorter texts are."""
    if not is_convolution:
        monkeypatch.setattr(linear_module, "types_for_convolution", frozenset)
    inputs = torch.randn(batch, 5, 4, dtype=dtype)
    weight, bias = torch.randn(9, 9, dtype=dtype)[:3, : 5 if is_spatial else 4], torch.randn(3, dtype=dtype)
    kept = inputs.clone()
    expected = torch.einsum("bti,ot->boi" if is_spatial else "bti,oi->bto", inputs.double(), weight.double())
    for offset in (None, bias):
        total = expected if offset is None else expected + (offset[:, None] if is_spatial else offset)
        for has_gelu in (False, True):
            arguments = (inputs, weight, offset, is_spatial, has_gelu)
            with torch.no_grad():
                torch.library.opcheck(linear_module.inference_in_graph, arguments)
                found = linear_module.inference_in_graph(*arguments)
            tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.03}
            torch.testing.assert_close(found.double(), F.gelu(total) if has_gelu else total, **tolerance)
            assert torch.equal(inputs, kept)
    assert bool(convolutions) == (is_convolution and not is_spatial and batch > 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype, is_spatial", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)])
def test_second_derivatives_in_graphs(dtype, is_spatial, convolutions, randomise):
    """Those of a graph that the compiler leaves as it is; it has none of its own."""
    module = (randomise(SpatialProjection(5, "toeplitz")) if is_spatial else nn.Linear(4, 4)).to(dtype)
    inputs = torch.randn(2, 5, 4, dtype=dtype, requires_grad=True)

    def second(outputs):
        (gradient,) = torch.autograd.grad(outputs.float().pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(gradient.float().square().sum(), [inputs, *module.parameters()])

    def forward(inputs):
        return module(inputs) if is_spatial else linear(module, inputs, ACT2FN["gelu"])

    outputs, graph = _graph(forward, inputs)
    assert f"{linear_module._OPERATOR}{'_gelu' if dtype == torch.bfloat16 else ''}.default(" in graph
    found, expected = second(outputs), second(module(inputs) if is_spatial else F.gelu(module(inputs)))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= (1e-5 if dtype == torch.float32 else 0.02) * other.norm()


@pytest.mark.parametrize("grad", [False, True])
def test_the_gelu_in_graphs(grad):
    inputs = torch.randn(2, 5, dtype=torch.bfloat16, requires_grad=grad)
    torch.library.opcheck(linear_module.gelu_in_graph, (inputs,))
    torch.library.opcheck(linear_module.gelu_gradient_in_graph, (torch.randn_like(inputs), inputs.detach()))


@pytest.mark.fast_cases
@pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
@pytest.mark.parametrize("marked", [False, True])
def test_one_graph_for_all_sizes(weight_type, marked, convolutions, randomise):
    projection = randomise(SpatialProjection(40, weight_type))
    layer, norm, frames = nn.Linear(8, 8), nn.LayerNorm(8), []

    def mix(inputs):
        return linear(layer, projection(norm(inputs)), ACT2FN["gelu"])

    def count(graph, _):
        frames.append(graph.code)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(mix, fullgraph=True, dynamic=None if marked else True, backend=count)
    for batch, length in [(2, 5), (3, 7), (4, 39), (5, 2)]:
        inputs = torch.randn(batch, length, 8)
        if marked:
            torch._dynamo.mark_dynamic(inputs, 0)
            torch._dynamo.mark_dynamic(inputs, 1)
        torch.testing.assert_close(compiled(inputs), mix(inputs), rtol=1e-4, atol=1e-5)
    assert len(frames) == 1 and frames[0].count("tokenmixers.product") == 2


@pytest.mark.slow
def test_inductor_takes_the_products_of_every_size(convolutions, randomise):
    """With and without gradients; an empty batch too, and rows with biases of their own, as for left padding."""
    torch.compiler.reset()
    projection, layer = randomise(SpatialProjection(9, "toeplitz")), nn.Linear(4, 4)

    def mix(inputs, offsets):
        ids = torch.arange(inputs.shape[1]) + offsets[:, None]
        return linear(layer, projection(inputs, TokenPositions(ids, shifted=True)), ACT2FN["gelu"])

    compiled = torch.compile(mix, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, length in [(2, 5), (0, 4)]:
            inputs, offsets = torch.randn(batch, length, 4), torch.randint(3, (batch,))
            expected = mix(inputs, offsets)
            torch.testing.assert_close(compiled(inputs, offsets), expected, rtol=1e-4, atol=1e-5)
    parameters = [*projection.parameters(), *layer.parameters()]
    for batch, length in [(2, 5), (3, 7), (0, 4)]:
        inputs, offsets = torch.randn(batch, length, 4, requires_grad=True), torch.randint(3, (batch,))
        found, expected = compiled(inputs, offsets), mix(inputs, offsets)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        gradients = [torch.autograd.grad(out.square().sum(), [inputs, *parameters]) for out in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_function_transforms_do_without(dtype, convolutions):
    """`torch.func.grad` does not take operators with a backward pass of their own."""
    layer, inputs = nn.Linear(4, 2, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    gradient = torch.func.grad(lambda inputs: linear(layer, inputs, ACT2FN["gelu"]).square().sum())
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager")(inputs), gradient(inputs))


@pytest.mark.parametrize("length", [4, 6])
def test_traced_projections(length, convolutions, randomise):
    projection, inputs = randomise(SpatialProjection(6, "full")), torch.randn(2, length, 3)
    traced = torch.jit.trace(projection, (inputs,), check_trace=False)
    torch.testing.assert_close(traced(inputs), projection(inputs), rtol=1e-4, atol=1e-5)


def test_copies_of_the_module_have_operators_of_their_own(tmp_path, monkeypatch):
    """Several checkpoints in one process, each with its code, perhaps of another version, or one that was changed."""
    source = Path(linear_module.__file__).read_text(encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    unique = f"copy_{id(source):x}"

    def load(name, change=""):
        (tmp_path / f"{name}.py").write_text(source + change)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    first, second = load(f"{unique}_1"), load(f"{unique}_2")
    assert len({first._OPERATOR, second._OPERATOR, load(f"{unique}_2", "\n# changed\n")._OPERATOR}) == 3
    inputs, weight, found = torch.randn(2, 4), torch.randn(3, 4), []
    monkeypatch.setattr(second, "_product", lambda *args: found.append("second") or F.linear(*args))
    torch.testing.assert_close(first.product_in_graph(inputs, weight, None, False), inputs @ weight.T)
    assert not found
    second.product_in_graph(inputs, weight, None, False)
    assert found
    assert load(f"{unique}_1").product_in_graph is first.product_in_graph  # as `importlib.reload` runs it again


class _File:
    def __init__(self, text):
        self.text = text

    def is_file(self):
        return self.text is not None

    def read_text(self, **kwargs):
        return self.text


@pytest.mark.parametrize(
    "cpuinfo, processor, mkl, capability, expected",
    [
        ("vendor_id\t: AuthenticAMD\n", "", True, "AVX512", {torch.float32, torch.bfloat16}),
        ("vendor_id\t: AuthenticAMD\n", "", True, "AVX2", {torch.float32}),
        (None, "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", True, "AVX2", {torch.float32}),
        ("vendor_id\t: AuthenticAMD\n", "", False, "AVX512", set()),
        ("vendor_id\t: GenuineIntel\n", "", True, "AVX512", set()),
        (None, "arm", True, "DEFAULT", set()),
    ],
)
def test_which_processors(cpuinfo, processor, mkl, capability, expected, monkeypatch):
    monkeypatch.setattr(linear_module, "Path", lambda name: _File(cpuinfo))
    monkeypatch.setattr(linear_module.platform, "processor", lambda: processor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    types_for_convolution.cache_clear()
    try:
        assert types_for_convolution() == expected
    finally:
        types_for_convolution.cache_clear()


def test_layers_with_other_forwards_are_not_plain():
    assert is_plain(nn.Linear(1, 1), nn.Linear) and not is_plain(_Replacement(1, 1), nn.Linear)


@pytest.mark.parametrize("way", ["eager", "fake", "symbolic", "traced", "compiled", "exported"])
def test_graphs_are_those_that_transformers_sees(way):
    answers = []

    class Asking(nn.Module):
        def forward(self, inputs):
            answers.append((is_in_graph(inputs), is_tracing(inputs)))
            return inputs + 1

    inputs, module = torch.ones(2), Asking()
    if way == "eager":
        module(inputs)
    elif way == "fake":
        with FakeTensorMode() as mode:
            module(mode.from_tensor(inputs))
    elif way == "symbolic":
        torch.fx.symbolic_trace(module)
    elif way == "traced":
        torch.jit.trace(module, inputs, check_trace=False)
    elif way == "compiled":
        torch.compile(module, backend="eager", fullgraph=True)(inputs)
    else:
        torch.export.export(module, (inputs,), strict=False)
    assert answers and set(answers) == {(way != "eager",) * 2}
