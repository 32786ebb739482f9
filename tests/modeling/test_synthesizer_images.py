"""Synthesizers of image patches."""

import itertools

import pytest
import torch

from tokenmixers import SynthesizerConfig, SynthesizerForImageClassification, SynthesizerModel
from tokenmixers.modeling.mixins.grid_interpolation import grid_interpolation


@pytest.fixture
def build(tiny_config, randomise):
    def model(model_class, **changes):
        config = tiny_config(SynthesizerConfig, num_attention_heads=2, head_dim=6, **changes)
        return randomise(model_class(config)).eval()

    return model


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("components", [["random"], ["dense", "vanilla"]])
def test_images_are_sequences_of_patches(components, pooling, build):
    model = build(
        SynthesizerForImageClassification,
        attention_components=components,
        image_size=[4, 6],
        patch_size=2,
        num_labels=3,
        classifier_pooling=pooling,
    )
    assert model.config.max_position_embeddings == 6 + (pooling == "cls")
    assert not [name for name in model.state_dict() if "embed_tokens" in name or "shared" in name]
    images = torch.randn(2, 3, 4, 6)
    projection = model.model.embed_patches.projection
    rows = [] if pooling == "mean" else [model.model.embed_patches.cls_token[0].expand(2, -1)]
    for top, left in itertools.product(range(0, 4, 2), range(0, 6, 2)):
        patch = images[:, :, top : top + 2, left : left + 2].flatten(1)
        rows.append(patch @ projection.weight.flatten(1).T + projection.bias)
    hidden = model.get_encoder()(inputs_embeds=torch.stack(rows, dim=1)).last_hidden_state
    pooled = hidden.mean(1) if pooling == "mean" else torch.tanh(model.model.pooler(hidden[:, 0]))
    output = model(images, labels=torch.tensor([0, 2]))
    torch.testing.assert_close(output.logits, model.classifier(pooled))
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 2])))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_image_models_are_resampled_for_another_size(pooling, build, tmp_path):
    components = ["random", "fixed_random", "factorized_random", "dense", "vanilla"]
    fields = {"image_size": 8, "patch_size": 2, "classifier_pooling": pooling, "position_embedding_type": "learned"}
    model = build(SynthesizerForImageClassification, **fields, attention_components=components, mixture="sum")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pixels = torch.randn(2, 3, 8, 8)
    same = model(pixel_values=pixels).logits
    model.resize_position_embeddings(8)
    torch.testing.assert_close(model(pixel_values=pixels).logits, same)
    model.resize_position_embeddings((12, 8))
    rows = grid_interpolation((4, 4), (6, 4), int(pooling == "cls"))[0].float()
    after = model.state_dict()
    name = "model.encoder.layers.0.self_attn.components"
    for kind in ("random", "fixed_random"):
        expected = torch.einsum("ai,hij,bj->hab", rows, before[f"{name}.{kind}.weight"], rows)
        torch.testing.assert_close(after[f"{name}.{kind}.weight"], expected, rtol=1e-4, atol=1e-5)
    for part in ("factorized_random.query_factor", "factorized_random.key_factor", "dense.second.weight"):
        expected = torch.einsum("ai,hid->had", rows, before[f"{name}.{part}"])
        torch.testing.assert_close(after[f"{name}.{part}"], expected, rtol=1e-4, atol=1e-5)
    positions = "model.encoder.embed_positions.weight"
    torch.testing.assert_close(after[positions], rows @ before[positions], rtol=1e-4, atol=1e-5)
    pixels = torch.randn(2, 3, 12, 8)
    logits = model(pixel_values=pixels).logits
    logits.sum().backward()
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForImageClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(pixel_values=pixels).logits, logits)


def test_image_models_refuse_what_does_not_fit(build, tiny_config):
    model = build(SynthesizerModel, image_size=4, patch_size=2)
    with pytest.raises(ValueError, match="`factorized_dense` of this model cannot be fitted"):
        factorized = build(SynthesizerModel, image_size=4, patch_size=2, attention_components=["factorized_dense"])
        factorized.resize_position_embeddings(8)
    with pytest.raises(ValueError, match="multiple of `patch_size=2`"):
        model.resize_position_embeddings(9)
    with pytest.raises(ValueError, match="needs a configuration with `image_size` set"):
        SynthesizerForImageClassification(tiny_config(SynthesizerConfig))
    with pytest.raises(Exception, match="is an encoder"):
        tiny_config(SynthesizerConfig, is_decoder=True, image_size=4, patch_size=2)
