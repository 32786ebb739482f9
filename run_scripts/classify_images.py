"""Classify images with a saved image classifier.

tokenmixers classify_images --model outputs/run --data cat.jpg
tokenmixers classify_images --model outputs/run --data pictures
tokenmixers classify_images --model outputs/run --data pictures/validation.parquet --count 5
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import parse_arguments
from .base.errors import UserError, report_bad_data, report_unreadable
from .base.ranges import check_ranges
from .base.trained_model import load_trained
from .data.images import find_images, open_image
from .data.loading import READ_ERRORS


@dataclass
class ClassifyArguments:
    """What to classify."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    data: str = field(
        metadata={"help": "Image file; folder of images, in sub-folders or not; or parquet file with image and label."}
    )
    count: int | None = field(default=None, metadata={"help": "Images to classify, the first ones; all by default."})
    top_k: int = field(default=3, metadata={"help": "Classes to show."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "count top_k"))


def _title(label: int | None, names: list[str]) -> str:
    """What an image is called; -1 is the label of rows whose class is not given, as in test splits of the Hub."""
    return "an image" if label is None or label < 0 else f"an image of class {names[label]!r}"


def _rows(path: str, count: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The images of a parquet file, and what they are called."""
    try:
        rows = datasets.Dataset.from_parquet(escape(path))
    except READ_ERRORS as error:
        raise UserError(f"the file {path!r} cannot be read as parquet: {error.__cause__ or error}") from error
    for column, kind in (("image", datasets.Image), ("label", datasets.ClassLabel)):
        if not isinstance(rows.features.get(column), kind):
            raise UserError(f"the file {path!r} has no column {column!r} of type {kind.__name__}.")
    names = rows.features["label"].names
    rows = rows.cast_column("image", datasets.Image(decode=False))
    return ((_title(row["label"], names), row["image"]) for row in islice(rows, count))


def _files(arguments: ClassifyArguments) -> Iterator[tuple[str, dict[str, Any]]]:
    """The image of a file or the images of a folder, and their names."""
    path = Path(arguments.data)
    files = [(arguments.data, arguments.data)]
    if path.is_dir():
        files = [(str(file.relative_to(path)), str(file)) for file in find_images(path)]
    return ((title, {"path": file, "bytes": None}) for title, file in files[: arguments.count])


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ClassifyArguments,), argv)
    if not Path(arguments.data).exists():
        raise UserError(f"there is no file {arguments.data!r}.")
    is_table = arguments.data.endswith(".parquet")
    images = _rows(arguments.data, arguments.count) if is_table else _files(arguments)
    model = load_trained(AutoModelForImageClassification, arguments.model)
    with report_unreadable(arguments.model):
        processor = AutoImageProcessor.from_pretrained(arguments.model)
    classify = pipeline("image-classification", model=model, image_processor=processor)
    for title, image in images:
        with report_bad_data():
            opened = open_image(image)
        answers = classify(opened, top_k=arguments.top_k)
        print(f"{title}: " + ", ".join(f"{answer['label']} {answer['score']:.1%}" for answer in answers), flush=True)


if __name__ == "__main__":
    main()
