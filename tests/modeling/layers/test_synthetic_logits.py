"""Every component and mixture against attention written with loops over single numbers, forward and gradient."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from tokenmixers import SynthesizerConfig
from tokenmixers.modeling.inputs.token_layout import token_layout
from tokenmixers.modeling.layers.synthetic_logits import RelativePositionBias
from tokenmixers.modeling.modeling_synthesizer import SynthesizerStack


COMPONENTS = [
    "vanilla",
    "dense",
    "random",
    "fixed_random",
    "factorized_dense",
    "factorized_random",
    "relative",
    "mesh_factorized",
]
HEADS, HEAD_DIM, WIDTH, N = 3, 2, 5, 7


def build(seed, implementation="sdpa", **kwargs):
    torch.manual_seed(seed)
    config = SynthesizerConfig(
        vocab_size=3,
        hidden_size=WIDTH,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=N,
        factorized_random_rank=2,
        relative_attention_num_buckets=4,
        relative_attention_max_distance=5,
        **kwargs,
    )
    config._attn_implementation = implementation
    stack = SynthesizerStack(config).eval().double()
    with torch.no_grad():
        for tensor in itertools.chain(stack.parameters(), stack.buffers()):
            tensor.normal_()
    return stack


def bucket(distance, causal):
    """Buckets of T5 for 4 buckets and a maximum distance of 5, by hand."""
    if causal:  # 0 and 1 are exact; 2 buckets for the rest, which meet at 2 * sqrt(5 / 2) = 3.2
        past = max(-distance, 0)
        return past if past < 2 else 2 if past < 3.2 else 3
    return (2 if distance > 0 else 0) + (0 if distance == 0 else 1)  # 2 buckets per direction, of which one is exact


class Reference:
    """Attention of one row, one number at a time. `x` is `(tokens, width)`, real tokens only, positions 0, 1, ..."""

    def __init__(self, attention, config, x):
        self.attention, self.config, self.x = attention, config, x

    def project(self, name, token, head):
        rows = getattr(self.attention, name).weight[head * HEAD_DIM : (head + 1) * HEAD_DIM]
        return [sum(row[c] * self.x[token, c] for c in range(WIDTH)) for row in rows]

    def dense_row(self, component, linear, token, head):
        if self.config.dense_first_layer == "query":
            first = self.project("q_proj", token, head)
        else:
            layer = component.first.first_proj
            first = []
            for row in range(head * HEAD_DIM, (head + 1) * HEAD_DIM):
                number = sum(layer.weight[row, c] * self.x[token, c] for c in range(WIDTH))
                first.append(number + layer.bias[row] if layer.bias is not None else number)
        first = [torch.relu(number) for number in first]
        which = 0 if self.config.dense_shared_across_heads else head

        def output(index):
            number = sum(first[d] * linear.weight[which, index, d] for d in range(HEAD_DIM))
            return number if linear.bias is None else number + linear.bias[which, index]

        return output

    def logit(self, name, head, i, j):
        if name == "vanilla":
            query, key = self.project("q_proj", i, head), self.project("k_proj", j, head)
            return sum(a * b for a, b in zip(query, key, strict=True))
        component = self.attention.components[name]
        if name in ("random", "fixed_random"):
            return component.weight[head, i, j]
        if name == "factorized_random":
            return sum(component.query_factor[head, i, k] * component.key_factor[head, j, k] for k in range(2))
        if name == "mesh_factorized":
            return sum(component.first_factor[head, j, k] * component.second_factor[head, j, k] for k in range(2))
        if name == "relative":
            return component.weight[bucket(j - i, self.config.is_decoder), head]
        if name == "dense":
            return self.dense_row(component, component.second, i, head)(j)
        a, _ = self.config.dense_factors
        tiled = self.dense_row(component, component.tiled, i, head)
        return tiled(j % a) * self.dense_row(component, component.repeated, i, head)(j // a)

    def weight(self, head, name):
        names, mixture = self.config.attention_components, self.attention.mixture
        if len(names) == 1 or self.config.mixture == "sum":
            return 1.0
        if self.config.mixture == "sigmoid":
            share = 1 / (1 + torch.exp(-mixture.alpha[0]))
            return share if name == names[0] else 1 - share
        powers = [torch.exp(number) for number in mixture.logits[head]]
        return powers[names.index(name)] / sum(powers)

    def output(self, bias=None):
        rows = []
        for i in range(len(self.x)):
            mixed = []
            for head in range(HEADS):
                keys = range(i + 1 if self.config.is_decoder else len(self.x))
                powers = []
                for j in keys:
                    names = self.config.attention_components
                    logit = sum(self.weight(head, name) * self.logit(name, head, i, j) for name in names)
                    if bias is not None:
                        logit = logit + bias.weight[bucket(j - i, self.config.is_decoder), head]
                    powers.append(torch.exp(logit))
                values = [self.project("v_proj", j, head) for j in keys]
                for d in range(HEAD_DIM):
                    mixed.append(sum(p * v[d] for p, v in zip(powers, values, strict=True)) / sum(powers))
            output = self.attention.o_proj.weight
            rows.append(torch.stack([sum(output[c, k] * m for k, m in enumerate(mixed)) for c in range(WIDTH)]))
        return torch.stack(rows)


def attend(stack, x, mask):
    attention = stack.layers[0].self_attn
    layout = stack._token_layout(x, mask, None, None, None)
    bias = None if stack.relative_attention_bias is None else stack.relative_attention_bias(layout)
    return attention(x, bias, layout)[0]


def check(stack, lengths, left, seed):
    torch.manual_seed(seed)
    longest, attention = max(lengths), stack.layers[0].self_attn
    x = torch.randn(len(lengths), longest, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, longest - length if left else 0 :][:length] = 1
    real = mask.bool()
    coefficients = torch.randn(int(real.sum()), WIDTH, dtype=torch.float64)
    expected = torch.cat(
        [
            Reference(attention, stack.config, x[r][real[r]]).output(stack.relative_attention_bias)
            for r in range(len(x))
        ]
    )
    actual = attend(stack, x, mask if not real.all() else None)[real]
    torch.testing.assert_close(actual, expected)
    inputs = [x, *(p for p in attention.parameters())]
    inputs += [] if stack.relative_attention_bias is None else [stack.relative_attention_bias.weight]
    gradients = [
        torch.autograd.grad((result * coefficients).sum(), inputs, allow_unused=True, materialize_grads=True)
        for result in (actual, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("component", COMPONENTS)
def test_single_component(component, causal):
    check(build(1, attention_components=[component], is_decoder=causal), [4, 2], left=True, seed=2)


@given(st.data())
def test_mixtures(data):
    names = data.draw(st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=3, unique=True))
    mixture = data.draw(st.sampled_from(["softmax", "sum", *(["sigmoid"] if len(names) < 3 else [])]))
    stack = build(
        data.draw(st.integers(0, 99)),
        data.draw(st.sampled_from(["sdpa", "eager"])),
        attention_components=names,
        mixture=mixture,
        is_decoder=data.draw(st.booleans()),
        dense_first_layer=data.draw(st.sampled_from(["own", "query"])),
        dense_shared_across_heads=data.draw(st.booleans()),
        dense_bias=data.draw(st.booleans()),
        factorized_dense_factors=data.draw(st.sampled_from([None, [2, 4], [3, 3], [7, 1]])),
        position_embedding_type=data.draw(st.sampled_from(["none", "relative"])),
    )
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    check(stack, lengths, data.draw(st.booleans()), seed=3)


def test_factorized_dense_tells_all_keys_apart():
    """One factor tiled and one repeated reach every pair; tiling both would give only `a` logits if a = b."""
    stack = build(0, attention_components=["factorized_dense"], factorized_dense_factors=[3, 3])
    x = torch.randn(1, N, WIDTH, dtype=torch.float64)
    logits = stack.layers[0].self_attn.components["factorized_dense"](token_layout(stack.config, x), x)
    assert all(len(set(row.tolist())) == N for row in logits.flatten(0, 2))


def test_mesh_factorized_does_not_depend_on_the_query():
    stack = build(0, attention_components=["mesh_factorized", "factorized_random"])
    layout = token_layout(stack.config, torch.randn(1, N, WIDTH))
    mesh, paper = (stack.layers[0].self_attn.components[n](layout) for n in stack.config.attention_components)
    assert (mesh == mesh[:, :, :1]).all()
    assert (paper != paper[:, :, :1])[:, :, 1:].all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (4, 5), (64, 33)])
def test_relative_buckets_are_those_of_t5(num_buckets, max_distance, causal):
    bias = RelativePositionBias(2, num_buckets, max_distance, causal)
    distances = torch.arange(-600, 601)
    expected = T5Attention._relative_position_bucket(distances, not causal, num_buckets, max_distance)
    assert torch.equal(bias.buckets(distances), expected)


def test_relative_bias_is_in_the_order_in_which_layers_read_it():
    stack = build(0, attention_components=["relative"])
    layout = token_layout(stack.config, torch.randn(2, N, WIDTH))
    assert stack.layers[0].self_attn.components["relative"](layout).is_contiguous()


@pytest.mark.parametrize("mixture", ["softmax", "sigmoid"])
def test_mixture_weights_add_up_to_one(mixture):
    stack = build(0, attention_components=["random", "vanilla"], mixture=mixture)
    weights = stack.layers[0].self_attn.mixture()
    torch.testing.assert_close(weights["random"] + weights["vanilla"], torch.ones_like(weights["random"]))
    assert weights["random"].numel() == (HEADS if mixture == "softmax" else 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shared_form_far_below_the_largest_logit(dtype):
    """Padding, or the causal order, may hide the logits that set the scale of a row."""
    for causal, spread in ((False, 100.0), (True, 1e4)):
        stack = build(0, attention_components=["random"], is_decoder=causal, position_embedding_type="none")
        weight = stack.layers[0].self_attn.components["random"].weight
        with torch.no_grad():
            weight[:, :, -1] += spread
        mask = torch.ones(2, N, dtype=torch.long)
        mask[0, -1] = 0
        x = torch.randn(2, N, WIDTH, dtype=torch.float64)
        expected = attend(stack, x[:1, :-1], None)[0]
        actual = attend(stack.to(dtype), x.to(dtype), mask)[0, :-1].double()
        tolerance = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.3}[dtype]
        torch.testing.assert_close(actual, expected, rtol=0.1, atol=tolerance)


def test_padding_may_hold_anything():
    stack = build(0, attention_components=["random"])
    x = torch.randn(2, N, WIDTH, dtype=torch.float64)
    mask = torch.tensor([[1] * N, [1] * (N - 2) + [0] * 2])
    clean = attend(stack, x, mask)
    x[1, -2:] = torch.inf
    torch.testing.assert_close(attend(stack, x, mask)[mask.bool()], clean[mask.bool()])


class _LargestTensor(torch.overrides.TorchFunctionMode):
    largest = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.untyped_storage().nbytes() // result.element_size())
        return result


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("component", ["random", "factorized_random", "fixed_random", "relative", "mesh_factorized"])
def test_no_map_per_sample(component, left):
    """With eight samples nothing has eight times the size of a map of logits."""
    stack = build(0, attention_components=[component])
    batch = 64
    mask = torch.ones(batch, N, dtype=torch.long)
    mask[0, :2] = 0
    with torch.no_grad(), _LargestTensor() as record:
        attend(stack, torch.randn(batch, N, WIDTH, dtype=torch.float64), mask if left else mask.flip(1))
    assert record.largest < batch * HEADS * N * N
    with torch.no_grad(), _LargestTensor() as record:
        dense = build(0, attention_components=["dense"])
        attend(dense, torch.randn(batch, N, WIDTH, dtype=torch.float64), mask)
    assert record.largest >= batch * HEADS * N * N  # the check sees a map per sample where there is one


def test_dropout_of_the_shared_form_keeps_the_mean():
    stack = build(0, attention_components=["random"], attention_dropout=0.5).train()
    x = torch.randn(1, N, WIDTH, dtype=torch.float64).expand(20_000, -1, -1)
    dropped = attend(stack, x, None)
    assert dropped.std(dim=0).min() > 0.01
    torch.testing.assert_close(dropped.mean(dim=0), attend(stack.eval(), x[:1], None)[0], rtol=0, atol=0.1)


def test_near_square_factors():
    for length, expected in {1: (1, 1), 256: (16, 16), 512: (16, 32), 13: (4, 4), 114: (6, 19)}.items():
        config = SynthesizerConfig(attention_components=["factorized_dense"], max_position_embeddings=length)
        assert config.dense_factors == expected
        assert math.prod(config.dense_factors) >= length


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("component", ["random", "factorized_random"])
def test_autocast_leaves_the_exponentials_their_range(component, length, dtype):
    stack = build(0, attention_components=[component]).float()
    x = torch.randn(2, length, stack.config.hidden_size)
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, 1:] = 0
    expected = stack(inputs_embeds=x, attention_mask=mask).last_hidden_state
    with torch.autocast("cpu", dtype):
        found = stack(inputs_embeds=x, attention_mask=mask).last_hidden_state
    found[mask.bool()].float().square().sum().backward()
    torch.testing.assert_close(found[mask.bool()].float(), expected[mask.bool()], rtol=5e-2, atol=5e-2)
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters() if parameter.grad is not None)
