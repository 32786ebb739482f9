"""Tables from tsv, csv, json, parquet and CoNLL files, with line numbers so that errors can name the row."""

import csv
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from ..base.errors import UserError
from .loading import OPENERS, DatasetArguments, load_named


Row = dict[str, Any]

KINDS = (".tsv", ".csv", ".json", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Table:
    """Rows with their numbers.

    Args:
        source: The file or split, for messages.
        rows: Line or row number, and the row.
        unit: What the numbers count, `"line"` or `"row"`.
    """

    source: str
    rows: list[tuple[int, Row]]
    unit: str = "line"

    def error(self, number: int, problem: str) -> UserError:
        """An error that names the row."""
        return UserError(f"{self.source}, {self.unit} {number}: {problem}")

    def value(self, number: int, row: Row, column: str) -> Any:
        """The value of a column.

        Raises:
            UserError: If the row has no such column.
        """
        if column not in row:
            raise self.error(number, f"there is no column {column!r}; the columns are {', '.join(map(repr, row))}.")
        return row[column]

    def check_texts(self, number: int, texts: Sequence[Any]) -> None:
        """Check a row's texts.

        Raises:
            UserError: If one is no text, or all are empty.
        """
        for text in texts:
            if not isinstance(text, str):
                raise self.error(number, f"a text is {text!r} instead of text.")
        if not any(text.strip() for text in texts):
            raise self.error(number, "the text is empty.")


def read_table(path: str | Path, columns: Sequence[str] | None = None, drop_incomplete: bool = False) -> Table:
    r"""Read a file of one of the `KINDS`, also compressed, e.g. `.tsv.gz`.

    Tsv files have no quoting, as in GLUE; csv files are quoted as by spreadsheets. A json file holds a list of
    objects, or one object per line as in jsonl.

    Args:
        path: UTF-8, with or without byte order mark.
        columns: Names of the columns of a tsv file without a header.
        drop_incomplete: Whether to drop lines of a tsv file with too few columns, with a message.

    Raises:
        UserError: If the file is missing, empty, of no known kind, not UTF-8, or a row does not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}.")
    kind = kind_of(path)
    if kind not in KINDS:
        raise UserError(
            f"the file {str(path)!r} is of no known kind. Known endings: {', '.join(KINDS)}, all but .parquet also "
            f"with one of {', '.join(OPENERS)}."
        )
    unit = "line"
    if kind == ".parquet":
        try:
            rows, unit = _named_rows(datasets.Dataset.from_parquet(str(path))), "row"
        except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
            raise UserError(f"the file {str(path)!r} cannot be read as parquet: {error.__cause__ or error}") from error
    else:
        text = read_text(path)
        if kind == ".tsv":
            rows = _tsv_rows(text, path, columns, drop_incomplete)
        elif kind == ".csv":
            rows = _csv_rows(text, path)
        elif kind == ".json" and text.lstrip().startswith("["):
            rows, unit = _json_list(text, path), "row"
        else:
            rows = _json_lines(text, path)
    table = Table(str(path), list(rows), unit)
    if not table.rows:
        raise UserError(f"the file {str(path)!r} has no rows.")
    return table


def read_conll(path: str | Path, tokens_column: str = "tokens", tags_column: str = "ner_tags") -> Table:
    """Read sentences in CoNLL's format: a word per line, an empty line between sentences.

    White space separates columns; the first is the word, the last its tag. A file with one column has no tags. Lines
    that start with `-DOCSTART-` are dropped.

    Args:
        path: UTF-8, with or without byte order mark.
        tokens_column: Name of the column with the list of words in the result.
        tags_column: Name of the column with the list of tags.

    Raises:
        UserError: If the file is missing, empty or not UTF-8, or has lines with different numbers of columns.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}.")
    rows, words, width = [], [], None
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            if width not in (None, len(fields)):
                raise UserError(f"{path}, line {number}: {len(fields)} columns instead of {width}.")
            width = len(fields)
            words.append(fields)
        elif words:
            row = {tokens_column: [word[0] for word in words]}
            row |= {tags_column: [word[-1] for word in words]} if width > 1 else {}
            rows.append((number - len(words), row))
            words = []
    if not rows:
        raise UserError(f"the file {str(path)!r} has no sentences.")
    return Table(str(path), rows)


