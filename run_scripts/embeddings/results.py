"""Results of evaluations of sentence embeddings: a file that grows with each figure, and tables of them."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..base.errors import UserError
from ..base.reporting import format_optional, markdown_table
from ..training.run_folder import write_atomically
from .tasks import METRICS, EmbeddingTask


#: Changes when the same model gets other figures on the same files than before: earlier ones are computed again.
PROTOCOL = 1

COMMAND = "evaluate_embeddings"

Result = dict[str, Any]
Key = tuple[str, str, int]


def key_of(result: Mapping[str, Any]) -> Key:
    """What a figure depends on: the model with its settings, the files of the set, and how they are evaluated."""
    return result["weights"], result["files"], result["protocol"]


class ResultFile:
    """The file `results.json` of an output folder, which several processes may add to."""

    def __init__(self, folder: Path, run: dict[str, Any]):
        self.path, self.run = folder / "results.json", run
        self.read()

    def read(self) -> dict[str, Any]:
        """The whole content."""
        if not self.path.exists():
            return {"made_by": COMMAND, "runs": [], "results": []}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path} cannot be read: {error}; give another --output_dir.") from error
        if not isinstance(content, dict) or content.get("made_by") != COMMAND:
            raise UserError(f"{self.path} was not written by {COMMAND}: give another --output_dir.")
        return content

    def results(self) -> dict[Key, Result]:
        """All results by what they depend on."""
        return {key_of(result): result for result in self.read()["results"]}

    def add(self, result: Result) -> None:
        """Add a result, in place of an earlier one that depends on the same."""
        self._change("results", result, key_of)

    def put(self, part: str, models: Sequence[str], content: Mapping[str, Any]) -> None:
        """Write what a part of the file says about models together, e.g. `"speeds"`, in place of an earlier one."""
        self._change(part, {"models": list(models), **content}, lambda entry: tuple(entry["models"]))

    def get(self, part: str, models: Sequence[str]) -> Result | None:
        """What `put` has written, now or in an earlier run."""
        found = [entry for entry in self.read().get(part, []) if entry["models"] == list(models)]
        return found[0] if found else None

    def _change(self, part: str, row: Result, key: Callable[[Result], Any]) -> None:
        """Add a row with the number of this run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(".results.lock")):
            content = self.read()
            if self.run not in content["runs"]:
                content["runs"].append(self.run)
            row = row | {"run": content["runs"].index(self.run)}
            others = [other for other in content.get(part, []) if key(other) != key(row)]
            content[part] = [*others, row]
            write_atomically(self.path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


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
