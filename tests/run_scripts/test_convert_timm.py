import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoBackbone, AutoImageProcessor, AutoModel, AutoModelForImageClassification, pipeline

from tokenmixers import GMLPModel, TimmImageProcessorPil
from tokenmixers.run_scripts.convert_timm import main


TIMM = runpy.run_path(str(Path(__file__).parents[1] / "modeling" / "conversion" / "test_timm.py"))
LABELS = ["cat", "dog", "admiral"]


@pytest.fixture
def source(tmp_path):
    """A timm checkpoint of random weights, as on the Hub: 12 blocks of gMLP, images of 64 pixels."""
    folder = tmp_path / "gmlp_nano16_64.test"
    folder.mkdir()
    tensors = TIMM["random_tensors"](TIMM["expected_shapes"](width=16, blocks=2, tokens=16, classes=3))
    save_file(tensors, folder / "model.safetensors")
    settings = {"crop_pct": 0.875, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3, "license": "mit"}
    description = {"architecture": "gmlp_nano16_64", "label_names": LABELS, "pretrained_cfg": settings}
    (folder / "config.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module")
def picture():
    """A photograph that matplotlib ships."""
    from matplotlib import cbook

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        return Image.open(file).convert("RGB")


def convert(source, output, *arguments):
    main(["--source", str(source), "--output_dir", str(output), *arguments])


def timm_logits(tensors: dict[str, torch.Tensor], pixels: torch.Tensor) -> torch.Tensor:
    """timm's gMLP, written out on timm's own tensors."""
    patches = torch.nn.functional.conv2d(pixels, tensors["stem.proj.weight"], tensors["stem.proj.bias"], stride=16)
    x = patches.flatten(2).mT

    def norm(x, name, eps):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    for block in ("blocks.0", "blocks.1"):
        y = norm(x, f"{block}.norm", 1e-6)
        y = y @ tensors[f"{block}.mlp_channels.fc1.weight"].mT + tensors[f"{block}.mlp_channels.fc1.bias"]
        u, v = torch.nn.functional.gelu(y).chunk(2, -1)
        v = norm(v, f"{block}.mlp_channels.gate.norm", 1e-5)
        gate = torch.einsum("ij,bjc->bic", tensors[f"{block}.mlp_channels.gate.proj.weight"], v)
        y = u * (gate + tensors[f"{block}.mlp_channels.gate.proj.bias"][:, None])
        x = x + y @ tensors[f"{block}.mlp_channels.fc2.weight"].mT + tensors[f"{block}.mlp_channels.fc2.bias"]
    return norm(x, "norm", 1e-6).mean(1) @ tensors["head.weight"].mT + tensors["head.bias"]


def test_a_photograph_through_the_pipeline(source, picture, tmp_path, capsys):
    convert(source, tmp_path / "out")
    assert "GMLPForImageClassification" in capsys.readouterr().out
    found = pipeline("image-classification", model=str(tmp_path / "out"), top_k=3)(picture)

    # timm: shortest edge to floor(64 / 0.875), bicubic; the centre; to [-1, 1]
    width, height = picture.size
    size = (73, int(73 * height / width)) if width < height else (int(73 * width / height), 73)
    pixels = np.asarray(picture.resize(size, Image.Resampling.BICUBIC), dtype=np.float32) / 255
    top, left = round((pixels.shape[0] - 64) / 2), round((pixels.shape[1] - 64) / 2)
    pixels = torch.from_numpy(pixels[top : top + 64, left : left + 64].copy()).permute(2, 0, 1)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    prepared = processor(picture, return_tensors="pt").pixel_values
    torch.testing.assert_close(prepared[0], pixels * 2 - 1, rtol=0, atol=1e-5)

    tensors = TIMM["random_tensors"](TIMM["expected_shapes"](width=16, blocks=2, tokens=16, classes=3))
    expected = timm_logits(tensors, prepared).softmax(-1)[0]
    scores = {entry["label"]: entry["score"] for entry in found}
    torch.testing.assert_close(torch.tensor([scores[label] for label in LABELS]), expected, rtol=1e-4, atol=1e-6)


