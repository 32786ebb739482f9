import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tokenmixers import MLPMixerConfig, MLPMixerForImageClassification, MLPMixerForMaskedLM, MLPMixerModel
from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.mixins.grid_interpolation import grid_interpolation


@pytest.fixture(scope="session")
def build(tiny_config, randomise):
    def model(model_class=MLPMixerModel, **changes):
        return randomise(model_class(tiny_config(MLPMixerConfig, intermediate_size=13, **changes))).double().eval()

    return model


def mixer(model, ids: torch.Tensor, positions: list[int] | None = None) -> torch.Tensor:
    """The encoder for one unpadded sequence, from the paper's equation 1, with loops over tokens and channels."""
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)  # noqa: E731
    state = dict(model.named_parameters())
    x = state["embed_tokens.weight"][ids]
    length = len(ids)
    positions = range(length) if positions is None else positions
    for index in range(len(model.layers)):
        name = f"layers.{index}"
        y, mixing = norm(x, f"{name}.token_norm"), f"{name}.token_mixing"
        columns = []
        for channel in range(x.shape[1]):
            hidden = torch.stack(
                [
                    sum(state[f"{mixing}.weight_in"][h, place] * y[j, channel] for j, place in enumerate(positions))
                    + state[f"{mixing}.bias_in"][h]
                    for h in range(model.config.token_mixing_size)
                ]
            )
            hidden = F.gelu(hidden)
            columns.append(
                torch.stack(
                    [
                        (state[f"{mixing}.weight_out"][place] * hidden).sum() + state[f"{mixing}.bias_out"][place]
                        for place in positions
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


@given(places=st.lists(st.lists(st.integers(0, 10), min_size=4, max_size=4), min_size=2, max_size=2))
def test_token_mixing_by_einsum(places, build):
    """On its own, as the norms after it hide its last bias, which moves all channels of a token alike."""
    mixing = build().layers[0].token_mixing
    states = torch.randn(2, 4, 10, dtype=torch.float64)
    for layout in (None, TokenLayout(4, 4, positions=torch.tensor(places))):
        ids = torch.arange(4).expand(2, 4) if layout is None else layout.positions
        hidden = torch.einsum("hbi,bic->bhc", mixing.weight_in[:, ids], states) + mixing.bias_in[:, None]
        expected = torch.einsum("bih,bhc->bic", mixing.weight_out[ids], F.gelu(hidden))
        torch.testing.assert_close(mixing(states, layout), expected + mixing.bias_out[ids][..., None])


@given(data=st.data(), length=st.integers(1, 6))
def test_positions_can_be_given(data, build, length):
    """Any, in any order, also twice."""
    model = build()
    rows = data.draw(st.lists(st.lists(st.integers(0, 10), min_size=length, max_size=length), min_size=1, max_size=2))
    ids = torch.randint(37, (2, length))
    found = model(ids, position_ids=torch.tensor(rows)).last_hidden_state
    for row in range(2):
        torch.testing.assert_close(found[row], mixer(model, ids[row], rows[row % len(rows)]))


@given(data=st.data())
def test_a_batch_padded_on_either_side_equals_the_formula(data, build, pad, padded_layouts):
    lengths, padded, offsets = data.draw(padded_layouts(max_length=6))
    rows = [torch.randint(1, 37, (length,)) for length in lengths]
    model = build()
    found = model(*pad(rows, padded, offsets)).last_hidden_state
    for states, row, offset in zip(found, rows, offsets, strict=True):
        torch.testing.assert_close(states[offset : offset + len(row)], mixer(model, row))


@pytest.mark.parametrize("length", [5, 30])
def test_another_length_keeps_what_was_learned(build, length):
    model = build(MLPMixerForMaskedLM)
    ids = torch.randint(1, 37, (2, 5))
    before = model(ids).logits
    mixing = model.model.layers[0].token_mixing
    old = {name: tensor.clone() for name, tensor in mixing.state_dict().items()}
    model.resize_position_embeddings(length)
    for name, axis in (("weight_in", 1), ("weight_out", 0), ("bias_out", 0)):
        kept, new = mixing.state_dict()[name].split([min(length, 11), max(0, length - 11)], axis)
        assert torch.equal(kept, old[name].narrow(axis, 0, min(length, 11)))
        assert not new.any()
    assert torch.equal(mixing.bias_in, old["bias_in"])
    assert model.config.max_position_embeddings == length
    torch.testing.assert_close(model(ids).logits, before)
    assert model(torch.randint(1, 37, (1, length))).logits.shape == (1, length, 37)
    with pytest.raises(ValueError, match=f"has {length + 1} tokens"):
        model(torch.ones(1, length + 1, dtype=torch.long))


def test_full_weights_are_left_alone(build):
    model = build(MLPMixerForMaskedLM)
    before = model.state_dict()
    model.to_full_spatial_weights()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_another_image_size_resamples_the_token_axes(build, pooling):
    model = build(MLPMixerForImageClassification, image_size=12, patch_size=4, classifier_pooling=pooling)
    old = {name: tensor.clone() for name, tensor in model.model.layers[0].token_mixing.state_dict().items()}
    model.resize_position_embeddings((16, 20))
    rows, columns = grid_interpolation((3, 3), (4, 5), leading_tokens=int(pooling == "cls"))
    new = model.model.layers[0].token_mixing.state_dict()
    torch.testing.assert_close(new["weight_in"], old["weight_in"] @ columns)
    torch.testing.assert_close(new["weight_out"], rows @ old["weight_out"])
    torch.testing.assert_close(new["bias_out"], rows @ old["bias_out"])
    torch.testing.assert_close(new["bias_in"], old["bias_in"])
    assert model(torch.randn(2, 3, 16, 20, dtype=torch.float64)).logits.shape == (2, 2)


def test_parameter_count_of_the_baseline():
    # vocabulary; per block two norms, the token MLP over 128 tokens, the channel MLP; the final norm
    block = 4 * 768 + (2 * 128 * 384 + 384 + 128) + (2 * 768 * 3072 + 3072 + 768)
    with torch.device("meta"):
        assert MLPMixerModel(MLPMixerConfig()).num_parameters() == 32000 * 768 + 24 * block + 2 * 768 == 140_361_216


def test_parameter_count_of_mixer_b16():
    config = MLPMixerConfig(num_hidden_layers=12, image_size=224, num_labels=1000)
    with torch.device("meta"):
        assert MLPMixerForImageClassification(config).num_parameters() == 59_880_472


def test_missing_biases_get_their_initial_values(build, tmp_path):
    """They alone: all others keep what was loaded."""
    model = build().float()
    missing = {f"layers.1.token_mixing.{name}" for name in ("bias_in", "bias_out")}
    kept = {name: tensor for name, tensor in model.state_dict().items() if name not in missing}
    model.save_pretrained(tmp_path, state_dict=kept)
    loaded, report = MLPMixerModel.from_pretrained(tmp_path, output_loading_info=True)
    state = loaded.state_dict()
    assert set(report["missing_keys"]) == missing
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())
    assert not any(state[name].any() for name in missing)
