"""Draw what the spatial weights of a checkpoint have learned (the paper's Figure 4).

    python -m tokenmixers.run_scripts.plot_spatial_weights --model outputs/run --output_dir outputs/pictures

Needs matplotlib: `pip install "tokenmixers[plot]"`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModel

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.spatial_gating_unit import SpatialProjection
from .arguments import UserError, parse_arguments


@dataclass
class PlotArguments:
    """What to draw."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    output_dir: str = field(metadata={"help": "Folder for the pictures; it is created."})
    columns: int = field(default=6, metadata={"help": "Layers per row of the picture."})


def middle_token_filters(model: torch.nn.Module) -> list[torch.Tensor]:
    """For each layer, the row of the spatial weights for the token in the middle, shape `(max_length,)`."""
    projections = [module for module in model.modules() if isinstance(module, SpatialProjection)]
    with torch.no_grad():
        return [p.matrix(p.max_length)[p.max_length // 2].float().cpu() for p in projections]


def draw_filters(filters: list[torch.Tensor], file: Path, columns: int) -> None:
    """One small plot per layer: weight against the distance of the token looked at, on one common scale."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError('drawing needs matplotlib: pip install "tokenmixers[plot]"') from error
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    rows = math.ceil(len(filters) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.6 * columns, 1.9 * rows + 0.6), sharex=True, sharey=True, squeeze=False
    )
    for layer, (axis, weights) in enumerate(zip(axes.flat, filters, strict=False), start=1):
        offsets = torch.arange(len(weights)) - len(weights) // 2
        axis.axhline(0, color="0.8", linewidth=0.8)
        axis.plot(offsets, weights, linewidth=1.2)
        axis.set_title(f"layer {layer}", fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(filters) :]:
        axis.set_visible(False)
    figure.supxlabel("distance to the token, in tokens (negative: to its left)", fontsize=9)
    figure.supylabel("spatial weight", fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PlotArguments,), argv)
    filters = middle_token_filters(AutoModel.from_pretrained(arguments.model))
    if not filters:
        raise UserError(f"{arguments.model!r} has no spatial gating units to draw.")
    file = Path(arguments.output_dir) / "spatial_filters.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    draw_filters(filters, file, min(arguments.columns, len(filters)))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
