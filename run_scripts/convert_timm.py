"""Convert a timm gMLP or MLP-Mixer checkpoint to a Transformers checkpoint.

tokenmixers convert_timm --source timm/gmlp_s16_224.ra3_in1k --output_dir gmlp-s16-224
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCard, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForImageClassification, PreTrainedModel
from transformers.image_utils import PILImageResampling

from ..modeling.conversion.timm import convert_timm_state_dict, timm_config
from ..tokenization.image_processing_timm import TimmImageProcessorPil
from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.new_checkpoint import new_checkpoint
from .training.model_card import converted_card


# Defaults of timm's gMLP and Mixer models, which their config.json can override.
PREPROCESSING = {
    "crop_pct": 0.875,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "mean": [0.5] * 3,
    "std": [0.5] * 3,
}

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
CROP_MODES = ("center", "squash")


@dataclass
class ConvertTimmArguments:
    """What to convert, and into what."""

    source: str = field(
        metadata={
            "help": "Hub id such as timm/gmlp_s16_224.ra3_in1k, folder with model.safetensors, or safetensors file."
        }
    )
    output_dir: str = field(metadata={"help": "New or empty folder for the checkpoint."})


def _files(arguments: ConvertTimmArguments) -> tuple[Path, Path | None, Path | None]:
    """The weights, and the config.json and the model card next to them, if there are any."""
    path = Path(arguments.source)
    if path.exists():
        weights = path / "model.safetensors" if path.is_dir() else path
        if weights.suffix != ".safetensors" or not weights.is_file():
            raise UserError(
                f"{arguments.source!r} holds no safetensors weights: give a folder with model.safetensors or a "
                ".safetensors file. Pickled weights (.bin, .pt, .pth) are not read."
            )
        config, card = (weights.with_name(name) for name in ("config.json", "README.md"))
        return weights, config if config.is_file() else None, card if card.is_file() else None
    fetch = partial(hf_hub_download, arguments.source)
    try:
        weights, config, card = Path(fetch("model.safetensors")), Path(fetch("config.json")), None
        with suppress(EntryNotFoundError):
            card = Path(fetch("README.md"))
        return weights, config, card
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise UserError(
            f"{arguments.source!r} is not a file or folder here, and cannot be had from the Hub: {error}"
        ) from error


def _label_names(description: dict[str, Any], classes: int) -> list[str]:
    """One name for each class: those in the checkpoint; for 1000 without names ImageNet-1k's."""
    if "label_names" in description:
        names = description["label_names"]
        descriptions = description.get("label_descriptions") or {}
        names = [descriptions.get(name, name) for name in names]
    elif classes == 1000:
        try:
            file = hf_hub_download("huggingface/label-files", "imagenet-1k-id2label.json", repo_type="dataset")
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise UserError(
                "the checkpoint does not name its 1000 classes, and ImageNet's names cannot be had from the Hub: put "
                "them into a config.json next to the weights, as the list `label_names`."
            ) from error
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        names = [found[str(index)] for index in range(classes)]
    else:
        names = [f"LABEL_{index}" for index in range(classes)]
    if len(names) != classes:
        raise UserError(f"the model has {classes} classes, but there are {len(names)} labels.")
    return names


def _description(config_file: Path | None) -> dict[str, Any]:
    """The content of timm's config.json."""
    if config_file is None:
        return {}
    try:
        description = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(config_file)!r} cannot be read: {error}") from error
    if not isinstance(description, dict) or not isinstance(description.get("pretrained_cfg", {}), dict):
        raise UserError(f"{str(config_file)!r} is not a description of a timm model.")
    return description


def _image_size(description: dict[str, Any]) -> tuple[int, int] | None:
    """Height and width of the images, if they are known: as the model was made, or as it was trained."""
    size = (description.get("model_args") or {}).get("img_size")
    size = size or description.get("pretrained_cfg", {}).get("input_size", [])[1:]
    sides = [size] * 2 if isinstance(size, int) else list(size) * (2 if len(size) == 1 else 1)
    if not sides:
        return None
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise UserError(f"the size of the images must be a height and a width in pixels, got {size}.")
    return sides[0], sides[1]


