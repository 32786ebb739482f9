"""Products of `torch.nn.Linear` by other primitives, against its own."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.testing import assert_close

from tokenmixers.modeling.kernels import linear, use_kernels


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
FEW, MANY = (1, 5), (3, 2)  # leading dimensions: five rows, and as many as the convolution takes


@pytest.fixture
def calls(every_kernel, monkeypatch):
    names = []

    def record(function):
        def called(*args):
            names.append(function.__name__)
            return function(*args)

        return called

    for primitive in (linear.convolution, linear.inner_product):
        monkeypatch.setattr(linear, primitive.__name__, record(primitive))
    return names


def layers(bias=True, dtype=torch.float32):
    """A layer with the kernel, and the same without."""
    torch.manual_seed(0)
    reference = nn.Linear(8, 7, bias=bias).to(dtype)
    bound = copy.deepcopy(reference)
    use_kernels(bound)
    assert "forward" in bound.__dict__
    return bound, reference


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(), (1,), FEW, MANY, (4, 4), (2, 1, 5), (0,), (0, 3)])
def test_values(calls, rows, bias):
    bound, reference = layers(bias)
    inputs = torch.randn(*rows, 8)
    with torch.no_grad():
        found = bound(inputs)
    assert_close(found, torch.einsum("...i,oi->...o", inputs, reference.weight) + (reference.bias if bias else 0))
    count = inputs.numel() // 8
    assert calls == (["convolution"] if count >= 6 else ["inner_product"] if count > 1 else [])


@pytest.mark.parametrize("layout", ["transposed", "expanded", "sliced"])
def test_inputs_of_any_strides(calls, layout):
    bound, reference = layers()
    inputs = {
        "transposed": torch.randn(8, 9).T,
        "expanded": torch.randn(1, 1, 8).expand(3, 4, 8),
        "sliced": torch.randn(9, 16)[:, ::2],
    }[layout]
    with torch.no_grad():
        assert_close(bound(inputs), reference(inputs))
        assert_close(bound(inputs[:3]), reference(inputs[:3]))
    assert "convolution" in calls


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [(3, 2), (4, 4), (2, 24)])
def test_gradients(calls, rows, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pair, inputs = layers(), torch.randn(*rows, 8)
        found = []
        for layer in pair:
            leaf = inputs.clone().requires_grad_()
            outputs = layer(leaf)
            (of_inputs,) = torch.autograd.grad(outputs.square().sum(), leaf, create_graph=True)
            of_inputs.square().sum().backward()  # second derivatives
            found.append([outputs, of_inputs, leaf.grad, layer.weight.grad, layer.bias.grad])
    finally:
        torch.set_num_threads(before)
    assert calls == ["convolution"]
    assert_close(*found, rtol=1e-4, atol=1e-4)


def test_few_rows_with_gradients_are_multiplied_by_pytorch(calls):
    bound, _ = layers()
    bound(torch.randn(*FEW, 8)).sum().backward()
    assert bound.weight.grad.abs().sum() > 0
    assert not calls


@pytest.mark.parametrize("slower", [linear.FEW, linear.MANY, linear.TRAINING])
def test_each_number_of_rows_has_its_own_choice(calls, monkeypatch, slower):
    monkeypatch.setattr(linear, "choice", lambda name: "reference" if name == slower else "alternative")
    bound, reference = layers()
    for rows, primitive, name in ((FEW, "inner_product", linear.FEW), (MANY, "convolution", linear.MANY)):
        with torch.no_grad():
            inputs = torch.randn(*rows, 8)
            assert_close(bound(inputs), reference(inputs))
        assert calls == ([] if name == slower else [primitive])
        calls.clear()
    bound(torch.randn(*MANY, 8))
    assert calls == ([] if slower == linear.TRAINING else ["convolution"])


def test_transforms_and_forward_mode_derivatives(calls):
    bound, reference = layers()
    inputs, tangent = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    with torch.no_grad():
        assert_close(torch.func.vmap(bound)(inputs), reference(inputs))
    for rows in (slice(None), slice(0, 2)):
        expected = torch.func.jvp(reference, (inputs[rows],), (tangent[rows],))
        assert_close(torch.func.jvp(bound, (inputs[rows],), (tangent[rows],)), expected)
        with torch.no_grad(), forward_ad.dual_level():
            found = bound(forward_ad.make_dual(inputs[rows], tangent[rows]))
            assert_close(forward_ad.unpack_dual(found).tangent, expected[1])
    assert not [name for name in calls if name == "inner_product"]
    calls.clear()
    for rows in (FEW, MANY):  # `vmap` has no rule for the primitives, and would call them for every example
        with torch.no_grad():
            inputs = torch.randn(2, *rows, 8)
            assert_close(torch.func.vmap(bound)(inputs), reference(inputs))
        assert_close(*(torch.func.grad(lambda x, f=f: f(x).square().sum())(inputs) for f in (bound, reference)))
    assert not calls


@pytest.mark.parametrize(
    "way", ["float64", "bfloat16", "autocast", "less precise products", "disabled", "subclass", "sparse"]
)
def test_who_keeps_the_reference(calls, way):
    bound, reference = layers(dtype={"float64": torch.double, "bfloat16": torch.bfloat16}.get(way, torch.float32))
    inputs = torch.randn(*MANY, 8, dtype=reference.weight.dtype)
    if way == "subclass":

        class Wrapped(torch.Tensor):
            pass

        inputs = inputs.as_subclass(Wrapped)
    if way == "sparse":
        bound.weight = nn.Parameter(bound.weight.detach().to_sparse_csr())
    precision = torch.backends.mkldnn.matmul.fp32_precision
    try:
        if way == "less precise products":
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        torch.backends.mkldnn.enabled = way != "disabled"
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            assert_close(bound(inputs), reference(inputs))
    finally:
        torch.backends.mkldnn.matmul.fp32_precision, torch.backends.mkldnn.enabled = precision, True
    assert not calls


def test_hooks_are_called(calls):
    bound, reference = layers()
    seen = {bound: [], reference: []}
    for layer in seen:
        layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        layer.register_forward_hook(lambda module, args, output: seen[module].append(output.detach()))
        layer.register_full_backward_hook(lambda module, grads, of_outputs: seen[module].append(grads[0]))
    inputs = torch.randn(*MANY, 8, requires_grad=True)
    for layer in seen:
        layer(inputs).square().sum().backward()
    assert len(seen[bound]) == 2 and calls == ["convolution"]
    assert_close(*seen.values(), rtol=1e-4, atol=1e-4)


def test_copies_and_pickles(calls):
    bound, reference = layers()
    inputs = torch.randn(*MANY, 8)
    copied = copy.deepcopy(bound)
    with torch.no_grad():
        copied.weight.zero_()
        assert_close(copied(inputs), reference.bias.expand(*MANY, 7))  # its own weights
        assert_close(bound(inputs), reference(inputs))
        assert calls == ["convolution"] * 2
        assert_close(pickle.loads(pickle.dumps(bound))(inputs), reference(inputs))
    assert bound.state_dict().keys() == reference.state_dict().keys()
    assert repr(bound) == repr(reference)


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_peft_wraps_a_layer(calls, rows):
    peft = pytest.importorskip("peft")
    found = []
    for layer in layers():
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
        model = peft.get_peft_model(nn.Sequential(layer), config)
        with torch.no_grad():
            inputs = torch.linspace(-1, 1, 8 * rows[0] * rows[1]).view(*rows, 8)
            found.append([model(inputs), model.merge_and_unload()(inputs)])
    assert_close(*found)
    assert len(calls) == 2


@pytest.mark.parametrize("gradients", [False, True])
def test_compiled(every_kernel, gradients):
    bound, reference = (nn.Sequential(layer, nn.GELU()) for layer in layers())
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    record = torch.compile(bound, backend=backend, fullgraph=True, dynamic=True)
    compiled = torch.compile(bound, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in ((3, 4), (5, 2), (2, 1)):  # the last ones are few, in the graph of many
        found = []
        for function in (compiled, reference, record):
            bound.zero_grad(), reference.zero_grad()
            inputs = torch.linspace(-1, 1, 8 * rows[0] * rows[1]).view(*rows, 8).requires_grad_(gradients)
            with torch.set_grad_enabled(gradients):
                outputs = function(inputs)
            if gradients:
                outputs.square().sum().backward()
                weights = (bound if function is compiled else reference)[0]
                if function is not record:
                    found.append([outputs, inputs.grad, weights.weight.grad, weights.bias.grad])
            elif function is not record:
                found.append([outputs])
        assert_close(*found)
    assert "tokenmixers.linear" in graphs[0].code


@pytest.mark.parametrize("trained", list(itertools.product([True, False], repeat=3))[:-1])
def test_compiled_with_frozen_weights(every_kernel, trained):
    pair, inputs, found = layers(), torch.randn(*MANY, 8), []
    torch.compiler.reset()
    for layer in pair:
        leaves = inputs.clone(), layer.weight, layer.bias
        for leaf, is_trained in zip(leaves, trained, strict=True):
            leaf.requires_grad_(is_trained)
        outputs = (torch.compile(layer, backend="aot_eager", fullgraph=True) if layer is pair[0] else layer)(leaves[0])
        outputs.square().sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == list(trained)
        found.append([outputs, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["exported", "exported strictly", "traced"])
def test_exported_programs_have_the_reference(calls, way):
    bound, reference = layers()
    inputs = torch.randn(*MANY, 8)
    if way == "traced":
        program = torch.jit.trace(bound, inputs, check_trace=False)
        assert "conv" not in str(program.inlined_graph)
    else:
        exported = torch.export.export(bound, (inputs,), strict="strictly" in way)
        assert {str(node.target) for node in exported.graph.nodes if node.op == "call_function"} == {
            "aten.linear.default"
        }
        program = exported.module()
    assert not calls
    assert_close(program(inputs), F.linear(inputs, reference.weight, reference.bias))
