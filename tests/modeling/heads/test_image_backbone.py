"""Backbones: their feature maps, and dense heads of Transformers on them."""

import json

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoBackbone,
    DetrConfig,
    DetrForObjectDetection,
    DPTConfig,
    DPTForDepthEstimation,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


READ_IMAGES = {name: family for name, family in FAMILIES.items() if "AutoBackbone" in family.models}
PREFIXES = [family.models["AutoBackbone"].removesuffix("Backbone") for family in READ_IMAGES.values()]
GRID = (3, 2)
IMAGES = {"image_size": [12, 8], "patch_size": 4, "num_hidden_layers": 3}


@pytest.fixture
def saved(tiny_model, tmp_path):
    """`saved(prefix, **changes)`: a classifier, and the folder that it was saved in."""

    def build(prefix, **changes):
        model = tiny_model(f"{prefix}ForImageClassification", **{**IMAGES, **changes})
        model.save_pretrained(tmp_path / "classifier")
        return model, tmp_path / "classifier"

    return build


def states_by_hooks(model, pixels):
    """The input of a model's first layer and the output of each, and what its final norm makes of them."""
    stack = getattr(model.model, "encoder", model.model)
    states = []
    hooks = [stack.layers[0].register_forward_pre_hook(lambda module, inputs: states.append(inputs[0]))]
    hooks += [
        layer.register_forward_hook(lambda module, inputs, output: states.append(output)) for layer in stack.layers
    ]
    model(pixels)
    for hook in hooks:
        hook.remove()
    if stack.norm.__class__ is torch.nn.LayerNorm:
        normed = [F.layer_norm(state, (10,), stack.norm.weight, stack.norm.bias, 1e-6) for state in states]
    else:
        normed = [
            stack.norm.weight * state * (state.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for state in states
        ]
    return states, normed


def as_map(state, offset):
    """Patches row by row on their grid, one number at a time."""
    result = torch.empty(state.shape[0], state.shape[2], *GRID)
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            result[:, :, row, column] = state[:, offset + row * GRID[1] + column]
    return result


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_feature_maps_are_the_hidden_states_of_the_classifier(prefix, pooling, saved):
    model, folder = saved(prefix, classifier_pooling=pooling)
    backbone_class, pixels = getattr(tokenmixers, f"{prefix}Backbone"), torch.randn(2, 3, 12, 8)
    with torch.no_grad():
        states, normed = states_by_hooks(model, pixels)
        for norm, expected in ((True, normed), (False, states)):
            chosen = {"out_indices": [0, 2, 3], "apply_layernorm": norm}
            backbone, report = backbone_class.from_pretrained(folder, **chosen, output_loading_info=True)
            assert not any(report.values()), report
            outputs = backbone(pixels, output_hidden_states=True)
            assert backbone.channels == [10] * 3 and backbone.out_features == ["stem", "stage2", "stage3"]
            for found, index in zip(outputs.feature_maps, (0, 2, 3), strict=True):
                torch.testing.assert_close(found, as_map(expected[index], int(pooling == "cls")))
            for found, state in zip(outputs.hidden_states, states, strict=True):
                torch.testing.assert_close(found, state)
            tokens = backbone_class.from_pretrained(folder, **chosen, reshape_hidden_states=False)(pixels)
            torch.testing.assert_close(tokens.feature_maps, tuple(expected[index] for index in (0, 2, 3)))
            assert tokens.hidden_states is None


@pytest.mark.parametrize("prefix", PREFIXES)
def test_masked_patches_have_no_influence_on_the_other_places(prefix, saved):
    backbone = getattr(tokenmixers, f"{prefix}Backbone").from_pretrained(saved(prefix, classifier_pooling="mean")[1])
    pixels = torch.randn(1, 3, 12, 8)
    changed = pixels.clone()
    changed[:, :, :4, :4] = 9.0
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        first, second = (
            backbone(images, attention_mask=mask).feature_maps[0].flatten(2) for images in (pixels, changed)
        )
        torch.testing.assert_close(first[:, :, 1:], second[:, :, 1:])
        assert not torch.allclose(backbone(pixels).feature_maps[0], backbone(changed).feature_maps[0])


def test_attentions_are_those_of_the_models_that_have_some(tiny_model):
    for prefix, count in {"GMLP": 0, "AMLP": 3, "MLPMixer": 0, "Synthesizer": 3}.items():
        backbone = tiny_model(f"{prefix}Backbone", **IMAGES)
        assert backbone.has_attentions == bool(count)
        if count:
            backbone.set_attn_implementation("eager")
        outputs = backbone.forward_with_filtered_kwargs(torch.randn(2, 3, 12, 8), output_attentions=True)
        assert len(outputs.attentions or ()) == count


@pytest.mark.parametrize("family", READ_IMAGES.values(), ids=list(READ_IMAGES))
def test_stages_in_the_configuration(family, tiny_config, tmp_path):
    config_class = getattr(tokenmixers, family.config)
    names = {"out_features", "out_indices", "apply_layernorm", "reshape_hidden_states", "stage_names"}
    config = tiny_config(config_class, **IMAGES)
    assert config.stage_names == ["stem", "stage1", "stage2", "stage3"]
    assert (config.out_features, config.out_indices) == (["stage3"], [3])
    config.save_pretrained(tmp_path)
    assert not [key for key in json.loads((tmp_path / "config.json").read_text()) if key in names or key[0] == "_"]
    shorter = config_class.from_pretrained(tmp_path, num_hidden_layers=2)
    assert AutoBackbone.from_config(shorter).out_features == ["stage2"]

    config.out_indices = [1, -1]
    config.reshape_hidden_states = False
    config.save_pretrained(tmp_path)
    kept = {key: value for key, value in json.loads((tmp_path / "config.json").read_text()).items() if key in names}
    assert kept == {"out_features": ["stage1", "stage3"], "out_indices": [1, -1], "reshape_hidden_states": False}
    loaded = config_class.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict() and loaded.out_features == ["stage1", "stage3"]
    for changes in (
        {"out_features": ["stage4"]},
        {"out_indices": [2, 1]},
        {"out_features": ["stem"], "out_indices": [1]},
    ):
        with pytest.raises(ValueError, match=r"out_(features|indices)"):
            tiny_config(config_class, **IMAGES, **changes)


def test_the_last_stage_follows_the_number_of_blocks(tiny_config):
    config = tiny_config(**IMAGES)
    config.num_hidden_layers = 2
    backbone = AutoBackbone.from_config(config)
    assert type(backbone) is tokenmixers.GMLPBackbone and backbone.out_features == ["stage2"]


def test_backbones_read_images_alone(tiny_config):
    with pytest.raises(ValueError, match=r"GMLPBackbone needs a configuration with `image_size` set"):
        AutoBackbone.from_config(tiny_config())
    with pytest.raises(ValueError, match=r"SynthesizerBackbone needs a configuration with `image_size` set"):
        AutoBackbone.from_config(tiny_config(tokenmixers.SynthesizerConfig))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_other_image_sizes_are_refused_until_the_weights_are_resampled(prefix, saved):
    model, folder = saved(prefix)
    backbone = getattr(tokenmixers, f"{prefix}Backbone").from_pretrained(folder)
    pixels = torch.randn(1, 3, 8, 16)
    with pytest.raises(ValueError, match=r"height 12, width 8.*resize_position_embeddings\(\(height, width\)\)"):
        backbone(pixels)
    for resized in (backbone, model):
        resized.resize_position_embeddings((8, 16))
    with torch.no_grad():
        found = backbone(pixels).feature_maps[0]
        states = model.base_model(pixel_values=pixels).last_hidden_state[:, int(model.config.use_class_token) :]
    torch.testing.assert_close(found, states.unflatten(1, (2, 4)).permute(0, 3, 1, 2))


# --- dense heads -------------------------------------------------------------------------------------------------


def backbone_config(prefix, tiny_config, **changes):
    config_class = getattr(tokenmixers, f"{prefix}Config")
    sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    return tiny_config(config_class, **{**sizes, "hidden_dropout_prob": 0.0, **changes})


def train(model, steps, **inputs):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.fast_cases(prefix="GMLP")
@pytest.mark.parametrize("prefix", PREFIXES)
def test_semantic_segmentation(prefix, tiny_config, tmp_path):
    """UperNet learns which quadrant of an image is bright; all weights of the backbone are trained and saved."""
    config = UperNetConfig(
        backbone_config=backbone_config(prefix, tiny_config, out_indices=[1, 2, 3, 4], apply_layernorm=False),
        hidden_size=16,
        pool_scales=[1, 2],
        auxiliary_in_channels=16,
        auxiliary_channels=8,
        num_labels=2,
    )
    model = UperNetForSemanticSegmentation(config)
    assert type(model.backbone).__name__ == f"{prefix}Backbone"
    labels = torch.zeros(4, 16, 16, dtype=torch.long)
    for index in range(4):
        row, column = 8 * (index // 2), 8 * (index % 2)
        labels[index, row : row + 8, column : column + 8] = 1
    pixels = 0.3 * torch.randn(4, 3, 16, 16) + labels[:, None]
    before = {name: weight.clone() for name, weight in model.backbone.named_parameters()}
    losses = train(model, 15, pixel_values=pixels, labels=labels)
    assert losses[-1] < 0.5 * losses[0]
    after = dict(model.backbone.named_parameters())
    unused = {name for name in before if torch.equal(before[name], after[name])}
    assert {name.rpartition(".")[0] for name in unused} <= {"model.norm", "model.encoder.norm"}  # switched off above

    model.eval().save_pretrained(tmp_path)
    loaded = UperNetForSemanticSegmentation.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels).logits, model(pixels).logits)


