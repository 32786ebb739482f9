"""What the pictures of the commands share: their width, plain numbers on axes, and names of metrics."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .optional_packages import install_hint


if TYPE_CHECKING:  # an optional package
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Inches, and dots per inch: pictures are at most 1,000 pixels wide, as a page is.
WIDTH, DPI = 8, 125

#: Metric -> what axes and tables call it.
METRIC_NAMES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "f1": "F1",
    "exact_match": "exact match",
    "matthews_correlation": "Matthews's correlation",
    "pearson": "Pearson's correlation",
    "pearsonr": "Pearson's correlation",
    "pearson_cosine": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "spearmanr": "Spearman's correlation",
    "spearman_cosine": "Spearman's correlation",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "cosine_ndcg@10": "nDCG@10",
    "ndcg@10": "nDCG@10",
    "cosine_mrr@10": "MRR@10",
    "cosine_accuracy@1": "accuracy of the first",
    "ap": "average precision",
    "map": "mean average precision",
    "v_measure": "V-measure",
}


def metric_name(metric: str) -> str:
    """The name of a metric; what precedes it, such as a set, stays: `sst2_f1` is "sst2, F1"."""
    metric = metric.removeprefix("eval_")
    for key in sorted(METRIC_NAMES, key=len, reverse=True):
        if metric == key or metric.endswith(f"_{key}"):
            before = metric.removesuffix(key).strip("_").replace("_", " ")
            return ", ".join(filter(None, (before, METRIC_NAMES[key])))
    return metric.replace("_", " ")


def plain_axis(axes: "Axes", which: str, log: bool = False) -> None:
    """Write the ticks of the axis `which`, x or y, as whole numbers or decimals, also on a logarithmic scale.

    Call it when everything is drawn.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if log:
        axes.set(**{f"{which}scale": "log"})
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis = axes.xaxis if which == "x" else axes.yaxis
    if log and high / low > 8:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1, 3)))
    else:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=which == "x"))  # steps are whole
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_above(axes: "Axes", title: str = "") -> None:
    """A legend of two columns between the title and the curves, if there are labels."""
    count = len(axes.get_legend_handles_labels()[1])
    if count:
        options = {"loc": "lower left", "borderaxespad": 0.2, "frameon": False, "fontsize": 8}
        axes.legend(bbox_to_anchor=(0, 1), ncols=2, handlelength=1.5, columnspacing=1.2, **options)
    axes.set_title(title, fontsize=11, loc="left", pad=4 + 14 * math.ceil(count / 2))


def panels(count: int, height: float) -> tuple["Figure", list["Axes"]]:
    """A figure and its panels, two in a row, an unused one hidden. `height` is that of a panel in inches."""
    from matplotlib.figure import Figure

    columns = 2 if count > 1 else 1
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else 0.75 * WIDTH, rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def plot_history(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the losses and all evaluation metrics over the steps, as far as they were measured at several.

    Args:
        history: A Trainer's `state.log_history`.
        path: The image file. Without matplotlib (extra `plot`), a message says that the plot is skipped. There is
            none of a run in which everything was measured once.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print(f"no picture of the training: matplotlib is missing ({install_hint('plot')})")
        return
    measured: dict[str, dict[int, float]] = {}
    for entry in history:
        for key, value in sorted(entry.items()):  # resuming loses the order
            if (key == "loss" or key.startswith("eval_")) and isinstance(value, (int, float)):
                measured.setdefault(key, {})[entry["step"]] = value
    curves = {key: [*points.items()] for key, points in measured.items() if len(points) > 1}
    if not curves:
        return
    metrics = [key for key in curves if key not in ("loss", "eval_loss") and not key.endswith(("_runtime", "_second"))]
    figure, axes = panels(1 + len(metrics), 2.6)
    losses = {"loss": "training", "eval_loss": "validation"}
    for axis, keys in zip(axes, [losses, *([key] for key in metrics)], strict=True):
        for key in keys:
            if key in curves:
                axis.plot(*zip(*curves[key], strict=True), marker="o", markersize=3, label=losses.get(key))
        axis.set(xlabel="step", ylabel="loss" if keys is losses else metric_name(keys[0]))
        plain_axis(axis, "x")
        plain_axis(axis, "y")
    legend_above(axes[0])
    figure.savefig(path, dpi=DPI)
