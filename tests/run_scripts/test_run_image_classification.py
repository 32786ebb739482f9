import csv
import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    BertConfig,
    ConvNextImageProcessorPil,
    ResNetConfig,
    ResNetForImageClassification,
    pipeline,
)

from tokenmixers.run_scripts import classify_images, make_data, run_image_classification
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.data.images import load_image_processor
from tokenmixers.run_scripts.training.run import Run


SIZES = "image_size=8,patch_size=2,hidden_size=16,intermediate_size=32,num_hidden_layers=2,classifier_pooling=mean"
ALL_AUGMENTATION = {"auto_augment": True, "random_resized_crop": True, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}


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


@pytest.fixture(scope="module")
def arguments(pictures, as_words):
    settings = {
        "train_dir": pictures / "train",
        "validation_dir": pictures / "validation",
        "config_name": "gmlp-ti16-224",
        "config_overrides": SIZES,
        "max_steps": 30,
        "per_device_train_batch_size": 8,
        "learning_rate": 5e-3,
    }
    return lambda *more, **changes: as_words(settings, *more, changes)


@pytest.fixture(scope="module")
def trained(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, run_image_classification.main(arguments(output_dir=folder))


def test_trains_saves_and_classifies(trained, pictures):
    folder, metrics = trained
    assert metrics["eval_accuracy"] == 1.0
    assert json.loads((folder / "all_results.json").read_text())["eval_accuracy"] == 1.0
    classify = pipeline("image-classification", model=str(folder))
    for label in ("top", "bottom"):
        assert classify(Image.open(pictures / "validation" / label / "3.png"))[0]["label"] == label


def test_evaluation_alone_needs_no_training_images_and_keeps_the_classes(
    trained, command, pictures, tmp_path, monkeypatch
):
    warnings: list[str] = []
    monkeypatch.setattr(run_image_classification.logger, "warning", warnings.append)
    alone = {"do_train": None, "train_dir": None, "model_name_or_path": trained[0]}

    def evaluate(bottom, top, *others):
        folder = shutil.copytree(pictures / "validation", tmp_path / str(len(list(tmp_path.iterdir()))))
        (folder / "bottom").rename(folder / bottom)
        (folder / "top").rename(folder / top)
        for name in others:
            shutil.copytree(folder / top, folder / name)
        run_image_classification.main(command(**alone, validation_dir=folder, output_dir=tmp_path / "evaluation"))
        with (tmp_path / "evaluation" / "predictions_validation.csv").open(newline="") as file:
            return {row["label"] for row in csv.DictReader(file)}

    assert evaluate("bottom", "top") >= {"bottom", "top"}
    assert warnings == []
    assert evaluate("n0001", "n0002") >= {"bottom", "top"}  # ImageNet's folders
    assert "2 classes have other names in the model than in the images, such as 'bottom' and 'n0001'" in warnings[0]
    with pytest.raises(SystemExit, match="the images have 3 classes, the model has 2: finetune it first"):
        evaluate("bottom", "top", "middle")
    with pytest.raises(SystemExit, match="the images have the classes 'aside', 'bottom', the model 'bottom', 'top'"):
        evaluate("bottom", "aside")


def test_checkpoints_without_an_image_size(command, tmp_path):
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=2)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "resnet")
    ConvNextImageProcessorPil(size={"shortest_edge": 12}).save_pretrained(tmp_path / "resnet")
    changes = {"max_steps": 60, "learning_rate": 2e-2, "mixup_alpha": 0.2, "random_resized_crop": True}
    start = command(**changes, crop_min_area=0.8, model_name_or_path=tmp_path / "resnet")
    metrics = run_image_classification.main(start)
    assert metrics["eval_accuracy"] > 0.8


def test_parquet_files_of_digits(command, tmp_path):
    pytest.importorskip("sklearn")
    make_data.main(["digits_images", "--output_dir", str(tmp_path / "digits")])
    split = datasets.load_dataset(str(tmp_path / "digits"), split="train")
    assert len(split) == 1438 and split[0]["image"].size == (8, 8)
    run_image_classification.main(
        command(train_dir=None, validation_dir=None, dataset_name=tmp_path / "digits", max_steps=2, max_eval_samples=9)
    )
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    assert list(model.config.id2label.values()) == [str(digit) for digit in range(10)]


def test_training_labels_are_smoothed(command):
    run = Run(run_image_classification.ImageClassification(), command(label_smoothing_factor=0.3))
    run.prepare()
    trainer = run.build()
    labels = next(iter(trainer.get_train_dataloader()))["labels"]
    assert torch.allclose(labels.sort(dim=1).values, torch.tensor([0.15, 0.85]))
    assert next(iter(trainer.get_eval_dataloader()))["labels"].dtype == torch.int64