def image_processor(size: int | list[int], preprocessing: dict[str, Any]) -> TimmImageProcessorPil:
    """timm's evaluation transform: resize, crop the centre, normalise.

    Args:
        size: Side of the model's images, or height and width, in pixels.
        preprocessing: `crop_pct`, `crop_mode`, `interpolation`, `mean` and `std` as in timm's `pretrained_cfg`.
    """
    for name, allowed in (("crop_mode", CROP_MODES), ("interpolation", INTERPOLATIONS)):
        if preprocessing[name] not in allowed:
            raise UserError(
                f"the source prepares images with `{name}` {preprocessing[name]!r}, which is unknown; there are "
                f"{', '.join(allowed)}: change it in the `pretrained_cfg` of its config.json."
            )
    share = preprocessing["crop_pct"]
    if not isinstance(share, int | float) or not 0 < share < math.inf:
        raise UserError(f"the source's `crop_pct` must be a positive number, got {share!r}.")
    height, width = [size] * 2 if isinstance(size, int) else size
    edges = {"height": math.floor(height / share), "width": math.floor(width / share)}
    interpolation, covers = preprocessing["interpolation"], preprocessing["crop_mode"] == "center"
    if covers and edges["height"] != edges["width"]:
        interpolation = "bilinear"  # timm's ResizeKeepRatio, which takes the place of torchvision's Resize there
    return TimmImageProcessorPil(
        crop_mode=preprocessing["crop_mode"],
        size={"shortest_edge": edges["height"]} if covers and edges["height"] == edges["width"] else edges,
        crop_size={"height": height, "width": width},
        resample=PILImageResampling[interpolation.upper()],
        image_mean=list(preprocessing["mean"]),
        image_std=list(preprocessing["std"]),
    )


def _licence(settings: dict[str, Any], card: Path | None) -> str | None:
    if settings.get("license") or card is None:
        return settings.get("license")
    try:
        return ModelCard.load(card).data.license
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"the metadata of the model card {str(card)!r} cannot be read ({error}): mend them."
        ) from error


def _card(arguments: ConvertTimmArguments, model: PreTrainedModel, licence: str | None) -> ModelCard:
    local = Path(arguments.source).exists()
    name = Path(arguments.source).name if local else arguments.source
    source = f"`{name}`" if local else f"[{name}](https://huggingface.co/{name})"
    size = model.config.image_size
    pixels = " x ".join(map(str, size if isinstance(size, list) else [size]))
    return converted_card(
        model,
        arguments.output_dir,
        "image-classification",
        f"tokenmixers convert_timm --source {name}",
        summary=f"{type(model.config).__name__.removesuffix('Config')} for images of {pixels} pixels: the weights of "
        f"{source}, unchanged, in the form of Hugging Face Transformers. They were trained by the authors of timm or "
        "of the publications that its page names.",
        licence=licence,
        base_model=None if local else name,
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ConvertTimmArguments,), argv)
    output = check_new_folder(arguments.output_dir)
    weights, config_file, source_card = _files(arguments)
    description = _description(config_file)
    settings = description.get("pretrained_cfg", {})
    try:
        state_dict = load_file(weights)
        config = timm_config(state_dict, _image_size(description))
        tensors = convert_timm_state_dict(state_dict)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{arguments.source!r} cannot be converted: {error}") from error
    classifies = "classifier.weight" in tensors
    if classifies:
        names = _label_names(description, len(tensors["classifier.weight"]))
        config.id2label = dict(enumerate(names))
        config.label2id = {name: index for index, name in enumerate(names)}
    with torch.device("meta"):
        auto_class = AutoModelForImageClassification if classifies else AutoModel
        model = auto_class.from_config(config)
    if not classifies:
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        lacking = sorted(model.state_dict().keys() - tensors.keys())
        reason = f"it has no tensor for {', '.join(lacking[:3])}: the model is not complete" if lacking else error
        raise UserError(f"{arguments.source!r} cannot be converted: {reason}.") from error
    preprocessing = {name: settings.get(name) or default for name, default in PREPROCESSING.items()}
    processor = image_processor(config.image_size, preprocessing)
    licence = _licence(settings, source_card)
    card = _card(arguments, model, licence)
    with new_checkpoint(output) as complete:
        model.save_pretrained(complete)
        processor.save_pretrained(complete)
        card.save(complete / "README.md")
    if licence is None:
        print("The source states no licence: add it to the card.")
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters, saved in {output}")


if __name__ == "__main__":
    main()
