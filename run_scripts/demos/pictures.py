"""Draw a `MixingMap`: a heat map of tokens, or a map of an image for one of its patches; and say it in words.

Pictures are SVG whose texts the browser writes with its own fonts, so that tokens of every script can be read.
"""

import io
import math
import warnings
from html import escape
from typing import Any, NamedTuple
from urllib.parse import quote

import torch

from ..base.optional_packages import import_optional
from .mixing_maps import MixingMap


#: An axis has this many labels at most; of longer texts, every second token has one, or every third, ...
MAX_LABELS = 48
#: Labels are cut off after this many characters.
LABEL_LENGTH = 16


class Choice(NamedTuple):
    """What to draw of a map. All counts start at 0.

    Attributes:
        layer: The layer.
        head: The head; `None` for the mean of all heads.
        patch: Of an image, row and column of the patch that is written; `None` for the class token.
    """

    layer: int = 0
    head: int | None = None
    patch: tuple[int, int] | None = (0, 0)


class Picture(NamedTuple):
    """A drawing.

    Attributes:
        svg: The file.
        description: What it shows, for those who do not see it.
    """

    svg: str
    description: str


def draw(mixing: MixingMap, choice: Choice, pixels: torch.Tensor | None = None) -> Picture:
    """Draw a layer of a map.

    Args:
        mixing: The map.
        choice: Which layer, head and patch.
        pixels: Of an image: what the model has seen, shape `(channels, height, width)`, on any scale.
    """
    weights = mixing.of_layer(choice.layer, choice.head)
    if mixing.grid is None:
        return Picture(_draw_tokens(mixing, weights), describe_tokens(mixing, choice))
    return Picture(_draw_patches(mixing, weights, choice, pixels), describe_patches(mixing, choice))


def image_html(picture: Picture, caption: str) -> str:
    """An image with its description as alternative text, and its title below."""
    # As the content of an attribute: the page's own styles do not reach into the image, and it runs no scripts.
    source = "data:image/svg+xml;utf8," + quote(picture.svg)
    image = f'<img src="{source}" alt="{escape(picture.description)}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def title(mixing: MixingMap, choice: Choice) -> str:
    """Kind, layer and head, e.g. "tiny attention, layer 2"."""
    heads = mixing.weights.shape[1]
    head = "" if heads == 1 else f", mean of {heads} heads" if choice.head is None else f", head {choice.head + 1}"
    return f"{mixing.name}, layer {choice.layer + 1}{head}"


def describe_tokens(mixing: MixingMap, choice: Choice) -> str:
    """The title, the range and the three largest weights of a map of a text."""
    weights = mixing.of_layer(choice.layer, choice.head)
    largest = weights.abs().flatten().topk(min(3, weights.numel())).indices.tolist()
    width = weights.shape[1]
    entries = [
        f"{mixing.rows[index // width]!r} from {mixing.columns[index % width]!r} {weights.flatten()[index]:.3g}"
        for index in largest
    ]
    return (
        f"Heat map of {title(mixing, choice)}: weights to {weights.shape[0]} tokens (rows) from {width} tokens "
        f"(columns), between {weights.min():.3g} and {weights.max():.3g}. Largest: {', '.join(entries)}."
    )


def describe_patches(mixing: MixingMap, choice: Choice) -> str:
    """The title, the range and the largest weight of a map of an image."""
    weights = patch_weights(mixing, choice)
    row, column = divmod(int(weights.abs().argmax()), weights.shape[1])
    written = "the class token" if choice.patch is None else _place(*choice.patch)
    return (
        f"Map of {title(mixing, choice)}: weights to {written} from {weights.shape[0]} x {weights.shape[1]} patches, "
        f"between {weights.min():.3g} and {weights.max():.3g}. Largest: from {_place(row, column)} "
        f"{weights[row, column]:.3g}."
    )


def _place(row: int, column: int) -> str:
    return f"the patch in row {row + 1}, column {column + 1}"


def patch_weights(mixing: MixingMap, choice: Choice) -> torch.Tensor:
    """The weights from all patches to the chosen token, shape `mixing.grid`."""
    assert mixing.grid is not None
    rows, columns = mixing.grid
    weights = mixing.of_layer(choice.layer, choice.head)
    token = 0
    if choice.patch is not None:
        token = mixing.has_class_token + choice.patch[0] * columns + choice.patch[1]
    return weights[token, -rows * columns :].view(rows, columns)