def test_evaluation_counts_hard_labels(command, pictures, tmp_path, capsys):
    run_image_classification.main(command(label_smoothing_factor=0.3, **ALL_AUGMENTATION))
    assert "GMLPForImageClassification (gmlp)" in capsys.readouterr().out
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run").eval()
    processor = load_image_processor(ModelArguments(), model.config)
    losses = []
    for label, name in enumerate(("bottom", "top")):
        images = [Image.open(file).convert("RGB") for file in (pictures / "validation" / name).iterdir()]
        with torch.no_grad():
            scores = model(**processor(images, return_tensors="pt")).logits.log_softmax(dim=1)
        losses += (-scores[:, label]).tolist()
    assert results["eval_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| `mixup_alpha`" in card and "| `random_shift`" not in card


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_dir": None}, "--train_dir is missing"),
        ({"label_column_name": "class"}, "no column 'class' (--label_column_name)"),
    ],
)
def test_mistakes_are_one_sentence(command, refuses, changes, message):
    refuses(run_image_classification.main, command(**changes), message)


def test_text_checkpoints_are_refused(command, tmp_path):
    BertConfig(architectures=["BertModel"]).save_pretrained(tmp_path / "bert")
    with pytest.raises(SystemExit, match=r"error: no image processor in '.*bert'"):
        run_image_classification.main(command(model_name_or_path=tmp_path / "bert"))


def test_pictures_are_classified_from_files_and_data(trained, pictures, tmp_path, capsys):
    model = str(shutil.copytree(trained[0], tmp_path / "run"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["bottom", "top"])})
    file = Path(shutil.copy(pictures / "validation" / "top" / "1.png", tmp_path))
    rows = {"image": [Image.open(file)] * 3, "label": [1, -1, None]}  # two without a class
    parquet = tmp_path / "a b" / "some[1].parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(parquet)
    capsys.readouterr()
    classify_images.main(["--model", model, "--data", str(file)])
    assert f"{file}: top " in capsys.readouterr().out
    classify_images.main(["--model", model, "--data", str(parquet)])
    titles = [line.partition(": top ")[0] for line in capsys.readouterr().out.splitlines()]
    assert titles == ["an image of class 'top'", "an image", "an image"]
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(SystemExit, match=f"error: the image '{file}' cannot be read: "):
        classify_images.main(["--model", model, "--data", str(file)])
    AutoModel.from_pretrained(model).save_pretrained(model)
    with pytest.raises(SystemExit, match=r"has no weights for classifier\..*: it was not trained for this task"):
        classify_images.main(["--model", model, "--data", str(pictures / "train" / "top" / "1.png")])


def test_images_that_were_held_out_are_named_in_the_folder_of_training(command, pictures, tmp_path, table_of):
    run_image_classification.main(command(validation_dir=None, train_val_split=0.25, max_steps=1))
    files = [row["file"] for row in table_of(tmp_path / "run" / "predictions_validation.csv")]
    images = {str(path.relative_to(pictures / "train")) for path in (pictures / "train").rglob("*.png")}
    assert len(files) == round(len(images) / 4) and images.issuperset(files)


