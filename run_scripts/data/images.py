"""Images with classes: loading, checking, batches for training and evaluation."""

import os
from collections import Counter
from collections.abc import Sequence
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
from .loading import DatasetArguments, limited, load_named
from .row_seeds import ROW_NUMBER, number_rows
from .table_files import BadRowError, BadRows, EmptyRowError


logger = logging.get_logger(__name__)


@dataclass
class ImageDataArguments(DatasetArguments):
    """Where the images come from."""

    train_dir: str | None = field(default=None, metadata={"help": "Image folder with one sub-folder per class."})
    validation_dir: str | None = field(default=None, metadata={"help": "As train_dir, for evaluation."})
    image_column: str = field(default="image", metadata={"help": "Column that holds the images."})
    label_column: str = field(default="label", metadata={"help": "Column that holds the classes."})


def load_images(
    arguments: ImageDataArguments,
    wanted: Sequence[str],
    token: str | None = None,
    model_classes: Sequence[str] | None = None,
) -> dict[str, datasets.Dataset]:
    """Images with columns `image` and `label`, the latter a `ClassLabel`.

    Args:
        arguments: Names the data.
        wanted: The splits to load: `"train"`, `"validation"` or both.
        token: Hub token.
        model_classes: The model's classes, for validation images without training images: if these lack some of
            them, they get all.

    Raises:
        UserError: If data or a column is missing, a folder holds no image, an image has no class, or validation images
            have a class that the training images lack.
    """
    sources = {"train": arguments.train_dir, "validation": arguments.validation_dir}
    if (arguments.dataset_name is None) == (not any(sources.values())):
        raise UserError("give the images as either --dataset_name, or --train_dir and --validation_dir.")
    splits = {}
    for name in wanted:
        if arguments.dataset_name is not None:
            split = arguments.load(name, token)
        elif sources[name] is None:
            raise UserError(f"--{name}_dir is missing.")
        elif not Path(sources[name]).is_dir():
            raise UserError(f"--{name}_dir: there is no folder {sources[name]!r}.")
        else:
            split = _read_folder(Path(sources[name]), f"--{name}_dir")
        for column in (arguments.image_column, arguments.label_column):
            if column not in split.column_names:
                raise UserError(f"the {name} images have no column {column!r}; there are {split.column_names}.")
        split = split.select_columns([arguments.image_column, arguments.label_column])
        split = split.rename_columns({arguments.image_column: "image", arguments.label_column: "label"})
        # The collator decodes the images, and can name a damaged one. It augments rows with a number.
        split = split.cast_column("image", datasets.Image(decode=False))
        split = _complete(split, f"the {name} images", arguments.skip_empty_examples)
        if not isinstance(split.features["label"], datasets.ClassLabel):
            split = split.class_encode_column("label")
        splits[name] = number_rows(split) if name == "train" else split
    if "validation" in splits:
        known = splits["train"].features["label"].names if "train" in splits else model_classes
        splits["validation"] = _with_classes(splits["validation"], known, refuse_others="train" in splits)
    for name, limit in (("train", arguments.max_train_samples), ("validation", arguments.max_eval_samples)):
        if name in splits:
            splits[name] = limited(splits[name], limit, shuffle=True)
    return splits


def _read_folder(folder: Path, argument: str) -> datasets.Dataset:
    """The images of a folder: in a folder for each class, or as a metadata file names them.

    Raises:
        UserError: If an image is elsewhere, or a folder has none.
    """
    names_classes = any(any(folder.rglob(name)) for name in ImageFolder.METADATA_FILENAMES)
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if names_classes or not classes:
        # All files: otherwise words like "val" in the names of files and folders choose among them.
        split = load_named("imagefolder", None, "train", data_files={"train": f"{escape(str(folder))}/**"})
        if not names_classes:
            _refuse_images_outside_classes(_image_folders(folder), folder, argument)
        return split
    _refuse_images_outside_classes(_image_folders(folder), folder, argument)
    found: list[tuple[str, int]] = []
    others: Counter[str] = Counter()
    for label, path in enumerate(classes):
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        images = [file for file in files if file.suffix.lower() in ImageFolder.EXTENSIONS]
        endings = Counter(file.suffix or "no ending" for file in files if file not in {*images})
        if not images:
            holds = f"no image, but files with {', '.join(sorted(endings))}" if endings else "no image"
            raise UserError(
                f"{argument}: the folder {str(path)!r} has {holds}: put images such as .png or .jpg into it, or "
                "remove it."
            )
        others += endings
        found += [(str(file), label) for file in images]
    if others:
        kinds = ", ".join(f"{count:,} with {name}" for name, count in sorted(others.items()))
        print(f"{argument}: files that are no images are left out: {kinds}", flush=True)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[path.name for path in classes])}
    )
    columns = {"image": [file for file, _ in found], "label": [label for _, label in found]}
    return datasets.Dataset.from_dict(columns, features=features)


