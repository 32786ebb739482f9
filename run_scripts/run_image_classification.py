"""Train an image classifier, and report its accuracy.

    python -m tokenmixers.run_scripts.run_image_classification recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_image_classification ...

Training pictures can be varied and mixed as ImageNet recipes do, see `image_augmentation.py`. Works for every
checkpoint that `AutoModelForImageClassification` loads, and needs no torchvision.
"""

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    CLIPImageProcessorPil,
    EvalPrediction,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import BadDataError, ModelArguments, UserError, parse_arguments
from .base.reporting import print_plan, print_table, write_predictions
from .base.training_arguments import ScriptTrainingArguments
from .data.image_augmentation import AugmentationArguments, classification_loss, mix, soft_labels, vary
from .data.text_corpus import load_named
from .metrics import load_metric
from .training.language_modeling import build_model
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import checkpoint_to_resume, load_config, set_label_names
from .training.trainer import ScriptTrainer, leave_processes, train_and_evaluate


@dataclass
class ImageDataArguments:
    """Where the images come from."""

    dataset_name: str | None = field(default=None, metadata={"help": "Data set on the Hub, or a local folder of one."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_dir: str | None = field(default=None, metadata={"help": "Image folder with one sub-folder per class."})
    validation_dir: str | None = field(default=None, metadata={"help": "As train_dir, for evaluation."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})
    image_column: str = field(default="image", metadata={"help": "Column that holds the images."})
    label_column: str = field(default="label", metadata={"help": "Column that holds the classes."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training images only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many validation images only."})


def load_images(arguments: ImageDataArguments, token: str | None = None) -> dict[str, datasets.Dataset]:
    """Training and validation images with columns `image` and `label`, the latter a `ClassLabel`.

    Raises:
        UserError: If data or a column is missing, or the two splits disagree about the classes.
    """
    if (arguments.dataset_name is None) == (arguments.train_dir is None):
        raise UserError("give the training images as either --dataset_name or --train_dir.")
    sources = {"train": arguments.train_dir, "validation": arguments.validation_dir}
    names = {"train": arguments.train_split, "validation": arguments.validation_split}
    splits = {}
    for name in ("train", "validation"):
        if arguments.dataset_name is not None:
            split = load_named(arguments.dataset_name, arguments.dataset_config_name, names[name], token=token)
        elif sources[name] is None or not Path(sources[name]).is_dir():
            raise UserError(f"--{name}_dir: there is no folder {sources[name]!r}.")
        else:
            split = load_named("imagefolder", None, "train", data_dir=sources[name])
        for column in (arguments.image_column, arguments.label_column):
            if column not in split.column_names:
                raise UserError(f"the {name} images have no column {column!r}; there are {split.column_names}.")
        split = split.select_columns([arguments.image_column, arguments.label_column])
        split = split.rename_columns({arguments.image_column: "image", arguments.label_column: "label"})
        if not isinstance(split.features["label"], datasets.ClassLabel):
            split = split.class_encode_column("label")
        # Opened by the collator, which can say which one is damaged.
        splits[name] = split.cast_column("image", datasets.Image(decode=False))
    classes = [split.features["label"].names for split in splits.values()]
    if classes[0] != classes[1]:
        raise UserError(f"training and validation images have different classes: {classes[0]} and {classes[1]}.")
    for name, limit in (("train", arguments.max_train_samples), ("validation", arguments.max_eval_samples)):
        if limit is not None:
            splits[name] = splits[name].shuffle(seed=0).take(limit)
    return splits


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
    """Height and width, in pixels, of what an image processor makes of a square picture."""
    return tuple(processor(Image.new("RGB", (64, 64)), return_tensors="pt").pixel_values.shape[-2:])


def open_picture(picture: Image.Image | dict[str, Any]) -> Image.Image:
    """A picture in RGB, turned upright.

    Args:
        picture: Decoded, or with its `path` or `bytes`, as `datasets` stores it.

    Raises:
        BadDataError: If it is damaged.
    """
    if not isinstance(picture, Image.Image):
        try:
            picture = datasets.Image().decode_example(picture)
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all of them
            name = picture["path"] or "without a path"
            raise BadDataError(f"the picture {name!r} cannot be read: {error}") from error
    return picture.convert("RGB")


@dataclass
class ImageCollator:
    """Makes batches of pictures: training pictures varied at random, with soft labels.

    The random numbers depend on a seed and the batch alone: data loaders fetch batches ahead, so numbers from the
    global generator would differ in a resumed run.

    Attributes:
        processor: The model's image processor.
        augmentation: How training pictures are varied and mixed.
        num_labels: Number of classes.
        image_size: Height and width of the model's pictures, in pixels.
        label_smoothing: Share of a training label that is spread over all classes.
        seed: Another one varies the same batch differently.
    """

    processor: Any
    augmentation: AugmentationArguments
    num_labels: int
    image_size: tuple[int, int]
    label_smoothing: float = 0.0
    seed: int = 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """From rows with `image`, `label` and `vary`, whether they are training rows.

        Returns:
            `pixel_values`, `(batch, channels, height, width)`, and `labels`: probabilities `(batch, num_labels)` of
            training rows, classes `(batch,)` of others.
        """
        images = [open_picture(row["image"]) for row in rows]
        classes = torch.tensor([row["label"] for row in rows])
        if not rows[0]["vary"]:
            return {"pixel_values": self.processor(images, return_tensors="pt").pixel_values, "labels": classes}
        content = zlib.crc32(b"".join(image.tobytes() for image in images), self.seed & 0xFFFFFFFF)
        random = np.random.default_rng(content)
        images = [vary(image, self.augmentation, self.image_size, random) for image in images]
        # A processor may enlarge pictures before it cuts their middle out, which a random crop replaces.
        sizing = {"do_resize": False, "do_center_crop": False} if self.augmentation.random_resized_crop else {}
        pixel_values = self.processor(images, return_tensors="pt", **sizing).pixel_values
        labels = soft_labels(classes, self.num_labels, self.label_smoothing)
        pixel_values, labels = mix(pixel_values, labels, self.augmentation, random)
        return {"pixel_values": pixel_values, "labels": labels}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of images whose highest score is that of their class."""
    best = prediction.predictions.argmax(axis=-1)
    return load_metric("accuracy").compute(predictions=best, references=prediction.label_ids)


def build(
    model_args: ModelArguments,
    data_args: ImageDataArguments,
    augmentation: AugmentationArguments,
    args: TrainingArguments,
) -> Trainer:
    """Load images and model, and join them in a Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    if not 0 <= args.label_smoothing_factor < 1:
        raise UserError(
            f"--label_smoothing_factor is a share, from 0 to less than 1; got {args.label_smoothing_factor}."
        )
    config = load_config(model_args)
    # Convolutional networks have no such field, but their checkpoints bring a processor that knows a size.
    from_checkpoint = model_args.model_name_or_path is not None
    if getattr(config, "image_size", 0 if from_checkpoint else None) is None:
        raise UserError("the configuration is one for text: set image_size, e.g. --config_overrides image_size=224.")
    with args.main_process_first(local=False, desc="loading the images"):
        splits = load_images(data_args, model_args.token)
    names = splits["train"].features["label"].names
    set_label_names(config, names, trained=True)
    config.problem_type = "single_label_classification"  # whatever the checkpoint was for
    processor = load_image_processor(model_args, config)
    args.remove_unused_columns = False  # the collator reads the image
    return ScriptTrainer(
        model=build_model(model_args, config, AutoModelForImageClassification),
        args=args,
        train_dataset=splits["train"].add_column("vary", [True] * len(splits["train"])),
        eval_dataset=splits["validation"].add_column("vary", [False] * len(splits["validation"])),
        data_collator=ImageCollator(
            processor,
            augmentation,
            num_labels=len(names),
            image_size=processed_size(processor),
            label_smoothing=args.label_smoothing_factor,
            seed=args.seed,
        ),
        processing_class=processor,
        # Not the model's own loss, which would take soft labels for those of several classes at once.
        compute_loss_func=classification_loss,
        compute_metrics=accuracy,
    )


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns the evaluation metrics."""
    model_args, data_args, augmentation, card_args, args = parse_arguments(
        (ModelArguments, ImageDataArguments, AugmentationArguments, CardArguments, ScriptTrainingArguments), argv
    )
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer = build(model_args, data_args, augmentation, args)
    print_plan(trainer, resume_from)
    card = CardFacts(
        "image-classification",
        **describe_data(data_args),
        metrics={"accuracy": "accuracy"},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters=augmentation.in_use(),
    )
    classes = [trainer.model.config.id2label[index] for index in range(trainer.model.config.num_labels)]

    def write(output: PredictionOutput) -> None:
        write_predictions(Path(args.output_dir) / "predictions.csv", output.predictions, output.label_ids, classes)

    metrics = train_and_evaluate(trainer, card, resume_from, write)
    if args.do_eval and trainer.is_world_process_zero():
        rows = [("accuracy", f"{metrics['eval_accuracy']:.2%}"), ("loss", f"{metrics['eval_loss']:.4f}")]
        print_table(("on the validation images", trainer.model.config.model_type), rows)
    leave_processes()
    return metrics


if __name__ == "__main__":
    main()