def test_object_detection(tiny_config):
    pytest.importorskip("scipy", reason="DETR's loss matches boxes with scipy")
    sides = ("encoder", "decoder")
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone_config("GMLP", tiny_config),
        d_model=16,
        num_queries=5,
        num_labels=2,
        dropout=0.0,
        **{f"{side}_layers": 1 for side in sides},
        **{f"{side}_attention_heads": 2 for side in sides},
        **{f"{side}_ffn_dim": 16 for side in sides},
    )
    model = DetrForObjectDetection(config).train()
    pixels = torch.randn(2, 3, 16, 16)
    boxes = [torch.tensor([[0.25, 0.25, 0.4, 0.4]]), torch.tensor([[0.75, 0.75, 0.4, 0.4]])]
    labels = [{"class_labels": torch.tensor([index]), "boxes": box} for index, box in enumerate(boxes)]
    losses = train(model, 15, pixel_values=pixels, labels=labels)
    assert losses[-1] < 0.85 * losses[0]


def test_depth_estimation_reads_tokens_with_the_class_token(tiny_config):
    images = {"reshape_hidden_states": False, "classifier_pooling": "cls", "out_indices": [1, 2, 3, 4]}
    config = DPTConfig(
        backbone_config=backbone_config("GMLP", tiny_config, **images),
        neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8,
        hidden_size=16,
    )
    depth = DPTForDepthEstimation(config)(torch.randn(2, 3, 16, 16)).predicted_depth
    assert depth.shape[0] == 2 and depth.ndim == 3
