"""Train an image classifier, report its accuracy, and predict the classes of other images.

    tokenmixers run_image_classification recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_image_classification ...

Training images can be augmented as in ImageNet recipes, see `data/image_augmentation.py`. Works for every checkpoint
that `AutoModelForImageClassification` loads, and needs no torchvision.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import (
    AutoModelForImageClassification,
    EvalPrediction,
    PreTrainedConfig,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.reporting import print_plan, print_table, write_predictions
from .base.trained_model import label_names
from .base.training_arguments import ScriptTrainingArguments, check_has_work, wanted_splits
from .data.image_augmentation import AugmentationArguments, classification_loss
from .data.images import (
    ImageCollator,
    ImageDataArguments,
    image_files,
    load_image_processor,
    load_images,
    processed_size,
)
from .data.row_seeds import SeededCollator
from .metrics import load_metric
from .training.class_names import build_classifier, has_same_names, indices_by_name, set_label_names, some_names
from .training.distillation import Distillation, ImageDistillationArguments
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import load_config
from .training.run_folder import checkpoint_to_resume
from .training.teacher import find_teacher
from .training.trainer import ScriptTrainer
from .training.training_run import predict_test, train_and_evaluate


logger = logging.get_logger(__name__)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of images whose highest score is that of their class."""
    best = prediction.predictions.argmax(axis=-1)
    return load_metric("accuracy").compute(predictions=best, references=prediction.label_ids)


