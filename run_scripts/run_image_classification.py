"""Train an image classifier, report its accuracy, and predict the classes of other images.

    tokenmixers run_image_classification recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_image_classification ...

Training images can be augmented as in ImageNet recipes, see `data/image_augmentation.py`. Works for every checkpoint
that `AutoModelForImageClassification` loads, and needs no torchvision.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoModelForImageClassification, EvalPrediction, PreTrainedConfig, PreTrainedModel
from transformers.trainer_utils import PredictionOutput
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.errors import UserError
from .base.reporting import class_columns
from .base.trained_model import label_names
from .base.training_arguments import wanted_splits
from .data.image_augmentation import AugmentationArguments, classification_loss
from .data.images import ImageCollator, ImageDataArguments, image_files, load_images, processed_size
from .data.loading import INDEX
from .data.row_seeds import SeededCollator
from .metrics import load_metric
from .training.class_names import has_same_names, indices_by_name, some_names
from .training.distillation import ImageDistillationArguments
from .training.run import Run, Task


logger = logging.get_logger(__name__)


class ImageClassification(Task):
    """The class of an image."""

    arguments = (ImageDataArguments, AugmentationArguments, ImageDistillationArguments)
    pipeline_tag = "image-classification"
    auto_class = AutoModelForImageClassification
    is_classifier = True
    unit, scale = "images", 100
    keeps_columns = True  # `image`, for the collator

    def check(self, run: Run) -> None:
        """Images need no tokenizer."""
        for name in ("train_tokenizer", "tokenizer_name"):
            if getattr(run.model_args, name) is not None:
                raise UserError(f"--{name}: a model of images has no tokenizer, leave it out.")

    def load(self, run: Run) -> dict[str, datasets.Dataset]:
        config = run.config
        # Configurations of convolutional networks have no such field, but their checkpoints have an image processor.
        from_checkpoint = run.model_args.model_name_or_path is not None
        if getattr(config, "image_size", 0 if from_checkpoint else None) is None:
            raise UserError(
                "the configuration is one for text: set image_size, e.g. --config_overrides image_size=224."
            )
        if getattr(config, "num_channels", 3) != 3:
            raise UserError(
                f"num_channels={config.num_channels} is not possible: all images are read as RGB, with three."
            )
        classes = None if run.args.do_train else label_names(config)
        return load_images(run.data_args, wanted_splits(run.args), run.model_args.token, classes)

    def labels(self, run: Run) -> Sequence[str]:
        """The classes of the images; of a model that is not trained its own, if their names differ."""
        run.config.problem_type = "single_label_classification"  # also if the checkpoint is for another problem
        labelled = [split.features["label"].names for split in run.data.values() if "label" in split.features]
        names = labelled[0] if labelled else label_names(run.config)
        if run.args.do_train or has_same_names(names, label_names(run.config)):
            return names
        check_classes(run.config, names)
        return label_names(run.config)

    def load_tokenizer(self, run: Run, resume_from: str | None) -> Any:
        return run.teacher.image_processor(run.model_args, run.config)

    def lengths(self, run: Run) -> dict[str, int]:
        return {}

    def encode(self, run: Run) -> dict[str, datasets.Dataset]:
        return run.data

    def collator(self, run: Run, model: PreTrainedModel) -> SeededCollator:
        """Decodes, augments in training, and processes images."""
        images = ImageCollator(
            run.tokenizer,
            run[AugmentationArguments],
            num_labels=model.config.num_labels,
            image_size=processed_size(run.tokenizer),
            label_smoothing=run.args.label_smoothing_factor,
        )
        return SeededCollator(images, run.args.seed)

    def build_trainer(self, run: Run, model: PreTrainedModel, **options: Any) -> Any:
        """With a loss of soft labels, which the model would treat as multi-label classification."""
        return super().build_trainer(run, model, compute_loss_func=classification_loss, **options)

    def metric_types(self, run: Run) -> dict[str, str]:
        return {"accuracy": "accuracy"}

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        return {"hyper_parameters": run[AugmentationArguments].in_use()}

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        """Share of images whose highest score is that of their class."""
        best = prediction.predictions.argmax(axis=-1)
        return load_metric("accuracy").compute(predictions=best, references=prediction.label_ids)

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path:
        images = run.data[split]
        files = image_files(images, getattr(run.data_args, f"{run.data_args.source_of(split)}_dir"))
        which = {INDEX: list(images[INDEX]), **({} if files is None else {"file": files})}
        found = class_columns(output.predictions, output.label_ids, label_names(run.config))
        return run.write_predictions(split, part, which | found)


def check_classes(config: PreTrainedConfig, names: Sequence[str]) -> None:
    """Check that a model that is not trained has the classes of the images. Other names give a warning."""
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


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(ImageClassification(), argv).command()


if __name__ == "__main__":
    main()
