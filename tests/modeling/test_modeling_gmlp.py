import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional as F

from tokenmixers import GMLPForMaskedLM, GMLPForSequenceClassification, GMLPModel


WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
# Image models take other inputs and have tests of their own.


@pytest.fixture
def build(tiny_config, randomise):
    def model(model_class=GMLPModel, **changes):
        return randomise(model_class(tiny_config(**changes))).eval()

    return model


# --- the computation ---------------------------------------------------------------------------------------------


@WEIGHT_TYPES
@given(data=st.data(), length=st.integers(1, 11), segments=st.booleans())
def test_equals_a_reference_of_plain_operations(
    weight_type, tiny_config, randomise, gmlp_states, data, length, segments
):
    """Any length (shorter ones use the leading block), any mask with at least one real token, segments or none."""
    config = tiny_config(spatial_weight_type=weight_type, type_vocab_size=2 if segments else 0)
    model = randomise(GMLPModel(config)).double().eval()
    real = data.draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any))
    input_ids = torch.randint(37, (length,)).tolist()
    token_types = torch.randint(2, (length,)).tolist() if segments else None
    outputs = model(
        torch.tensor([input_ids]),
        attention_mask=torch.tensor([real], dtype=torch.long),
        token_type_ids=torch.tensor([token_types]) if segments else None,
        output_hidden_states=True,
    )
    embedded = model.embed_tokens.weight[input_ids]
    if segments:
        embedded = embedded + model.token_type_embeddings.weight[token_types]
    expected = gmlp_states(model, embedded, real)
    assert len(outputs.hidden_states) == len(expected) == config.num_hidden_layers + 1
    for ours, theirs in zip(outputs.hidden_states, expected, strict=True):
        # What stands at padding is nobody's business.
        torch.testing.assert_close(ours[0, real], theirs[real])
    assert torch.equal(outputs.last_hidden_state, outputs.hidden_states[-1])


def test_epsilons_of_block_and_gate_are_separate(build):
    model = build(layer_norm_eps=1e-2, gate_layer_norm_eps=1e-1)
    assert {layer.norm.eps for layer in model.layers} | {model.norm.eps} == {1e-2}
    assert {layer.sgu.norm.eps for layer in model.layers} == {1e-1}


def test_segment_ids_without_segment_embeddings_have_no_effect(build):
    model = build(type_vocab_size=0)
    input_ids = torch.randint(37, (2, 5))
    assert not [name for name in model.state_dict() if "token_type" in name]
    with_segments = model(input_ids, token_type_ids=torch.randint(2, (2, 5))).last_hidden_state
    assert torch.equal(with_segments, model(input_ids).last_hidden_state)


def test_missing_segment_ids_mean_segment_zero(build):
    model = build(type_vocab_size=2)
    input_ids = torch.randint(37, (2, 5))
    zeros, ones = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    expected = model(input_ids, token_type_ids=zeros).last_hidden_state
    assert torch.equal(model(input_ids).last_hidden_state, expected)
    assert not torch.allclose(model(input_ids, token_type_ids=ones).last_hidden_state, expected)


# --- parameters --------------------------------------------------------------------------------------------------

