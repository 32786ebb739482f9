"""Every change of pictures and labels against the formula of its paper, written out."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.modeling_outputs import ImageClassifierOutput

from tokenmixers.run_scripts.data.image_augmentation import (
    IMAGENET_POLICY,
    AugmentationArguments,
    apply_operation,
    augment,
    auto_augment,
    classification_loss,
    mixup_or_cutmix,
    paste_box,
    random_box,
    soft_labels,
)


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def picture(random):
    return Image.fromarray(random.integers(0, 256, (12, 10, 3), dtype=np.uint8))


def pixels(image):
    return np.asarray(image).astype(int)


def luma(image):
    return pixels(image.convert("L"))[..., None]


def test_policy_is_25_pairs_of_ten_operations():
    operations = [operation for pair in IMAGENET_POLICY for operation in pair]
    assert len(IMAGENET_POLICY) == 25 and len(operations) == 50
    assert {name for name, _, _ in operations} == {
        *("Posterize", "Rotate", "Solarize", "AutoContrast", "Equalize"),
        *("Color", "Invert", "Contrast", "Sharpness", "ShearX"),
    }
    assert all(0 <= probability <= 1 and level in range(10) for _, probability, level in operations)


@pytest.mark.parametrize("level", [0, 5, 9])
def test_operations_on_single_pixels(picture, level):
    before, strength = pixels(picture), level / 9
    assert np.array_equal(pixels(apply_operation(picture, "Invert", level)), 255 - before)
    threshold = round(256 - 256 * strength)
    expected = np.where(before < threshold, before, 255 - before)
    assert np.array_equal(pixels(apply_operation(picture, "Solarize", level)), expected)
    step = 2 ** round(4 * strength)  # 8 bits at level 0, 4 at level 9
    assert np.array_equal(pixels(apply_operation(picture, "Posterize", level)), before // step * step)
    factor = 0.1 + 1.8 * strength
    for name, origin in (("Color", luma(picture)), ("Contrast", np.floor(luma(picture).mean() + 0.5))):
        expected = np.clip(origin + factor * (before - origin), 0, 255)
        assert np.abs(pixels(apply_operation(picture, name, level)) - expected).max() <= 1, name


def test_operations_on_histograms(random):
    dull = Image.fromarray(random.integers(100, 120, (16, 16, 3), dtype=np.uint8))
    low, high = pixels(dull).min(axis=(0, 1)), pixels(dull).max(axis=(0, 1))
    stretched = pixels(apply_operation(dull, "AutoContrast", 5))
    assert np.abs(stretched - (pixels(dull) - low) * 255 / (high - low)).max() <= 1
    dark = Image.fromarray((random.random((64, 64, 3)) ** 2 * 255).astype(np.uint8))
    evened = pixels(apply_operation(dark, "Equalize", 5))
    assert pixels(dark).mean() < 90 and abs(evened.mean() - 127.5) < 5
    order = pixels(dark)[..., 0].ravel().argsort(kind="stable")
    assert (np.diff(evened[..., 0].ravel()[order]) >= 0).all()


def test_sharpness_moves_away_from_the_smooth_picture(picture):
    blurred, sharpened = (pixels(apply_operation(picture, "Sharpness", level)) for level in (0, 9))
    inner = (slice(1, -1), slice(1, -1))
    assert blurred[inner].std() < pixels(picture)[inner].std() < sharpened[inner].std()


@pytest.mark.parametrize("sign", [1, -1])
def test_shear_moves_rows_by_their_height(sign):
    ramp = np.repeat(np.arange(40, 140, 2, dtype=np.uint8)[None, :, None], 20, axis=0).repeat(3, axis=2)
    sheared = pixels(apply_operation(Image.fromarray(ramp), "ShearX", 9, sign))
    y, x = np.mgrid[:20, :50]
    source = x + 0.3 * sign * (y + 0.5)  # pixel centres
    inside = (source > 1) & (source < 48)
    assert inside.sum() > 800
    assert np.abs(sheared[..., 0] - (40 + 2 * source))[inside].max() <= 1
    assert (sheared[(source < -1) | (source > 50)] == 128).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_rotation_turns_about_the_middle_by_30_degrees(sign):
    spot = np.zeros((61, 61, 3), dtype=np.uint8)
    spot[29:32, 49:52] = 255  # 20 pixels right of the middle
    turned = pixels(apply_operation(Image.fromarray(spot), "Rotate", 9, sign))[..., 0]
    turned[turned == 128] = 0  # the uncovered corners
    y, x = (float((turned * grid).sum() / turned.sum()) - 30 for grid in np.mgrid[:61, :61])
    assert (x, y) == pytest.approx((20 * math.cos(math.pi / 6), -sign * 20 * math.sin(math.pi / 6)), abs=0.3)


def test_auto_augment_draws_every_pair_in_both_directions(picture, random, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tokenmixers.run_scripts.data.image_augmentation.apply_operation",
        lambda image, *operation: asked.append(operation) or image,
    )
    draws = 5000
    for _ in range(draws):
        auto_augment(picture, random)
    for name, sign in ((name, sign) for name in ("ShearX", "Rotate") for sign in (1, -1)):
        expected = sum(p for pair in IMAGENET_POLICY for n, p, _ in pair if n == name) / len(IMAGENET_POLICY) / 2
        seen = sum(operation[0] == name and operation[2] == sign for operation in asked) / draws
        assert seen == pytest.approx(expected, abs=4 * math.sqrt(expected / draws))
    possible = {(name, level) for pair in IMAGENET_POLICY for name, p, level in pair if p > 0}
    assert {operation[:2] for operation in asked} == possible


def test_shift_and_mirror_give_all_positions_and_no_others(random):
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) + 1)
    arguments = AugmentationArguments(random_shift=1, horizontal_flip=True)
    content = np.asarray(picture)
    padded = [np.pad(image, ((1, 1), (1, 1), (0, 0))) for image in (content, content[:, ::-1])]
    possible = {image[y : y + 4, x : x + 4].tobytes() for image in padded for x in range(3) for y in range(3)}
    assert {np.asarray(augment(picture, arguments, (4, 4), random)).tobytes() for _ in range(300)} == possible
    assert augment(picture, AugmentationArguments(), (4, 4), random) is picture


def test_random_boxes_have_the_asked_areas_and_ratios(random):
    shares, ratios = [], []
    for _ in range(2000):
        left, upper, right, lower = random_box(400, 300, 0.08, random)
        assert 0 <= left < right <= 400 and 0 <= upper < lower <= 300
        shares.append((right - left) * (lower - upper) / 400 / 300)
        ratios.append((right - left) / (lower - upper))
    assert 0.075 < min(shares) < 0.1 and max(shares) > 0.9
    assert 0.74 < min(ratios) < 0.77 and 1.3 < max(ratios) < 1.34
    # No part of a narrow picture has half its area and an allowed ratio: the middle square-ish part it is.
    assert random_box(30, 300, 0.5, random) == (0, 130, 30, 170)
    assert random_box(300, 30, 0.5, random) == (130, 0, 170, 30)


def test_random_crops_are_scaled_to_the_size(random):
    y, x = np.mgrid[:60, :80]
    plane = Image.fromarray(np.stack([x * 3, y * 4, 0 * x], axis=-1).astype(np.uint8))
    crop = augment(plane, AugmentationArguments(random_resized_crop=True, crop_min_area=0.2), (16, 24), random)
    assert crop.size == (24, 16)
    slopes = [np.diff(pixels(crop)[3:-3, 3:-3, channel].astype(float), axis=1 - channel) for channel in (0, 1)]
    # Linear ramps stay linear ramps, as steep as the crop's edges were long.
    width, height = slopes[0].mean() / 3 * 24, slopes[1].mean() / 4 * 16
    assert all(slope.std() < 0.6 for slope in slopes)
    assert 0.18 < width * height / 4800 <= 1.02 and 0.7 < width / height < 1.4


def test_soft_labels_by_hand():
    labels = soft_labels(torch.tensor([2, 0]), 4, 0.1)
    assert torch.allclose(labels, torch.tensor([[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]]))
    assert torch.equal(soft_labels(torch.tensor([1]), 3), torch.tensor([[0.0, 1.0, 0.0]]))


def labelled_batch(count=6, size=(8, 10)):
    """Picture i is i all over, of class i, so that a mixed picture's mean tells what it is made of."""
    values = torch.arange(count, dtype=torch.float)
    return values[:, None, None, None].expand(-1, 3, *size).clone(), torch.eye(count)