def _image_folders(folder: Path) -> list[Path]:
    """The folders in which there are images."""
    return [
        Path(parent)
        for parent, _, names in os.walk(folder, followlinks=True)
        if any(Path(name).suffix.lower() in ImageFolder.EXTENSIONS and not name.startswith(".") for name in names)
    ]


def _refuse_images_outside_classes(found: Sequence[Path], folder: Path, argument: str) -> None:
    """Refuse images that are in no folder of a class: a folder of training and validation images would be one set."""
    for path in sorted(found):
        if path.parent.resolve() != folder.resolve():
            raise UserError(
                f"{argument}: {str(folder)!r} must have a folder of images for each class, but there are images in "
                f"{str(path)!r}."
            )


def _complete(images: datasets.Dataset, name: str, skip_empty: bool) -> datasets.Dataset:
    """The images that have a class.

    Raises:
        UserError: If some are empty files or have no class, and are not to be left out.
    """
    bad, kept = BadRows(skip_empty), []
    for index, (path, in_file, label) in enumerate(zip(*_paths(images), images["label"], strict=True)):
        place = f"row {index + 1}" if path is None else path
        try:
            if in_file and (path is None or (Path(path).is_file() and not Path(path).stat().st_size)):
                raise EmptyRowError("the image is empty.")
            if label is None or label == -1:
                raise EmptyRowError("the class is missing.")
            kept.append(index)
        except BadRowError as problem:
            bad.add(name, place, problem)
    with report_bad_data():
        bad.check()
    bad.print_skipped(name, len(images))
    if not kept:
        raise UserError(f"{name} have no row with an image and a class.")
    return images if len(kept) == len(images) else images.select(kept)


def _paths(images: datasets.Dataset) -> tuple[list[str | None], list[bool]]:
    """The path of each image, and whether it is in this file, not in the data set. Reads no image."""
    chunks = images.with_format("arrow")[:].column("image").chunks
    paths = [path for chunk in chunks for path in chunk.field("path").to_pylist()]
    return paths, [absent for chunk in chunks for absent in chunk.field("bytes").is_null().to_pylist()]


def _with_classes(images: datasets.Dataset, known: Sequence[str] | None, refuse_others: bool) -> datasets.Dataset:
    """Images that lack some classes with all of them.

    Raises:
        UserError: If they have others and `refuse_others` is true.
    """
    names = images.features["label"].names
    if known is None or [*known] == names:
        return images
    others = sorted({*names} - {*known})
    if others:
        if refuse_others:
            raise UserError(
                f"training and validation images have different classes: {', '.join(map(repr, others[:5]))} are among "
                "the validation images alone."
            )
        return images
    missing = [name for name in known if name not in names]
    if missing:
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        logger.warning(f"the validation images lack {len(missing)} of the {len(known)} classes: {shown}.")
    elif not refuse_others:
        return images  # the same classes in another order
    index = [[*known].index(name) for name in names]
    labels = [index[label] for label in images["label"]]
    renumbered = datasets.Dataset.from_dict(
        {"label": labels}, features=datasets.Features({"label": datasets.ClassLabel(names=[*known])})
    )
    return datasets.concatenate_datasets([images.remove_columns("label"), renumbered], axis=1)


def load_image_processor(arguments: ModelArguments, config: PreTrainedConfig) -> Any:
    """The checkpoint's own, or one that crops the centre to the model's size and scales to [-1, 1].

    Raises:
        UserError: If the checkpoint has none, as those of text models.
    """
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
            rows: With `image` and `label`; training rows, and only those, with `ROW_NUMBER`.

        Returns:
            `pixel_values`, `(batch, channels, height, width)`, and `labels`: probabilities `(batch, num_labels)` of
            training rows, classes `(batch,)` of others.
        """
        images = [open_image(row["image"]) for row in rows]
        classes = torch.tensor([row["label"] for row in rows])
        if ROW_NUMBER not in rows[0]:
            return {"pixel_values": self.processor(images, return_tensors="pt").pixel_values, "labels": classes}
        images = [
            augment(image, self.augmentation, self.image_size, generator)
            for image, generator in zip(images, self.generators, strict=True)
        ]
        # A random crop replaces the processor's resizing and centre crop.
        sizing = {"do_resize": False, "do_center_crop": False} if self.augmentation.random_resized_crop else {}
        pixel_values = self.processor(images, return_tensors="pt", **sizing).pixel_values
        labels = soft_labels(classes, self.num_labels, self.label_smoothing)
        pixel_values, labels = mixup_or_cutmix(pixel_values, labels, self.augmentation, self.generators[0])
        return {"pixel_values": pixel_values, "labels": labels}
