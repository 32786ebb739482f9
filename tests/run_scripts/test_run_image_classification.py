import json
import shutil

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification, ViTConfig, pipeline

from tokenmixers.run_scripts import classify_images, digits_images, run_image_classification
from tokenmixers.run_scripts.run_image_classification import ImageCollator, ImageDataArguments


SIZES = "image_size=8,patch_size=2,hidden_size=16,intermediate_size=32,num_hidden_layers=2,classifier_pooling=mean"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Folders of noisy pictures, bright at the top or at the bottom."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 24), ("validation", 8)):
        for label, rows in (("bottom", slice(4, 8)), ("top", slice(0, 4))):
            (folder / split / label).mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 90, (8, 8), dtype=np.uint8)
                pixels[rows] += 120
                Image.fromarray(pixels).save(folder / split / label / f"{index}.png")
    return folder


@pytest.fixture
def command(pictures, tmp_path):
    def build(**changes):
        settings = {
            "train_dir": pictures / "train",
            "validation_dir": pictures / "validation",
            "config_name": "gmlp-ti16-224",
            "config_overrides": SIZES,
            "output_dir": tmp_path / "run",
            "do_train": True,
            "do_eval": True,
            "use_cpu": True,
            "max_steps": 30,
            "per_device_train_batch_size": 8,
            "learning_rate": 5e-3,
            "disable_tqdm": True,
            **changes,
        }
        return [part for name, value in settings.items() if value is not None for part in (f"--{name}", str(value))]

    return build


def test_trains_saves_and_classifies(command, pictures, tmp_path, capsys):
    metrics = run_image_classification.main(command())
    assert metrics["eval_accuracy"] == 1.0
    assert "GMLPForImageClassification (gmlp)" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "all_results.json").read_text())["eval_accuracy"] == 1.0
    classify = pipeline("image-classification", model=str(tmp_path / "run"))
    for label in ("top", "bottom"):
        assert classify(Image.open(pictures / "validation" / label / "3.png"))[0]["label"] == label


@pytest.mark.usefixtures("_auto_image_processor")
def test_a_checkpoint_is_evaluated_and_resumed(command, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "random_shift": 1, "horizontal_flip": True}
    run_image_classification.main(command(**options))
    whole = load_file(tmp_path / "run" / "model.safetensors")
    interrupted = tmp_path / "interrupted"
    shutil.copytree(tmp_path / "run" / "checkpoint-4", interrupted / "checkpoint-4")
    resumed = run_image_classification.main(command(**options, output_dir=interrupted))
    assert all(
        torch.equal(whole[name], tensor) for name, tensor in load_file(interrupted / "model.safetensors").items()
    )
    evaluated = run_image_classification.main(
        command(
            do_train=None,
            config_name=None,
            config_overrides=None,
            model_name_or_path=interrupted,
            output_dir=tmp_path / "evaluation",
        )
    )
    assert evaluated["eval_accuracy"] == resumed["eval_accuracy"]
    assert evaluated["eval_loss"] == pytest.approx(resumed["eval_loss"], rel=1e-5)


def test_models_of_transformers_itself(command, tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    ViTConfig(image_size=8, patch_size=4, **sizes).save_pretrained(tmp_path / "vit")
    metrics = run_image_classification.main(command(config_name=tmp_path / "vit", config_overrides=None, max_steps=2))
    assert 0 <= metrics["eval_accuracy"] <= 1


def test_parquet_files_of_digits(command, tmp_path):
    pytest.importorskip("sklearn")
    digits_images.main(["--output_dir", str(tmp_path / "digits")])
    with pytest.raises(SystemExit, match="not empty"):
        digits_images.main(["--output_dir", str(tmp_path / "digits")])
    split = datasets.load_dataset(str(tmp_path / "digits"), split="train")
    assert len(split) == 1438 and split[0]["image"].size == (8, 8)
    run_image_classification.main(
        command(train_dir=None, validation_dir=None, dataset_name=tmp_path / "digits", max_steps=2, max_eval_samples=9)
    )
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    assert list(model.config.id2label.values()) == [str(digit) for digit in range(10)]


def test_augmentation_moves_and_mirrors():
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) + 1)
    vary = ImageCollator(None, ImageDataArguments(random_shift=1, horizontal_flip=True), seed=0).vary
    pixels, generator = np.asarray(picture), torch.Generator().manual_seed(0)
    padded = [np.pad(image, ((1, 1), (1, 1), (0, 0))) for image in (pixels, pixels[:, ::-1])]
    possible = {image[y : y + 4, x : x + 4].tobytes() for image in padded for x in range(3) for y in range(3)}
    assert {np.asarray(vary(picture, generator)).tobytes() for _ in range(300)} == possible
    assert ImageCollator(None, ImageDataArguments(), seed=0).vary(picture, generator) is picture


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_dir": None}, "either --dataset_name or --train_dir"),
        ({"validation_dir": "missing"}, "--validation_dir: there is no folder 'missing'"),
        ({"label_column": "class"}, "no column 'class'"),
        ({"config_name": "gmlp-base", "config_overrides": None}, "set image_size"),
        ({"config_overrides": "image_size=9,patch_size=2"}, "multiple of"),
    ],
)
def test_mistakes_are_one_sentence(command, tmp_path, changes, message):
    with pytest.raises(SystemExit, match="error: ") as caught:
        run_image_classification.main(command(**changes))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_pictures_are_classified_from_files_and_data(command, pictures, tmp_path, capsys):
    run_image_classification.main(command())
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["bottom", "top"])})
    file = pictures / "validation" / "top" / "1.png"
    rows = {"image": [Image.open(file)], "label": [1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "one.parquet")
    capsys.readouterr()
    classify_images.main(["--model", str(tmp_path / "run"), "--images", str(file)])
    assert f"{file}: top " in capsys.readouterr().out
    classify_images.main(["--model", str(tmp_path / "run"), "--data", str(tmp_path / "one.parquet")])
    assert "a picture of class 'top': top " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="either --images or --data"):
        classify_images.main(["--model", str(tmp_path / "run")])
    with pytest.raises(SystemExit, match=r"no file 'missing\.png'"):
        classify_images.main(["--model", str(tmp_path / "run"), "--images", "missing.png"])
