"""Local files: found by name, pattern or folder, decompressed, and read line by line."""

import bz2
import gzip
import io
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import IO

import pyarrow as pa

from ..base.errors import BadDataError, UserError


def _open_with_arrow(path: Path, codec: str) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), codec))


_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": partial(_open_with_arrow, codec="zstd"),
    ".lz4": partial(_open_with_arrow, codec="lz4"),
}

#: Endings of compressed files, which follow the ending of the file's kind.
COMPRESSIONS = tuple(_OPENERS)

#: Bytes that are read and decoded together.
_BLOCK = 1 << 20

#: What damaged files raise while they are decompressed.
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)


def ending(path: str | Path) -> str:
    """The ending in small letters, without that of a compression: `".csv"` for `A.CSV.gz`; `""` if there is none."""
    path = Path(path)
    if path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return path.suffix.lower()


def find_files(patterns: str | Path | Sequence[str], endings: Sequence[str] | None = None) -> list[str]:
    """The files that names, glob patterns and folders stand for.

    A pattern that is the name of an existing file or folder is taken literally. Files of a pattern or folder are
    sorted by name. A folder stands for the files in it and in its folders, except hidden ones.

    Args:
        patterns: One or several.
        endings: Endings that the files of a folder must have, each also before one of `COMPRESSIONS`; all by default.
    """
    files: list[str] = []
    for pattern in [str(patterns)] if isinstance(patterns, str | Path) else patterns:
        if Path(pattern).is_dir():
            found = _files_in(Path(pattern), endings)
            if not found:
                kinds = "" if endings is None else f" Known endings: {', '.join(endings)}."
                raise UserError(f"the folder {pattern!r} has no file to read.{kinds}")
        else:
            names = glob(escape(pattern)) or sorted(glob(_with_literal_folder(pattern), recursive=True))
            found = [name for name in names if not Path(name).is_dir()]
            if not found:
                raise UserError(f"there is no file {pattern!r}.")
        files += found
    return files


def _with_literal_folder(pattern: str) -> str:
    """The pattern, whose first part is taken literally if there is a folder of this name."""
    folder = next((parent for parent in Path(pattern).parents if parent.is_dir()), Path())
    return str(Path(escape(str(folder))) / Path(pattern).relative_to(folder))


def _files_in(folder: Path, endings: Sequence[str] | None) -> list[str]:
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and (endings is None or ending(path) in endings)
    ]


def open_file(path: str | Path) -> IO[bytes]:
    """Open a file, compressed or not, for reading bytes."""
    path = Path(path)
    return _OPENERS.get(path.suffix.lower(), partial(Path.open, mode="rb"))(path)


def read_text(path: str | Path) -> str:
    """A whole file, without its byte order mark.

    Raises:
        BadDataError: If it is missing, damaged, or not UTF-8, with the line.
    """
    return "".join(iterate_blocks(path))


def iterate_lines(path: str | Path, keep_ends: bool = False) -> Iterator[str]:
    r"""The lines of a file, without its byte order mark.

    Only `\n` and `\r\n` end a line: sentences contain other characters at which Python's `splitlines` splits.

    Args:
        path: UTF-8, compressed or not.
        keep_ends: Whether to keep the ends of lines.

    Raises:
        BadDataError: If it is missing, damaged, or not UTF-8, with the line.
    """
    for block in iterate_blocks(path):
        yield from io.StringIO(block, newline="\n") if keep_ends else split_lines(block)


def split_lines(block: str) -> list[str]:
    """The lines of one of the blocks of `iterate_blocks`, without their ends."""
    lines = block.replace("\r\n", "\n").split("\n")
    return lines[:-1] if block.endswith("\n") else lines


def read_lines(files: Sequence[str]) -> Iterator[pa.Table]:
    """The lines of files as a column `text`, many in each table."""
    for file in files:
        for block in iterate_blocks(file):
            yield pa.table({"text": pa.array(split_lines(block), pa.string())})


def iterate_blocks(path: str | Path) -> Iterator[str]:
    """Whole lines of a file, many at once, without its byte order mark.

    Raises:
        BadDataError: If it is missing, damaged, or not UTF-8, with the line.
    """
    number = 1
    try:
        with open_file(path) as file:
            while block := file.read(_BLOCK) + file.readline():
                if number == 1:
                    block = block.removeprefix(BOM_UTF8)
                try:
                    text = block.decode()
                except UnicodeDecodeError as error:
                    lines = block[: error.start].split(b"\n")
                    if len(lines) > 1:
                        yield b"\n".join([*lines[:-1], b""]).decode()
                    number += len(lines) - 1
                    raise BadDataError(
                        f"{path}, line {number}: not valid UTF-8 (byte {block[error.start]:#04x}). Save it as UTF-8."
                    ) from error
                yield text
                number += text.count("\n")
    except _DAMAGED as error:
        raise BadDataError(f"the file {str(path)!r} cannot be read: {error}") from error
