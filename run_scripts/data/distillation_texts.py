"""Texts for sentence embeddings that a teacher gives: single texts, and pairs to rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
from pyarrow import compute

from ..base.errors import UserError
from .encoding import encode
from .files import ending, find_files
from .loading import drawn, in_memory
from .sentence_pairs import SentencePairArguments
from .table_files import EmptyRowError, Row, Table, check_text, load_tables, read_table
from .text_corpus import TEXT_KINDS, load_texts, rows_with_text


#: Column with the tokens of a row's longest text, for batches of like length.
LENGTH = "length"


@dataclass
class DistillationTexts:
    """What a teacher's embeddings are learned on.

    Args:
        splits: `"texts"` with a column `text`, and `"pairs"` with `anchor`, `positive`, `negative_1` and so on; of the
            two, those that have rows.
        skipped: Rows that were left out since a text is empty.
        cut: Texts that are longer than the model reads; known after `with_lengths`.
    """

    splits: dict[str, datasets.Dataset]
    skipped: int
    cut: int = 0

    def iterate(self) -> Iterator[str]:
        """All texts."""
        for split in self.splits.values():
            names = [name for name in split.column_names if name != LENGTH]
            for batch in split.select_columns(names).iter(10_000):
                for name in names:
                    yield from batch[name]

    def spread(self, number: int) -> list[str]:
        """The texts of about so many rows, from everywhere in the data."""
        step = max(1, sum(map(len, self.splits.values())) // number)
        parts = [split[::step] for split in self.splits.values()]
        return [text for rows in parts for name, texts in rows.items() if name != LENGTH for text in texts]

    def with_lengths(self, tokenizer: Any, max_seq_length: int) -> "DistillationTexts":
        """The same with the column `length`, and the number of texts that will be cut."""
        splits, cut = {}, 0
        for name, split in self.splits.items():
            options = {"tokenizer": tokenizer, "columns": split.column_names, "limit": max_seq_length}
            split = split.map(_measure, batched=True, fn_kwargs=options, desc="counting tokens")
            cut += compute.sum(split.with_format("arrow")[:]["cut"]).as_py() or 0
            splits[name] = split.remove_columns("cut")
        return DistillationTexts(splits, self.skipped, cut)

    def describe(self) -> str:
        """The numbers, as a line for the user."""
        sizes = [f"{len(split):,} {name}" for name, split in self.splits.items()]
        return f"{' and '.join(sizes)}; {self.skipped:,} empty rows skipped, {self.cut:,} texts truncated"


def _measure(rows: dict[str, list[str]], tokenizer: Any, columns: list[str], limit: int) -> dict[str, list[int]]:
    lengths = []
    for column in columns:
        found = encode(tokenizer, zip(rows[column]), add_special_tokens=True, truncation=False, verbose=False)
        lengths.append(compute.list_value_length(found["input_ids"]))
    table = np.array(lengths)
    return {LENGTH: np.minimum(table.max(axis=0), limit).tolist(), "cut": (table > limit).sum(axis=0).tolist()}


def load_distillation_texts(arguments: SentencePairArguments, token: str | None = None) -> DistillationTexts:
    """Load the texts that a teacher embeds.

    Text files have a text in each line. Tables have pairs if they have the columns of training pairs, else texts in
    the column of `text_column_names`.
    """
    for name in ("train_val_split", "positive_labels"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} is for training pairs without a --teacher: leave it out.")
    texts, pairs, tables = [], [], []
    skipped = 0
    if arguments.train_file is not None and arguments.dataset_name is None:
        files = find_files(arguments.train_file, TEXT_KINDS)
        lines = [file for file in files if ending(file) == ".txt"]
        if lines:
            rows = load_texts(lines, "text", "train", keep_empty=True)
            texts.append(rows_with_text(rows))
            skipped += len(rows) - len(texts[-1])
        tables = [read_table(file) for file in files if ending(file) != ".txt"]
    else:
        tables = [*load_tables(arguments, ["train"], token).values()]
    for table in tables:
        rows, left_out = _rows_of(table, arguments)
        skipped += left_out
        (texts if rows.column_names == ["text"] else pairs).append(rows)
    splits = {
        name: datasets.concatenate_datasets(parts) for name, parts in (("texts", texts), ("pairs", pairs)) if parts
    }
    splits = {name: split for name, split in splits.items() if len(split)}
    if not splits:
        raise UserError("the training data hold no text: every line is empty.")
    if arguments.max_train_samples is not None:
        share = min(1.0, arguments.max_train_samples / sum(map(len, splits.values())))
        splits = {name: drawn(split, max(1, round(share * len(split)))) for name, split in splits.items()}
    return DistillationTexts(splits, skipped)


def _rows_of(table: Table, arguments: SentencePairArguments) -> tuple[datasets.Dataset, int]:
    """The pairs or texts of a table, and how many rows were left out since a text is empty."""
    columns, names = arguments.pair_columns, arguments.pair_names
    if not {*columns} <= {*table.columns}:
        if arguments.text_column not in table.columns:
            raise UserError(
                f"{table.source} has neither the columns {', '.join(map(repr, columns))} of pairs (--anchor_column, "
                f"--positive_column and --negative_columns) nor one {arguments.text_column!r} with texts "
                f"(--text_column_names); its columns are {', '.join(map(repr, table.columns))}."
            )
        columns, names = [arguments.text_column], ["text"]

    cells = table.texts(columns)
    if cells is not None:
        return in_memory(dict(zip(names, cells, strict=True))), 0

    def read(row: Row) -> list[str] | None:
        try:
            return [check_text(table.value(row, column), f"the column {column!r}") for column in columns]
        except EmptyRowError:
            return None

    found = [texts for _, texts in table.convert(read)]
    kept = [texts for texts in found if texts is not None]
    features = datasets.Features({name: datasets.Value("string") for name in names})
    rows = {name: [texts[place] for texts in kept] for place, name in enumerate(names)}
    return datasets.Dataset.from_dict(rows, features=features), len(found) - len(kept)
