"""Sentences with a tag for each word: loading, checking, tokenizing, writing in CoNLL's format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError
from .loading import DatasetArguments
from .table_files import Table, load_named_split, read_conll, read_table


@dataclass
class TokenClassificationArguments(DatasetArguments):
    """Where the tagged sentences come from."""

    train_file: str | None = field(
        default=None,
        metadata={
            "help": "json(l) or parquet with a list of words and one of tags in each row, or CoNLL text: a word a "
            "line, its tag in the last column, empty lines between sentences."
        },
    )
    validation_file: str | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    test_file: str | None = field(default=None, metadata={"help": "As train_file, to predict; tags may be missing."})
    test_split: str = field(default="test", metadata={"help": "Name of its test split."})
    tokens_column: str = field(default="tokens", metadata={"help": "Column that holds the words."})
    tags_column: str = field(default="ner_tags", metadata={"help": "Column that holds the tags."})
    tag_names: list[str] | None = field(
        default=None, metadata={"help": "Names of tags that are numbers in the data, from 0 on."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Train on all tokens of a word instead of its first one only."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens per sequence, special ones included; the model's maximum by default."}
    )


def load_sentences(
    arguments: TokenClassificationArguments, splits: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Sentences with columns `tokens` and, but for untagged test sentences, `tags`, both lists of strings.

    Raises:
        UserError: If something is missing, or a row is invalid; the message names the row.
    """
    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    if (arguments.dataset_name is None) == (not any(files.values())):
        raise UserError("give the data as either --dataset_name, or --train_file and --validation_file.")
    sentences = {}
    for split in splits:
        if arguments.dataset_name is not None:
            table = load_named_split(arguments, split, token)
        elif files[split] is None:
            raise UserError(f"--{split}_file is missing.")
        elif Path(files[split]).suffix.lower() in (".json", ".jsonl", ".parquet"):
            table = read_table(files[split])
        else:
            table = read_conll(files[split], arguments.tokens_column, arguments.tags_column)
        sentences[split] = _check(table, arguments, tagged=split != "test")
    return sentences


def _check(table: Table, arguments: TokenClassificationArguments, tagged: bool) -> datasets.Dataset:
    tokens_column, tags_column = arguments.tokens_column, arguments.tags_column
    tagged = tagged or tags_column in table.rows[0][1]
    rows = []
    for number, row in table.rows:
        tokens = table.value(number, row, tokens_column)
        if not isinstance(tokens, list) or not tokens or not all(isinstance(word, str) for word in tokens):
            raise table.error(number, f"{tokens_column!r} must be a list of words, not {tokens!r}.")
        if not all(word.strip() for word in tokens):
            raise table.error(number, f"a word is empty: {tokens!r}.")
        rows.append({"tokens": tokens})
        if tagged:
            tags = table.value(number, row, tags_column)
            if not isinstance(tags, list) or len(tags) != len(tokens):
                raise table.error(number, f"{tags_column!r} must be a list of {len(tokens)} tags, not {tags!r}.")
            try:
                rows[-1]["tags"] = [_tag_name(tag, arguments.tag_names) for tag in tags]
            except ValueError as error:
                raise table.error(number, str(error)) from error
    return datasets.Dataset.from_list(rows)


def _tag_name(tag: str | float, names: Sequence[str] | None) -> str:
    if isinstance(tag, int) and names is not None:
        if not 0 <= tag < len(names):
            raise ValueError(f"the tag {tag} is not below {len(names)}, the number of --tag_names.")
        return names[tag]
    if names is not None and tag not in names:
        raise ValueError(f"the tag {tag!r} is not one of --tag_names {', '.join(names)}.")
    if isinstance(tag, float):
        raise ValueError(f"the tag {tag} is neither a name nor a whole number.")
    return str(tag)


def tag_names(sentences: datasets.Dataset) -> list[str]:
    """All tags, `O` first. Tags of entities have `B-` and `I-` of each type, and `E-` and `S-` if one has."""
    found = {tag for tags in sentences["tags"] for tag in tags}
    if not marks_entities(found):
        return sorted(found, key=lambda tag: (int(tag), tag) if tag.isdecimal() else (len(found), tag))
    kinds = sorted({tag.partition("-")[2] for tag in found if tag != "O"})
    prefixes = [prefix for prefix in "BIES" if prefix in "BI" or any(tag.startswith(prefix) for tag in found)]
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in prefixes)]


def marks_entities(tags: set[str]) -> bool:
    """Whether the tags are `O`, `B-...`, `I-...`, `E-...` and `S-...`. Others label words, such as parts of speech."""
    return all(tag == "O" or tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags)


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
    numbers = {name: index for index, name in enumerate(names)}

    def inside(tag: str) -> int:
        return numbers.get(f"I-{tag[2:]}", numbers[tag]) if tag.startswith("B-") else numbers[tag]

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


def write_conll(
    path: Path, sentences: datasets.Dataset, rows: datasets.Dataset, predictions: np.ndarray, names: Sequence[str]
) -> None:
    """Write word, tag if known, and predicted tag in the format of CoNLL's scorer.

    Args:
        path: The file.
        sentences: From `load_sentences`.
        rows: From `tokenize`.
        predictions: Tag numbers, shape `(rows, length)`.
        names: The tags. Words without a token, such as invisible characters, get the first one.
    """
    columns = [list(sentences["tokens"]), *([list(sentences["tags"])] if "tags" in sentences.column_names else [])]
    predicted = [[names[0]] * len(tokens) for tokens in columns[0]]
    for row, tags in zip(rows, predictions, strict=True):
        for position, word in zip(row["starts"], row["words"], strict=True):
            predicted[row["sentence"]][word] = names[tags[position]]
    with path.open("w", encoding="utf-8") as file:
        for sentence in zip(*columns, predicted, strict=True):
            file.writelines(" ".join(word) + "\n" for word in zip(*sentence, strict=True))
            file.write("\n")
