"""Classify images with a saved image classifier.

tokenmixers classify_images --model outputs/run --images cat.jpg dog.png
tokenmixers classify_images --model outputs/run --data pictures/validation.parquet --count 5
"""

from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

import datasets
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import parse_arguments
from .base.errors import UserError, report_bad_data, report_unreadable
from .base.ranges import check_ranges
from .base.trained_model import load_trained
from .data.images import open_image
from .data.loading import READ_ERRORS, limited


@dataclass
class ClassifyArguments:
    """What to classify."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    images: list[str] | None = field(default=None, metadata={"help": "Image files."})
    data: str | None = field(default=None, metadata={"help": "Parquet file with columns image and label."})
    count: int = field(default=5, metadata={"help": "Images of the parquet file to classify."})
    top_k: int = field(default=3, metadata={"help": "Classes to show."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "count top_k"))


def _title(label: int | None, names: list[str]) -> str:
    """What an image is called; -1 is the label of rows whose class is not given, as in test splits of the Hub."""
    return "an image" if label is None or label < 0 else f"an image of class {names[label]!r}"


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ClassifyArguments,), argv)
    if (arguments.images is None) == (arguments.data is None):
        raise UserError("give the images as either --images or --data.")
    for file in arguments.images or [arguments.data]:
        if not Path(file).is_file():
            raise UserError(f"there is no file {file!r}.")
    if arguments.images is not None:
        images = [(file, {"path": file, "bytes": None}) for file in arguments.images]
    else:
        try:
            rows = limited(datasets.Dataset.from_parquet(escape(arguments.data)), arguments.count)
        except READ_ERRORS as error:
            reason = error.__cause__ or error
            raise UserError(f"the file {arguments.data!r} cannot be read as parquet: {reason}") from error
        for column, kind in (("image", datasets.Image), ("label", datasets.ClassLabel)):
            if not isinstance(rows.features.get(column), kind):
                raise UserError(f"the file {arguments.data!r} has no column {column!r} of type {kind.__name__}.")
        names = rows.features["label"].names
        rows = rows.cast_column("image", datasets.Image(decode=False))
        images = [(_title(row["label"], names), row["image"]) for row in rows]
    with report_bad_data():
        opened = [(title, open_image(image)) for title, image in images]
    model = load_trained(AutoModelForImageClassification, arguments.model)
    with report_unreadable(arguments.model):
        processor = AutoImageProcessor.from_pretrained(arguments.model)
    classify = pipeline("image-classification", model=model, image_processor=processor)
    for title, image in opened:
        answers = classify(image, top_k=arguments.top_k)
        print(f"{title}: " + ", ".join(f"{answer['label']} {answer['score']:.1%}" for answer in answers))


if __name__ == "__main__":
    main()