def test_a_folder_is_predicted_with_the_names_of_its_files(trained, command, pictures, tmp_path, capsys, table_of):
    """Images in any folders have no classes; those in folders of classes do. Each agrees with the pipeline."""
    model, metrics = trained
    mixed = tmp_path / "holiday"
    for path, source in (("a.png", "top/1.png"), ("day 1/b,c.png", "bottom/2.png"), ("day 1/x/d.png", "top/3.png")):
        (mixed / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pictures / "validation" / source, mixed / path)
    (mixed / "notes.txt").write_text("no picture")
    classify = pipeline("image-classification", model=str(model))
    expected = {file: classify(str(mixed / file))[0] for file in ("a.png", "day 1/b,c.png", "day 1/x/d.png")}
    start = {"do_train": None, "do_eval": None, "do_predict": True, "train_dir": None, "validation_dir": None}
    start |= {"model_name_or_path": model}
    capsys.readouterr()
    found = run_image_classification.main(command(**start, test_dir=mixed, output_dir=tmp_path / "unlabelled"))
    out = capsys.readouterr().out
    assert "accuracy" not in out and "test_accuracy" not in found
    assert "3 images without classes" in out and "files that are not images are left out: 1 with .txt" in out
    rows = table_of(tmp_path / "unlabelled" / "predictions_test.csv")
    assert [(row["file"], row["prediction"]) for row in rows] == [
        (file, answer["label"]) for file, answer in expected.items()
    ]
    assert [float(row["score"]) for row in rows] == pytest.approx(
        [answer["score"] for answer in expected.values()], abs=1e-5
    )
    classify_images.main(["--model", str(model), "--data", str(mixed), "--top_k", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if ".png" in line]
    assert lines == [f"{file}: {answer['label']} {answer['score']:.1%}" for file, answer in expected.items()]

    found = run_image_classification.main(
        command(**start, test_dir=pictures / "validation", output_dir=tmp_path / "labelled")
    )
    assert found["test_accuracy"] == metrics["eval_accuracy"]
    assert found["test_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    with (tmp_path / "labelled" / "predictions_test.csv").open(newline="") as file:
        assert all(Path(row["file"]).parent.name == row["label"] for row in csv.DictReader(file))
    # Folders that name only one of the classes: their numbers are those of the model.
    shutil.copytree(pictures / "validation" / "top", tmp_path / "only" / "top")
    found = run_image_classification.main(command(**start, test_dir=tmp_path / "only", output_dir=tmp_path / "top"))
    assert found["test_accuracy"] == 1.0


def test_test_images_without_a_file_or_with_other_classes(trained, command, tmp_path):
    start = {"do_train": None, "do_eval": None, "do_predict": True, "output_dir": tmp_path / "out"}
    start |= {"model_name_or_path": trained[0]}
    images = [Image.fromarray(np.full((8, 8), value, dtype=np.uint8)) for value in (0, 255)]
    without = datasets.Dataset.from_dict({"image": images}, features=datasets.Features({"image": datasets.Image()}))
    (tmp_path / "data").mkdir()
    without.to_parquet(tmp_path / "data" / "test.parquet")
    from_data = {**start, "train_dir": None, "validation_dir": None, "dataset_name": tmp_path / "data"}
    assert run_image_classification.main(command(**from_data)).keys() <= {"test_loss"}
    assert (tmp_path / "out" / "predictions_test.csv").read_text().startswith("index,prediction,score\n0,")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "empty", "has no image"),
        (tmp_path / "none", "--test_dir: there is no folder"),
    ):
        with pytest.raises(SystemExit, match="error: ") as caught:
            run_image_classification.main(command(**start, test_dir=folder))
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "workers"),
    [(b"", 0), (b"no picture", 0), (None, 0), (None, 1)],
    ids=["empty", "text", "cut", "cut, read by a worker"],
)
def test_a_damaged_picture_is_named(command, pictures, tmp_path, content, workers):
    shutil.copytree(pictures / "train", tmp_path / "train")
    bad = tmp_path / "train" / "top" / "5.png"
    bad.write_bytes(bad.read_bytes()[:60] if content is None else content)
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 12, "train_dir": tmp_path / "train"}
    with pytest.raises(SystemExit) as caught:
        run_image_classification.main(command(**options, dataloader_num_workers=workers))
    message = str(caught.value)
    if content:
        assert message.startswith(f"error: the image '{bad}' cannot be read: ")
    else:
        assert str(bad) in message and ("the image is empty" in message) == (content == b"")
    assert "\n" not in message
    for checkpoint in (tmp_path / "run").glob("checkpoint-*"):
        load_file(checkpoint / "model.safetensors")


# --- distillation ------------------------------------------------------------------------------------------------


@pytest.fixture
def teacher(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "teacher")


def test_teachers_of_other_sizes_and_colours(command, teacher, tmp_path):
    with pytest.raises(SystemExit, match="makes 8x8 pixels, the student takes 16x16"):
        run_image_classification.main(command(teacher=teacher, config_overrides=SIZES.replace("size=8", "size=16")))
    student = shutil.copytree(teacher, tmp_path / "student")
    file = teacher / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "image_mean": [0.4] * 3}))
    with pytest.raises(SystemExit, match="make different images"):
        run_image_classification.main(command(teacher=teacher, model_name_or_path=student))
    assert not (tmp_path / "run").exists()


def test_the_logits_of_a_teacher_follow_the_classes(command, teacher, tmp_path):
    model = AutoModelForImageClassification.from_pretrained(teacher)
    folder = shutil.copytree(teacher, tmp_path / "foreign")
    model.config.id2label = dict(enumerate(reversed(model.config.id2label.values())))
    for parameter in model.classifier.parameters():
        parameter.data = parameter.flip(0)
    model.save_pretrained(folder)
    weights = []
    for name in ("teacher", "foreign"):
        options = {"teacher": tmp_path / name, "distillation_alpha": 1.0, "max_steps": 2, "do_eval": None}
        run_image_classification.main(command(**options, output_dir=tmp_path / f"{name}_run"))
        weights.append(load_file(tmp_path / f"{name}_run" / "model.safetensors"))
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])
