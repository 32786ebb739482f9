"""What training data are recognised by when an unfinished run goes on: a hash of their content."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from pyarrow import compute

from ..base.trained_model import file_fingerprint
from .loading import iterate_rows
from .text_stream import TextStream


#: Rows that are hashed together.
_BATCH = 10_000
#: Of a stream, whose files may be on the Hub, so many texts are hashed.
_FIRST_TEXTS = 1000
#: Of images in a column, so many are read, evenly spread: a run reads all of them, but not before it starts.
_IMAGES = 10_000


def fingerprint(rows: Any) -> str | None:
    """A hash of training data, which does not depend on where their files are.

    Lists of floating-point numbers, such as embeddings, are left out, since another machine may compute others. Of
    more than 10,000 binary values, such as images, the contents of 10,000 count, the lengths of all, and the names in
    their paths.

    Args:
        rows: A `datasets.Dataset`, several of them by name, or a stream of texts (`TextStream` or an
            `IterableDataset`), of which local files are read, and the first 1000 texts. Rows that were left out of a
            `Dataset` count too: which they are depends on all.

    Returns:
        32 hexadecimal digits; `None` for data of another kind.
    """
    digest = hashlib.blake2b(digest_size=16)
    stream = rows.documents if isinstance(rows, TextStream) else rows
    if isinstance(stream, datasets.IterableDataset):
        for file in stream.info.download_checksums or ():
            digest.update(file_fingerprint(file).encode())
        for row in islice(iterate_rows(stream, "train"), _FIRST_TEXTS):
            digest.update(row["text"].encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()
    parts = rows if isinstance(rows, Mapping) else {"": rows}
    for name, part in parts.items():
        if not isinstance(part, datasets.Dataset):
            return None
        digest.update(f"{name}\n".encode())
        # Not `part.iter`: to gather rows in another order takes a hundred times as long.
        for table in (part.data, part._indices):
            count = 0 if table is None else table.num_rows
            for start in range(0, count, _BATCH):
                for column, values in _columns(table.slice(start, _BATCH), 1 + count // _IMAGES):
                    digest.update(f"{column}\n".encode())
                    digest.update(_as_bytes(values))
    return digest.hexdigest()


def _columns(table: datasets.table.Table, step: int) -> Iterator[tuple[str, pa.Array]]:
    """The columns that count, in alphabetical order; those of structures by themselves.

    Args:
        table: The rows.
        step: Of binary values, and of files that a structure names instead of holding them, one in so many is read.
    """
    table = table.table  # of `datasets`' wrapper
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    for name in sorted(table.column_names):
        values, kind = table[name], table.schema.field(name).type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            for start in range(0, len(values), step):  # joined, images may have more bytes than an array
                yield name, pa.array([values[start].as_py()], kind)
            values = compute.binary_length(values)
        values = values.combine_chunks()
        if name.rpartition(".")[2] == "path" and pa.types.is_string(kind):
            if (held := name.removesuffix("path") + "bytes") in table.column_names:
                named = values.filter(compute.is_null(table[held]).combine_chunks())[::step]
                yield name, pa.array([_content(path) for path in named.to_pylist()], pa.string())
            values = compute.replace_substring_regex(values, r"^.*[/\\]", "")
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if kind == values.type or not pa.types.is_floating(kind):
            yield name, values


def _content(path: str | None) -> str | None:
    return file_fingerprint(path) if path is not None and Path(path).is_file() else None


def _as_bytes(values: pa.Array) -> pa.Buffer:
    """The values as Arrow writes them, whatever array they are a part of."""
    sink, schema = pa.BufferOutputStream(), pa.schema([("values", values.type)])
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([values], schema=schema))
    return sink.getvalue()
