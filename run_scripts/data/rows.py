"""Rows in memory: by columns where Arrow gives back what was read, with their places, which errors name."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyarrow import compute


Row = dict[str, Any]

#: Rows that are turned into Python's objects together.
BATCH = 1000


class BadRowError(ValueError):
    """What is wrong with a row. The error that the command ends with names the row, and others with it."""


class EmptyRowError(BadRowError):
    """A row lacks a text or a label: `--skip_empty_examples` leaves it out."""


#: A row's file or data set, its place there, e.g. `"line 3"`, and the row, or what is wrong with it.
PlacedRow = tuple[str, str, Row | BadRowError]


class ColumnRows(Sequence[PlacedRow]):
    """Rows that are kept by columns, in a tenth of the memory.

    Args:
        places: A table of each row's `source` and `place`.
        cells: A table of the rows.
    """

    def __init__(self, places: pa.Table, cells: pa.Table):
        self.places, self.cells = places, cells

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return next(iter(ColumnRows(self.places.slice(numbers, 1), self.cells.slice(numbers, 1))))

    def __iter__(self) -> Iterator[PlacedRow]:
        start = 0
        for batch in self.cells.to_batches(max_chunksize=BATCH):
            sources, places = (column.to_pylist() for column in self.places.slice(start, len(batch)).columns)
            yield from zip(sources, places, batch.to_pylist(), strict=True)
            start += len(batch)


def keep_rows(rows: Iterable[PlacedRow]) -> Sequence[PlacedRow]:
    """Rows in memory: by columns, unless a row is bad, or Arrow would give back others."""
    rows, parts = iter(rows), []
    while batch := list(islice(rows, BATCH)):
        part = _by_columns(batch)
        if part is None:
            return [*chain.from_iterable(parts), *batch, *rows]
        parts.append(part)
    return join_rows(parts)


def join_rows(parts: Sequence[Sequence[PlacedRow]]) -> Sequence[PlacedRow]:
    """The rows of all parts: by columns, if they are so in each part, with the same columns of the same types."""
    if all(isinstance(part, ColumnRows) for part in parts):
        tables = [part.cells for part in parts]
        if len({frozenset(table.column_names) for table in tables}) == 1:
            with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
                cells = pa.concat_tables(tables, promote_options="default")
                return ColumnRows(pa.concat_tables([part.places for part in parts]), cells)
    return [*chain.from_iterable(parts)]


def is_blank(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Whether each text is empty or white space alone, by Arrow, whose white space is that of Python's `strip`."""
    return compute.or_(compute.utf8_is_space(texts), compute.equal(texts, ""))


def _by_columns(placed: Sequence[PlacedRow]) -> ColumnRows | None:
    sources, places, rows = zip(*placed, strict=True)
    names = rows[0] if isinstance(rows[0], dict) else {}
    if not names or any(isinstance(row, BadRowError) or row.keys() != names.keys() for row in rows):
        return None
    columns = {name: [row[name] for row in rows] for name in names}
    if not all(map(_is_uniform, columns.values())):
        return None
    try:
        cells = pa.table(columns)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None
    return ColumnRows(pa.table({"source": pa.array(sources).dictionary_encode(), "place": places}), cells)


def _is_uniform(values: Sequence[Any]) -> bool:
    """Whether values, or those in lists, have one type of text or number: 1, 1.0 and true would become equal."""
    kinds = {*map(type, values)} - {type(None)}
    if kinds == {list}:
        return _is_uniform([*chain.from_iterable(filter(None, values))])
    return len(kinds) <= 1 and kinds <= {str, int, float, bool}
