import pytest
import torch
from transformers import BertConfig, MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from tokenmixers import SynthesizerForConditionalGeneration
from tokenmixers.modeling.conversion.t5 import (
    add_components,
    convert_t5_config,
    convert_t5_state_dict,
    synthesizer_from_t5,
)


VOCABULARY = 50


def t5(kind="t5", seed=0, **kwargs):
    """A T5 with random weights: "t5" is tied and scales its outputs, "v1.1" neither, as Flan; "mt5" is mT5."""
    torch.manual_seed(seed)
    config_class, model_class = (
        (MT5Config, MT5ForConditionalGeneration) if kind == "mt5" else (T5Config, T5ForConditionalGeneration)
    )
    options = {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_kv": 6,
        "d_ff": 24,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "feed_forward_proj": "relu" if kind == "t5" else "gated-gelu",
        "decoder_start_token_id": 0,
        "eos_token_id": None,
    }
    options.update({"tie_word_embeddings": False} if kind == "v1.1" else {})
    model = model_class(config_class(**{**options, **kwargs}))
    if kind != "t5":
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCABULARY, 16))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.uniform_(0.5, 1.5) if "norm" in name else weight.normal_(std=0.5)
    return model.eval()


def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (2, 17), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 12:] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 9), generator=generator),
    }


def assert_same(synthesizer, original, **tolerance):
    with torch.no_grad():
        expected, actual = original(**batch()).logits, synthesizer(**batch()).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(actual, expected, **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))


@pytest.mark.parametrize("kind", ["t5", "v1.1", "mt5"])
def test_same_logits_and_text(kind):
    original = t5(kind)
    model = synthesizer_from_t5(original)
    assert model.config.tie_word_embeddings == (kind == "t5") == model.config.scale_decoder_outputs
    assert model.num_parameters() == original.num_parameters()
    assert_same(model, original)
    inputs = {name: value for name, value in batch().items() if "decoder" not in name}
    for options in ({"do_sample": False}, {"num_beams": 3, "do_sample": False}, {"cache_implementation": "static"}):
        generated = model.generate(**inputs, max_new_tokens=12, **options)
        assert torch.equal(generated, original.generate(**inputs, max_new_tokens=12, **options))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_same_attentions_and_loss(implementation):
    original = t5()
    model = synthesizer_from_t5(original)
    model.set_attn_implementation(implementation)
    original.set_attn_implementation("eager")
    labels = batch()["decoder_input_ids"]
    inputs = {name: value for name, value in batch().items() if "decoder" not in name}
    ours, theirs = (m(**inputs, labels=labels, output_attentions=implementation == "eager") for m in (model, original))
    torch.testing.assert_close(ours.loss, theirs.loss)
    if implementation == "eager":
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            for one, other in zip(ours[name], theirs[name], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "activation",
    [
        *("gelu", "gelu_new", "silu", "swish", "gated-relu", "gated-silu", "gated-swish", "gated-gelu_new"),
        *("gated-sigmoid", "gated-linear"),
    ],
)
def test_other_activations(activation):
    original = t5(feed_forward_proj=activation)
    assert_same(synthesizer_from_t5(original), original)


