"""Images with classes: loading, checking, batches for training and evaluation."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
from PIL import Image
from transformers import AutoImageProcessor, CLIPImageProcessorPil, PreTrainedConfig
from transformers.utils import logging

from ..base.arguments import ModelArguments
from ..base.errors import BadDataError, UserError, report_bad_data
from .image_augmentation import AugmentationArguments, augment, mixup_or_cutmix, soft_labels
from .loading import SPLITS, PredictionDataArguments, indexed, load_named
from .row_seeds import ROW_NUMBER, number_rows
from .table_files import EmptyRowError, Row, class_name, convert_rows


logger = logging.get_logger(__name__)


@dataclass
class ImageDataArguments(PredictionDataArguments):
    """Where the images come from."""

    train_dir: str | None = field(default=None, metadata={"help": "Image folder with one sub-folder per class."})
    validation_dir: str | None = field(default=None, metadata={"help": "As train_dir, for evaluation."})
    test_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of images to predict, in sub-folders or not. They have labels only if all are in folders "
            "that are called like the model's classes."
        },
    )
    image_column_name: str = field(default="image", metadata={"help": "Column that holds the images."})
    label_column_name: str = field(default="label", metadata={"help": "Column that holds the classes."})


def load_images(
    arguments: ImageDataArguments,
    wanted: Sequence[str],
    token: str | None = None,
    model_classes: Sequence[str] | None = None,
) -> dict[str, datasets.Dataset]:
    """Images with columns `index`, `image` and `label`, a `ClassLabel`. Test images may have no column `label`.

    Args:
        arguments: Names the data.
        wanted: The splits to load: any of `"train"`, `"validation"` and `"test"`, in this order.
        token: Hub token.
        model_classes: The model's classes, for other images without training images: if these lack some of them, they
            get all.
    """
    names = {split: f"{arguments.source_of(split)}_dir" for split in SPLITS}
    sources = {split: getattr(arguments, name) for split, name in names.items()}
    if (arguments.dataset_name is None) == (not any(sources.values())):
        raise UserError("give the images as either --dataset_name, or --train_dir and --validation_dir.")
    splits: dict[str, datasets.Dataset] = {}
    for name in wanted:
        if arguments.source_of(name) in splits:
            splits[name] = splits[arguments.source_of(name)]
            continue
        if arguments.dataset_name is not None:
            split = arguments.load(arguments.source_of(name), token)
        elif sources[name] is None:
            raise UserError(f"--{names[name]} is missing.")
        elif not Path(sources[name]).is_dir():
            raise UserError(f"--{names[name]}: there is no folder {sources[name]!r}.")
        elif name == "test":
            split = _read_test_folder(Path(sources[name]), _classes(splits, model_classes))
        else:
            split = _read_folder(Path(sources[name]), f"--{names[name]}")
        splits[name] = _prepared(split, arguments, name)
    first, *others = splits
    if first != "train" and "label" in splits[first].features:
        splits[first] = _with_classes(splits[first], model_classes, first, refuse_others=False)
    for name in others:
        if "label" in splits[name].features:
            splits[name] = _with_classes(splits[name], _classes(splits, None), name, refuse_others=True)
    if "train" in splits:
        splits["train"] = number_rows(splits["train"])
    return {name: arguments.select(name, split) for name, split in splits.items()}


def _classes(splits: dict[str, datasets.Dataset], model_classes: Sequence[str] | None) -> Sequence[str] | None:
    """The classes of the training images, or else of the validation images, or else of the model."""
    return next(iter(splits.values())).features["label"].names if splits else model_classes


def find_images(folder: Path) -> list[Path]:
    """The images in a folder and its folders, except hidden ones, in alphabetical order.

    Other files are left out, with a message.
    """
    images, others = _files_in(folder)
    if not images:
        raise UserError(f"the folder {str(folder)!r} has no image, such as .png or .jpg.")
    if others:
        kinds = ", ".join(f"{count:,} with {ending}" for ending, count in sorted(_endings(others).items()))
        print(f"{folder}: files that are not images are left out: {kinds}", flush=True)
    return images


def _files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images in a folder and its folders in alphabetical order, and the other files; hidden ones are left out."""
    images: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in names if not name.startswith(".")):
            (images if file.suffix.lower() in ImageFolder.EXTENSIONS else others).append(file)
    return sorted(images), others


def _endings(files: Iterable[Path]) -> Counter[str]:
    return Counter(file.suffix or "no ending" for file in files)


def _has_metadata(folder: Path) -> bool:
    """Whether a file in a folder names the classes of its images."""
    return any(any(folder.rglob(name)) for name in ImageFolder.METADATA_FILENAMES)