@pytest.mark.parametrize("name", ["mixup_alpha", "cutmix_alpha"])
def test_labels_have_the_shares_of_the_pictures(random, name):
    pictures, labels = labelled_batch()
    kept = []
    for _ in range(100):
        mixed, targets = mixup_or_cutmix(pictures, labels, AugmentationArguments(**{name: 1.0}), random)
        assert torch.allclose(targets.sum(dim=1), torch.ones(6))
        assert (targets > 0).sum(dim=1).max() <= 2
        # The mean of a picture is the mean of the classes it contains, weighted by their shares.
        assert torch.allclose(mixed.mean(dim=(1, 2, 3)), targets @ torch.arange(6.0), atol=1e-5)
        whole = mixed.flatten(1).std(dim=1) < 1e-5
        if name == "mixup_alpha":
            assert whole.all()
        else:
            assert torch.equal(mixed, mixed.round())  # every pixel is one picture's own
        kept.append(float(targets.diagonal().min()))
    assert min(kept) < 0.25 and max(kept) > 0.9
    assert torch.equal(pictures, labelled_batch()[0]), "the pictures that were given are as they were"


def test_pasted_boxes_by_hand():
    pictures, others = torch.zeros(1, 1, 8, 12), torch.ones(1, 1, 8, 12)
    mixed, share = paste_box(pictures, others, share=0.75, centre_y=0.5, centre_x=0.5)
    expected = torch.zeros(8, 12)
    expected[2:6, 3:9] = 1  # half of either side
    assert torch.equal(mixed[0, 0], expected) and share == 0.75
    mixed, share = paste_box(pictures, others, share=0.75, centre_y=0.0, centre_x=0.99)
    expected = torch.zeros(8, 12)
    expected[:2, 8:] = 1  # the rest of the 4 by 6 pixels lies outside
    assert torch.equal(mixed[0, 0], expected) and share == 1 - 8 / 96
    assert paste_box(pictures, others, share=1.0, centre_y=0.3, centre_x=0.3)[1] == 1
    assert paste_box(pictures, others, share=0.0, centre_y=0.5, centre_x=0.5)[1] == 0