# num_hidden_layers, hidden_size, intermediate_size, max_position_embeddings, parameters (papers' Tables 3 and 5, with
# 32,000 tied embeddings and Toeplitz weights; the tables print them rounded to millions).
PAPER_MODELS = {
    "gmlp-base": (48, 512, 3072, 512, 130_073_552, "130.1M"),
    "gmlp-large": (96, 768, 3072, 512, 365_274_528, "365.3M"),
    "gmlp-xlarge": (144, 1024, 4096, 512, 940_582_768, "940.6M"),
    "18 layers": (18, 512, 3072, 128, None, "59.0M"),
    "36 layers": (36, 512, 3072, 128, None, "101.6M"),
    "72 layers": (72, 512, 3072, 128, None, "186.8M"),
    "144 layers": (144, 512, 3072, 128, None, "357.3M"),
}


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_parameter_counts_of_the_paper(name, tiny_config):
    depth, width, expanded, length, exact, rounded = PAPER_MODELS[name]
    config = tiny_config(
        vocab_size=32000,
        num_hidden_layers=depth,
        hidden_size=width,
        intermediate_size=expanded,
        max_position_embeddings=length,
    )
    with torch.device("meta"):
        masked_lm = GMLPForMaskedLM(config)
    block = 2 * width  # norm
    block += width * expanded + expanded  # expansion
    block += expanded + (2 * length - 1) + length  # gate: norm of one half, spatial weights and biases
    block += (expanded // 2) * width + width  # projection back
    expected = 32000 * width + depth * block + 2 * width
    assert exact is None or exact == expected
    assert f"{expected / 1e6:.1f}M" == rounded
    backbone = masked_lm.model
    assert sum(p.numel() for p in backbone.parameters()) == backbone.num_parameters() == expected
    assert masked_lm.num_parameters() == expected + 32000  # the head adds its bias alone


def test_full_weights_and_segments_add_what_they_should(tiny_config):
    def count(**changes):
        return GMLPModel(tiny_config(**changes)).num_parameters()

    assert count(spatial_weight_type="full") - count() == 2 * (11 * 11 - 21)
    assert count(type_vocab_size=3) - count() == 3 * 10


def test_a_head_loaded_from_a_backbone_is_fresh_and_the_backbone_is_not(build, tmp_path):
    build().save_pretrained(tmp_path)
    loaded, report = GMLPForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    for name, tensor in build().state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    assert loaded.classifier.weight.std() < 0.05
    assert not loaded.classifier.bias.any()


@WEIGHT_TYPES
@pytest.mark.parametrize("missing", [["weight"], ["bias"], ["weight", "bias"]], ids="+".join)
def test_missing_spatial_weights_get_their_initial_values(weight_type, missing, build, tmp_path):
    """They alone: the other parameter of the same layer, and all other layers, keep what was loaded."""
    model = build(spatial_weight_type=weight_type)
    state = model.state_dict()
    missing = {f"layers.1.sgu.spatial_proj.{name}" for name in missing}
    model.save_pretrained(tmp_path, state_dict={name: t for name, t in state.items() if name not in missing})
    loaded, report = GMLPModel.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == missing
    for name, tensor in loaded.state_dict().items():
        if name not in missing:
            assert torch.equal(tensor, state[name]), name
        elif name.endswith("bias"):
            assert torch.equal(tensor, torch.ones(11))
        else:
            assert 0 < tensor.abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loads_in_half_precision(dtype, build, tmp_path):
    model = build(GMLPForMaskedLM)
    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    input_ids, mask = torch.randint(37, (2, 6)), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    outputs, expected = loaded(input_ids, mask, labels=input_ids), model(input_ids, mask, labels=input_ids)
    assert outputs.logits.dtype == dtype
    error = (outputs.logits.float() - expected.logits).abs().max() / expected.logits.abs().max()
    assert error < (0.05 if dtype == torch.bfloat16 else 0.01)
    outputs.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in loaded.parameters())
    loaded.save_pretrained(tmp_path / "half")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == str(dtype).split(".")[1]
    again = GMLPForMaskedLM.from_pretrained(tmp_path / "half", dtype="auto")
    torch.testing.assert_close(again.state_dict(), loaded.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(again(input_ids, mask).logits, outputs.logits)


def test_mixed_precision_trains(build):
    """Under autocast linear layers give bf16 and norms fp32; the spatial projection has to cope with both."""
    model = build(GMLPForMaskedLM).train()
    input_ids, mask = torch.randint(37, (2, 6)), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    expected = model(input_ids, mask, labels=input_ids).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids, mask, labels=input_ids).loss
    loss.backward()
    assert abs(loss.item() - expected.item()) < 0.05 * expected.item()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_input_and_output_embeddings_are_one_matrix(build, tmp_path):
    model = build(GMLPForMaskedLM)
    assert model.lm_head.weight is model.model.embed_tokens.weight is model.get_output_embeddings().weight
    assert model.lm_head.bias.shape == (37,)
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_embeddings_can_be_untied(build, tmp_path):
    model = build(GMLPForMaskedLM, tie_word_embeddings=False)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("new_size", [45, 30])
def test_token_embeddings_can_be_resized(tied, new_size, build, tmp_path):
    model = build(GMLPForMaskedLM, tie_word_embeddings=tied)
    input_ids = torch.randint(30, (2, 5))
    before, bias = model(input_ids).logits, model.lm_head.bias.detach().clone()
    model.resize_token_embeddings(new_size, mean_resizing=False)
    kept = min(37, new_size)
    assert model.config.vocab_size == new_size
    assert model.lm_head.weight.shape == model.model.embed_tokens.weight.shape == (new_size, 10)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert torch.equal(model.lm_head.bias[:kept], bias[:kept])
    assert model.lm_head.bias.shape == (new_size,)
    after = model(input_ids, labels=input_ids)
    torch.testing.assert_close(after.logits[..., :kept], before[..., :kept])
    assert after.logits.shape[-1] == new_size
    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(loaded(input_ids).logits, after.logits)


def test_padding_token_starts_at_zero_and_gets_no_gradient(tiny_config):
    model = GMLPModel(tiny_config(pad_token_id=5))
    assert not model.embed_tokens.weight[5].any()
    model(torch.tensor([[5, 6, 5]])).last_hidden_state.square().sum().backward()
    assert not model.embed_tokens.weight.grad[5].any()
    assert model.embed_tokens.weight.grad[6].any()


def test_other_activations(build):
    model = build(hidden_act="relu")
    layer, hidden_states = model.layers[0], torch.randn(1, 4, 10)
    expanded = F.relu(F.linear(layer.norm(hidden_states), layer.proj_in.weight, layer.proj_in.bias))
    torch.testing.assert_close(layer(hidden_states), hidden_states + layer.proj_out(layer.sgu(expanded)))
