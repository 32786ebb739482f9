"""Draw a `MixingMap`: a heat map of tokens, or a map of an image for one of its patches."""

import math
from typing import Any

import torch

from ..base.optional_packages import import_optional
from .mixing_maps import MixingMap


#: An axis has this many labels at most; of longer texts, every second token has one, or every third, ...
MAX_LABELS = 48
#: Labels are cut off after this many characters.
LABEL_LENGTH = 16


def draw(mixing: MixingMap, layer: int, head: int | None, token: int, pixels: torch.Tensor | None = None) -> Any:
    """Draw a layer of a map.

    Args:
        mixing: The map.
        layer: The layer, from 0.
        head: The head, from 0; `None` for the mean of all heads.
        token: The token of an image that is written, from 0: a patch, or the class token before the patches.
        pixels: What an image model has seen, shape `(channels, height, width)`, on any scale.

    Returns:
        A figure of Matplotlib.
    """
    # Not pyplot's: it keeps figures until they are closed, and is for one thread only.
    figure = import_optional("matplotlib.figure", "demo", "drawing").Figure(layout="constrained")
    weights = mixing.of_layer(layer, head)
    title = f"{mixing.name}, layer {layer + 1}" + ("" if head is None else f", head {head + 1}")
    if mixing.grid is None:
        figure.set_size_inches(*(min(max(0.18 * count, 2.2), 6.5) + 1.7 for count in reversed(weights.shape)))
        axis = figure.add_subplot()
        _draw_tokens(axis, mixing)
    else:
        *before, axis = figure.subplots(1, 1 if pixels is None else 2, squeeze=False)[0]
        for each in (*before, axis):
            each.set(xticks=[], yticks=[])
        weights = patch_weights(mixing, weights, token)
        _draw_place(axis, before, mixing, token, pixels)
    # A scale of both signs is symmetric around 0.
    scale = max(weights.abs().max().item(), 1e-12)
    colours = {"cmap": "RdBu", "vmin": -scale} if mixing.signed else {"cmap": "Blues", "vmin": 0}
    image = axis.imshow(weights.numpy(), vmax=scale, interpolation="nearest", **colours)
    axis.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axis, shrink=0.8, label="weight")
    return figure


def patch_weights(mixing: MixingMap, weights: torch.Tensor, token: int) -> torch.Tensor:
    """The weights from all patches to a token, shape `mixing.grid`."""
    assert mixing.grid is not None
    rows, columns = mixing.grid
    return weights[token, -rows * columns :].view(rows, columns)


def tick_labels(tokens: list[str]) -> tuple[list[int], list[str]]:
    """Positions and texts of an axis' labels, as many as fit; long tokens end in an ellipsis."""
    places = list(range(0, len(tokens), max(math.ceil(len(tokens) / MAX_LABELS), 1)))
    cut = [token if len(token) <= LABEL_LENGTH else token[: LABEL_LENGTH - 1] + "…" for token in tokens]
    return places, [cut[place] for place in places]


def _draw_tokens(axis: Any, mixing: MixingMap) -> None:
    options = {"fontsize": 7, "parse_math": False}  # a dollar sign in a token is no formula
    places, labels = tick_labels(list(mixing.columns))
    axis.set_xticks(places, labels, rotation=90, **options)
    places, labels = tick_labels(list(mixing.rows))
    axis.set_yticks(places, labels, **options)
    axis.set(xlabel="from the token", ylabel="to the token")


def _draw_place(axis: Any, before: list[Any], mixing: MixingMap, token: int, pixels: torch.Tensor | None) -> None:
    """Mark the patch that is written, in the map and in what the model has seen."""
    assert mixing.grid is not None
    patch = token - mixing.has_class_token
    row, column = divmod(patch, mixing.grid[1])
    axis.set_xlabel("weights to the class token" if patch < 0 else "weights to the patch with +")
    if patch >= 0:
        axis.plot(column, row, "k+", markersize=8)
    if pixels is None:
        return
    lowest, highest = pixels.min(), pixels.max()
    shown = (pixels - lowest) / (highest - lowest).clamp(min=1e-12)
    before[0].imshow(shown.permute(1, 2, 0).expand(-1, -1, 3).numpy(), interpolation="nearest")
    before[0].set_xlabel("what the model has seen")
    if patch >= 0:
        patches = import_optional("matplotlib.patches", "demo", "drawing")
        height, width = pixels.shape[1] / mixing.grid[0], pixels.shape[2] / mixing.grid[1]
        corner = (column * width - 0.5, row * height - 0.5)
        before[0].add_patch(patches.Rectangle(corner, width, height, fill=False, edgecolor="tab:red", linewidth=2))
