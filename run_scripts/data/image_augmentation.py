"""Augmentation of training images with PIL and PyTorch: AutoAugment, random crops, Mixup, CutMix, soft labels.

All random numbers come from the generator that is passed in.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.nn import functional as F
from transformers.modeling_outputs import ImageClassifierOutput

from ...modeling.heads.losses import label_cross_entropy
from ..base.ranges import check_ranges


#: AutoAugment's policy for ImageNet, from the appendix of arXiv 1805.09501: one pair is drawn per image.
#: Each operation has its probability and its level, 0 to 9.
IMAGENET_POLICY = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 4), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 7)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 2)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 8), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 2)),
    (("Equalize", 0.0, 7), ("Equalize", 0.8, 8)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 8)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 9)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 3)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
)
HIGHEST_LEVEL = 9
GREY = (128, 128, 128)


@dataclass
class AugmentationArguments:
    """How training images are augmented; validation images never are."""

    random_shift: int = field(default=0, metadata={"help": "Move training images by up to this many pixels."})
    horizontal_flip: bool = field(default=False, metadata={"help": "Mirror half of the training images."})
    random_resized_crop: bool = field(
        default=False,
        metadata={
            "help": "Cut a random part out of each training image, 3:4 to 4:3, and scale it to the model's size."
        },
    )
    crop_min_area: float = field(
        default=0.08, metadata={"help": "Least share of an image's area that random_resized_crop keeps."}
    )
    auto_augment: bool = field(
        default=False, metadata={"help": "Change training images by AutoAugment's policy for ImageNet."}
    )
    mixup_alpha: float = field(
        default=0.0, metadata={"help": "Blend training images: parameter of the beta distribution; 0 for no Mixup."}
    )
    cutmix_alpha: float = field(
        default=0.0,
        metadata={"help": "Paste parts of training images into others: the same parameter; 0 for no CutMix."},
    )
    mixup_prob: float = field(default=1.0, metadata={"help": "Share of the batches to which either is done."})
    mixup_switch_prob: float = field(
        default=0.5, metadata={"help": "Where both are on, share of the mixed batches that get CutMix."}
    )

    def __post_init__(self):
        check_ranges(self, ("a finite number of at least 0", "random_shift mixup_alpha cutmix_alpha"))
        check_ranges(self, ("a share from 0 to 1", "mixup_prob mixup_switch_prob"))
        check_ranges(self, ("a share above 0, up to 1", "crop_min_area"))

    def in_use(self) -> dict[str, float]:
        """The settings that have an effect, by name."""
        settings = {name: value for name, value in vars(self).items() if value}
        if not self.random_resized_crop:
            del settings["crop_min_area"]
        if not (self.mixup_alpha or self.cutmix_alpha):
            settings.pop("mixup_prob", None)
        if not (self.mixup_alpha and self.cutmix_alpha):
            settings.pop("mixup_switch_prob", None)
        return settings


def augment(
    image: Image.Image, arguments: AugmentationArguments, size: tuple[int, int], random: np.random.Generator
) -> Image.Image:
    """Crop, flip, apply AutoAugment to and shift an image, as the arguments say.

    Args:
        image: An RGB image.
        arguments: The augmentations.
        size: Height and width of `random_resized_crop`'s result, in pixels; otherwise the size stays.
        random: Random generator.
    """
    if arguments.random_resized_crop:
        box = random_box(image.width, image.height, arguments.crop_min_area, random)
        image = image.resize(size[::-1], Image.Resampling.BICUBIC, box)
    if arguments.horizontal_flip and random.random() < 0.5:
        image = ImageOps.mirror(image)
    if arguments.auto_augment:
        image = auto_augment(image, random)
    reach = arguments.random_shift
    if reach:
        x, y = random.integers(2 * reach + 1, size=2).tolist()
        image = ImageOps.expand(image, reach).crop((x, y, x + image.width, y + image.height))
    return image


def random_box(width: int, height: int, min_area: float, random: np.random.Generator) -> tuple[int, int, int, int]:
    """The box of a random resized crop: left, upper, right and lower edge, in pixels.

    Its share of the area is uniform in [`min_area`, 1], and the logarithm of its aspect ratio (width/height) uniform
    between log(3/4) and log(4/3). If ten draws do not fit into the image, it is the largest central box with an
    allowed ratio.
    """
    for _ in range(10):
        area = width * height * random.uniform(min_area, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left, upper = (int(random.integers(space + 1)) for space in (width - box_width, height - box_height))
            return left, upper, left + box_width, upper + box_height
    box_width, box_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, upper = (width - box_width) // 2, (height - box_height) // 2
    return left, upper, left + box_width, upper + box_height


def auto_augment(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Apply a random pair of operations of `IMAGENET_POLICY` to an RGB image."""
    for name, probability, level in IMAGENET_POLICY[random.integers(len(IMAGENET_POLICY))]:
        if random.random() < probability:
            image = apply_operation(image, name, level, -1 if random.random() < 0.5 else 1)
    return image


