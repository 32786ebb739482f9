"""Tables from txt, tsv, csv, json and parquet files, with line numbers so that errors can name the rows."""

import ast
import csv
import io
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import datasets
import pyarrow as pa
from pyarrow import compute, parquet

from ..base.errors import BadDataError, UserError, report_bad_data
from .files import COMPRESSIONS, ending, find_files, iterate_lines, open_file, read_text
from .loading import load_named
from .rows import BATCH, BadRowError, ColumnRows, EmptyRowError, PlacedRow, Row, is_blank, join_rows, keep_rows


Item = TypeVar("Item")

#: Endings of tables.
KINDS = (".tsv", ".csv", ".json", ".jsonl", ".parquet")

#: Rows that an error names; the others are counted.
SHOWN = 10

#: Stands for a carriage return inside a line of csv, where Python's reader would end the row. UTF-8 has no such code.
_CARRIAGE_RETURN = "\udc0d"
_SURROGATE = re.compile("[\ud800-\udfff]")

#: What Python and NumPy write into a list: a text in quotation marks, or a number or name.
_ITEM = re.compile(r"""u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*"|[^\s'",\[\]]+""")


#: The number of a line or row, from 1 on, and the row, or what is wrong with it.
Numbered = tuple[int, Row | BadRowError]

#: The number of a line, and its cells, or what is wrong with it.
_Fields = tuple[int, Sequence[str] | BadRowError]


def convert_rows(
    name: str,
    rows: Iterable[PlacedRow],
    read: Callable[[Row], Item],
    skip_empty: bool = False,
    can_skip: bool = True,
    stop_at_first: bool = False,
) -> Iterator[tuple[int, str, Item]]:
    """Yield what a function makes of each row; all bad rows are named in one error at the end.

    Args:
        name: Name of the data, for messages.
        rows: The rows.
        read: Given a row, returns an item. Raises `BadRowError` or `EmptyRowError` for what is wrong with it.
        skip_empty: Whether to leave out rows for which it raises `EmptyRowError`, and print how many.
        can_skip: Whether the error may advise to do so.
        stop_at_first: Whether to end at the first bad row, as streams do.

    Yields:
        A row's index among all, its file and place, and the item.

    Raises:
        BadDataError: At the end, if there are bad rows; the message names the first ones, and counts all.
    """
    shown: list[tuple[str, str, str]] = []
    total = count = skipped = 0
    hint = ""
    for total, (source, place, row) in enumerate(rows, start=1):
        try:
            if isinstance(row, BadRowError):
                raise row
            item = read(row)
        except BadRowError as problem:
            if isinstance(problem, EmptyRowError):
                if skip_empty:
                    skipped += 1
                    continue
                if can_skip:
                    hint = " --skip_empty_examples leaves out training and validation rows without a text or a label."
            count += 1
            if count <= SHOWN:
                shown.append((source, place, str(problem)))
            if stop_at_first:
                break
        else:
            yield total - 1, f"{source}, {place}", item
    if count:
        raise BadDataError(_bad_rows(shown, count) + hint)
    print_skipped(name, skipped, total)


def _bad_rows(shown: Sequence[tuple[str, str, str]], count: int) -> str:
    """What is wrong with some of the bad rows, as a sentence."""
    if count == 1:
        ((source, place, problem),) = shown
        return f"{source}, {place}: {problem}"
    sources = dict.fromkeys(source for source, *_ in shown)
    places = [f"{'' if len(sources) == 1 else f'{source}, '}{place}: {problem}" for source, place, problem in shown]
    listed = "; ".join(place.rstrip(".") for place in places)
    more = f"; and {count - SHOWN:,} more" if count > SHOWN else ""
    return f"{', '.join(sources)}: {count:,} bad rows. {listed}{more}."


def print_skipped(name: str, skipped: int, total: int) -> None:
    """Say how many rows were left out, if any."""
    if skipped:
        print(
            f"{name}: {skipped:,} of {total:,} rows left out, which lack a text or a label (--skip_empty_examples)",
            flush=True,
        )


