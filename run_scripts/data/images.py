"""Images with classes: loading, checking, batches for training and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets.packaged_modules.folder_based_builder.folder_based_builder import FolderBasedBuilder
from PIL import Image
from pyarrow import compute
from transformers import AutoImageProcessor, CLIPImageProcessorPil, PreTrainedConfig

from ..base.arguments import ModelArguments
from ..base.errors import BadDataError, UserError
from .image_augmentation import AugmentationArguments, augment, mixup_or_cutmix, soft_labels
from .loading import DatasetArguments, limited, load_named
from .row_seeds import ROW_NUMBER, number_rows


@dataclass
class ImageDataArguments(DatasetArguments):
    """Where the images come from."""

    train_dir: str | None = field(default=None, metadata={"help": "Image folder with one sub-folder per class."})
    validation_dir: str | None = field(default=None, metadata={"help": "As train_dir, for evaluation."})
    image_column: str = field(default="image", metadata={"help": "Column that holds the images."})
    label_column: str = field(default="label", metadata={"help": "Column that holds the classes."})


def load_images(
    arguments: ImageDataArguments, wanted: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Images with columns `image` and `label`, the latter a `ClassLabel`.

    Args:
        arguments: Names the data.
        wanted: The splits to load: `"train"`, `"validation"` or both.
        token: Hub token.

    Raises:
        UserError: If data or a column is missing, or the two splits disagree about the classes.
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
            # All files: otherwise words like "val" in the names of files and folders choose among them.
            files = {"train": "**"}
            split = load_named("imagefolder", None, "train", data_dir=sources[name], data_files=files)
            _check_folders(split, Path(sources[name]), f"--{name}_dir")
        for column in (arguments.image_column, arguments.label_column):
            if column not in split.column_names:
                raise UserError(f"the {name} images have no column {column!r}; there are {split.column_names}.")
        split = split.select_columns([arguments.image_column, arguments.label_column])
        split = split.rename_columns({arguments.image_column: "image", arguments.label_column: "label"})
        if not isinstance(split.features["label"], datasets.ClassLabel):
            split = split.class_encode_column("label")
        # The collator decodes the images, and can name a damaged one. It augments rows with a number.
        split = split.cast_column("image", datasets.Image(decode=False))
        splits[name] = number_rows(split) if name == "train" else split
    classes = [split.features["label"].names for split in splits.values()]
    if classes[0] != classes[-1]:
        raise UserError(f"training and validation images have different classes: {classes[0]} and {classes[1]}.")
    for name, limit in (("train", arguments.max_train_samples), ("validation", arguments.max_eval_samples)):
        if name in splits:
            splits[name] = limited(splits[name], limit, shuffle=True)
    return splits


def _check_folders(images: datasets.Dataset, folder: Path, argument: str) -> None:
    """Check that every image is in a folder for its class, unless a metadata file names the classes.

    The classes are the names of the images' folders: without this, a folder of training and validation images would be
    read as one set.

    Raises:
        UserError: If an image is elsewhere.
    """
    column = images.with_format("arrow")[:].column("image") if "image" in images.column_names else None
    paths = [] if column is None else compute.struct_field(column.combine_chunks(), "path").to_pylist()
    names_classes = any(any(folder.rglob(name)) for name in FolderBasedBuilder.METADATA_FILENAMES)
    for found in sorted({Path(path).parent for path in paths}):
        if found.parent.resolve() != folder.resolve() and not names_classes:
            raise UserError(
                f"{argument}: {str(folder)!r} must have a folder of images for each class, but there are images in "
                f"{str(found)!r}."
            )


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