def build(
    model_args: ModelArguments,
    data_args: ImageDataArguments,
    augmentation: AugmentationArguments,
    distillation_args: ImageDistillationArguments,
    args: TrainingArguments,
) -> tuple[ScriptTrainer, dict[str, datasets.Dataset]]:
    """Load images and model, and build the Trainer.

    Returns:
        The Trainer, and the images of each split.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    teacher = find_teacher(distillation_args, model_args, args)
    check_cache(distillation_args, augmentation)
    config = load_config(model_args)
    # Configurations of convolutional networks have no such field, but their checkpoints have an image processor.
    from_checkpoint = model_args.model_name_or_path is not None
    if getattr(config, "image_size", 0 if from_checkpoint else None) is None:
        raise UserError("the configuration is one for text: set image_size, e.g. --config_overrides image_size=224.")
    if getattr(config, "num_channels", 3) != 3:
        raise UserError(f"num_channels={config.num_channels} is not possible: all images are read as RGB, with three.")
    with args.main_process_first(local=False, desc="loading the images"):
        classes = None if args.do_train else label_names(config)
        splits = load_images(data_args, wanted_splits(args), model_args.token, classes)
    labelled = [split.features["label"].names for split in splits.values() if "label" in split.features]
    names = labelled[0] if labelled else label_names(config)
    if args.do_train:
        set_label_names(config, names, trained=True)
    else:
        check_classes(config, names)
    config.problem_type = "single_label_classification"  # also if the checkpoint is for another problem
    if teacher is None:
        processor = load_image_processor(model_args, config)
    else:
        teacher.check_labels(names)
        processor = teacher.image_processor(model_args, config)
        teacher.load(AutoModelForImageClassification, splits["train"])
    args.remove_unused_columns = False  # the collator needs the column `image`
    collator = ImageCollator(
        processor,
        augmentation,
        num_labels=len(names),
        image_size=processed_size(processor),
        label_smoothing=args.label_smoothing_factor,
    )
    collator = SeededCollator(collator, args.seed)
    trainer = ScriptTrainer(
        model=build_classifier(model_args, config, AutoModelForImageClassification, args.do_train),
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        data_collator=collator,
        callbacks=[collator],
        processing_class=processor,
        # Not the model's own loss, which would treat soft labels as multi-label classification.
        compute_loss_func=classification_loss,
        compute_metrics=accuracy,
    )
    if teacher is not None:
        teacher.teach(trainer, Distillation, {"processor": processor.to_dict()})
    return trainer, splits


def check_classes(config: PreTrainedConfig, names: Sequence[str]) -> None:
    """Check that a model that is not trained has the classes of the images. Other names give a warning.

    Args:
        config: Changed in place: it gets the order of the images' classes, if they have the same names.
        names: The classes of the images.

    Raises:
        UserError: If it has more or fewer classes, or some have the same names and others not.
    """
    if has_same_names(names, label_names(config)):
        set_label_names(config, names, trained=False)
        return
    known = label_names(config)
    if len(known) != len(names):
        raise UserError(
            f"the images have {len(names)} classes, the model has {len(known)}: finetune it first, with --do_train."
        )
    if any(index not in (None, place) for place, index in enumerate(indices_by_name(names, known))):
        raise UserError(
            f"the images have the classes {some_names(names)}, the model {some_names(known)}, some of them at other "
            "places: finetune it first, with --do_train."
        )
    different = [pair for pair in zip(known, names, strict=True) if pair[0] != pair[1]]
    logger.warning(
        f"{len(different)} classes have other names in the model than in the images, such as {different[0][0]!r} "
        f"and {different[0][1]!r}: they are taken for the same, by their order."
    )


def check_cache(arguments: ImageDistillationArguments, augmentation: AugmentationArguments) -> None:
    """Check that the teacher's logits stay the same, if they are to be kept.

    Raises:
        UserError: If images are augmented, and so change in every epoch.
    """
    if arguments.cache_teacher is not None and augmentation.in_use():
        raise UserError(
            "--cache_teacher cannot keep the logits of images that change in every epoch: leave out "
            f"{', '.join(f'--{name}' for name in augmentation.in_use())}, or let the teacher run in every step."
        )


def run_once(
    model_args: ModelArguments,
    data_args: ImageDataArguments,
    augmentation: AugmentationArguments,
    distillation_args: ImageDistillationArguments,
    card_args: CardArguments,
    args: TrainingArguments,
) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say. Returns the metrics of evaluation and test."""
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer, splits = build(model_args, data_args, augmentation, distillation_args, args)
    print_plan(trainer, resume_from)
    card = CardFacts(
        "image-classification",
        **describe_data(data_args),
        metrics={"accuracy": "accuracy"},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters=augmentation.in_use() | distillation_args.in_use(),
    )
    classes = label_names(trainer.model.config)

    def write(output: PredictionOutput, split: str = "validation", name: str = "predictions.csv") -> Path:
        path = Path(args.output_dir) / name
        files = image_files(splits[split], getattr(data_args, f"{split}_dir"))
        write_predictions(path, output.predictions, output.label_ids, classes, files)
        return path

    def predict() -> dict[str, float]:
        found = predict_test(trainer, splits["test"], partial(write, split="test", name="predictions_test.csv"))
        return {name: value for name, value in found.items() if name in ("test_accuracy", "test_loss")}

    metrics = train_and_evaluate(trainer, card, resume_from, write, predict=predict if args.do_predict else None)
    if trainer.is_world_process_zero():
        for split, images in (("eval", "validation"), ("test", "test")):
            if f"{split}_accuracy" in metrics:
                rows = [
                    ("accuracy", f"{metrics[f'{split}_accuracy']:.2%}"),
                    ("loss", f"{metrics[f'{split}_loss']:.4f}"),
                ]
                print_table((f"on the {images} images", trainer.model.config.model_type), rows)
    return metrics


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the evaluation metrics, or for a grid the results of `hyperparameter_grid.run_all`."""
    types = (ModelArguments, ImageDataArguments, AugmentationArguments, ImageDistillationArguments, CardArguments)
    *arguments, grid_args, args = parse_arguments((*types, GridArguments, ScriptTrainingArguments), argv)
    check_has_work(args, "do_train", "do_eval", "do_predict")
    for name in ("train_tokenizer", "tokenizer_name"):
        if getattr(arguments[0], name) is not None:
            raise UserError(f"--{name}: a model of images has no tokenizer, leave it out.")
    comparison = Comparison(("accuracy",), scale=100)
    return run_command(partial(run_once, *arguments), grid_args, args, arguments[:4], comparison)


if __name__ == "__main__":
    main()
