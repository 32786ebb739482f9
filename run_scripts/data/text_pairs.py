"""Pairs of source and target texts: loading from four kinds of data, checking, tokenizing."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal

import datasets
from pyarrow import compute
from transformers import PreTrainedTokenizerBase

from ..base.errors import BadDataError, UserError
from ..base.ranges import check_ranges
from .files import ending, find_files, iterate_lines
from .loading import FileArguments, PairLengthArguments, indexed, list_lengths, load_rows
from .table_files import (
    KINDS,
    BadRowError,
    EmptyRowError,
    PlacedRow,
    Row,
    convert_rows,
    open_rows,
    print_skipped,
)


FEATURES = datasets.Features(
    {
        "source": datasets.Value("string"),
        "target": datasets.Value("string"),
        "references": datasets.List(datasets.Value("string")),
    }
)
_DIALOGUE_LINE = re.compile(r"(\d+) (.*)")
_PERSONA = ("your persona:", "partner's persona:")


@dataclass
class Seq2SeqDataArguments(PairLengthArguments, FileArguments):
    """Where the pairs of texts come from, and how long they may be."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files, glob patterns or folders: json(l), csv, tsv or parquet with a source and a target column, "
            "or dialogues as ParlAI writes them (.txt: persona lines, then turns with a tab before the reply; long "
            "ones are cut at their start); also compressed."
        },
    )
    train_source_file: list[str] | None = field(
        default=None,
        metadata={"help": "Text files, one source a line, with any ending; train_target_file has the targets."},
    )
    train_target_file: list[str] | None = field(default=None, metadata={"help": "The targets, line by line."})
    validation_source_file: list[str] | None = field(default=None, metadata={"help": "Sources for --do_eval."})
    validation_target_file: list[str] | None = field(default=None, metadata={"help": "Its targets."})
    test_source_file: list[str] | None = field(default=None, metadata={"help": "Sources for --do_predict."})
    test_target_file: list[str] | None = field(
        default=None, metadata={"help": "Its targets; without them texts are written, not scored."}
    )
    source_column: str = field(
        default="source",
        metadata={"help": "Column of the sources, dotted if inside another: translation.en. Lists are joined."},
    )
    target_column: str = field(
        default="target",
        metadata={"help": "Column of the targets. The first text of a list is trained on, all are references."},
    )
    source_prefix: str = field(
        default="", metadata={"help": "Text put before every source, e.g. 'summarize: ' for T5."}
    )
    max_history: int | None = field(
        default=None, metadata={"help": "Utterances of a dialogue that the model reads, at most; all by default."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "max_history"))


_Pairs = tuple[datasets.Dataset, Literal["left", "right"]]


def load_pairs(arguments: Seq2SeqDataArguments, splits: Sequence[str], token: str | None = None) -> dict[str, _Pairs]:
    """Load and check the examples of some splits. Training data from which rows are held out are read once.

    Returns:
        For each split the columns of `FEATURES` (`target` is the first reference; test data of `--test_source_file`
        alone have empty targets and no references) and `index`, and the side on which long sources are truncated.
    """
    sources = {split: arguments.source_of(split) for split in splits}
    found = {source: _load_source(arguments, source, token) for source in dict.fromkeys(sources.values())}
    return {split: (arguments.select(split, found[source][0]), found[source][1]) for split, source in sources.items()}


