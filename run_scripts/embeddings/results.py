"""Tables of scores of sentence embeddings."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..base.reporting import format_optional, markdown_table
from .tasks import METRICS, EmbeddingTask


def summarise(tasks: Sequence[EmbeddingTask], columns: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Scores of several models; of several sets also the means over each kind, and the mean of these.

    Args:
        tasks: The sets, in the order of their kinds.
        columns: Name of a model -> its score on each set.

    Returns:
        For every row of a table: `name`, `kind`, `metric`, `scores` (one for each model), and `shares`: scores divided
        by those of the first model; in rows of means, the mean of the shares. A share is `None` if the first score is
        not above 0, and a mean of shares if one of them is.
    """
    names = list(columns)
    rows: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        scores = [columns[name][number] for name in names]
        shares = [score / scores[0] if scores[0] > 0 else None for score in scores]
        row = {"name": task.title, "kind": task.kind, "metric": METRICS[task.kind]}
        rows.append(row | {"scores": scores, "shares": shares})
    if len(rows) == 1:
        return rows
    means = []
    for kind in METRICS:
        if found := [row for row in rows if row["kind"] == kind]:
            row = {"name": f"mean of {kind.replace('_', ' ')} ({len(found)})", "kind": kind, "metric": ""}
            means.append(row | _means(found))
    overall = {"name": f"mean of {len(means)} kinds", "kind": None, "metric": ""}
    return rows + means + ([overall | _means(means)] if len(means) > 1 else [])


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    def mean(values: Sequence[float | None]) -> float | None:
        return None if None in values else statistics.fmean(values)

    return {
        part: [mean(values) for values in zip(*(row[part] for row in rows), strict=True)]
        for part in ("scores", "shares")
    }


def scores_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """All scores times 100, as text of a csv file: a row for each set, a column for each model."""
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in results:
        scores.setdefault((row["kind"], row["set"], row["metric"]), {})[row["model"]] = row["score"]
    models = list(dict.fromkeys(row["model"] for row in results))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["kind", "set", "metric", *models])
    for names, found in scores.items():
        writer.writerow([*names, *(f"{100 * found[model]:.2f}" if model in found else "" for model in models)])
    return file.getvalue()


def table_of(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """The summary as a Markdown table: scores times 100, and from the second model on the share of the first."""
    head = ["set", "figure", names[0]]
    for name in names[1:]:
        head += [name, "share"]
    table = []
    for row in rows:
        cells = [row["name"], row["metric"], f"{100 * row['scores'][0]:.2f}"]
        for score, share in zip(row["scores"][1:], row["shares"][1:], strict=True):
            cells += [f"{100 * score:.2f}", format_optional(share, "{:.1f} %", 100)]
        table.append(cells)
    return markdown_table(head, table)