@dataclass(frozen=True)
class Table:
    """Rows in memory.

    Args:
        source: The files or the split, for messages.
        placed: The rows with their places, also those that could not be read.
        options: Columns that options of the command name, and these options, for messages.
    """

    source: str
    placed: Sequence[PlacedRow]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """The rows. Raises `UserError` if some could not be read."""
        return [row for _, row in self.convert(lambda row: row)]

    @property
    def readable(self) -> Iterator[Row]:
        """The rows that could be read; `convert` names the others."""
        return (row for *_, row in self.placed if not isinstance(row, BadRowError))

    def cells(self, column: str) -> pa.ChunkedArray | None:
        """A column, if all rows are kept by columns and no cell is missing or blank: no row needs a look."""
        if not isinstance(self.placed, ColumnRows) or column not in self.columns:
            return None
        cells = self.placed.cells[column]
        is_empty = compute.is_null(cells, nan_is_null=True)
        if pa.types.is_string(cells.type):
            is_empty = compute.or_(is_empty, is_blank(cells))
        return None if compute.any(is_empty).as_py() else cells

    def texts(self, columns: Sequence[str]) -> list[pa.ChunkedArray] | None:
        """Several columns, see `cells`, if all are texts."""
        found = [self.cells(column) for column in columns]
        return found if all(cells is not None and pa.types.is_string(cells.type) for cells in found) else None

    def different(self, column: str) -> Iterable[Any]:
        """The values of a column, each once where all rows are kept by columns; `None` where a row lacks it."""
        if isinstance(self.placed, ColumnRows) and column in self.columns:
            cells = self.placed.cells[column]
            return cells.to_pylist() if pa.types.is_list(cells.type) else cells.unique().to_pylist()
        return (row.get(column) for row in self.readable)

    @cached_property
    def columns(self) -> list[str]:
        """The columns that any row has."""
        if isinstance(self.placed, ColumnRows):
            return self.placed.cells.column_names
        return list({column: None for row in self.readable for column in row})

    def value(self, row: Row, column: str) -> Any:
        """The value of a column; `None` if this row does not have it, and others do."""
        if column in row:
            return row[column]
        if column in self.columns:
            return None
        source, place = next((*where,) for *where, row in self.placed if not isinstance(row, BadRowError))
        known, option = ", ".join(map(repr, self.columns)), self.options.get(column)
        named = repr(column) if option is None else f"{column!r} ({option})"
        raise UserError(f"{source}, {place}: there is no column {named}; the columns are {known}.")

    def with_options(self, arguments: Any) -> "Table":
        """The table with the options among a command's arguments that name columns."""
        options: dict[str, str] = {}
        for name, value in vars(arguments).items():
            if "_column" in name and value is not None:
                for column in [value] if isinstance(value, str) else value:
                    if f"--{name}" not in options.get(column, ""):
                        options[column] = " or ".join(filter(None, (options.get(column), f"--{name}")))
        return replace(self, options=options)

    @contextmanager
    def report_bad_row(self, row: Row) -> Iterator[None]:
        """Turn what a function raises for a row of another form than it expects into a `BadRowError`."""
        try:
            yield
        except KeyError as error:
            self.value(row, error.args[0])  # raises if no row has it
            raise EmptyRowError(f"{error.args[0]!r} is missing.") from error
        except BadRowError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise BadRowError(str(error)) from error

    def expand(self, change: Callable[[Row], Iterable[Row]]) -> "Table":
        """The table with the rows that a function makes of each, which raises `BadRowError` if it cannot."""

        def rows() -> Iterator[PlacedRow]:
            for source, place, row in self.placed:
                try:
                    changed = [row] if isinstance(row, BadRowError) else [*change(row)]
                except BadRowError as problem:
                    changed = [problem]
                yield from ((source, place, each) for each in changed)

        return replace(self, placed=keep_rows(rows()))

    def convert(
        self, read: Callable[[Row], Item], skip_empty: bool = False, can_skip: bool = True
    ) -> list[tuple[int, Item]]:
        """What a function makes of each row, with the row's index among all: see `convert_rows`.

        Raises:
            UserError: If there are bad rows, or none is left.
        """
        with report_bad_data():
            found = convert_rows(self.source, self.placed, read, skip_empty, can_skip)
            items = [(index, item) for index, _, item in found]
        if not items:
            raise UserError(f"{self.source} has no row with all texts and labels.")
        return items


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: null, NaN or blank. Texts such as NA and nan are texts."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def check_text(value: Any, name: str = "the text") -> str:
    """A cell that must hold a text.

    Raises:
        EmptyRowError: If it is empty.
        BadRowError: If it is no text.
    """
    if is_missing(value):
        raise EmptyRowError(f"{name} is empty.")
    if not isinstance(value, str):
        raise BadRowError(f"{name} must be a string, got {value!r}.")
    return value