def _load_source(arguments: Seq2SeqDataArguments, split: str, token: str | None) -> _Pairs:
    """All examples of a split's own files or data set."""
    files, sources, targets = (getattr(arguments, f"{split}_{kind}file") for kind in ("", "source_", "target_"))
    given = [files is not None, sources is not None or targets is not None]
    if sum(given) != 1 and (any(given) or arguments.dataset_name is None):
        raise UserError(
            f"give the {split} data as one of --dataset_name, --{split}_file, or --{split}_source_file with "
            f"--{split}_target_file."
        )
    side: Literal["left", "right"] = "right"
    source, target = arguments.source_column, arguments.target_column
    name = f"the {split} data"
    if given[1]:
        if targets is None and split == "test":
            target = None
        elif sources is None or targets is None:
            raise UserError(f"--{split}_source_file and --{split}_target_file belong together: give both.")
        source, target = "source", target and "target"
        first = find_files(sources)
        found, read = [*first, *find_files(targets or [])], partial(parallel_lines, num_sources=len(first))
    elif files is not None and all(ending(file) == ".txt" for file in find_files(files, (".txt", *KINDS))):
        source, target, side = "source", "target", "left"
        found, read = find_files(files, (".txt",)), partial(dialogues, max_history=arguments.max_history)
    elif files is not None:
        found, read = find_files(files, KINDS), table_rows
    else:
        rows = arguments.load(split, token)
        found, read = [], partial(data_set_rows, rows=rows, name=name)
    skip_empty, can_skip = arguments.skip_empty_examples and split != "test", split != "test"
    options = {"columns": (source, target), "name": name, "prefix": arguments.source_prefix}
    options |= {"skip_empty": skip_empty, "can_skip": can_skip}
    pairs = indexed(load_rows(found, partial(read_pairs, read=read, **options), FEATURES))
    if not len(pairs):
        raise UserError(f"{name} has no rows.")
    kept = pairs.filter(bool, input_columns="source") if skip_empty else pairs
    print_skipped(name, len(pairs) - len(kept), len(pairs))
    if not len(kept):
        raise UserError(f"{name} has no row with both texts.")
    return kept, side


def table_rows(files: Sequence[str]) -> Iterator[PlacedRow]:
    """The rows of tables, one after another."""
    for file in files:
        yield from open_rows(file)


def data_set_rows(files: Sequence[str], rows: datasets.Dataset, name: str) -> Iterator[PlacedRow]:
    """The rows of a data set, for which there are no files to name."""
    batches = (zip(*batch.values(), strict=True) for batch in rows.iter(1000))
    for number, values in enumerate(chain.from_iterable(batches), start=1):
        yield name, f"row {number}", dict(zip(rows.column_names, values, strict=True))


def parallel_lines(files: Sequence[str], num_sources: int) -> Iterator[PlacedRow]:
    """Line i of the source files with line i of the target files, as columns `source` and, if any, `target`.

    Args:
        files: The source files, and behind them the target files.
        num_sources: Number of source files.

    Raises:
        BadDataError: If a file is damaged or not UTF-8, or the numbers of lines differ.
    """
    sources, targets = files[:num_sources], files[num_sources:]
    if targets:
        counts = [sum(1 for file in group for _ in iterate_lines(file)) for group in (sources, targets)]
        if counts[0] != counts[1]:
            raise BadDataError(
                f"{list(sources)} have {counts[0]:,} lines, but {list(targets)} have {counts[1]:,}: line i of one "
                "must belong to line i of the other."
            )
    other = (line for file in targets for line in iterate_lines(file))
    for file in sources:
        for number, line in enumerate(iterate_lines(file), start=1):
            yield file, f"line {number}", {"source": line, **({"target": next(other)} if targets else {})}


def dialogues(files: Sequence[str], max_history: int | None = None) -> Iterator[PlacedRow]:
    """Dialogues in ParlAI's text format, as in PersonaChat: every reply is the target of what came before it.

    A line is a number, which starts again at 1 with each dialogue, and a persona sentence, or what one speaker says
    and, behind a tab, what the other replies. Further columns are ignored.

    Args:
        files: Names of files.
        max_history: Utterances to keep of those before the reply, the latest; `None` for all.

    Yields:
        Columns `source` (persona sentences and utterances, one a line) and `target`, or what is wrong with a line.

    Raises:
        BadDataError: If a file is damaged or not UTF-8.
    """
    for file in files:
        persona: list[str] = []
        history: list[str] = []
        for index, line in enumerate(iterate_lines(file), start=1):
            found = _DIALOGUE_LINE.fullmatch(line)
            if found is None:
                yield file, f"line {index}", BadRowError(f"a dialogue's lines begin with a number, got {line!r}.")
                continue
            number, text = found.groups()
            if number == "1":
                persona, history = [], []
            if text.startswith(_PERSONA):
                persona.append(text)
                continue
            said, *reply = text.split("\t")
            if not reply:
                yield file, f"line {index}", BadRowError(f"there is no tab with a reply behind it in {line!r}.")
                continue
            history.append(said)
            source = "\n".join(persona + history[-(max_history or 0) :])
            yield file, f"line {index}", {"source": source, "target": reply[0]}
            history.append(reply[0])