def test_shares_of_mixup_follow_the_beta_distribution(random):
    pictures, labels = torch.tensor([0.0, 1.0])[:, None, None, None], torch.eye(2)
    arguments = AugmentationArguments(mixup_alpha=0.4)
    shares = torch.stack([mixup_or_cutmix(pictures, labels, arguments, random)[1][0, 0] for _ in range(6000)])
    shares = shares[shares < 1]  # in half of the draws the partner is the picture itself
    # Of Beta(a, a) the variance is 1 / (4 (2 a + 1)); the labels show share and 1 - share about equally often.
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(shares.var()) == pytest.approx(1 / (4 * 1.8), rel=0.06)


def test_how_often_a_batch_is_mixed_and_by_what(random):
    pictures, labels = labelled_batch(size=(16, 16))
    arguments = AugmentationArguments(mixup_alpha=1.0, cutmix_alpha=1.0, mixup_prob=0.6, mixup_switch_prob=0.3)
    counts = {"none": 0, "mixup": 0, "cutmix": 0}
    draws = 1500
    for _ in range(draws):
        mixed, _ = mixup_or_cutmix(pictures, labels, arguments, random)
        if mixed is pictures:
            counts["none"] += 1
        else:
            counts["cutmix" if torch.equal(mixed, mixed.round()) else "mixup"] += 1
    for name, expected in (("none", 0.4), ("mixup", 0.42), ("cutmix", 0.18)):
        assert counts[name] / draws == pytest.approx(expected, abs=4 * math.sqrt(0.25 / draws)), name


def test_loss_is_the_cross_entropy_of_soft_labels():
    torch.manual_seed(0)
    logits = torch.randn(4, 5)
    outputs = ImageClassifierOutput(logits=logits)
    labels = torch.rand(4, 5).softmax(dim=1)
    logarithms = logits - logits.exp().sum(dim=1, keepdim=True).log()
    whole = -(labels * logarithms).sum(dim=1).mean()
    assert torch.allclose(classification_loss(outputs, labels), whole)
    # Two batches of unequal size: the Trainer passes the count of numbers in all labels of the step.
    parts = [
        classification_loss(ImageClassifierOutput(logits=logits[rows]), labels[rows], torch.tensor(labels.numel()))
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert torch.allclose(sum(parts), whole)
    classes = torch.tensor([1, 0, 4, 4])
    hard = -logarithms[torch.arange(4), classes].mean()
    assert torch.allclose(classification_loss(outputs, classes, 4), hard)
    assert torch.allclose(classification_loss(outputs, soft_labels(classes, 5)), hard)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("random_shift", -1), ("mixup_alpha", -0.1), ("cutmix_alpha", math.inf), ("mixup_prob", 1.5)),
        *(("mixup_switch_prob", -0.5), ("crop_min_area", 0.0), ("crop_min_area", 1.1)),
    ],
)
def test_impossible_settings_are_named(name, value):
    with pytest.raises(SystemExit, match=rf"--{name} .*{value}"):
        AugmentationArguments(**{name: value})


def test_settings_in_use():
    assert AugmentationArguments().in_use() == {}
    assert AugmentationArguments(mixup_alpha=0.2, auto_augment=True).in_use() == {
        **{"mixup_alpha": 0.2, "auto_augment": True, "mixup_prob": 1.0}
    }
    everything = {"random_shift": 1, "horizontal_flip": True, "random_resized_crop": True, "auto_augment": True}
    everything |= {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    assert set(AugmentationArguments(**everything).in_use()) == set(vars(AugmentationArguments()))