def check_some_text(texts: Sequence[Any]) -> list[str]:
    """The texts of a row in which some, but not all, may be empty, as in QQP.

    Raises:
        EmptyRowError: If all are empty.
        BadRowError: If one is no text.
    """
    found = ["" if is_missing(text) else check_text(text) for text in texts]
    if not any(found):
        raise EmptyRowError("the text is empty.")
    return found


def read_list(cell: Any) -> Any:
    """The list that a cell such as `["a", "b"]` stands for, as JSON, Python or NumPy write it; others as they are."""
    text = cell.strip() if isinstance(cell, str) else ""
    if not (text.startswith("[") and text.endswith("]")):
        return cell
    for parse in (json.loads, _python_list):
        try:
            found = parse(text)
        except (ValueError, SyntaxError):
            continue
        if isinstance(found, list):
            return found
    return cell


def _python_list(text: str) -> Any:
    """A list of Python, or one of NumPy: `['a' 'b']`, which Python would read as `['ab']`."""
    items, gaps = _ITEM.findall(text[1:-1]), [gap.strip() for gap in _ITEM.split(text[1:-1])]
    if not any(gaps):
        text = f"[{', '.join('None' if item == 'nan' else item for item in items)}]"
    elif "" in gaps[1:-1]:
        raise ValueError("a comma is missing.")
    return ast.literal_eval(text)


def read_labels(cell: Any) -> Any:
    """The labels that a cell holds: a list, see `read_list`, or a single one.

    Raises:
        BadRowError: If it is a text like several labels, in brackets or of an array, but no such list.
    """
    found = read_list(cell)
    text = found.strip() if isinstance(found, str) else ""
    in_brackets = text[:1] + text[-1:] in ("[]", "()", "{}") and {*text[1:-1]} & {*",'\"["}
    if in_brackets or text.startswith(("array([", "tensor([")):
        raise BadRowError(
            f'the label {cell!r} is no list: write several labels as ["a", "b"], and one without brackets.'
        )
    return found


def class_name(cell: Any) -> str:
    """The class in a cell as a text, without white space around it.

    Raises:
        BadRowError: If it holds several.
    """
    label = read_labels(cell)
    if isinstance(label, list | dict):
        raise BadRowError(f"the label is {label!r}: a row has one label, a name or a number.")
    return str(label).strip()


def class_names(labels: list[Any]) -> list[str]:
    """The classes in a list as texts, without white space around them: names, or whole numbers.

    Raises:
        BadRowError: If one is neither, or a number, true or false stands there twice, as in counts.
    """
    for label in labels:
        is_number = isinstance(label, int | float) and not isinstance(label, bool) and label % 1 == 0
        if is_missing(label) or not (isinstance(label, str) or is_number):
            raise BadRowError(
                f"the label {label!r} in the list {reprlib.repr(labels)} is neither a name nor a whole number."
            )
    names = [label.strip() if isinstance(label, str) else str(int(label)) for label in labels]
    marks = [name for name in names if name.isdecimal() or name.lower() in ("true", "false")]
    if len({*marks}) < len(marks):
        raise BadRowError(
            f"the list {reprlib.repr(labels)} has {max(marks, key=marks.count)} twice: lists hold the numbers of "
            "their classes, or in all rows 0 and 1 alone, which are no texts, one for each class."
        )
    return names


