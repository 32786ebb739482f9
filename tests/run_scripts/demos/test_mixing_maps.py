import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM

from tokenmixers.modeling.layers.token_mixing import TokenMixingMLP
from tokenmixers.run_scripts.demos import mixing_maps
from tokenmixers.run_scripts.demos.mixing_maps import collect_maps, token_mixing_slopes


TOKENS = ["a", "b", "c", "d", "e"]


def inputs_of(length=5):
    return {"input_ids": torch.arange(3, 3 + length)[None], "attention_mask": torch.ones(1, length, dtype=torch.long)}


@pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
@pytest.mark.parametrize("name", ["GMLPForMaskedLM", "GMLPForCausalLM"])
def test_spatial_weights_are_the_block_of_the_real_tokens(name, weight_type, tiny_model, spatial_matrix):
    model = tiny_model(name, spatial_weight_type=weight_type)
    (found,) = collect_maps(model, inputs_of(), TOKENS)
    assert (found.name, found.signed, found.rows, found.columns) == ("spatial weights", True, TOKENS, TOKENS)
    assert found.weights.shape == (2, 1, 5, 5) and not found.weights.requires_grad
    for layer, weights in zip(model.model.layers, found.weights, strict=True):
        expected = spatial_matrix(layer.sgu.spatial_proj, list(range(5))).detach()
        assert_close(weights[0], expected.tril() if model.config.is_decoder else expected)


def test_what_a_layer_adds_is_what_its_weights_say(tiny_model):
    """The map times the inputs of the spatial projection is its output, without the bias."""
    model = tiny_model("GMLPForMaskedLM")
    projection, seen = model.model.layers[1].sgu.spatial_proj, {}
    projection.register_forward_hook(lambda module, inputs, output: seen.update(read=inputs[0], written=output))
    (found,) = collect_maps(model, inputs_of(), TOKENS)
    bias = projection.bias[:5, None]
    assert_close(found.of_layer(1) @ seen["read"][0], (seen["written"][0] - bias).detach())


def test_tiny_attention_is_that_of_this_input(tiny_model):
    model = tiny_model("AMLPForMaskedLM", attention_size=4)
    model.set_attn_implementation("eager")
    spatial, tiny = collect_maps(model, inputs_of(), TOKENS)
    assert (spatial.name, tiny.name, tiny.signed) == ("spatial weights", "tiny attention", False)
    layer = model.model.layers[0]
    with torch.no_grad():
        states = layer.norm(model.model.embed_tokens(inputs_of()["input_ids"]))
        query, key, _ = layer.attention.qkv_proj(states)[0].chunk(3, dim=-1)
    assert_close(tiny.of_layer(0), (query @ key.T / 2).softmax(-1))
    other = collect_maps(model, {**inputs_of(), "input_ids": torch.full((1, 5), 7)}, TOKENS)
    assert torch.equal(other[0].weights, spatial.weights) and not torch.allclose(other[1].weights, tiny.weights)


def test_synthetic_maps_have_every_head(tiny_model):
    model = tiny_model("SynthesizerForMaskedLM", attention_components=["random"], position_embedding_type="learned")
    model.set_attn_implementation("eager")
    (found,) = collect_maps(model, inputs_of(), TOKENS)
    assert found.name == "synthetic attention" and found.weights.shape == (2, 2, 5, 5)
    logits = model.model.encoder.layers[1].self_attn.components["random"].weight[:, :5, :5].detach()
    assert_close(found.weights[1], logits.softmax(-1))
    assert_close(found.of_layer(1, 1), logits[1].softmax(-1))
    assert_close(found.of_layer(1), logits.softmax(-1).mean(0))


def test_an_encoder_decoder_has_three_kinds(tiny_model):
    model = tiny_model("SynthesizerForConditionalGeneration", attention_components=["random", "vanilla"])
    model.set_attn_implementation("eager")
    found = collect_maps(
        model, {**inputs_of(), "decoder_input_ids": torch.tensor([[0, 4, 9]])}, TOKENS, ["x", "y", "z"]
    )
    assert [each.name for each in found] == ["encoder: attention", "decoder: attention", "cross-attention"]
    assert [tuple(each.weights.shape[2:]) for each in found] == [(5, 5), (3, 3), (3, 5)]
    assert (found[2].rows, found[2].columns) == (["x", "y", "z"], TOKENS)
    assert torch.equal(found[1].weights, found[1].weights.tril())
    for each in found:
        assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:3]))


def test_models_of_transformers_show_their_attention():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 3}
    model = BertForMaskedLM._from_config(BertConfig(vocab_size=20, **sizes), attn_implementation="eager").eval()
    (found,) = collect_maps(model, inputs_of(), TOKENS)
    assert found.name == "attention" and found.weights.shape == (3, 2, 5, 5)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_slopes_of_token_mixing_are_the_mean_of_its_jacobians(activation, randomise):
    module = randomise(TokenMixingMLP(7, 4, activation))
    states = torch.randn(1, 5, 3)
    jacobian = torch.autograd.functional.jacobian(module, states)[0, :, :, 0]  # (out, channel, in, channel)
    expected = sum(jacobian[:, channel, :, channel] for channel in range(3)) / 3
    assert_close(token_mixing_slopes(module, states), expected.detach())


def test_token_mixing_is_that_of_the_inputs_of_each_layer(tiny_model):
    model = tiny_model("MLPMixerForMaskedLM")
    (found,) = collect_maps(model, inputs_of(), TOKENS)
    assert found.name == "token mixing" and found.weights.shape == (2, 1, 5, 5)
    states = model(**inputs_of(), output_hidden_states=True).hidden_states
    for layer, entering, weights in zip(model.model.layers, states, found.weights, strict=False):
        assert_close(weights[0], token_mixing_slopes(layer.token_mixing, layer.token_norm(entering)).detach())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.fast_cases
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["GMLP", "AMLP", "MLPMixer", "Synthesizer"])
def test_maps_of_images_cover_all_patches(name, pooling, tiny_model):
    changes = {"image_size": [8, 12], "patch_size": 4, "classifier_pooling": pooling}
    model = tiny_model(f"{name}ForImageClassification", **changes)
    model.set_attn_implementation("eager")
    found = collect_maps(model, {"pixel_values": torch.randn(1, 3, 8, 12)})
    tokens = 6 + (pooling == "cls")
    assert len(found) == (2 if name == "AMLP" else 1)
    for each in found:
        assert each.grid == (2, 3) and each.has_class_token == (pooling == "cls")
        assert each.weights.shape[2:] == (tokens, tokens)


def test_long_texts_are_cut(tiny_model, monkeypatch):
    monkeypatch.setattr(mixing_maps, "MAX_TOKENS", 3)
    (found,) = collect_maps(tiny_model("GMLPForMaskedLM"), inputs_of(), TOKENS)
    assert found.weights.shape == (2, 1, 3, 3) and found.rows == found.columns == ["a", "b", "c"]
    assert found.weights.untyped_storage().nbytes() == 2 * 9 * 4
