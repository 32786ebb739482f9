"""The picture of models of sentence embeddings: how good they are at the speed that they have."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.optional_packages import install_hint
from ..base.pictures import DPI, metric_name, panels, plain_axis


if TYPE_CHECKING:  # an optional package
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Rows = Sequence[Mapping[str, Any]]
"""Results: of each `model`, in a `format`, on a `set` of a `kind`, the `score` of a `metric`. Speeds: of each `model`
with its `name` and `format`, with a number of `threads`, the `sentences_per_second`."""

#: Kinds of sets with a panel. If a model was evaluated on none of them, the first kind that there is has one.
KINDS = ("similarity", "retrieval")

#: Format -> marker.
MARKERS = {"float32": "o", "bfloat16": "s", "onnx": "^", "onnx-int8": "D"}

#: Format -> its name in the picture.
FORMATS = {"onnx": "ONNX Runtime", "onnx-int8": "int8, ONNX Runtime"}

#: Name of a model in the published results -> its name in the picture.
TITLES = {"all-MiniLM-L6-v2": "MiniLM, 6 layers (teacher)"}
#: Models of the published results that are not in it: they are not shipped any more.
HIDDEN = ("hybrid-minilm", "hybrid-minilm-small")

#: Formats in the picture of the published results.
PUBLISHED_FORMATS = ("float32", "onnx-int8")


def draw(results: Rows, speeds: Rows, path: Path) -> None:
    """Write the `picture`. Without matplotlib (extra `plot`) a message says that it is skipped."""
    try:
        figure = picture(results, speeds)
    except ImportError:
        print(f"no picture: matplotlib is missing ({install_hint('plot')})")
        return
    figure.savefig(path, dpi=DPI)


def published_speeds(folder: Path) -> list[dict[str, Any]]:
    """The speeds in the `speed.json` of a folder: medians of all rounds of the runs on the machine of the last one.

    Returns:
        A row for each model, format and number of threads. `speed` is a multiple of that of the first model in its
        first format with as many threads, each round compared with the same round; `sentences_per_second` is this
        multiple of the first one's, the median of the runs.
    """
    speeds = json.loads((folder / "speed.json").read_text("utf-8"))
    machine = speeds["runs"][speeds["speeds"][-1]["run"]]["processor"]
    ratios: dict[tuple[str, str, int], list[float]] = {}
    rates: dict[int, list[float]] = {}
    for table in speeds["speeds"]:
        if speeds["runs"][table["run"]]["processor"] != machine:
            continue
        first = {row["threads"]: row for row in table["rows"] if row["name"] == table["rows"][0]["name"]}
        for threads, row in first.items():
            rates.setdefault(threads, []).append(row["sentences_per_second"])
        for row in table["rows"]:
            compared = zip(first[row["threads"]]["seconds"], row["seconds"], strict=True)
            key = row["model"], row["format"], row["threads"]
            ratios.setdefault(key, []).extend(one / other for one, other in compared)
    found = []
    for (model, kind, threads), values in ratios.items():
        row = {"model": model, "format": kind, "threads": threads, "speed": statistics.median(values)}
        found.append(row | {"sentences_per_second": row["speed"] * statistics.median(rates[threads])})
    return found


def published(folder: Path) -> tuple[Rows, Rows]:
    """The results in the `quality.json` of a folder, and its speeds, as the `picture` takes them."""
    speeds = [
        row | {"name": f"{TITLES.get(row['model'], row['model'])}, {row['format']}"}
        for row in published_speeds(folder)
        if row["format"] in PUBLISHED_FORMATS and row["model"] not in HIDDEN
    ]
    return json.loads((folder / "quality.json").read_text("utf-8"))["results"], speeds


def picture(results: Rows, speeds: Rows) -> "Figure":
    """Quality against sentences per second, with the fewest threads of those measured; a panel for each kind of sets.

    A line in a model's colour joins its formats. Models whose names agree up to the first comma have one colour, which
    the first one's name explains, and a line joins those in the first format. The quality is the mean score over the
    sets that all models have. In a format in which a model was not evaluated it is that of its first format, and the
    marker is hollow.
    """
    from matplotlib.lines import Line2D

    threads = min(row["threads"] for row in speeds)
    models: dict[str, list[Mapping[str, Any]]] = {}
    for row in speeds:
        if row["threads"] == threads:
            models.setdefault(row["model"], []).append(row)
    present = {row["kind"] for row in results}
    kinds = [kind for kind in KINDS if kind in present] or [results[0]["kind"]]
    figure, axes = panels(len(kinds), 5)
    places = [
        _draw_kind(axis, [row for row in results if row["kind"] == kind], models)
        for axis, kind in zip(axes, kinds, strict=True)
    ]
    for axis in axes:
        axis.set_xlabel(f"sentences per second, {threads} thread{'s' * (threads > 1)}")
    handles = [
        Line2D([], [], color="grey", marker=MARKERS[kind], linestyle="", label=FORMATS.get(kind, kind))
        for kind in dict.fromkeys(row["format"] for row in speeds)
    ]
    if any(line.get_markerfacecolor() == "white" for axis in axes for line in axis.lines):
        label = f"hollow: quality of {speeds[0]['format']}"
        handles.append(Line2D([], [], color="grey", marker="o", markerfacecolor="white", linestyle="", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    figure.draw_without_rendering()  # the layout is then known
    for axis, names in zip(axes, places, strict=True):
        _label(axis, names)
    return figure


def _draw_kind(axis: "Axes", results: Rows, models: Mapping[str, Rows]) -> dict[str, tuple[str, list[Any]]]:
    """Draw the panel of a kind; returns the colour and the points of each name."""
    quality, sets = _mean_scores(results, models)
    families: dict[str, list[Any]] = {}
    names = {}
    for model, rows in models.items():
        title = rows[0]["name"].removesuffix(f", {rows[0]['format']}")
        family, _, rest = title.partition(", ")
        in_first_format = families.setdefault(family, [])
        colour, score = f"C{list(families).index(family)}", quality[model, rows[0]["format"]]
        title = rest if in_first_format and rest else title  # the first name has the family's
        in_first_format.append((rows[0]["sentences_per_second"], score))
        points = []
        for row in sorted(rows, key=lambda row: row["sentences_per_second"]):
            own = quality.get((model, row["format"]))
            points.append((row["sentences_per_second"], score if own is None else own))
            options = {"color": colour, "markerfacecolor": "white" if own is None else colour, "markersize": 5}
            axis.plot(*points[-1], MARKERS[row["format"]], **options, zorder=3)
        axis.plot(*zip(*points, strict=True), color=colour, linewidth=0.8, alpha=0.6)
        names[title] = colour, points
    for number, points in enumerate(families.values()):
        axis.plot(*zip(*sorted(points), strict=True), ":", color=f"C{number}", linewidth=1)
    axis.margins(0.1, 0.08)
    plain_axis(axis, "x", log=True)
    plain_axis(axis, "y")
    what = results[0]["set"] if sets == 1 else f"mean of {sets} sets"
    axis.set_title(results[0]["kind"].replace("_", " "))
    axis.set_ylabel(f"{metric_name(results[0]['metric'])} times 100, {what}")
    axis.grid(alpha=0.3)
    return names


def _mean_scores(results: Rows, models: Mapping[str, Any]) -> tuple[dict[tuple[str, str], float], int]:
    """Mean score times 100 by model and format over the sets that all models have, and the number of these sets."""
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for row in results:
        if row["model"] in models:
            scores.setdefault((row["model"], row["format"]), {})[row["set"]] = row["score"]
    shared = set.intersection(*(set(scores[model, rows[0]["format"]]) for model, rows in models.items()))
    means = {
        case: 100 * statistics.fmean(of_set[name] for name in shared)
        for case, of_set in scores.items()
        if shared <= of_set.keys()
    }
    return means, len(shared)


#: Places of a name: next to the first or last point, distance in points, alignment.
_PLACES = (
    (-1, (7, 0), "left", "center"),
    (0, (-7, 0), "right", "center"),
    *(
        (point, (0, distance), side, "bottom" if distance > 0 else "top")
        for distance in (5, -5, 15, -15, 25, -25, 35, -35, 45, -45)
        for point, side in ((0, "left"), (0, "center"), (0, "right"))
    ),
)


def _label(axis: "Axes", names: Mapping[str, tuple[str, list[Any]]]) -> None:
    """Write names next to points, from the highest on, where they cover no marker and no other name."""
    panel = axis.get_window_extent().extents
    taken = [(x - 5, y - 5, x + 5, y + 5) for _, points in names.values() for x, y in axis.transData.transform(points)]
    for name, (colour, points) in sorted(names.items(), key=lambda item: -item[1][1][0][1]):
        for place in _PLACES:
            point, offset, side, height = place
            at = {"xytext": offset, "textcoords": "offset points", "ha": side, "va": height}
            at["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # a line may pass behind
            text = axis.annotate(name, points[point], **at, fontsize=8, color=colour)
            text.set_in_layout(False)
            box = tuple(text.get_window_extent().extents)
            clear = all(box[2] < a or box[0] > c or box[3] < b or box[1] > d for a, b, c, d in taken)
            if clear and panel[0] < box[0] and box[2] < panel[2] and panel[1] < box[1] and box[3] < panel[3]:
                break
            if place != _PLACES[-1]:
                text.remove()
        taken.append(box)