def read_binary(cell: Any, name: str = "the label") -> int:
    """A cell that must hold 0 or 1.

    Raises:
        EmptyRowError: If it is empty.
        BadRowError: If it holds something else.
    """
    if is_missing(cell):
        raise EmptyRowError(f"{name} is empty.")
    text = str(cell).strip().lower()
    if text in ("0", "0.0", "false"):
        return 0
    if text in ("1", "1.0", "true"):
        return 1
    raise BadRowError(f"{name} must be 0 or 1, got {cell!r}.")


def read_table(
    paths: str | Path | Sequence[str],
    columns: Sequence[str] | None = None,
    drop_incomplete: bool = False,
) -> Table:
    r"""Read files of the `KINDS`, compressed or not.

    Tsv files have no quoting, as in GLUE; csv files are quoted as by spreadsheets. A json file holds a list of
    objects, or one object per line as in jsonl. Only `\n` and `\r\n` end lines. Texts such as NA and null are texts.

    Args:
        paths: Names of files, glob patterns or folders; files are UTF-8, with or without byte order mark.
        columns: Names of the columns of a tsv file without a header.
        drop_incomplete: Whether to drop lines of a tsv file with too few columns, with a message.

    Raises:
        UserError: If a file is missing, empty, of no known kind or not UTF-8. Rows that do not fit are named by
            `Table.convert`.
    """
    return join_tables([_read_file(file, columns, drop_incomplete) for file in find_files(paths, KINDS)])


def join_tables(tables: Sequence[Table]) -> Table:
    """The rows of several tables in one."""
    if len(tables) == 1:
        return tables[0]
    return Table(", ".join(table.source for table in tables), join_rows([table.placed for table in tables]))


def _read_file(path: str, columns: Sequence[str] | None, drop_incomplete: bool) -> Table:
    if ending(path) not in KINDS:
        raise UserError(_unknown_kind(path, KINDS))
    with report_bad_data():
        table = Table(path, keep_rows(open_rows(path, columns, drop_incomplete)))
    if not table.placed:
        raise UserError(f"the file {path!r} has no rows.")
    return table


def open_rows(
    path: str, columns: Sequence[str] | None = None, drop_incomplete: bool = False, only: Sequence[str] | None = None
) -> Iterator[PlacedRow]:
    """The rows of a file, read one after another: the one reader of all commands.

    Args:
        path: A txt file, whose rows have the column `text`, or of one of the `KINDS`, compressed or not.
        columns: As for `read_table`.
        drop_incomplete: As for `read_table`.
        only: Columns that are needed, of parquet.

    Raises:
        BadDataError: Here or while iterating, if the file is of no known kind, damaged or not UTF-8.
    """
    kind, unit = ending(path), "line"
    rows: Iterator[Numbered]
    if kind == ".txt":
        rows = ((number, {"text": line}) for number, line in enumerate(iterate_lines(path), start=1))
    elif kind == ".tsv":
        rows = _as_rows(_tsv_lines(path, columns, drop_incomplete))
    elif kind == ".csv":
        rows = _as_rows(_csv_lines(path))
    elif kind == ".parquet":
        unit, rows = "row", _parquet_rows(path, only)
    elif kind == ".json" and _first_character(path) == "[":
        unit, rows = "row", _json_list(path)
    elif kind in (".json", ".jsonl"):
        rows = _json_lines(path)
    else:
        raise BadDataError(_unknown_kind(path, (".txt", *KINDS)))
    return ((path, f"{unit} {number}", row) for number, row in rows)


