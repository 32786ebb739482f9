"""Sentences with a tag for each word: loading, checking, tokenizing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError
from .conll import CONLL_KINDS, IGNORED_TAG, marks_entities, read_conll
from .files import ending, find_files
from .loading import INDEX, FileArguments, LengthArguments, TextColumnArguments
from .table_files import (
    BadRowError,
    EmptyRowError,
    PlacedRow,
    Row,
    Table,
    is_missing,
    join_tables,
    load_tables,
    read_list,
    read_table,
)


_TABLES = (".json", ".jsonl", ".parquet", ".csv")


@dataclass
class TokenClassificationArguments(LengthArguments, TextColumnArguments, FileArguments):
    """Where the tagged sentences come from."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files, glob patterns or folders: json(l), parquet or csv with a list of words and one of tags in "
            "each row (in csv as JSON, or words with spaces between them); with --sentence_column a word a row; or "
            "CoNLL text: a word a line, its tag in the last column, empty lines between sentences; also compressed. "
            "The tag -100 is ignored."
        },
    )
    text_column_names: list[str] = field(
        default_factory=lambda: ["tokens"], metadata={"help": "Column that holds the words."}
    )
    label_column_name: str = field(default="ner_tags", metadata={"help": "Column that holds the tags."})
    sentence_column: str | None = field(
        default=None,
        metadata={
            "help": "For tables with a word a row: column with the sentence's number or name. It may be empty in all "
            "rows of a sentence but the first."
        },
    )
    tag_names: list[str] | None = field(
        default=None, metadata={"help": "Names of tags that are numbers in the data, from 0 on."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Train on all tokens of a word instead of its first one only."}
    )


def load_sentences(
    arguments: TokenClassificationArguments, splits: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Sentences with columns `index`, `tokens` and, unless test sentences have none, `tags`, both lists of strings."""
    found = {}
    for source, table in load_tables(arguments, splits, token, partial(_read_files, arguments=arguments)).items():
        table = table if arguments.sentence_column is None else _by_sentence(table, arguments)
        found[source] = _check(table, arguments, tagged=source != "test")
    return {split: arguments.select(split, found[arguments.source_of(split)]) for split in splits}


def _read_files(patterns: Sequence[str], arguments: TokenClassificationArguments) -> Table:
    if arguments.sentence_column is not None:
        return read_table(patterns)
    files = find_files(patterns, (*_TABLES, *CONLL_KINDS))
    return join_tables([_read_file(file, arguments) for file in files])


def _read_file(file: str, arguments: TokenClassificationArguments) -> Table:
    if ending(file) not in _TABLES:
        return read_conll(file, arguments.text_column, arguments.label_column_name)
    table = read_table(file)
    if ending(file) != ".csv":
        return table
    columns = (arguments.text_column, arguments.label_column_name)
    return table.expand(
        lambda row: [{name: _words_of(cell) if name in columns else cell for name, cell in row.items()}]
    )


def _words_of(cell: str) -> Any:
    """The list in a cell of csv: as JSON or Python write it, or words with spaces between them."""
    found = read_list(cell)
    return found if isinstance(found, list) or is_missing(cell) else re.split("[ \t]+", cell.strip(" \t"))


def _by_sentence(table: Table, arguments: TokenClassificationArguments) -> Table:
    """The sentences of a table with a word a row, each under the number of its first row."""
    sentences: list[PlacedRow] = []
    last, seen, cells_of = None, set(), None
    columns = [arguments.text_column]
    if arguments.label_column_name in table.columns:
        columns.append(arguments.label_column_name)
    for source, place, row in table.placed:
        if isinstance(row, BadRowError):
            sentences.append((source, place, row))
            continue
        key = table.value(row, arguments.sentence_column or "")
        if is_missing(key) and cells_of is None:
            problem = BadRowError(f"the first row has an empty {arguments.sentence_column!r}.")
            sentences.append((source, place, problem))
        elif not is_missing(key) and key != last:
            if key in seen:
                problem = BadRowError(f"the rows of the sentence {key!r} are apart: sort them, so that they follow.")
                sentences.append((source, place, problem))
            seen.add(key)
            last, cells_of = key, {column: [] for column in columns}
            sentences.append((source, place, cells_of))
        for column in columns if cells_of is not None else ():
            cells_of[column].append(table.value(row, column))
    return replace(table, placed=sentences)


def _check(table: Table, arguments: TokenClassificationArguments, tagged: bool) -> datasets.Dataset:
    tokens_column, tags_column = arguments.text_column, arguments.label_column_name
    can_skip = tagged
    tagged = tagged or any(tags_column in row for row in islice(table.readable, 1))

    def read(row: Row) -> Row:
        tokens = table.value(row, tokens_column)
        if is_missing(tokens) or tokens == []:
            raise EmptyRowError("the sentence is empty.")
        if not isinstance(tokens, list) or not all(isinstance(word, str) for word in tokens):
            raise BadRowError(f"{tokens_column!r} must be a list of words, not {tokens!r}.")
        if not all(word.strip(" \t\r\n") for word in tokens):
            raise EmptyRowError(f"a word is empty: {tokens!r}.")
        if not tagged:
            return {"tokens": tokens}
        tags = table.value(row, tags_column)
        if is_missing(tags):
            raise EmptyRowError("the tags are missing.")
        if not isinstance(tags, list) or len(tags) != len(tokens):
            raise BadRowError(f"{tags_column!r} must be a list of {len(tokens)} tags, not {tags!r}.")
        return {"tokens": tokens, "tags": [_tag_name(tag, arguments.tag_names) for tag in tags]}

    found = table.convert(read, arguments.skip_empty_examples and can_skip, can_skip)
    return datasets.Dataset.from_list([{INDEX: place, **row} for place, row in found])


def _tag_name(tag: Any, names: Sequence[str] | None) -> str:
    if is_missing(tag):
        raise EmptyRowError("a tag is missing.")
    if isinstance(tag, bool | float | list | dict):
        raise BadRowError(f"the tag {tag} is neither a name nor a whole number.")
    name = str(tag).strip()
    if name == IGNORED_TAG or names is None:
        return name
    if isinstance(tag, int):
        if not 0 <= tag < len(names):
            raise BadRowError(f"the tag {tag} is not below {len(names)}, the number of --tag_names.")
        return names[tag]
    if name not in names:
        raise BadRowError(f"the tag {tag!r} is not one of --tag_names {', '.join(names)}.")
    return name


def found_tags(sentences: datasets.Dataset) -> set[str]:
    """All tags of tagged sentences, except ignored ones."""
    if "tags" not in sentences.column_names:
        return set()
    return {tag for tags in sentences["tags"] for tag in tags} - {IGNORED_TAG}


def tag_names(sentences: datasets.Dataset) -> list[str]:
    """All tags, `O` first. Tags of entities have `B-` and `I-` of each type, and the others of their scheme."""
    found = found_tags(sentences)
    if not found:
        raise UserError(f"the training data have no tag but {IGNORED_TAG}, which is ignored.")
    if not marks_entities(found):
        if found & {"O", "o"}:
            shown = ", ".join(sorted(found)[:5])
            print(
                f"the tags ({shown}, ...) do not mark entities by B- and I- before their types: each word counts for "
                "itself, and accuracy alone is reported",
                flush=True,
            )
        return sorted(found, key=lambda tag: (int(tag), tag) if tag.isdecimal() else (len(found), tag))
    entities = found - {"O", "o"}
    used = {tag[0] for tag in entities}
    inner = "M" if used & {"M", "m"} and not used & {"I", "i"} else "I"
    wanted = {"B", inner, *(prefix.upper() for prefix in used)}
    as_written = str.lower if used and all(map(str.islower, used)) else str.upper
    kinds = sorted({tag[2:] for tag in entities})
    names = [f"{as_written(prefix)}-{kind}" for kind in kinds for prefix in "BIMELSU" if prefix in wanted]
    return ["o" if "o" in found and "O" not in found else "O", *names, *sorted(entities - {*names})]


def tokenize(
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    names: Sequence[str],
    label_all_tokens: bool = False,
) -> datasets.Dataset:
    """Tokenize sentences; those that are too long become several sequences.

    Args:
        sentences: From `load_sentences`, with tags in `names`.
        tokenizer: A fast tokenizer.
        max_seq_length: Tokens per sequence, special tokens included.
        names: The tags in the order of their indices.
        label_all_tokens: Whether to label all tokens of a word instead of the first only. After `B-` they get the
            `I-` of the same type.

    Returns:
        The tokenizer's columns, `labels` if there are tags, `sentence` (its index), and `words` (their indices), whose
        first tokens are at the positions `starts`.
    """
    numbers = {name: index for index, name in enumerate(names)} | {IGNORED_TAG: IGNORED_LABEL}

    def inside(tag: str) -> int:
        inner = {"B-": ("I-", "M-"), "b-": ("i-", "m-")}.get(tag[:2], ())
        return next((numbers[first + tag[2:]] for first in inner if first + tag[2:] in numbers), numbers[tag])

    def encode(rows: dict[str, list], indices: list[int]) -> dict[str, list]:
        encoded = tokenizer(
            rows["tokens"],
            is_split_into_words=True,
            truncation=True,
            max_length=max_seq_length,
            return_overflowing_tokens=True,
        )
        samples = encoded.pop("overflow_to_sample_mapping")
        columns = {**encoded, "sentence": [], "words": [], "starts": []}
        if "tags" in rows:
            columns["labels"] = []
        seen = (None, None)
        for piece, sample in enumerate(samples):
            starts, labels = [], []
            for position, word in enumerate(encoded.word_ids(piece)):
                labels.append(IGNORED_LABEL)
                if word is None:
                    continue
                if seen != (sample, word):
                    starts.append((position, word))
                    labels[-1] = numbers[rows["tags"][sample][word]] if "tags" in rows else IGNORED_LABEL
                elif label_all_tokens:
                    labels[-1] = inside(rows["tags"][sample][word])
                seen = (sample, word)
            columns["sentence"].append(indices[sample])
            columns["starts"].append([position for position, _ in starts])
            columns["words"].append([word for _, word in starts])
            if "tags" in rows:
                columns["labels"].append(labels)
        return columns

    return sentences.map(
        encode, batched=True, with_indices=True, remove_columns=sentences.column_names, desc="Tokenizing"
    )


def predicted_tags(
    sentences: datasets.Dataset, rows: datasets.Dataset, predictions: np.ndarray, names: Sequence[str]
) -> list[list[str]]:
    """The predicted tag of each word of each sentence.

    Args:
        sentences: From `load_sentences`.
        rows: From `tokenize`.
        predictions: Tag numbers, shape `(rows, length)`.
        names: The tags. Words without a token, such as invisible characters, get the first one.
    """
    predicted = [[names[0]] * len(tokens) for tokens in sentences["tokens"]]
    for row, tags in zip(rows, predictions, strict=True):
        for position, word in zip(row["starts"], row["words"], strict=True):
            predicted[row["sentence"]][word] = names[tags[position]]
    return predicted