# --- drawing -----------------------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    # Not pyplot's: it keeps figures until they are closed, and is for one thread only.
    return import_optional("matplotlib.figure", "demo", "drawing").Figure((width, height), layout="constrained")


def _svg(figure: Any) -> str:
    matplotlib = import_optional("matplotlib", "demo", "drawing")
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        # The browser has fonts for what Matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _show(axis: Any, weights: torch.Tensor, signed: bool) -> Any:
    """Draw a matrix; a scale of both signs is symmetric around 0."""
    scale = max(weights.abs().max().item(), 1e-12)
    colours = {"cmap": "RdBu", "vmin": -scale} if signed else {"cmap": "Blues", "vmin": 0}
    return axis.imshow(weights.numpy(), vmax=scale, interpolation="nearest", **colours)


def _add_scale(figure: Any, image: Any, axis: Any) -> None:
    scale = figure.colorbar(image, ax=axis, shrink=0.8, pad=0.02, label="weight")
    scale.ax.tick_params(labelsize=7)
    scale.ax.yaxis.label.set_size(8)
    scale.ax.yaxis.get_offset_text().set_size(7)


def tick_labels(tokens: list[str]) -> tuple[list[int], list[str]]:
    """Positions and texts of an axis' labels, as many as fit; long tokens end in an ellipsis."""
    step = max(math.ceil(len(tokens) / MAX_LABELS), 1)
    places = list(range(0, len(tokens), step))
    cut = [token if len(token) <= LABEL_LENGTH else token[: LABEL_LENGTH - 1] + "…" for token in tokens]
    return places, [cut[place] for place in places]


def _draw_tokens(mixing: MixingMap, weights: torch.Tensor) -> str:
    rows, columns = (min(max(0.18 * count, 2.2), 6.5) for count in weights.shape)
    figure = _figure(columns + 1.7, rows + 1.1)
    axis = figure.add_subplot()
    image = _show(axis, weights, mixing.signed)
    # A dollar sign in a token is no formula.
    options = {"fontsize": 8 if max(weights.shape) <= 36 else 6, "parse_math": False}
    places, labels = tick_labels(list(mixing.columns))
    axis.set_xticks(places, labels, rotation=90, **options)
    places, labels = tick_labels(list(mixing.rows))
    axis.set_yticks(places, labels, **options)
    axis.set_xlabel("from the token", fontsize=8)
    axis.set_ylabel("to the token", fontsize=8)
    _add_scale(figure, image, axis)
    return _svg(figure)


def _draw_patches(mixing: MixingMap, weights: torch.Tensor, choice: Choice, pixels: torch.Tensor | None) -> str:
    assert mixing.grid is not None
    ratio = mixing.grid[0] / mixing.grid[1]
    figure = _figure(4.8 if pixels is not None else 2.8, min(2.1 * ratio + 0.4, 6.0))
    *before, axis = figure.subplots(1, 1 if pixels is None else 2, squeeze=False)[0]
    for each in (*before, axis):
        each.set_xticks([])
        each.set_yticks([])
    image = _show(axis, patch_weights(mixing, choice), mixing.signed)
    if choice.patch is not None:
        axis.plot(choice.patch[1], choice.patch[0], "k+", markersize=8, markeredgewidth=1.5)
    axis.set_xlabel("weights to the patch with +" if choice.patch else "weights to the class token")
    axis.xaxis.label.set_size(8)
    _add_scale(figure, image, axis)
    if pixels is not None:
        _draw_image(before[0], pixels, mixing.grid, choice)
    return _svg(figure)


def _draw_image(axis: Any, pixels: torch.Tensor, grid: tuple[int, int], choice: Choice) -> None:
    """What the model has seen, with a frame around the chosen patch."""
    lowest, highest = pixels.min(), pixels.max()
    shown = (pixels - lowest) / (highest - lowest).clamp(min=1e-12)
    axis.imshow(shown.permute(1, 2, 0).expand(-1, -1, 3).numpy(), interpolation="nearest")
    axis.set_xlabel("what the model has seen", fontsize=8)
    if choice.patch is not None:
        patches = import_optional("matplotlib.patches", "demo", "drawing")
        height, width = pixels.shape[1] / grid[0], pixels.shape[2] / grid[1]
        corner = (choice.patch[1] * width - 0.5, choice.patch[0] * height - 0.5)
        axis.add_patch(patches.Rectangle(corner, width, height, fill=False, edgecolor="tab:red", linewidth=2))
