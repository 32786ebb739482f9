import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoModelForImageClassification, pipeline

from tokenmixers import (
    GMLPConfig,
    GMLPForImageClassification,
    GMLPModel,
    SynthesizerForImageClassification,
)


# Table 1: blocks, width, expanded width; parameters with ViT's class token and pre-logits layer (the paper's 5.9, 19.5
# and 73.4 million), and with mean pooling instead (timm's).
SIZES = {
    "Ti": (30, 128, 768, 5_895_788, 5_867_328),
    "S": (30, 256, 1536, 19_500_524, 19_422_656),
    "B": (30, 512, 3072, 73_350_380, 73_075_392),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_of_table_1(name):
    blocks, width, expanded, with_token, pooled = SIZES[name]
    for pooling, expected in (("cls", with_token), ("mean", pooled)):
        config = GMLPConfig(
            num_hidden_layers=blocks,
            hidden_size=width,
            intermediate_size=expanded,
            image_size=224,
            spatial_weight_type="full",
            classifier_pooling=pooling,
            num_labels=1000,
        )
        with torch.device("meta"):
            assert GMLPForImageClassification(config).num_parameters() == expected


@pytest.fixture
def image_config(tiny_config):
    def build(config_class=GMLPConfig, **changes):
        sizes = tiny_config().to_diff_dict()
        sizes = {name: sizes[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
        images = {"image_size": [12, 8], "patch_size": 4, "spatial_weight_type": "full", "num_labels": 3}
        return config_class(**{**sizes, **images, **changes})

    return build


@pytest.mark.parametrize("pooling", ["cls", "mean", "normalized_mean"])
def test_logits_written_out(image_config, randomise, gmlp_states, pooling):
    config = image_config(classifier_pooling=pooling)
    model = randomise(GMLPForImageClassification(config)).eval().double()
    pixels = torch.randn(2, 3, 12, 8, dtype=torch.double)
    weights = dict(model.named_parameters())

    patches = []
    for row in range(3):
        for column in range(2):
            patch = pixels[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            projected = torch.einsum("bchw,dchw->bd", patch, weights["model.embed_patches.projection.weight"])
            patches.append(projected + weights["model.embed_patches.projection.bias"])
    states = torch.stack(patches, dim=1)
    if pooling == "cls":
        states = torch.cat([weights["model.embed_patches.cls_token"].expand(2, 1, 10), states], dim=1)

    states = torch.stack([gmlp_states(model.model, row)[-1] for row in states])
    pooled = states.mean(1)
    if pooling == "normalized_mean":
        pooled = pooled / (pooled**2).mean(1, keepdim=True).sqrt()
    if pooling == "cls":
        pooled = torch.tanh(states[:, 0] @ weights["model.pooler.weight"].T + weights["model.pooler.bias"])
    expected = pooled @ weights["classifier.weight"].T + weights["classifier.bias"]

    torch.testing.assert_close(model(pixels).logits, expected)
    torch.testing.assert_close(model.model(pixel_values=pixels).pooler_output, pooled)


def test_auto_classes_and_pipelines(image_config, randomise, tmp_path):
    labels = {0: "cat", 1: "dog", 2: "owl"}
    config = image_config(
        image_size=32, patch_size=8, id2label=labels, label2id={name: i for i, name in labels.items()}
    )
    randomise(AutoModelForImageClassification.from_config(config)).save_pretrained(tmp_path)
    edge, crop = {"shortest_edge": 36}, {"height": 32, "width": 32}
    mean = std = [0.5, 0.5, 0.5]
    from transformers import CLIPImageProcessorPil

    CLIPImageProcessorPil(size=edge, crop_size=crop, image_mean=mean, image_std=std).save_pretrained(tmp_path)
    picture = tmp_path / "picture.png"
    Image.effect_mandelbrot((60, 40), (-2, -1, 1, 1), 50).convert("RGB").save(picture)

    answer = pipeline("image-classification", model=str(tmp_path))(str(picture))
    assert {entry["label"] for entry in answer} == set(labels.values())
    assert sum(entry["score"] for entry in answer) == pytest.approx(1)

    pixels = AutoImageProcessor.from_pretrained(tmp_path)(Image.open(picture), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 32, 32)
    logits = AutoModelForImageClassification.from_pretrained(tmp_path)(pixels).logits
    assert answer[0]["label"] == labels[logits.argmax().item()]
    features = pipeline("image-feature-extraction", model=str(tmp_path))(str(picture))
    states = AutoModel.from_pretrained(tmp_path)(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(torch.tensor(features), states, rtol=1e-4, atol=1e-4)


def test_stochastic_depth(image_config, randomise):
    config = image_config(drop_path_rate=0.5, num_hidden_layers=1)
    model = randomise(GMLPModel(config))
    layer, states = model.layers[0], torch.randn(4000, 7, 10)
    kept = layer.eval()(states[:1]) - states[:1]
    states = states[:1].expand(4000, -1, -1)
    branches = layer.train()(states) - states
    dropped = (branches == 0).flatten(1).all(1)
    assert 0.45 < dropped.float().mean() < 0.55
    torch.testing.assert_close(branches[~dropped][0], 2 * kept[0])
    torch.testing.assert_close(branches.mean(0), kept[0], rtol=0.1, atol=0.05 * kept.abs().max().item())


@pytest.mark.parametrize("model_class", [GMLPForImageClassification, SynthesizerForImageClassification])
@pytest.mark.parametrize("changes", [{"image_size": 8}, {"classifier_pooling": "mean"}])
def test_another_number_of_tokens_needs_other_weights(model_class, changes, image_config, tmp_path):
    """Changes come after the configuration was read: the number of tokens must follow from them."""
    more = {} if model_class is GMLPForImageClassification else {"attention_components": ["random"]}
    config = image_config(GMLPConfig, classifier_pooling="cls").to_diff_dict()
    sizes = {name: config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")}
    model = model_class(model_class.config_class(**sizes, **more, image_size=[12, 8], classifier_pooling="cls"))
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        model_class.from_pretrained(tmp_path / "saved", **changes)
    other = model_class.from_pretrained(tmp_path / "saved", **changes, ignore_mismatched_sizes=True)
    rows, columns = other.config.patch_grid
    assert other.config.max_position_embeddings == rows * columns + other.config.use_class_token
    other.save_pretrained(tmp_path / "other")
    loaded = model_class.from_pretrained(tmp_path / "other")
    pixels = torch.randn(1, 3, 4 * rows, 4 * columns)
    torch.testing.assert_close(loaded(pixels).logits, other.eval()(pixels).logits)
