"""Pairs of source and target texts: loading from four kinds of data, checking, tokenizing."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import datasets
from pyarrow import compute
from transformers import PreTrainedTokenizerBase

from ..base.errors import UserError
from ..base.ranges import check_ranges
from .loading import DatasetArguments, find_files, limited, list_lengths, load_files


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
class Seq2SeqDataArguments(DatasetArguments):
    """Where the pairs of texts come from, and how long they may be."""

    test_split: str = field(default="test", metadata={"help": "Name of its test split."})
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files or glob patterns: json(l), csv or parquet with a source and a target column, or dialogues "
            "as ParlAI writes them (.txt: persona lines, then turns with a tab before the reply); also compressed."
        },
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for --do_eval."})
    test_file: list[str] | None = field(default=None, metadata={"help": "As train_file, for --do_predict."})
    train_source_file: list[str] | None = field(
        default=None,
        metadata={"help": "Text files, one source a line, with any ending; train_target_file has the targets."},
    )
    train_target_file: list[str] | None = field(default=None, metadata={"help": "The targets, line by line."})
    validation_source_file: list[str] | None = field(default=None, metadata={"help": "The same for --do_eval."})
    validation_target_file: list[str] | None = field(default=None, metadata={"help": "Its targets."})
    test_source_file: list[str] | None = field(default=None, metadata={"help": "The same for --do_predict."})
    test_target_file: list[str] | None = field(
        default=None, metadata={"help": "Its targets; without them texts are written, not scored."}
    )
    source_column: str = field(
        default="source",
        metadata={"help": "Column of the sources, dotted if inside another: translation.en. Lists are joined."},
    )
    target_column: str = field(
        default="target",
        metadata={"help": "Column of the targets. Of a list the first is trained, and all are references."},
    )
    source_prefix: str = field(
        default="", metadata={"help": "Text put before every source, e.g. 'summarize: ' for T5."}
    )
    max_history: int | None = field(
        default=None, metadata={"help": "Utterances of a dialogue that the model reads, at most; all by default."}
    )
    max_source_length: int | None = field(
        default=None, metadata={"help": "Longer sources are cut to this many tokens; the model's maximum by default."}
    )
    max_target_length: int | None = field(default=None, metadata={"help": "The same for targets."})
    source_truncation_side: Literal["left", "right"] | None = field(
        default=None,
        metadata={"help": "End at which sources are cut; by default left in ParlAI dialogues, else right."},
    )
    skip_empty_examples: bool = field(
        default=False, metadata={"help": "Leave out training examples with an empty text, instead of refusing them."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first training examples only."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Use the first validation and test examples only."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, ("at least 1", "max_history max_source_length max_target_length"))


def load_pairs(
    arguments: Seq2SeqDataArguments, split: str, token: str | None = None
) -> tuple[datasets.Dataset, Literal["left", "right"]]:
    """Load and check the examples of one split.

    Args:
        arguments: Names the data.
        split: `"train"`, `"validation"` or `"test"`.
        token: Hub token.

    Returns:
        The columns of `FEATURES` (`target` is the first reference; test data of `--test_source_file` alone have empty
        targets and no references), and the side on which long sources are truncated.

    Raises:
        UserError: If data are missing or invalid.
    """
    limit = arguments.max_train_samples if split == "train" else arguments.max_eval_samples
    files, sources, targets = (getattr(arguments, f"{split}_{kind}file") for kind in ("", "source_", "target_"))
    given = [files is not None, sources is not None or targets is not None]
    if sum(given) != 1 and (any(given) or arguments.dataset_name is None):
        raise UserError(
            f"give the {split} data as one of --dataset_name, --{split}_file, or --{split}_source_file with "
            f"--{split}_target_file."
        )
    columns, side = ("source", "target"), "right"
    if split == "test" and sources is not None and targets is None:
        columns, rows = ("source", None), load_files(sources, builder="text").rename_column("text", "source")
    elif given[1]:
        rows = load_parallel_lines(sources, targets, split)
    elif files is not None and all(".txt" in Path(file.lower()).suffixes for file in files):
        rows, side = load_dialogues(files, arguments.max_history), "left"
    else:
        columns = arguments.source_column, arguments.target_column
        rows = load_files(files) if files is not None else arguments.load(split, token)
    skip_empty = arguments.skip_empty_examples and split == "train"
    pairs = pairs_of(limited(rows, limit), *columns, f"the {split} data", arguments.source_prefix, skip_empty)
    return pairs, arguments.source_truncation_side or side


def load_parallel_lines(sources: list[str] | None, targets: list[str] | None, name: str) -> datasets.Dataset:
    """Line i of the source files with line i of the target files, as columns `source` and `target`.

    Raises:
        UserError: If a file is missing or is not text in UTF-8, or the numbers of lines differ.
    """
    if sources is None or targets is None:
        raise UserError(f"--{name}_source_file and --{name}_target_file belong together: give both.")
    lines = {column: load_files(files, builder="text") for column, files in (("source", sources), ("target", targets))}
    if len(lines["source"]) != len(lines["target"]):
        raise UserError(
            f"{sources} have {len(lines['source']):,} lines, but {targets} have {len(lines['target']):,}: line i of "
            "one must belong to line i of the other."
        )
    return datasets.concatenate_datasets(
        [split.rename_column("text", column) for column, split in lines.items()], axis=1
    )


def load_dialogues(patterns: list[str], max_history: int | None = None) -> datasets.Dataset:
    """Dialogues in ParlAI's text format, as in PersonaChat: every reply is the target of what came before it.

    A line is a number, which starts again at 1 with each dialogue, and a persona sentence, or what one speaker says
    and, behind a tab, what the other replies. Further columns are ignored.

    Args:
        patterns: Files or glob patterns.
        max_history: Utterances to keep of those before the reply, the latest; `None` for all.

    Returns:
        Columns `source` (persona sentences and utterances, one a line) and `target`.

    Raises:
        UserError: If a file is missing, is not text in UTF-8, or has another format.
    """
    examples = []
    for file in find_files(patterns):
        persona: list[str] = []
        history: list[str] = []
        for index, line in enumerate(load_files([file], builder="text")["text"], start=1):
            found = _DIALOGUE_LINE.fullmatch(line)
            if found is None:
                raise UserError(f"{file!r}, line {index}: a dialogue's lines begin with a number, got {line!r}.")
            number, text = found.groups()
            if number == "1":
                persona, history = [], []
            if text.startswith(_PERSONA):
                persona.append(text)
                continue
            said, *reply = text.split("\t")
            if not reply:
                raise UserError(f"{file!r}, line {index}: there is no tab with a reply behind it in {line!r}.")
            history.append(said)
            examples.append({"source": "\n".join(persona + history[-(max_history or 0) :]), "target": reply[0]})
            history.append(reply[0])
    if not examples:
        raise UserError(f"there are no dialogues in {patterns}.")
    return datasets.Dataset.from_list(examples)


def pairs_of(
    rows: datasets.Dataset, source: str, target: str | None, name: str, prefix: str = "", skip_empty: bool = False
) -> datasets.Dataset:
    """The columns of `FEATURES`, made from two columns of any data set.

    Args:
        rows: The data set.
        source: Column of texts, or of lists of sentences, which are joined by spaces. `a.b` is `b` inside column `a`.
        target: Column of texts, or of lists of references; `None` if there are none.
        name: Name of the data, for messages.
        prefix: Text before every source.
        skip_empty: Whether to drop examples with an empty text.

    Raises:
        UserError: If a column is missing, or a row has no text there.
    """
    if not len(rows):
        raise UserError(f"{name} has no rows.")
    columns = {column: _split_name(rows, column, name) for column in (source, target) if column is not None}
    read = sorted({outer for outer, *_ in columns.values()})

    def convert(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
        pairs: dict[str, list] = {column: [] for column in FEATURES}
        for row, index in enumerate(indices):
            texts = {}
            for column, (outer, *inner) in columns.items():
                value = batch[outer][row]
                for key in inner:
                    value = value[key]
                texts[column] = _texts(value, f"row {index + 1} of {name}, column {column!r}")
            empty = [column for column in texts if not texts[column]]
            if empty and not skip_empty:
                raise UserError(
                    f"row {index + 1} of {name} has an empty {empty[0]!r}: remove it, or, if it is for training, give "
                    "--skip_empty_examples."
                )
            if not empty:
                references = [] if target is None else texts[target]
                pairs["source"].append(prefix + " ".join(texts[source]))
                pairs["target"].append(references[0] if references else "")
                pairs["references"].append(references)
        return pairs

    pairs = rows.select_columns(read).map(
        convert,
        batched=True,
        with_indices=True,
        remove_columns=read,
        features=FEATURES,
        desc=f"reading {name}",
    )
    if not len(pairs):
        raise UserError(f"{name} has no row with both texts.")
    return pairs


def _split_name(rows: datasets.Dataset, column: str, name: str) -> list[str]:
    """`"a.b"` as `["a", "b"]`, unless there is a column of that very name."""
    if column in rows.column_names:
        return [column]
    keys = column.split(".")
    level: Any = rows[0]
    for key in keys:
        if not isinstance(level, dict) or key not in level:
            known = f"{', '.join(map(repr, level))}" if isinstance(level, dict) else "a text"
            raise UserError(
                f"{name} has no column {column!r}: where {key!r} should be, there is {known}. Give --source_column "
                "and --target_column."
            )
        level = level[key]
    return keys


def _texts(value: Any, where: str) -> list[str]:
    """The texts of a cell, without those that are empty."""
    values = value if isinstance(value, list) else [value]
    wrong = [item for item in values if item is not None and not isinstance(item, str)]
    if wrong:
        raise UserError(f"{where} must hold a text or a list of texts, got {wrong[0]!r}.")
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