def test_card_and_files(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    convert(source, "models/../out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license == "mit" and card.data.pipeline_tag == "image-classification"
    assert "`gmlp_nano16_64.test`" in card.text and "64 pixels" in card.text
    assert str(tmp_path) not in card.text
    assert "\n# out\n" in card.text and 'model="models/../out", trust_remote_code=True)' in card.text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"model.safetensors", "config.json", "preprocessor_config.json", "modeling_gmlp.py"}
    assert "image_processing_timm.py" in names  # which preprocessor_config.json names, for those without this package


def test_a_single_file(source, tmp_path, capsys):
    os.rename(source / "model.safetensors", tmp_path / "weights.safetensors")
    convert(tmp_path / "weights.safetensors", tmp_path / "out")
    names = AutoModelForImageClassification.from_pretrained(tmp_path / "out").config.id2label
    assert names == {index: f"LABEL_{index}" for index in range(3)}
    assert "states no licence" in capsys.readouterr().out


def test_weights_without_a_classifier(tmp_path):
    tensors = TIMM["random_tensors"](TIMM["expected_shapes"](width=16, blocks=2, tokens=16, classes=3))
    save_file({k: v for k, v in tensors.items() if not k.startswith("head.")}, tmp_path / "body.safetensors")
    convert(tmp_path / "body.safetensors", tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert type(model) is GMLPModel
    assert torch.equal(model.layers[1].proj_in.weight, tensors["blocks.1.mlp_channels.fc1.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: os.rename(folder / "model.safetensors", folder / "pytorch_model.bin"), "Pickled weights"),
        (lambda folder: save_file({"conv1.weight": torch.ones(1)}, folder / "model.safetensors"), "'conv1.weight' is"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot be converted"),
        (
            lambda folder: change_tensors(folder, "blocks.1.mlp_channels.gate.norm"),
            r"it has no tensor for model\.layers\.1\.sgu\.norm\.bias, .*norm\.weight: the model is not complete\.",
        ),
        (lambda folder: change_tensors(folder, "norm.", torch.ones(3)), r"cannot be converted: .*size mismatch for"),
        (lambda folder: (folder / "config.json").write_text('{"label_names": ["a"]}'), "3 classes, but there are 1"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json' cannot be read"),
        (lambda folder: change_settings(folder, interpolation="random"), "`interpolation` 'random', which is"),
        (lambda folder: change_settings(folder, input_size=[3, 32, 64]), "mixes 16 tokens, but images of 32 x 64"),
    ],
)
def test_wrong_sources(source, tmp_path, change, message):
    change(source)
    with pytest.raises(SystemExit, match=message):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def change_tensors(folder, start, value=None):
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.startswith(start)]:
        del tensors[name]
        if value is not None:
            tensors[name] = value.clone()
    save_file(tensors, folder / "model.safetensors")


def change_settings(folder, **settings):
    description = json.loads((folder / "config.json").read_text())
    description["pretrained_cfg"] |= settings
    (folder / "config.json").write_text(json.dumps(description))


def test_images_that_are_not_square_stay_so(source, tmp_path):
    change_settings(source, input_size=[3, 32, 128])
    convert(source, tmp_path / "out")
    assert AutoModelForImageClassification.from_pretrained(tmp_path / "out").config.image_size == [32, 128]
    settings = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert settings["size"] == {"height": 36, "width": 146} and settings["crop_size"] == {"height": 32, "width": 128}
    assert settings["resample"] == Image.Resampling.BILINEAR  # what timm's ResizeKeepRatio uses
    assert "32 x 128 pixels" in (tmp_path / "out" / "README.md").read_text()


def test_squashed_images(source, picture, tmp_path):
    change_settings(source, crop_mode="squash", crop_pct=1.0)
    convert(source, tmp_path / "out")
    prepared = TimmImageProcessorPil.from_pretrained(tmp_path / "out")(picture, return_tensors="pt").pixel_values[0]
    expected = np.asarray(picture.resize((64, 64), Image.Resampling.BICUBIC), dtype=np.float32) / 127.5 - 1
    np.testing.assert_allclose(prepared.permute(1, 2, 0), expected, atol=1e-5)


def test_a_card_whose_metadata_cannot_be_read(source, tmp_path):
    change_settings(source, license=None)
    (source / "README.md").write_text("---\nlicense: [\n---\n")
    with pytest.raises(SystemExit, match=r"README\.md' cannot be read .*: mend them"):
        convert(source, tmp_path / "out")


def test_imagenet_names_need_the_hub(tmp_path):
    shapes = TIMM["expected_shapes"](width=4, blocks=1, tokens=4)
    save_file(TIMM["random_tensors"](shapes), tmp_path / "weights.safetensors")
    with pytest.raises(SystemExit, match="as the list `label_names`"):
        convert(tmp_path / "weights.safetensors", tmp_path / "out")


def test_nothing_is_overwritten(source, overwrites_nothing):
    overwrites_nothing(lambda output: convert(source, output))


def test_a_backbone_from_the_hub(source, tmp_path, online):
    """`AutoBackbone.from_pretrained` takes the ids of repositories, no folders."""
    convert(source, tmp_path / "converted")
    online()
    classifier = AutoModelForImageClassification.from_pretrained(tmp_path / "converted")
    classifier.push_to_hub("me/nano")
    backbone = AutoBackbone.from_pretrained("me/nano", out_features=["stage1", "stage2"])
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        maps = backbone(pixels).feature_maps
        states = classifier.model(pixel_values=pixels, output_hidden_states=True).hidden_states
    assert type(backbone).__name__ == "GMLPBackbone" and [tuple(found.shape) for found in maps] == [(2, 16, 4, 4)] * 2
    torch.testing.assert_close(maps[0].flatten(2).mT, classifier.model.norm(states[1]))
    torch.testing.assert_close(maps[1].flatten(2).mT, states[2])


def test_the_licence_is_the_cards_and_a_card_is_not_needed(source, tmp_path, hub, online, capsys):
    description = json.loads((source / "config.json").read_text())
    del description["pretrained_cfg"]["license"]
    (source / "config.json").write_text(json.dumps(description))
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    hub[0].add_commit("timm/nano", "main", files)
    hub[0].add_commit("timm/other", "main", files | {"README.md": b"---\nlicense: bsd-2-clause\n---\n"})
    online()
    convert("timm/nano", tmp_path / "latest")
    assert "states no licence" in capsys.readouterr().out
    convert("timm/other", tmp_path / "other")
    assert ModelCard.load(tmp_path / "other" / "README.md").data.license == "bsd-2-clause"