def apply_operation(image: Image.Image, name: str, level: int, sign: int = 1) -> Image.Image:
    """One operation of AutoAugment.

    Its ten levels divide the paper's ranges evenly: 4 to 8 bits to keep for Posterize, thresholds of 0 to 256 for
    Solarize, 0.1 to 1.9 for the enhancers, where 1 changes nothing, 30 degrees and a shear of 0.3 to either side. The
    paper leaves open which end is level 0: as in its authors' published code, a higher level is a stronger change for
    Posterize and Solarize, and a higher factor for the enhancers. Pixels outside of the image are grey.

    Args:
        image: An RGB image.
        name: An operation in `IMAGENET_POLICY`.
        level: 0 to 9; without effect for AutoContrast, Equalize and Invert.
        sign: Direction of a shear or rotation, 1 or -1.
    """
    strength = level / HIGHEST_LEVEL
    if name == "ShearX":
        shear = (1, sign * 0.3 * strength, 0, 0, 1, 0)
        return image.transform(image.size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR, fillcolor=GREY)
    if name == "Rotate":
        return image.rotate(sign * 30 * strength, Image.Resampling.BILINEAR, fillcolor=GREY)
    if name == "Posterize":
        return ImageOps.posterize(image, round(8 - 4 * strength))
    if name == "Solarize":
        return ImageOps.solarize(image, round(256 * (1 - strength)))
    if name in ("AutoContrast", "Equalize", "Invert"):
        return getattr(ImageOps, name.lower())(image)
    return getattr(ImageEnhance, name)(image).enhance(0.1 + 1.8 * strength)  # Color, Contrast, Sharpness


def soft_labels(classes: torch.Tensor, num_labels: int, smoothing: float = 0.0) -> torch.Tensor:
    """One-hot labels with label smoothing: classes `(batch,)` to probabilities `(batch, num_labels)`."""
    return F.one_hot(classes, num_labels) * (1 - smoothing) + smoothing / num_labels


def mixup_or_cutmix(
    pixel_values: torch.Tensor, labels: torch.Tensor, arguments: AugmentationArguments, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix every image of a batch with another one, by Mixup (arXiv 1710.09412) or CutMix (arXiv 1905.04899).

    Args:
        pixel_values: Shape `(batch, channels, height, width)`.
        labels: Soft labels, shape `(batch, num_labels)`.
        arguments: Which of the two, and with which probability.
        random: Random generator.

    Returns:
        Images and labels, of the same shapes. Labels are mixed in the proportions of the images.
    """
    mixup, cutmix = arguments.mixup_alpha, arguments.cutmix_alpha
    if not (mixup or cutmix) or random.random() >= arguments.mixup_prob:
        return pixel_values, labels
    cut = cutmix and (not mixup or random.random() < arguments.mixup_switch_prob)
    others = torch.from_numpy(random.permutation(len(labels)))
    alpha = cutmix if cut else mixup
    share = random.beta(alpha, alpha)
    if cut:
        centre = random.random(2)
        pixel_values, share = paste_box(pixel_values, pixel_values[others], share, *centre)
    else:
        pixel_values = share * pixel_values + (1 - share) * pixel_values[others]
    return pixel_values, share * labels + (1 - share) * labels[others]


def paste_box(
    pixel_values: torch.Tensor, others: torch.Tensor, share: float, centre_y: float, centre_x: float
) -> tuple[torch.Tensor, float]:
    """CutMix: replace a box of every image by the same box of another image.

    Args:
        pixel_values: Shape `(batch, channels, height, width)`.
        others: Images of the same shape.
        share: Share of the area to keep. The box has the image's aspect ratio and is clipped to the image.
        centre_y: Vertical centre of the box, as a share of the height.
        centre_x: Horizontal centre of the box, as a share of the width.

    Returns:
        The new images, and the share of the area that was kept.
    """
    edges = []
    for length, centre in zip(pixel_values.shape[-2:], (centre_y, centre_x), strict=True):
        side = round(length * math.sqrt(1 - share))
        start = math.floor(length * centre) - side // 2
        edges.append(slice(max(start, 0), min(start + side, length)))
    rows, columns = edges
    mixed = pixel_values.clone()
    mixed[..., rows, columns] = others[..., rows, columns]
    return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / math.prod(pixel_values.shape[-2:])


def classification_loss(
    outputs: ImageClassifierOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The mean `label_cross_entropy` per image for hard or soft labels, as the Trainer's `compute_loss_func`."""
    return label_cross_entropy(outputs.logits, labels, num_items_in_batch)