def _read_test_folder(folder: Path, classes: Sequence[str] | None) -> datasets.Dataset:
    """All images of a folder, with labels if all are in folders that are called like classes."""
    if _has_metadata(folder):
        return _read_folder(folder, "--test_dir")
    files = find_images(folder)
    features = {"image": datasets.Image()}
    columns: dict[str, list] = {"image": list(map(str, files))}
    names = [file.relative_to(folder).parts[0] if file.parent.parent == folder else None for file in files]
    if classes is not None and {*names} <= {*classes}:
        features["label"] = datasets.ClassLabel(names=[*classes])
        columns["label"] = names
    told = "with the classes that their folders name" if "label" in columns else "without classes"
    print(f"--test_dir: {len(files):,} images {told}", flush=True)
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _prepared(images: datasets.Dataset, arguments: ImageDataArguments, name: str) -> datasets.Dataset:
    """The images of a split: columns `index`, `image` and `label`, which test images have if all have a class."""
    label, is_test = arguments.label_column_name, name == "test"
    columns = {arguments.image_column_name: "image", label: "label"}
    if is_test and (label not in images.column_names or any(value in (None, -1) for value in images[label])):
        del columns[label]
    for column, ours in columns.items():
        if column not in images.column_names:
            known, option = ", ".join(map(repr, images.column_names)), f"--{ours}_column_name"
            raise UserError(f"the {name} images have no column {column!r} ({option}); the columns are {known}.")
    images = images.select_columns([*columns]).rename_columns(columns)
    # The collator decodes the images, and can name a damaged one. It augments rows with a number.
    images = indexed(images.cast_column("image", datasets.Image(decode=False)))
    images = _complete(images, f"the {name} images", None if is_test else arguments.skip_empty_examples)
    if "label" in columns.values() and not isinstance(images.features["label"], datasets.ClassLabel):
        names = list(map(class_name, images["label"]))
        images = images.remove_columns("label").add_column("label", names).class_encode_column("label")
    return images


