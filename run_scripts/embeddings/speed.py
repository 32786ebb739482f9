"""Sentences per second of models of sentence embeddings, measured alternately, and quality drawn against it."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..base.errors import UserError
from ..base.optional_packages import install_hint
from ..base.reporting import markdown_table
from ..benchmarks.timing import number_of_threads, take_turns
from ..data.table_files import check_text, read_table


if TYPE_CHECKING:  # an optional package
    from matplotlib.figure import Figure


#: Name of a model in a table -> its name or path, and its format.
Columns = Mapping[str, tuple[str, str]]

#: Format -> marker in the picture.
MARKERS = {"float32": "o", "bfloat16": "s", "onnx": "^", "onnx-int8": "D"}


def all_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_sentences(file: str, count: int) -> list[str]:
    """The first sentences of a table: of its columns sentence1 and sentence2, row by row, or of its column text."""
    table = read_table(file)
    columns = [name for name in ("sentence1", "sentence2", "text") if name in table.columns]
    if not columns:
        raise UserError(f"--speed_file {file!r} has none of the columns sentence1, sentence2 and text.")
    rows = table.convert(lambda row: [check_text(table.value(row, name)) for name in columns])
    return [sentence for _, sentences in rows for sentence in sentences][:count]


def measure(
    columns: Columns,
    load: Callable[[str, str], Any],
    sentences: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    batch_size: int,
) -> list[dict[str, Any]]:
    """Time the encoding of the same sentences, tokenization included, by all models in turn.

    Returns:
        A row for every number of threads and model: `threads`, `name`, `model`, `format`, `seconds` of each round, and
        `sentences_per_second`, of the median.
    """
    rows = []
    for count in threads:
        with number_of_threads(count):
            models = {name: load(*column) for name, column in columns.items()}
            options = {"batch_size": batch_size, "show_progress_bar": False}
            calls = {name: partial(model.encode, sentences, **options) for name, model in models.items()}
            for name, seconds in take_turns(calls, rounds, torch.device("cpu"), warm_up=1).items():
                row = {"threads": count, "name": name, "model": columns[name][0], "format": columns[name][1]}
                speed = len(sentences) / statistics.median(seconds)
                rows.append(row | {"seconds": seconds, "sentences_per_second": speed})
    return rows


def speed_table(rows: Sequence[dict[str, Any]]) -> str:
    """Sentences per second and the multiple of the first model's, as a Markdown table."""
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    speeds = {(row["name"], row["threads"]): row["sentences_per_second"] for row in rows}
    head, table = ["sentences per second"], []
    for count in threads:
        head += [f"{count} thread{'s' * (count > 1)}", "times the first"]
    first = rows[0]["name"]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [name]
        for count in threads:
            speed = speeds[name, count]
            cells += [f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}", f"{speed / speeds[first, count]:.2f}"]
        table.append(cells)
    return markdown_table(head, table)


def draw(table: Mapping[str, Any], speeds: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the `picture` to `quality_speed.png` and `quality_speed.svg`.

    Without matplotlib (extra `plot`) a message says that it is skipped.
    """
    try:
        figure = picture(table, speeds)
    except ImportError:
        print(f"no picture: matplotlib is missing ({install_hint('plot')})")
        return
    figure.savefig(folder / "quality_speed.png", dpi=150)
    figure.savefig(folder / "quality_speed.svg", metadata={"Date": None})


def picture(table: Mapping[str, Any], speeds: Sequence[dict[str, Any]]) -> "Figure":
    """Quality against sentences per second, with a panel for each number of threads.

    A line in a model's colour joins its formats. The quality is the last row of the table: the mean over the kinds of
    sets, or over the sets of one kind, or the score on a single set.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    summary = table["rows"][-1]
    quality = dict(zip(table["models"], summary["scores"], strict=True))
    threads = list(dict.fromkeys(row["threads"] for row in speeds))
    models = list(dict.fromkeys(row["model"] for row in speeds))
    figure = Figure(figsize=(1 + 4.6 * len(threads), 5), layout="constrained")
    axes = figure.subplots(1, len(threads), squeeze=False, sharey=True)[0]
    for axis, count in zip(axes, threads, strict=True):
        for number, model in enumerate(models):
            rows = [row for row in speeds if (row["threads"], row["model"]) == (count, model)]
            rows.sort(key=lambda row: row["sentences_per_second"])
            points = [(row["sentences_per_second"], 100 * quality[row["name"]]) for row in rows]
            axis.plot(*zip(*points, strict=True), color=f"C{number}", linewidth=0.8, alpha=0.6)
            for point, row in zip(points, rows, strict=True):
                axis.plot(*point, MARKERS[row["format"]], color=f"C{number}", markersize=6)
        axis.set(xscale="log", xlabel="sentences per second", title=f"{count} thread{'s' * (count > 1)}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"{summary['name']}, times 100")
    handles = []
    for number, model in enumerate(models):
        row = next(row for row in speeds if row["model"] == model)
        handles.append(Line2D([], [], color=f"C{number}", label=row["name"].removesuffix(f", {row['format']}")))
    for kind in dict.fromkeys(row["format"] for row in speeds):
        handles.append(Line2D([], [], color="grey", marker=MARKERS[kind], linestyle="", label=kind))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure
