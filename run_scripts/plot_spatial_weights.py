"""Plot the spatial weights and attention maps of a checkpoint.

    tokenmixers plot_spatial_weights --model outputs/run --output_dir outputs/pictures
    tokenmixers plot_spatial_weights --model amlp --output_dir pictures --text "A man sleeps." --text_pair "He rests."

Text models: the filter of the middle token in every layer ("Pay Attention to MLPs", Figure 4). Image models: the
filters of some tokens as maps of the image (Figure 3). Both: how Toeplitz-like each layer's matrix is (Appendix C).
aMLP with a text: its attention maps (Appendix D).

Needs matplotlib: `pip install '.[plot]'`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.toeplitzness import toeplitzness
from .base.arguments import check_output_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.pictures import DPI, WIDTH
from .base.ranges import check_ranges
from .base.trained_model import load_trained, load_trained_tokenizer
from .studies.measures import spatial_matrices


@dataclass
class PlotArguments:
    """What to draw."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    output_dir: str = field(metadata={"help": "Folder for the plots; it is created."})
    columns: int = field(default=3, metadata={"help": "Layers per row of a plot; tokens, for image models."})
    text: str | None = field(default=None, metadata={"help": "Sentence for the attention maps of an aMLP."})
    text_pair: str | None = field(default=None, metadata={"help": "Second sentence of a pair."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "columns"))
        if self.text is None and self.text_pair is not None:
            raise UserError("--text_pair is the second sentence of a pair: give the first as --text.")


def _panels(count: int, columns: int, width: float, height: float, **options):
    """A figure and the axes of `count` small plots, the unused ones hidden."""
    rows, columns = math.ceil(count / columns), min(columns, count)
    figures = import_optional("matplotlib.figure", "plot", "drawing")
    figure = figures.Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def _save(figure, file: Path) -> None:
    figure.savefig(file, dpi=min(150, WIDTH * DPI / figure.get_figwidth()))  # not wider than a page


def draw_text_filters(matrices: list[torch.Tensor], file: Path, columns: int) -> None:
    """For each layer, the spatial weights of the middle token by the distance to the other token, on one scale."""
    figure, axes = _panels(len(matrices), columns, 2.8, 1.8, sharex=True, sharey=True)
    for layer, (axis, matrix) in enumerate(zip(axes, matrices, strict=True), start=1):
        middle = len(matrix) // 2
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.plot(range(-middle, len(matrix) - middle), matrix[middle].numpy(), linewidth=1.2)
        axis.set_title(f"layer {layer}", fontsize=9)
        axis.tick_params(labelsize=8)
    figure.supxlabel("distance to the token, in tokens (negative: to its left)", fontsize=9)
    figure.supylabel("spatial weight", fontsize=9)
    _save(figure, file)


def draw_image_filters(matrices: list[torch.Tensor], grid: tuple[int, int], file: Path, columns: int) -> None:
    """One row of maps per layer: the spatial weights of some tokens over the image; a cross marks the token.

    Args:
        matrices: Spatial weights; a class token's rows and columns are left out.
        grid: Rows and columns of patches.
        file: The file to write.
        columns: Tokens per layer, all if there are fewer.
    """
    rows, width = grid
    columns = min(columns, rows * width)
    picks = [int((index + 0.5) / columns * rows * width) for index in range(columns)]
    figure, axes = _panels(len(matrices) * columns, columns, 1.5, 1.5 * rows / width, sharex=True, sharey=True)
    for index, axis in enumerate(axes):
        layer, token = index // columns, picks[index % columns]
        matrix = matrices[layer][-rows * width :, -rows * width :]
        scale = max(matrix[token].abs().max().item(), 1e-12)
        axis.imshow(matrix[token].view(grid).numpy(), cmap="RdBu", vmin=-scale, vmax=scale)
        axis.plot(token % width, token // width, "k+", markersize=6)
        axis.set_xticks([])
        axis.set_yticks([])
        if index % columns == 0:
            axis.set_ylabel(f"layer {layer + 1}", fontsize=8)
        if layer == 0:
            axis.set_title(f"patch ({token // width}, {token % width})", fontsize=8)
    figure.supxlabel("weights over the patches, each map on its own scale (blue: positive)", fontsize=9)
    _save(figure, file)


def draw_toeplitzness(matrices: list[torch.Tensor], grid: tuple[int, int] | None, file: Path) -> None:
    """The share of each matrix's variance that a Toeplitz matrix explains, by layer."""
    size = len(matrices[0]) if grid is None else grid[0] * grid[1]
    values = [toeplitzness(matrix[-size:, -size:], grid) for matrix in matrices]
    figure, (axis,) = _panels(1, 1, 5.0, 2.4)
    axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3)
    axis.set_ylim(0, 1.05)
    axis.set_xlabel("layer", fontsize=9)
    axis.set_ylabel("Toeplitz share of variance", fontsize=9)
    axis.tick_params(labelsize=8)
    _save(figure, file)


def draw_attention(maps: list[torch.Tensor], tokens: list[str], file: Path, columns: int) -> None:
    """The attention weights of every layer; rows are queries, columns are keys."""
    side = max(2.2, 0.16 * len(tokens))
    columns = min(columns, max(1, int(WIDTH / side)))  # the names of the tokens stay legible
    figure, axes = _panels(len(maps), columns, side, side)
    for layer, (axis, weights) in enumerate(zip(axes, maps, strict=True), start=1):
        axis.imshow(weights.numpy(), cmap="Blues", vmin=0)
        axis.set_title(f"layer {layer}", fontsize=9)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
        axis.set_yticks(range(len(tokens)), tokens, fontsize=6)
    _save(figure, file)


def attention_maps(model: PreTrainedModel, tokenizer, text: str, text_pair: str | None) -> tuple[list, list[str]]:
    """The attention weights of each layer for a sentence or a pair, shape `(length, length)`, and its tokens."""
    model.set_attn_implementation("eager")
    inputs = tokenizer(text, text_pair, return_tensors="pt", truncation=True)
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    if not attentions:
        raise UserError(f"--text: {type(model).__name__} has no attention to draw.")
    return [weights[0, 0].float() for weights in attentions], tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    logging.set_verbosity_error()  # no warning about the weights of unused heads
    (arguments,) = parse_arguments((PlotArguments,), argv)
    folder = check_output_folder(arguments.output_dir)
    model = load_trained(AutoModel, arguments.model)
    matrices = spatial_matrices(model)
    if not matrices:
        raise UserError(f"{arguments.model!r} has no spatial gating units to draw.")
    if arguments.text is not None:
        tokenizer = load_trained_tokenizer(arguments.model)
        maps, tokens = attention_maps(model, tokenizer, arguments.text, arguments.text_pair)
    folder.mkdir(parents=True, exist_ok=True)
    filters, structure, attention = (folder / f"{n}.png" for n in ("spatial_filters", "toeplitzness", "attention"))
    grid = None if model.config.image_size is None else model.config.patch_grid
    if grid is None:
        draw_text_filters(matrices, filters, arguments.columns)
    else:
        draw_image_filters(matrices, grid, filters, arguments.columns)
    draw_toeplitzness(matrices, grid, structure)
    written = [filters, structure]
    if arguments.text is not None:
        draw_attention(maps, tokens, attention, arguments.columns)
        written.append(attention)
    print("wrote " + ", ".join(map(str, written)))


if __name__ == "__main__":
    main()