def read_pairs(
    files: Sequence[str],
    read: Callable[[Sequence[str]], Iterator[PlacedRow]],
    columns: tuple[str, str | None],
    name: str,
    prefix: str = "",
    skip_empty: bool = False,
    can_skip: bool = True,
) -> Iterator[dict[str, Any]]:
    """Pairs of texts: the columns of `FEATURES`. Rows that are left out become pairs of empty texts.

    Args:
        files: Names of files.
        read: Reads their rows.
        columns: Column of sources: texts, or lists of sentences, which are joined by spaces. Column of targets: texts,
            or lists of references; `None` if there are none. `a.b` is `b` inside column `a`.
        name: Name of the data, for messages.
        prefix: Text before every source.
        skip_empty: Whether to leave out rows with an empty text.
        can_skip: Whether an error may advise to do so.

    Raises:
        BadDataError: If something is wrong with the files or rows, or a column is missing.
    """
    missing = {column: "" for column in columns if column is not None}

    def pair(row: Row) -> dict[str, Any]:
        texts = {column: _texts(row, column, missing) for column in dict.fromkeys(columns) if column is not None}
        empty = [column for column, found in texts.items() if not found]
        if empty and skip_empty:
            return {"source": "", "target": "", "references": []}
        if empty:
            raise EmptyRowError(f"{empty[0]!r} is empty.")
        references = [] if columns[1] is None else texts[columns[1]]
        source = prefix + " ".join(texts[columns[0]])
        return {"source": source, "target": references[0] if references else "", "references": references}

    def rows() -> Iterator[PlacedRow]:
        yield from read(files)
        for column, found in missing.items():
            if found:
                raise BadDataError(
                    f"{name} has no column {column!r}: {found}. Give --source_column and --target_column."
                )

    for *_, item in convert_rows(name, rows(), pair, can_skip=can_skip):
        yield item


def _texts(row: Row, column: str, missing: dict[str, str]) -> list[str]:
    """The texts of a cell, without those that are empty.

    `missing` keeps the columns that no row had so far, and what the first one had in their place.
    """
    value: Any = row
    for key in [column] if column in row else column.split("."):
        if value is None:
            break
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            if column in missing:
                missing[column] = missing[column] or f"where {key!r} should be, there is {known}"
            if not isinstance(value, dict) and value != "":
                raise BadRowError(
                    f"the column {column!r} must hold a text: where {key!r} should be, there is {known}."
                )
            value = None
            break
        value = value[key]
    else:
        missing.pop(column, None)
    values = value if isinstance(value, list) else [value]
    wrong = [item for item in values if item is not None and not isinstance(item, str)]
    if wrong:
        raise BadRowError(f"the column {column!r} must hold a text or a list of texts, got {wrong[0]!r}.")
    return [item.strip() for item in values if item and item.strip()]


def iterate_pair_texts(pairs: datasets.Dataset) -> Iterator[str]:
    """Sources and targets in turn: the training texts of a new tokenizer."""
    for row in pairs.select_columns(["source", "target"]):
        yield from row.values()


def tokenize_pairs(
    pairs: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int,
    max_target_length: int,
    truncation_side: Literal["left", "right"] = "right",
    num_workers: int | None = None,
) -> datasets.Dataset:
    """Rows with `input_ids` and `labels`, neither padded.

    Args:
        pairs: From `load_pairs`.
        tokenizer: Adds its own special tokens to both.
        max_source_length: Most tokens of a source, special ones included.
        max_target_length: Most tokens of a target.
        truncation_side: Side on which long sources are truncated; targets are truncated on the right.
        num_workers: Processes.
    """

    def encode(batch: dict[str, list]) -> dict[str, list]:
        options = {"truncation": True, "return_attention_mask": False, "return_token_type_ids": False}
        usual_side = tokenizer.truncation_side
        tokenizer.truncation_side = truncation_side
        sources = tokenizer(batch["source"], max_length=max_source_length, **options)
        tokenizer.truncation_side = usual_side
        targets = tokenizer(text_target=batch["target"], max_length=max_target_length, **options)
        return {"input_ids": sources["input_ids"], "labels": targets["input_ids"]}

    return pairs.map(encode, batched=True, remove_columns=pairs.column_names, num_proc=num_workers, desc="tokenizing")


def rows_of_length(rows: datasets.Dataset, column: str, length: int) -> int:
    """Number of rows whose list in this column has exactly this length."""
    return compute.sum(compute.equal(list_lengths(rows, column), length)).as_py()
