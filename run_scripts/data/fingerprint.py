"""What training data are recognised by when an unfinished run goes on: a hash of their content."""

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import datasets
import pyarrow as pa
from pyarrow import compute

from .loading import iterate_rows
from .text_stream import TextStream


#: Rows that are hashed together.
_BATCH = 10_000
#: Of a stream, which has no end, so many texts are hashed.
_FIRST_TEXTS = 1000


def fingerprint(rows: Any) -> str | None:
    """A hash of training data, which does not depend on where their files are.

    Lists of floating-point numbers, such as embeddings, are left out, since another machine may compute others. Of
    binary values, such as images, the lengths count, and of their paths the names.

    Args:
        rows: A `datasets.Dataset`, several of them by name, or a `TextStream`, of which the first 1000 texts are read.
            Rows that were left out of a `Dataset` count too: which they are depends on all.

    Returns:
        32 hexadecimal digits; `None` for data of another kind.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(rows, TextStream):
        for row in islice(iterate_rows(rows.documents, "train"), _FIRST_TEXTS):
            digest.update(row["text"].encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()
    parts = rows if isinstance(rows, Mapping) else {"": rows}
    for name, part in parts.items():
        if not isinstance(part, datasets.Dataset):
            return None
        digest.update(f"{name}\n".encode())
        # Not `part.iter`: to gather rows in another order takes a hundred times as long.
        for table in (part.data, part._indices):
            for start in range(0, 0 if table is None else table.num_rows, _BATCH):
                for column, values in _columns(table.slice(start, _BATCH)):
                    digest.update(f"{column}\n".encode())
                    digest.update(_as_bytes(values))
    return digest.hexdigest()


def _columns(table: datasets.table.Table) -> list[tuple[str, pa.Array]]:
    """The columns that count, in alphabetical order; those of structures by themselves."""
    table = table.table  # of `datasets`' wrapper
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    columns = []
    for name in sorted(table.column_names):
        values = table[name].combine_chunks()
        kind = values.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            values = compute.binary_length(values)
        elif name.rpartition(".")[2] == "path" and pa.types.is_string(kind):
            values = compute.replace_substring_regex(values, r"^.*[/\\]", "")
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if kind == values.type or not pa.types.is_floating(kind):
            columns.append((name, values))
    return columns


def _as_bytes(values: pa.Array) -> pa.Buffer:
    """The values as Arrow writes them, whatever array they are a part of."""
    sink, schema = pa.BufferOutputStream(), pa.schema([("values", values.type)])
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([values], schema=schema))
    return sink.getvalue()