def _unknown_kind(path: str, known: Sequence[str]) -> str:
    return (
        f"the file {path!r} is of no known kind. Known endings: {', '.join(known)}, each also with one of "
        f"{', '.join(COMPRESSIONS)}."
    )


def load_split(name: str, config_name: str | None, split: str, token: str | None = None, **options: Any) -> Table:
    """One split of a data set, see `load_named`, with the names of classes for their numbers."""
    rows = load_named(name, config_name, split, token=token, **options)
    source = f"{name}, {split}"
    found = (row for batch in rows.with_format("arrow").iter(BATCH) for row in batch.to_pylist())
    return Table(source, keep_rows((source, f"row {n}", row) for n, row in _named_rows(found, rows.features)))


def load_tables(
    arguments: Any, splits: Sequence[str], token: str | None = None, read: Callable[[list[str]], Table] = read_table
) -> dict[str, Table]:
    """Source -> all its rows, for the sources of some splits (`FileArguments.source_of`)."""
    name, sources = arguments.dataset_name, {split: arguments.source_of(split) for split in splits}
    files = {split: getattr(arguments, f"{source}_file") for split, source in sources.items()}
    for split, source in sources.items():
        if (name is None) == (files[split] is None):
            hint = "; --train_val_split 0.1 holds out a tenth of the training data" if split == "validation" else ""
            raise UserError(f"give the {split} data as either --dataset_name or --{source}_file{hint}.")
    found = {}
    for split, source in sources.items():
        if source not in found:
            if name is None:
                table = read(files[split])
            else:
                config_name, part = arguments.dataset_config_name, getattr(arguments, f"{source}_split")
                table = load_split(name, config_name, part, token)
            found[source] = table.with_options(arguments)
    return found


def _named_rows(rows: Iterable[Row], features: datasets.Features) -> Iterator[tuple[int, Row]]:
    """Rows with class names in place of indices, also inside lists; `None` for a hidden class (-1)."""

    def named(feature: Any, value: Any) -> Any:
        if isinstance(value, list):
            return [named(feature.feature, part) for part in value]
        return value if value is None or value < -1 else None if value == -1 else feature.int2str(value)

    classes = {
        column: feature
        for column, feature in features.items()
        if isinstance(getattr(feature, "feature", feature), datasets.ClassLabel)
    }
    for number, row in enumerate(rows, start=1):
        yield number, {**row, **{column: named(classes[column], row[column]) for column in classes if column in row}}


def _parquet_rows(path: str, only: Sequence[str] | None) -> Iterator[Numbered]:
    try:
        with open_file(path) as file:
            # A compressed file cannot be read from its end, where parquet has its contents.
            content = parquet.ParquetFile(file if path.lower().endswith(".parquet") else io.BytesIO(file.read()))
            names = [name for name in content.schema_arrow.names if only is not None and name in only] or None
            features = datasets.Features.from_arrow_schema(content.schema_arrow)
            batches = content.iter_batches(batch_size=1000, columns=names)
            yield from _named_rows((row for batch in batches for row in batch.to_pylist()), features)
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise BadDataError(f"the file {path!r} cannot be read as parquet: {error}") from error


def _header(fields: list[str], path: str) -> list[str]:
    """The names of the columns.

    Raises:
        BadDataError: If two have the same name: one would hide the other.
    """
    twice = next((name for name in fields if name and fields.count(name) > 1), None)
    if twice is not None:
        raise BadDataError(f"{path}, line 1: two columns are called {twice!r}: rename one.")
    return fields


def _as_rows(lines: Iterator[_Fields]) -> Iterator[Numbered]:
    """The rows of lines, of which the first is the header."""
    _, header = next(lines, (0, []))
    for number, fields in lines:
        yield number, fields if isinstance(fields, BadRowError) else dict(zip(header, fields, strict=True))


