import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES, FeedForward, parameter_matched_width


ACTIVATIONS = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "glu": lambda x: 1 / (1 + math.exp(-x)),
    "bilinear": lambda x: x,
}
ACTIVATIONS |= {"reglu": ACTIVATIONS["relu"], "geglu": ACTIVATIONS["gelu"], "swiglu": ACTIVATIONS["swish"]}
GATED = {"glu", "bilinear", "reglu", "geglu", "swiglu"}


def reference(layer: FeedForward, x: list[float], name: str) -> list[float]:
    def apply(weight, vector):
        return [sum(w * v for w, v in zip(row, vector, strict=True)) for row in weight.tolist()]

    first = apply((layer.gate_proj if name in GATED else layer.up_proj).weight, x)
    inner = [ACTIVATIONS[name](value) for value in first]
    if name in GATED:
        inner = [a * b for a, b in zip(inner, apply(layer.up_proj.weight, x), strict=True)]
    return apply(layer.down_proj.weight, inner)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(ACTIVATIONS)),
    width=st.integers(1, 7),
    inner=st.integers(1, 9),
    seed=st.integers(0, 9999),
)
def test_formula(name, width, inner, seed):
    torch.manual_seed(seed)
    layer = FeedForward(width, inner, name).double()
    x = 3 * torch.randn(width, dtype=torch.float64)
    torch.testing.assert_close(layer(x), torch.tensor(reference(layer, x.tolist(), name), dtype=torch.float64))


def test_every_type_is_covered_and_has_no_biases():
    assert set(FEED_FORWARD_TYPES) == set(ACTIVATIONS)
    for name in FEED_FORWARD_TYPES:
        assert not any("bias" in key for key in FeedForward(4, 6, name).state_dict())


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_parameter_matched_width(name):
    width = parameter_matched_width(3072, name)
    assert width == (2048 if name in GATED else 3072)
    with torch.device("meta"):
        assert sum(p.numel() for p in FeedForward(768, width, name).parameters()) == 2 * 768 * 3072


def test_tanh_approximation_is_close_but_different():
    torch.manual_seed(0)
    exact, approximate = FeedForward(8, 8, "geglu"), FeedForward(8, 8, "geglu", gelu_approximate="tanh")
    approximate.load_state_dict(exact.state_dict())
    x = torch.randn(5, 8)
    difference = (exact(x) - approximate(x)).abs().max()
    assert 0 < difference < 1e-2


def test_last_matrix_in_float32():
    layer = FeedForward(4, 6, "relu").to(torch.bfloat16)
    layer.down_proj.float()
    assert layer(torch.randn(2, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_autocast_does_not_cast_to_float32_and_back():
    layer, types = FeedForward(4, 6, "geglu"), []
    layer.down_proj.register_forward_pre_hook(lambda module, inputs: types.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(2, 4))
    assert types == [torch.bfloat16]


@pytest.mark.filterwarnings("ignore:.*(torch.ao.quantization|quantized tensor|TypedStorage).*")
def test_the_last_matrix_can_be_quantized():
    layer, inputs = FeedForward(4, 6, "relu"), torch.randn(2, 4)
    quantized = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
    assert not isinstance(quantized.down_proj.weight, torch.Tensor)
    torch.testing.assert_close(quantized(inputs), layer(inputs), atol=0.05, rtol=0.1)


def test_unknown_type():
    with pytest.raises(ValueError, match="'silu'` is not one of relu, gelu, swish"):
        FeedForward(4, 4, "silu")
    with pytest.raises(ValueError, match="is not one of"):
        parameter_matched_width(3, "silu")
