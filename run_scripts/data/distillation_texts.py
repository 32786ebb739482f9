"""Texts for sentence embeddings that a teacher gives: single texts, and pairs to rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from ..base.errors import UserError
from .loading import find_files, limited, load_files
from .sentence_pairs import SentencePairArguments
from .table_files import Table, load_named_split, read_table


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

    def with_lengths(self, tokenizer: Any, max_seq_length: int) -> "DistillationTexts":
        """The same with the column `length`, and the number of texts that will be cut."""
        splits, cut = {}, 0
        for name, split in self.splits.items():
            options = {"tokenizer": tokenizer, "columns": split.column_names, "limit": max_seq_length}
            split = split.map(_measure, batched=True, fn_kwargs=options, desc="counting tokens")
            cut += int(np.sum(split.with_format("numpy")["cut"])) if len(split) else 0
            splits[name] = split.remove_columns("cut")
        return DistillationTexts(splits, self.skipped, cut)

    def describe(self) -> str:
        """The numbers, as a line for the user."""
        sizes = [f"{len(split):,} {name}" for name, split in self.splits.items()]
        return f"{' and '.join(sizes)}; {self.skipped:,} empty rows skipped, {self.cut:,} texts truncated"


def _measure(rows: dict[str, list[str]], tokenizer: Any, columns: list[str], limit: int) -> dict[str, list[int]]:
    lengths = []
    for column in columns:
        ids = tokenizer(rows[column], add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
        lengths.append([len(row) for row in ids])
    table = np.array(lengths)
    return {LENGTH: np.minimum(table.max(axis=0), limit).tolist(), "cut": (table > limit).sum(axis=0).tolist()}


def load_distillation_texts(arguments: SentencePairArguments, token: str | None = None) -> DistillationTexts:
    """Load the texts that a teacher embeds.

    Text files have a text in each line. Tables have pairs if they have the columns of training pairs, else texts in
    the column `text_column`.

    Args:
        arguments: Names the data.
        token: Hub token.

    Raises:
        UserError: If data are missing, a table has neither column, or no text is left.
    """
    if (arguments.dataset_name is None) == (arguments.train_file is None):
        raise UserError("give the training texts as one of --dataset_name and --train_file.")
    texts, pairs, tables = [], [], []
    skipped = 0
    if arguments.train_file is not None:
        files = find_files(arguments.train_file)
        lines = [file for file in files if _is_text_file(file)]
        if lines:
            rows = load_files(lines, builder="text")
            kept = rows.filter(
                lambda texts: [bool(text.strip()) for text in texts], input_columns="text", batched=True
            )
            skipped += len(rows) - len(kept)
            texts.append(kept)
        tables = [read_table(file) for file in files if not _is_text_file(file)]
    else:
        tables = [load_named_split(arguments, "train", token)]
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
        splits = {
            name: limited(split, max(1, round(share * len(split))), shuffle=True) for name, split in splits.items()
        }
    return DistillationTexts(splits, skipped)


def _is_text_file(file: str) -> bool:
    name = file.lower()
    return any(name.endswith((".txt", f".txt{ending}")) for ending in (".gz", ".bz2", ".xz", ".zst"))


def _rows_of(table: Table, arguments: SentencePairArguments) -> tuple[datasets.Dataset, int]:
    """The pairs or texts of a table, and how many rows were left out since a text is empty."""
    first, columns, names = table.rows[0][1], arguments.pair_columns, ["anchor", "positive"]
    names += [f"negative_{number}" for number in range(1, len(columns) - 1)]
    if not {*columns} <= {*first}:
        if arguments.text_column not in first:
            raise UserError(
                f"{table.source} has neither the columns {', '.join(map(repr, columns))} of pairs nor one "
                f"{arguments.text_column!r} with texts (--text_column); its columns are {', '.join(map(repr, first))}."
            )
        columns, names = [arguments.text_column], ["text"]
    kept, skipped = {name: [] for name in names}, 0
    for number, row in table.rows:
        texts = [table.value(number, row, column) for column in columns]
        texts = ["" if text is None else text for text in texts]
        for text in texts:
            if not isinstance(text, str):
                raise table.error(number, f"expected a text, got {text!r}.")
        if not all(text.strip() for text in texts):
            skipped += 1
            continue
        for name, text in zip(names, texts, strict=True):
            kept[name].append(text)
    return datasets.Dataset.from_dict(
        kept, features=datasets.Features({n: datasets.Value("string") for n in names})
    ), skipped
