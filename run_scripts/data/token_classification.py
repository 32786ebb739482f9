"""Sentences with a tag for each word: loading, checking, tokenizing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from pyarrow import compute
from transformers import PreTrainedTokenizerBase

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError
from .conll import CONLL_KINDS, IGNORED_TAG, marks_entities, read_conll
from .encoding import encode_words
from .files import ending, find_files
from .loading import INDEX, FileArguments, LengthArguments, TextColumnArguments, in_memory, temporary_file
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
        found[source] = check_sentences(table, arguments, tagged=source != "test")
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


def check_sentences(table: Table, arguments: TokenClassificationArguments, tagged: bool) -> datasets.Dataset:
    """The sentences of a table with columns `index`, `tokens` and `tags`."""
    tokens_column, tags_column = arguments.text_column, arguments.label_column_name
    can_skip = tagged
    tagged = tagged or any(tags_column in row for row in islice(table.readable, 1))
    sentences = _by_columns(table, arguments, tagged)
    if sentences is not None:
        return sentences

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
        return {"tokens": tokens, "tags": list(map(_tag_name, tags))}

    found = table.convert(read, arguments.skip_empty_examples and can_skip, can_skip)
    return datasets.Dataset.from_list([{INDEX: place, **row} for place, row in found])


def _by_columns(table: Table, arguments: TokenClassificationArguments, tagged: bool) -> datasets.Dataset | None:
    """The sentences of rows that are kept by columns, without a look at each; `None` if one may be bad."""
    tokens = table.cells(arguments.text_column)
    if tokens is None or tokens.type != pa.list_(pa.string()):
        return None
    lengths, words = compute.list_value_length(tokens), compute.list_flatten(tokens).unique()
    is_word = compute.not_equal(compute.utf8_trim(words, " \t\r\n"), "")
    if words.null_count or not compute.min(lengths).as_py() or not compute.all(is_word).as_py():
        return None
    columns = {INDEX: np.arange(len(tokens)), "tokens": tokens}
    if tagged:
        tags = table.cells(arguments.label_column_name)
        if tags is None or not pa.types.is_list(tags.type) or compute.list_value_length(tags) != lengths:
            return None
        different = compute.list_flatten(tags).unique()
        try:
            names = pa.array(map(_tag_name, different.to_pylist()), pa.string())
        except BadRowError:
            return None

        def named(part: pa.ListArray) -> pa.ListArray:
            ends = np.cumsum([0, *part.value_lengths().to_numpy()], dtype=np.int32)
            return pa.ListArray.from_arrays(ends, names.take(compute.index_in(part.flatten(), different)))

        columns["tags"] = tags if names.equals(different) else pa.chunked_array(map(named, tags.chunks))
    return in_memory(columns)


def _tag_name(tag: Any) -> str:
    if is_missing(tag):
        raise EmptyRowError("a tag is missing.")
    if isinstance(tag, bool | float | list | dict):
        raise BadRowError(f"the tag {tag} is neither a name nor a whole number.")
    return str(tag).strip()


def found_tags(sentences: datasets.Dataset) -> set[str]:
    """All tags of tagged sentences, except ignored ones."""
    if "tags" not in sentences.column_names:
        return set()
    tags = sentences.with_format("arrow")[:]["tags"]
    return {*compute.list_flatten(tags).unique().to_pylist()} - {IGNORED_TAG}


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
        inner = {"B-": ("I-", "M-"), "b-": ("i-", "m-")}.get(tag[:2], ()) if label_all_tokens else None
        if inner is None:
            return IGNORED_LABEL
        return next((numbers[first + tag[2:]] for first in inner if first + tag[2:] in numbers), numbers[tag])

    first_labels, inner_labels = np.array(list(numbers.values())), np.array(list(map(inside, numbers)))

    def encode(rows: pa.Table, indices: list[int]) -> pa.Table:
        columns, samples, words = encode_words(tokenizer, rows["tokens"].combine_chunks(), max_seq_length)
        ends = columns["input_ids"].offsets.to_numpy()
        pieces = np.repeat(np.arange(len(samples)), np.diff(ends))  # of each token, as what follows
        of_words = np.flatnonzero(words >= 0)
        place = np.stack([samples[pieces], words])[:, of_words]
        # A word that goes on in the next piece starts in the first.
        is_first = np.diff(place, axis=1, prepend=-1).any(axis=0)
        starts = of_words[is_first]
        start_ends = np.searchsorted(starts, ends).astype(np.int32)
        columns |= {
            "sentence": pa.array(np.asarray(indices)[samples]),
            "words": _int32_lists(start_ends, words[starts]),
            "starts": _int32_lists(start_ends, starts - ends[pieces[starts]]),
        }
        if "tags" in rows.column_names:
            tags = rows["tags"].combine_chunks()
            codes = compute.index_in(tags.flatten(), pa.array(numbers)).to_numpy()
            found = codes[(tags.offsets.to_numpy() - tags.offsets[0].as_py())[place[0]] + place[1]]
            labels = np.full(len(words), IGNORED_LABEL)
            labels[of_words] = np.where(is_first, first_labels[found], inner_labels[found])
            columns["labels"] = _int32_lists(ends, labels)
        return pa.table(columns)

    rows = sentences.with_format("arrow").map(
        encode,
        batched=True,
        with_indices=True,
        remove_columns=sentences.column_names,
        cache_file_name=temporary_file(),
        desc="Tokenizing",
    )
    return rows.with_format(None)


def _int32_lists(ends: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(ends, pa.array(values, pa.int32()))


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
