"""Sentences per second of models of sentence embeddings, measured alternately."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..base.errors import UserError
from ..base.reporting import markdown_table
from ..benchmarks.timing import number_of_threads, take_turns
from ..data.table_files import check_text, read_table


#: Name of a model in a table -> its name or path, and its format.
Columns = Mapping[str, tuple[str, str]]


#: Columns of a table whose texts are encoded.
COLUMNS = ("sentence1", "sentence2", "anchor", "positive", "text")


def all_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_sentences(file: str, count: int) -> list[str]:
    """The first sentences of a table, row by row: of its columns of pairs, or of its column text."""
    table = read_table(file)
    columns = [name for name in COLUMNS if name in table.columns]
    if not columns:
        raise UserError(f"--speed_file {file!r} has none of the columns {', '.join(COLUMNS[:-1])} and {COLUMNS[-1]}.")
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