def _read_folder(folder: Path, argument: str) -> datasets.Dataset:
    """The images of a folder: in a folder for each class, or as a metadata file names them."""
    if _has_metadata(folder):
        # All files: otherwise words like "val" in the names of files and folders choose among them.
        return load_named("imagefolder", None, "train", data_files={"train": f"{escape(str(folder))}/**"})
    images = find_images(folder)
    for path in (image.parent for image in images):
        if path == folder or path.parent != folder:  # a folder of training and validation images would be one set
            raise UserError(
                f"{argument}: {str(folder)!r} must have a folder of images for each class, but there are images in "
                f"{str(path)!r}."
            )
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in sorted({*classes} - {image.parent for image in images}):
        endings = ", ".join(sorted(_endings(_files_in(path)[1])))
        holds = f"no image, but files with {endings}" if endings else "no image"
        raise UserError(
            f"{argument}: the folder {str(path)!r} has {holds}: put images such as .png or .jpg into it, or remove it."
        )
    names = [path.name for path in classes]
    columns = {"image": list(map(str, images)), "label": [image.parent.name for image in images]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict(columns, features=features)


def _complete(images: datasets.Dataset, name: str, skip_empty: bool | None = None) -> datasets.Dataset:
    """The images that have a class, where there are classes.

    Args:
        images: With a column `image` and perhaps `label`.
        name: What they are called in messages.
        skip_empty: Whether images without a class are left out; `None` for test images, which are all predicted.
    """

    def check(row: Row) -> None:
        path = row["path"]
        if row["in_file"] and (path is None or (Path(path).is_file() and not Path(path).stat().st_size)):
            raise EmptyRowError("the image is empty.")
        if row["label"] is None or row["label"] == -1:
            raise EmptyRowError("the class is missing.")
        class_name(row["label"])  # raises if there are several

    labels = images["label"] if "label" in images.column_names else [0] * len(images)
    rows = (
        (name, path or f"row {number}", {"path": path, "in_file": in_file, "label": label})
        for number, (path, in_file, label) in enumerate(zip(*_paths(images), labels, strict=True), start=1)
    )
    with report_bad_data():
        found = convert_rows(name, rows, check, bool(skip_empty), can_skip=skip_empty is not None)
        kept = [index for index, *_ in found]
    if not kept:
        raise UserError(f"{name} have no row with an image and a class.")
    return images if len(kept) == len(images) else images.select(kept)


def _paths(images: datasets.Dataset) -> tuple[list[str | None], list[bool]]:
    """The path of each image, and whether it is in this file, not in the data set. Reads no image."""
    chunks = images.with_format("arrow")[:].column("image").chunks
    paths = [path for chunk in chunks for path in chunk.field("path").to_pylist()]
    return paths, [absent for chunk in chunks for absent in chunk.field("bytes").is_null().to_pylist()]


def _with_classes(
    images: datasets.Dataset, known: Sequence[str] | None, name: str, refuse_others: bool
) -> datasets.Dataset:
    """The images of a split, with the class numbers of all classes.

    Args:
        images: The images.
        known: The classes of the training images, or of the model.
        name: The split's name.
        refuse_others: Whether classes that are not `known` are an error.
    """
    names = images.features["label"].names
    if known is None or [*known] == names:
        return images
    others = sorted({*names} - {*known})
    if others:
        if refuse_others:
            raise UserError(
                f"training and {name} images have different classes: {', '.join(map(repr, others[:5]))} are among the "
                f"{name} images alone."
            )
        return images
    missing = [name for name in known if name not in names]
    if missing:
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        logger.warning(f"the {name} images lack {len(missing)} of the {len(known)} classes: {shown}.")
    elif not refuse_others:
        return images  # the same classes in another order
    index = [[*known].index(name) for name in names]
    labels = [index[label] for label in images["label"]]
    renumbered = datasets.Dataset.from_dict(
        {"label": labels}, features=datasets.Features({"label": datasets.ClassLabel(names=[*known])})
    )
    return datasets.concatenate_datasets([images.remove_columns("label"), renumbered], axis=1)


def image_files(images: datasets.Dataset, folder: str | None) -> list[str] | None:
    """The file of each image, as its path in the folder if it is there; `None` if the images are in no files."""
    paths, _ = _paths(images)
    if None in paths:
        return None
    root = None if folder is None else os.path.abspath(folder)
    return [
        os.path.relpath(path, root) if root is not None and os.path.abspath(path).startswith(root + os.sep) else path
        for path in paths
    ]


def load_image_processor(arguments: ModelArguments, config: PreTrainedConfig) -> Any:
    """The checkpoint's own, or one that crops the centre to the model's size and scales to [-1, 1]."""
    if arguments.model_name_or_path is not None:
        try:
            return AutoImageProcessor.from_pretrained(arguments.model_name_or_path, **arguments.hub_arguments())
        except (OSError, ValueError) as error:
            raise UserError(f"no image processor in {arguments.model_name_or_path!r}: {error}") from error
    height, width = np.broadcast_to(config.image_size, 2).tolist()
    return CLIPImageProcessorPil(
        size={"shortest_edge": min(height, width)},
        crop_size={"height": height, "width": width},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def processed_size(processor: Any) -> tuple[int, int]:
    """Height and width, in pixels, of an image processor's output for a square image."""
    return tuple(processor(Image.new("RGB", (64, 64)), return_tensors="pt").pixel_values.shape[-2:])


def open_image(image: Image.Image | dict[str, Any]) -> Image.Image:
    """Decode an image, rotate it according to its EXIF data, and convert it to RGB.

    Args:
        image: Decoded, or with its `path` or `bytes`, as `datasets` stores it.

    Raises:
        BadDataError: If it is damaged, or has more than 8 bits per value.
    """
    name = (None if isinstance(image, Image.Image) else image["path"]) or "without a path"
    if not isinstance(image, Image.Image):
        try:
            image = datasets.Image().decode_example(image)
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all of them
            raise BadDataError(f"the image {name!r} cannot be read: {error}") from error
    if image.mode.startswith(("I", "F")):  # PIL would clip the values to 255: an image of one colour
        raise BadDataError(f"the image {name!r} has more than 8 bits per value (mode {image.mode}): convert it to 8.")
    return image.convert("RGB")


@dataclass
class ImageCollator:
    """Makes batches of images. Training images are augmented at random, with soft labels.

    How an image is changed depends on its own generator alone; how images are mixed, on that of the batch's first.

    Attributes:
        processor: The model's image processor.
        augmentation: How training images are augmented and mixed.
        num_labels: Number of classes.
        image_size: Height and width of the model's images, in pixels.
        label_smoothing: Share of a training label that is spread over all classes.
        generators: One for each training image of the next batch, see `SeededCollator`.
    """

    processor: Any
    augmentation: AugmentationArguments
    num_labels: int
    image_size: tuple[int, int]
    label_smoothing: float = 0.0
    generators: Sequence[np.random.Generator] = ()

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Open, augment and process a batch.

        Args:
            rows: With `image`, `label` unless they are test rows, and `ROW_NUMBER` if they are training rows.

        Returns:
            `pixel_values`, `(batch, channels, height, width)`, and `labels`: probabilities `(batch, num_labels)` of
            training rows, classes `(batch,)` of others that have any.
        """
        images = [open_image(row["image"]) for row in rows]
        labels = {"labels": torch.tensor([row["label"] for row in rows])} if "label" in rows[0] else {}
        if ROW_NUMBER not in rows[0]:
            return {"pixel_values": self.processor(images, return_tensors="pt").pixel_values, **labels}
        images = [
            augment(image, self.augmentation, self.image_size, generator)
            for image, generator in zip(images, self.generators, strict=True)
        ]
        # A random crop replaces the processor's resizing and centre crop.
        sizing = {"do_resize": False, "do_center_crop": False} if self.augmentation.random_resized_crop else {}
        pixel_values = self.processor(images, return_tensors="pt", **sizing).pixel_values
        soft = soft_labels(labels["labels"], self.num_labels, self.label_smoothing)
        pixel_values, soft = mixup_or_cutmix(pixel_values, soft, self.augmentation, self.generators[0])
        return {"pixel_values": pixel_values, "labels": soft}