@pytest.mark.parametrize(
    "overrides",
    [
        {"attention_components": ["random", "vanilla"]},
        {"attention_components": ["vanilla", "dense"], "mixture": "sum"},
        {"attention_components": ["dense", "vanilla"], "mixture": "sigmoid", "dense_first_layer": "query"},
        {"attention_components": ["factorized_random", "vanilla", "factorized_dense"]},
        {"attention_components": ["vanilla"], "decoder_attention_components": ["mesh_factorized", "vanilla"]},
        {"attention_components": ["relative", "vanilla", "random", "dense"]},
    ],
)
def test_mixtures_start_as_the_same_function_and_train(overrides):
    original = t5()
    model = synthesizer_from_t5(original, max_position_embeddings=20, **overrides)
    assert_same(model, original, rtol=1e-4, atol=1e-4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {name: weight.clone() for name, weight in model.named_parameters() if "components" in name}
    assert before
    for _ in range(2):
        model(**batch(), labels=batch()["decoder_input_ids"]).loss.backward()
        optimizer.step()
    after = dict(model.named_parameters())
    assert all(not torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize(
    "overrides",
    [
        {"attention_components": ["random"]},
        {"attention_components": ["fixed_random"]},
        {"attention_components": ["dense", "factorized_random"], "dense_first_layer": "query"},
        {"attention_components": ["vanilla"], "decoder_attention_components": ["factorized_dense"]},
        {"attention_components": ["mesh_factorized"], "decoder_attention_components": ["random", "vanilla"]},
    ],
)
def test_without_vanilla_all_but_the_queries_and_keys_is_t5s(overrides):
    """With logits of zero the model computes what T5 does with queries of zero."""
    original = t5()
    model = synthesizer_from_t5(original, max_position_embeddings=20, **overrides)
    for side in ("encoder", "decoder"):
        if "vanilla" in model.config.get_text_config(**{side: True}).attention_components:
            continue
        for layer, block in zip(getattr(model.model, side).layers, getattr(original, side).block, strict=True):
            attention, theirs = layer.self_attn, block.layer[0].SelfAttention
            if "dense_first_layer" in overrides:
                assert torch.equal(attention.q_proj.weight, theirs.q.weight)
            assert not hasattr(attention, "k_proj") or attention.k_proj is None
            for component in attention.components.values():
                assert any(tensor.std() > 0 for tensor in component.state_dict().values())
                for tensor in component.state_dict().values():
                    tensor.zero_()
            theirs.q.weight.data.zero_()
    assert_same(model, original)


def test_what_cannot_start_as_the_same_function():
    with pytest.raises(ValueError, match="cannot start as the same function"):
        synthesizer_from_t5(t5(), attention_components=["fixed_random", "vanilla"])


@pytest.mark.parametrize("components", [["vanilla"], ["random", "vanilla"]])
def test_float16_keeps_what_t5_keeps(tmp_path, components):
    """Products of the last matrix of a feed-forward layer overflow in float16."""
    original = t5("v1.1")
    with torch.no_grad():
        for name, weight in original.named_parameters():
            if name.endswith("DenseReluDense.wo.weight"):
                weight.mul_(3e4)
    original.save_pretrained(tmp_path)
    half = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    model = synthesizer_from_t5(
        tmp_path, dtype=torch.float16, attention_components=components, max_position_embeddings=32
    )
    types = {("down_proj" in name, weight.dtype) for name, weight in model.named_parameters()}
    assert types == {(False, torch.float16), (True, torch.float32)}
    with torch.no_grad():
        expected, found = (model(**batch()).logits.float() for model in (half, model))
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.02)


def test_names():
    original = t5()
    converted = convert_t5_state_dict(original.state_dict())
    with torch.device("meta"):
        model = SynthesizerForConditionalGeneration(convert_t5_config(original.config))
    assert converted.keys() == model.state_dict().keys()
    for name in ("encoder.block.0.attention.weight", "transformer.wte.weight"):
        with pytest.raises(ValueError, match="not the name of a T5 weight"):
            convert_t5_state_dict({name: torch.zeros(1)})


def test_conversion_leaves_its_inputs_alone():
    original = t5()
    state_dict = original.state_dict()
    copies = {name: tensor.clone() for name, tensor in state_dict.items()}
    converted = convert_t5_state_dict(state_dict)
    config = convert_t5_config(original.config, attention_components=["random", "vanilla"])
    add_components(converted, SynthesizerForConditionalGeneration(config).state_dict(), config)
    assert all(torch.equal(copies[name], tensor) for name, tensor in state_dict.items())


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="got one of type 'bert'"):
        convert_t5_config(BertConfig())
    with pytest.raises(ValueError, match="no feed-forward type for `feed_forward_proj='gated-tanh'`"):
        convert_t5_config(T5Config(feed_forward_proj="gated-tanh"))