def kind_of(path: Path) -> str:
    """The ending of a table's name in lower case, e.g. `".tsv"`, without that of its compression."""
    *_, before, last = ["", "", *(suffix.lower() for suffix in path.suffixes)]
    return before if last in OPENERS and before != ".parquet" else last


def read_text(path: Path) -> str:
    """A whole file, decompressed if its name ends in one of `OPENERS`, without its byte order mark.

    Raises:
        UserError: If it is not UTF-8, with the line, or the compressed data are damaged.
    """
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
            content = file.read()
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"the file {str(path)!r} cannot be read: {error}.") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not valid UTF-8 (byte {content[error.start]:#04x}).") from error


def load_split(name: str, config_name: str | None, split: str, token: str | None = None, **options: Any) -> Table:
    """One split of a data set, see `load_named`, with the names of classes for their numbers.

    Raises:
        UserError: If it cannot be loaded.
    """
    return Table(
        f"{name}, {split}", list(_named_rows(load_named(name, config_name, split, token=token, **options))), "row"
    )


def load_named_split(arguments: DatasetArguments, split: str, token: str | None = None) -> Table:
    """The `"train"`, `"validation"` or `"test"` split of the arguments' data set, see `load_split`."""
    name = getattr(arguments, f"{split}_split")
    return load_split(arguments.dataset_name, arguments.dataset_config_name, name, token)


def _named_rows(rows: datasets.Dataset) -> Iterator[tuple[int, Row]]:
    """Rows with class names in place of indices, also inside lists; `None` for a hidden class (-1)."""

    def named(feature: Any, value: Any) -> Any:
        if isinstance(feature, datasets.ClassLabel) and value is not None:
            return feature.int2str(value) if value >= 0 else None
        if isinstance(getattr(feature, "feature", None), datasets.ClassLabel) and value is not None:
            return [named(feature.feature, part) for part in value]
        return value

    features = rows.features
    for number, row in enumerate(rows):
        yield number, {column: named(features[column], value) for column, value in row.items()}


def _tsv_rows(
    text: str, path: Path, columns: Sequence[str] | None, drop_incomplete: bool
) -> Iterator[tuple[int, Row]]:
    dropped = 0
    # Not `splitlines`, which also splits at other characters that sentences contain.
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.removesuffix("\r").split("\t")
        if fields == [""]:
            continue
        if columns is None:
            columns = fields
        elif len(fields) == len(columns):
            yield number, dict(zip(columns, fields, strict=True))
        elif drop_incomplete and len(fields) < len(columns):
            dropped += 1
        else:
            raise UserError(f"{path}, line {number}: {len(fields)} columns instead of {len(columns)}.")
    if dropped:
        print(f"{path}: {dropped} incomplete lines left out")


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"{path}, line {reader.line_num}: not the {len(reader.fieldnames)} columns of line 1.")
            yield reader.line_num, row
    except csv.Error as error:
        hint = " Commas separate columns." if "expected after" in str(error) else ""
        first_line = reader.line_num + 1  # of the row: a quotation mark that is not closed reads to the end
        raise UserError(f"{path}, line {first_line}: {error}.{hint}") from error


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _json_object(line, f"{path}, line {number}")


def _json_list(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    for number, row in enumerate(_parse_json(text, str(path))):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: a row must be an object, not {row!r}.")
        yield number, row


def _json_object(text: str, place: str) -> Row:
    row = _parse_json(text, place)
    if not isinstance(row, dict):
        raise UserError(f"{place}: a row must be an object, not {row!r}.")
    return row


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON ({error}).") from error
