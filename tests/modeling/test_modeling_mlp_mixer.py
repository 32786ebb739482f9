import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import tokenmixers
from tokenmixers import MLPMixerConfig, MLPMixerForImageClassification, MLPMixerForMaskedLM, MLPMixerModel
from tokenmixers.modeling.spatial_resizing import grid_interpolation


SMALL = {
    "vocab_size": 37,
    "hidden_size": 10,
    "intermediate_size": 13,
    "token_mixing_size": 7,
    "num_hidden_layers": 2,
    "max_position_embeddings": 11,
}


@pytest.fixture(scope="session")
def build(randomise):
    def model(model_class=MLPMixerModel, **changes):
        return randomise(model_class(MLPMixerConfig(**{**SMALL, **changes}))).double().eval()

    return model


def mixer(model, ids: torch.Tensor) -> torch.Tensor:
    """The encoder for one unpadded sequence, from the paper's equation 1, with loops over tokens and channels."""
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)  # noqa: E731
    state = dict(model.named_parameters())
    x = state["embed_tokens.weight"][ids]
    length = len(ids)
    for index in range(len(model.layers)):
        name = f"layers.{index}"
        y, mixing = norm(x, f"{name}.token_norm"), f"{name}.token_mixing"
        columns = []
        for channel in range(x.shape[1]):
            hidden = torch.stack(
                [
                    sum(state[f"{mixing}.weight_in"][h, j] * y[j, channel] for j in range(length))
                    + state[f"{mixing}.bias_in"][h]
                    for h in range(SMALL["token_mixing_size"])
                ]
            )
            hidden = F.gelu(hidden)
            columns.append(
                torch.stack(
                    [
                        (state[f"{mixing}.weight_out"][i] * hidden).sum() + state[f"{mixing}.bias_out"][i]
                        for i in range(length)
                    ]
                )
            )
        x = x + torch.stack(columns, dim=1)
        y = torch.einsum("lc,fc->lf", norm(x, f"{name}.channel_norm"), state[f"{name}.proj_in.weight"])
        y = F.gelu(y + state[f"{name}.proj_in.bias"])
        x = x + torch.einsum("lf,cf->lc", y, state[f"{name}.proj_out.weight"]) + state[f"{name}.proj_out.bias"]
    return norm(x, "norm")


@pytest.mark.parametrize("length", [1, 6, 11])
def test_encoder_and_gradients_equal_the_formula(build, length):
    model = build()
    ids = torch.randint(1, 37, (length,))
    weights = torch.randn(length, 10, dtype=torch.float64)
    parameters = list(model.parameters())
    expected = mixer(model, ids)
    found = model(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(ours, theirs)


@given(data=st.data())
def test_padding_on_either_side_changes_nothing(data, build, pad, padded_layouts):
    lengths, padded, offsets = data.draw(padded_layouts())
    rows = [torch.randint(1, 37, (length,)) for length in lengths]
    ids, mask = pad(rows, padded, offsets)
    model = build()
    with torch.no_grad():
        found = model(ids, mask).last_hidden_state
        for index, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
            alone = model(row[None]).last_hidden_state[0]
            torch.testing.assert_close(found[index, offset : offset + len(row)], alone)


def test_padding_is_seen_when_asked(build):
    ids, mask = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 1, 0]])
    seen = build(mask_padding=False)
    torch.testing.assert_close(seen(ids, mask).last_hidden_state, seen(ids).last_hidden_state)
    assert not torch.allclose(build()(ids, mask).last_hidden_state, seen(ids).last_hidden_state)


@pytest.mark.parametrize("length", [5, 30])
def test_another_length_keeps_what_was_learned(build, length):
    model = build(MLPMixerForMaskedLM)
    ids = torch.randint(1, 37, (2, 5))
    before = model(ids).logits
    model.resize_position_embeddings(length)
    assert model.config.max_position_embeddings == length
    torch.testing.assert_close(model(ids).logits, before)
    assert model(torch.randint(1, 37, (1, length))).logits.shape == (1, length, 37)
    with pytest.raises(ValueError, match=f"has {length + 1} tokens"):
        model(torch.ones(1, length + 1, dtype=torch.long))


def test_another_image_size_resamples_the_token_axes(build):
    model = build(MLPMixerForImageClassification, image_size=12, patch_size=4)
    old = {name: tensor.clone() for name, tensor in model.model.layers[0].token_mixing.state_dict().items()}
    model.resize_position_embeddings((16, 20))
    rows, columns = grid_interpolation((3, 3), (4, 5), leading_tokens=1)
    new = model.model.layers[0].token_mixing.state_dict()
    torch.testing.assert_close(new["weight_in"], old["weight_in"] @ columns)
    torch.testing.assert_close(new["weight_out"], rows @ old["weight_out"])
    torch.testing.assert_close(new["bias_out"], rows @ old["bias_out"])
    torch.testing.assert_close(new["bias_in"], old["bias_in"])
    assert model(torch.randn(2, 3, 16, 20, dtype=torch.float64)).logits.shape == (2, 2)


def test_weights_at_the_start():
    model = MLPMixerModel(MLPMixerConfig(**{**SMALL, "max_position_embeddings": 200, "initializer_range": 0.05}))
    mixing = model.layers[0].token_mixing
    for weight in (mixing.weight_in, mixing.weight_out):
        assert weight.std().item() == pytest.approx(0.05, rel=0.1)
    assert not mixing.bias_in.any() and not mixing.bias_out.any()


def test_parameter_count_of_the_baseline():
    # vocabulary; per block two norms, the token MLP over 128 tokens, the channel MLP; the final norm
    block = 4 * 768 + (2 * 128 * 384 + 384 + 128) + (2 * 768 * 3072 + 3072 + 768)
    with torch.device("meta"):
        assert MLPMixerModel(MLPMixerConfig()).num_parameters() == 32000 * 768 + 24 * block + 2 * 768 == 140_361_216


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_mixing_size": 0}, "`token_mixing_size` must be at least 1, got 0"),
        ({"spatial_weight_type": "toeplitz"}, "can only be 'full'"),
        ({"gate_type": "split"}, "gate_type"),
        ({"hidden_size": 0}, "`hidden_size` must be at least 1"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        MLPMixerConfig(**{**SMALL, **fields})


def test_odd_widths_and_round_trip(tmp_path, build):
    model = build(MLPMixerForMaskedLM).float()
    model.save_pretrained(tmp_path)
    loaded = tokenmixers.MLPMixerForMaskedLM.from_pretrained(tmp_path)
    ids = torch.randint(1, 37, (1, 4))
    assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