def _tsv_lines(path: str, columns: Sequence[str] | None, drop_incomplete: bool) -> Iterator[_Fields]:
    dropped = 0
    if columns is not None:
        yield 0, columns
    for number, line in enumerate(iterate_lines(path), start=1):
        fields = line.split("\t")
        if fields == [""]:
            continue
        if columns is None:
            columns = _header(fields, path)
            yield number, columns
        elif len(fields) == len(columns):
            yield number, fields
        elif drop_incomplete and len(fields) < len(columns):
            dropped += 1
        else:
            yield number, BadRowError(f"{len(fields)} columns instead of {len(columns)}.")
    if dropped:
        print(f"{path}: {dropped} incomplete lines left out")


def _csv_lines(path: str) -> Iterator[_Fields]:
    csv.field_size_limit(2**31 - 1)  # 131,072 characters by default
    reader = csv.reader(map(_protected, iterate_lines(path, keep_ends=True)), strict=True)
    header, last = None, 0
    try:
        for fields in reader:
            last = reader.line_num
            if not fields:
                continue
            if _CARRIAGE_RETURN in "".join(fields):
                fields = [field.replace(_CARRIAGE_RETURN, "\r") for field in fields]
            if header is None:
                header = _header(fields, path)
                yield last, header
            elif len(fields) == len(header):
                yield last, fields
            else:
                yield last, BadRowError(f"{len(fields)} columns, not the {len(header)} columns of line 1.")
    except csv.Error as error:
        hint = " Commas separate columns." if "expected after" in str(error) else ""
        if header is None:
            yield 0, []
        # The row's first line: a quotation mark that is not closed reads to the end.
        yield last + 1, BadRowError(f"{error}.{hint}")


def _protected(line: str) -> str:
    """A line without carriage returns but the one of its end."""
    if "\r" not in line:
        return line
    end = "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""
    return line[: len(line) - len(end)].replace("\r", _CARRIAGE_RETURN) + end


def _first_character(path: str) -> str:
    return next((line.lstrip()[0] for line in iterate_lines(path) if line.strip()), "")


def _json_lines(path: str) -> Iterator[Numbered]:
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        row = _json_row(line)
        if isinstance(row, BadRowError) and number == 1 and isinstance(_json_row(read_text(path)), dict):
            raise BadDataError(
                f"the file {path!r} is one JSON object over several lines: give a list of objects, or one object a "
                "line."
            )
        yield number, row


def _json_row(text: str) -> Row | BadRowError:
    try:
        return check_row(parse_json(text))
    except BadRowError as error:
        return error


def check_row(row: Any) -> Row:
    """A row of JSON. Raises `BadRowError` if it is no object."""
    if not isinstance(row, dict):
        raise BadRowError(f"a row must be an object, not {row!r}.")
    return row


def _json_list(path: str) -> Iterator[Numbered]:
    try:
        rows = parse_json(read_text(path), checked=False)
    except BadRowError as error:
        raise BadDataError(f"{path}: {error}") from error
    for number, row in enumerate(rows, start=1):
        try:
            check_strings(row)
            yield number, check_row(row)
        except BadRowError as error:
            yield number, error


def parse_json(text: str, checked: bool = True) -> Any:
    """What a JSON text stands for.

    Args:
        text: The text.
        checked: Whether to check its strings, see `check_strings`.

    Raises:
        BadRowError: If it is not valid JSON, an object has two values for one name, or a string has a lone surrogate.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRowError(f"not valid JSON ({error}).") from error
    if checked and "\\u" in text:
        check_strings(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRowError(f"an object has two values for {twice!r}.")
    return row


def check_strings(value: Any) -> None:
    """Check that the strings in a value of JSON are text.

    Raises:
        BadRowError: If one has half of a surrogate pair, as a text that was cut inside an emoji. It has no UTF-8.
    """
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        if found:
            raise BadRowError(
                f"a text has the lone surrogate \\u{ord(found[0]):04x}, half of a character: remove or complete it."
            )
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            check_strings(item)
    elif isinstance(value, list):
        for item in value:
            check_strings(item)
