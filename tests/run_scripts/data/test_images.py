import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil

from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import BadDataError, UserError
from tokenmixers.run_scripts.data.image_augmentation import AugmentationArguments
from tokenmixers.run_scripts.data.images import (
    ImageCollator,
    ImageDataArguments,
    load_image_processor,
    load_images,
    open_image,
)
from tokenmixers.run_scripts.data.row_seeds import ROW_NUMBER, SeededCollator


ALL_AUGMENTATION = {"auto_augment": True, "random_resized_crop": True, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}


@pytest.fixture
def collate():
    """`collate(training=..., **settings)`: a batch of noisy pictures of 12 by 10 pixels, for a model of 8 by 8."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 12, 10, 3), dtype=np.uint8)

    def build(training=True, rows=range(4), seed=0, smoothing=0.0, processor=None, **settings):
        config = GMLPConfig(image_size=8, patch_size=2)
        processor = processor or load_image_processor(ModelArguments(), config)
        collator = ImageCollator(processor, AugmentationArguments(**settings), 3, (8, 8), smoothing)
        rows = [{"image": Image.fromarray(noise[i]), "label": i % 3} for i in rows]
        if training:
            rows = [{**row, ROW_NUMBER: number} for number, row in enumerate(rows)]
        return SeededCollator(collator, seed)(rows)

    return build


def test_batches_depend_on_seed_and_rows_alone(collate):
    everything = {**ALL_AUGMENTATION, "random_shift": 1, "horizontal_flip": True}
    first = collate(**everything)
    torch.manual_seed(99)
    np.random.seed(99)
    again, other = collate(**everything), collate(**everything, seed=1)
    for name in ("pixel_values", "labels"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    assert first["pixel_values"].shape == (4, 3, 8, 8)
    assert torch.allclose(first["labels"].sum(dim=1), torch.ones(4))


def test_how_an_image_is_changed_does_not_depend_on_its_batch(collate):
    settings = {"auto_augment": True, "random_resized_crop": True, "random_shift": 1, "horizontal_flip": True}
    together, part = collate(**settings), collate(**settings, rows=range(2))
    assert torch.equal(together["pixel_values"][:2], part["pixel_values"])


def test_validation_pictures_are_left_alone(collate):
    plain, varied = collate(training=False), collate(training=False, smoothing=0.1, **ALL_AUGMENTATION)
    assert torch.equal(plain["pixel_values"], varied["pixel_values"])
    assert varied["labels"].tolist() == [0, 1, 2, 0]
    training = collate()
    assert torch.equal(training["pixel_values"], plain["pixel_values"])
    assert torch.equal(training["labels"], torch.eye(3)[[0, 1, 2, 0]])


def test_random_crops_are_not_cropped_again(collate):
    """timm's evaluation processors scale to more than they keep."""
    zoom = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 8, "width": 8})
    plain = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    zoomed, expected = (collate(random_resized_crop=True, processor=processor) for processor in (zoom, plain))
    assert torch.equal(zoomed["pixel_values"], expected["pixel_values"])
    assert not torch.equal(collate(processor=zoom)["pixel_values"], collate(processor=plain)["pixel_values"])


def test_names_of_files_and_folders_choose_no_images(tmp_path):
    """`datasets` would read the folder `train` alone, and of ImageNet's validation images none."""
    for split, name in (("first", "1.png"), ("second", "ILSVRC2012_val_00000293.png")):
        for label in ("bullet_train", "train", "test tube"):
            (tmp_path / split / label).mkdir(parents=True)
            Image.new("RGB", (2, 2)).save(tmp_path / split / label / name)
    arguments = ImageDataArguments(train_dir=str(tmp_path / "first"), validation_dir=str(tmp_path / "second"))
    for split in load_images(arguments, ("train", "validation")).values():
        assert split.features["label"].names == ["bullet_train", "test tube", "train"]
        assert split["label"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("folder", "shown"), [("pictures", "pictures/train/cat"), ("pictures/train/cat", "train/cat")]
)
def test_images_outside_the_folders_of_classes_are_refused(folder, shown, tmp_path):
    for split in ("train", "validation"):
        for label in ("cat", "dog"):
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            Image.new("RGB", (2, 2)).save(tmp_path / "pictures" / split / label / "1.png")
    (tmp_path / folder / "metadata.txt").write_text("not what datasets reads")
    with pytest.raises(SystemExit, match=f"--train_dir: .* a folder of images for each class, .*{shown}'"):
        load_images(ImageDataArguments(train_dir=str(tmp_path / folder)), ("train",))


def with_metadata(folder, labels):
    for index, label in enumerate(labels):
        Image.new("RGB", (2, 2)).save(folder / f"{index}.png")
        with (folder / "metadata.jsonl").open("a") as file:
            file.write(json.dumps({"file_name": f"{index}.png", "label": label}) + "\n")
    return load_images(ImageDataArguments(train_dir=str(folder)), ["train"])["train"]


@pytest.mark.parametrize("labels", [["cat", " dog", "dog ", "cat"], [1, 0, 0, 1]])
def test_classes_of_a_metadata_file(labels, tmp_path):
    images = with_metadata(tmp_path, labels)
    names = images.features["label"].names
    assert names == sorted({str(label).strip() for label in labels})
    assert [names[number] for number in images["label"]] == [str(label).strip() for label in labels]


def test_an_image_has_one_class(tmp_path):
    with pytest.raises(UserError, match=r"2 bad rows\. .*0\.png: the label is \['cat'\]: a row has one label"):
        with_metadata(tmp_path, [["cat"], ["cat", "dog"]])


@pytest.mark.parametrize(("values", "mode"), [(np.uint16([[0, 65535]]), "I;16"), (np.float32([[0, 0.5]]), "F")])
def test_values_of_more_than_8_bits_are_refused(values, mode, tmp_path):
    Image.fromarray(values).save(tmp_path / "deep.tiff")
    with pytest.raises(BadDataError, match=f"deep.tiff' has more than 8 bits per value .mode {mode}"):
        open_image({"path": str(tmp_path / "deep.tiff"), "bytes": None})
