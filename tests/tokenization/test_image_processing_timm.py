import json
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

import tokenmixers
from tokenmixers import TimmImageProcessorPil
from tokenmixers.configuration.auto_classes import FAMILIES


def noise(height, width):
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def nearest_even(half: float) -> int:
    """Python's and torchvision's rounding, written out."""
    below = math.floor(half)
    return below + (half - below > 0.5 or (half - below == 0.5 and below % 2 == 1))


def centre(image: Image.Image, height: int, width: int) -> np.ndarray:
    """torchvision's `CenterCrop`, by Pillow; smaller images get black borders."""
    wide, high = max(image.width, width), max(image.height, height)
    canvas = Image.new("RGB", (wide, high))
    canvas.paste(image, ((wide - image.width) // 2, (high - image.height) // 2))
    left, top = nearest_even((wide - width) / 2), nearest_even((high - height) / 2)
    return np.asarray(canvas.crop((left, top, left + width, top + height)))


def prepared(image, **settings) -> np.ndarray:
    processor = TimmImageProcessorPil(
        do_rescale=False, do_normalize=False, resample=Image.Resampling.BICUBIC, **settings
    )
    return processor(image)["pixel_values"][0].transpose(1, 2, 0)


@pytest.mark.parametrize("edge", [18, 19])
def test_centre_crops_are_those_of_torchvision(edge):
    for other in range(40, 100):
        for height, width in ((40, other), (other, 40)):
            image = noise(height, width)
            long = int(edge * max(height, width) / min(height, width))
            size = (edge, long) if width <= height else (long, edge)
            expected = centre(image.resize(size, Image.Resampling.BICUBIC), 16, 16)
            found = prepared(image, size={"shortest_edge": edge}, crop_size={"height": 16, "width": 16})
            np.testing.assert_array_equal(found, expected, err_msg=f"{height} x {width}")


@pytest.mark.parametrize(("height", "width"), [(40, 40), (33, 97), (97, 33), (20, 61)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_rectangles(height, width, crop_mode):
    image, edges = noise(height, width), {"height": 13, "width": 37}
    ratio = min(height / 13, width / 37)
    size = (round(width / ratio), round(height / ratio)) if crop_mode == "center" else (37, 13)
    expected = centre(image.resize(size, Image.Resampling.BICUBIC), 12, 32)
    found = prepared(image, size=edges, crop_size={"height": 12, "width": 32}, crop_mode=crop_mode)
    np.testing.assert_array_equal(found, expected)


def test_small_images_are_padded():
    found = prepared(noise(9, 14), do_resize=False, crop_size={"height": 12, "width": 11})
    np.testing.assert_array_equal(found, centre(noise(9, 14), 12, 11))


def test_an_unknown_crop_mode():
    with pytest.raises(ValueError, match="'center' or 'squash', got 'border'"):
        TimmImageProcessorPil(crop_mode="border")


def test_saved_processors_load_with_and_without_the_package(tmp_path):
    sizes = {"size": {"height": 13, "width": 37}, "crop_size": {"height": 12, "width": 32}, "crop_mode": "squash"}
    TimmImageProcessorPil(**sizes).save_pretrained(tmp_path)
    entry = json.loads((tmp_path / "preprocessor_config.json").read_text())["auto_map"]["AutoImageProcessor"]
    remote = get_class_from_dynamic_module(entry, str(tmp_path))
    assert remote.__module__.startswith("transformers_modules.") and remote is not TimmImageProcessorPil
    expected = prepared(noise(40, 50), **sizes)
    for loaded in (remote.from_pretrained(tmp_path), TimmImageProcessorPil.from_pretrained(tmp_path)):
        found = loaded(noise(40, 50), do_rescale=False, do_normalize=False)["pixel_values"][0]
        np.testing.assert_array_equal(found.transpose(1, 2, 0), expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_it_is_what_the_families_use(model_type):
    config_class = getattr(tokenmixers, FAMILIES[model_type].config)
    used = {TimmImageProcessorPil} if "AutoModelForImageClassification" in FAMILIES[model_type].models else set()
    assert set(IMAGE_PROCESSOR_MAPPING.get(config_class, {}).values()) == used


@pytest.mark.slow  # a fresh process imports torch
@pytest.mark.parametrize(
    "line",
    ["from tokenmixers import TimmImageProcessorPil", "from tokenmixers.tokenization import image_processing_timm"],
)
def test_the_image_processor_can_be_imported_first(line):
    code = f"import tokenmixers\n{line}\nfrom transformers import AutoImageProcessor\n"
    code += "from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING as known\n"
    code += "assert known[tokenmixers.GMLPConfig]['pil'] is tokenmixers.TimmImageProcessorPil"
    subprocess.run([sys.executable, "-c", code], check=True)
