"""Sets that sentence embeddings are evaluated on: folders whose kind is recognised by their files and columns."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..base.errors import UserError
from ..data.files import ending
from ..data.sentence_pairs import SentencePairArguments, load_sentence_pairs
from ..data.table_files import KINDS as TABLES
from ..data.table_files import (
    BadRowError,
    EmptyRowError,
    Row,
    Table,
    check_text,
    class_name,
    is_missing,
    read_binary,
    read_table,
)
from ..training.classification import unseen_labels


Item = TypeVar("Item")

#: Kind of a set -> its main figure, named as in MTEB.
METRICS = {
    "similarity": "spearman_cosine",
    "pair_classification": "ap",
    "reranking": "map",
    "retrieval": "ndcg@10",
    "classification": "accuracy",
    "clustering": "v_measure",
}

#: Columns of the evaluated file -> kind. The first that the file has count.
COLUMNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("score", "sentence1", "sentence2"), "similarity"),
    (("label", "sentence1", "sentence2"), "pair_classification"),
    (("label", "query", "document"), "reranking"),
    (("label", "text"), "classification"),
    (("label", "title", "description"), "classification"),
)

#: Columns of held-out pairs: each first text is a query among all second texts.
PAIRS = ("anchor", "positive")

#: Value of `--split` -> names of its files, without ending.
SPLITS = {"test": ("test",), "dev": ("dev", "validation")}

#: Folders whose names begin so have texts to cluster: their files look like those of a classification.
CLUSTERING = "cluster"

FOLDS = 10

#: A score of qrels, as a whole number or as programs for tables write one.
_WHOLE = re.compile(r"(-?\d+)(?:\.0*)?")


@dataclass(frozen=True)
class EmbeddingTask:
    """A set to evaluate on.

    Args:
        name: Name of its folder.
        split: A key of `SPLITS`.
        kind: A key of `METRICS`.
        rows: Number of rows that are evaluated: pairs, queries or texts.
        data: The content. Similarity: lists `sentence1`, `sentence2`, `score`; pair classification: with `label` (0 or
            1) for `score`. Reranking: `samples`, each with a `query`, and lists `positive` and `negative`. Retrieval:
            `queries` and `corpus`, id -> text, `relevant`, id of a query -> ids of texts, and `own`, the ids of
            queries that are documents of the corpus. Classification and clustering: `texts`, `labels`; with a
            training part also `train_texts`, `train_labels`.
        note: What was left out, if anything.
    """

    name: str
    split: str
    kind: str
    rows: int
    data: dict[str, Any] = field(repr=False)
    note: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content: 32 hexadecimal digits."""
        text = json.dumps(self.data, sort_keys=True, default=sorted)  # sets are written in order
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def title(self) -> str:
        """The name, followed by the split if it is not the test split."""
        return self.name if self.split == "test" else f"{self.name} ({self.split})"


def load_tasks(
    folders: Sequence[str], wanted: Sequence[str] | None = None, split: str = "test"
) -> list[EmbeddingTask]:
    """Read the sets in folders, each a set, a folder of sets or a file, in the order of `METRICS`.

    A file is evaluated whatever its name: pairs in the columns `PAIRS`, or the columns of a kind. `wanted` are names
    of sets or kinds. Test files that are missing or hide their labels give way to "dev".
    """
    found = {}
    for path in (path for folder in folders for path in _set_folders(folder)):
        name = _name(path)
        if found.setdefault(name, path) != path:
            raise UserError(
                f"--data_dir: {str(found[name])!r} and {str(path)!r} have the same name: give one of them."
            )
    known = [*found, *METRICS]
    for name in wanted or ():
        if name not in known:
            raise UserError(
                f"--tasks {name!r} is neither a set in --data_dir nor a kind; there are {', '.join(known)}."
            )
    by_kind = wanted is None or any(name in METRICS for name in wanted)
    tasks = [_load(path, split) for name, path in found.items() if by_kind or name in wanted]
    chosen = [
        task for task in tasks if task is not None and (wanted is None or task.name in wanted or task.kind in wanted)
    ]
    if not chosen:
        raise UserError(f"--data_dir {' '.join(folders)} has no {split} split of {', '.join(wanted or ['any set'])}.")
    return sorted(chosen, key=lambda task: [*METRICS].index(task.kind))


def _name(path: Path) -> str:
    """The name of the set in a folder or file."""
    return path.name.partition(".")[0] if path.is_file() else path.name


def _set_folders(folder: str) -> list[Path]:
    """The folder itself if it has tables, else its folders. A file stands for itself."""
    path = Path(folder).expanduser().resolve()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"--data_dir: there is no folder or file {folder!r}.")
    if any(entry.is_file() and ending(entry) in TABLES for entry in path.iterdir()):
        return [path]
    inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not inner:
        raise UserError(f"--data_dir: the folder {folder!r} has neither tables nor folders with tables.")
    return inner


def _files(folder: Path) -> dict[str, Path]:
    """The tables of a folder by their names up to the first dot."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and ending(path) in TABLES:
            stem = path.name.partition(".")[0]
            if stem in files:
                raise UserError(f"{folder} has both {files[stem].name} and {path.name}: keep one of them.")
            files[stem] = path
    return files


def _load(folder: Path, split: str) -> EmbeddingTask | None:
    """The set in a folder or file; `None`, with a message, if a folder has no such split."""
    if folder.is_file():
        return _of_file(folder)
    files = _files(folder)
    if {"corpus", "queries"} <= files.keys():
        return _retrieval(folder, files, split)
    if folder.name.startswith(CLUSTERING):
        return _without_dev(folder) if split == "dev" else _clustering(folder, files)
    places = [(name, stem) for name in dict.fromkeys((split, "dev")) for stem in SPLITS[name]]
    for name, stem in [*places, *([("test", "all")] if split == "test" else [])]:
        task = _of_split(folder, files, stem, name) if stem in files else None
        if task is not None:
            return task
    if split == "dev" and any(stem in files and _kind(read_table(files[stem])) for stem in ("test", "all")):
        return _without_dev(folder)
    raise UserError(
        f"the folder {str(folder)!r} has neither corpus, queries and qrels nor a file test, dev, validation or all "
        f"with the columns {', or '.join(', '.join(columns) for columns, _ in COLUMNS)}: name the sets to evaluate "
        "with --tasks, or see the formats in the guide on sentence embeddings."
    )


def _of_file(file: Path) -> EmbeddingTask:
    """The set in a file: held-out pairs as `run_sentence_embeddings` reads them, or the columns of a kind."""
    table, name = read_table(file), _name(file)
    if not {*PAIRS} <= {*table.columns}:
        task = _of_split(file, {"all": file}, "all", "test")
        if task is None:
            known = ", or ".join(", ".join(columns) for columns in (PAIRS, *(names for names, _ in COLUMNS)))
            raise UserError(f"--data_dir: {str(file)!r} needs the columns {known}: name a file that has them.")
        return replace(task, name=name)
    pairs = load_sentence_pairs(SentencePairArguments(test_file=[str(file)]), ["test"])["test"]
    relevant: dict[str, set[str]] = {}
    for row in pairs:
        relevant.setdefault(row["anchor"], set()).add(row["positive"])
    data = {"queries": {text: text for text in relevant}, "corpus": {text: text for text in pairs["positive"]}}
    own = {text for text in relevant if text not in relevant[text]}
    return EmbeddingTask(name, "test", "retrieval", len(relevant), data | {"relevant": relevant, "own": own})


def _without_dev(folder: Path) -> None:
    print(f"{folder.name}: left out, it has no dev split")


def _kind(table: Table) -> str | None:
    return next((kind for names, kind in COLUMNS if {*names} <= {*table.columns}), None)


def _of_split(folder: Path, files: dict[str, Path], stem: str, split: str) -> EmbeddingTask | None:
    """The set whose evaluated file this is; `None` if no kind has its columns."""
    table = read_table(files[stem])
    kind = _kind(table)
    if kind is None:
        return None
    note = ""
    data: dict[str, Any]
    if kind == "similarity":
        pairs = load_sentence_pairs(SentencePairArguments(test_file=str(files[stem])), ["test"])["test"]
        data, rows = {name: list(pairs[name]) for name in ("sentence1", "sentence2", "score")}, len(pairs)
    elif kind == "pair_classification":
        data = _labelled_pairs(table)
        rows = len(data["label"])
    elif kind == "reranking":
        data, note = _reranking(table)
        rows = len(data["samples"])
    else:
        data = _labelled_texts(table)
        rows = len(data["labels"])
        if "train" in files:
            training = _labelled_texts(read_table(files["train"]))
            data |= {f"train_{name}": values for name, values in training.items()}
            found = {f"{folder.name} {split}": data["labels"]}
            unseen_labels("labels", training["labels"], found, "the training data's")
        _check_classes(data, files.get("train", files[stem]))
    return EmbeddingTask(folder.name, split, kind, rows, data, note)


def _convert(table: Table, read: Callable[[Row], Item]) -> list[Item]:
    """What a function makes of each row, see `Table.convert`. No row is left out."""
    return [item for _, item in table.convert(read, can_skip=False)]


def _labelled_pairs(table: Table) -> dict[str, Any]:
    def read(row: Row) -> tuple[str, str, int]:
        first, second = (check_text(table.value(row, column)) for column in ("sentence1", "sentence2"))
        return first, second, read_binary(table.value(row, "label"))

    data = dict(
        zip(("sentence1", "sentence2", "label"), map(list, zip(*_convert(table, read), strict=True)), strict=True)
    )
    if len({*data["label"]}) < 2:
        raise UserError(f"{table.source} has no label but {data['label'][0]}: nothing to tell apart.")
    return data


def _reranking(table: Table) -> tuple[dict[str, Any], str]:
    samples: dict[str, dict[str, Any]] = {}

    def read(row: Row) -> None:
        query, document = (check_text(table.value(row, column)) for column in ("query", "document"))
        label = read_binary(table.value(row, "label"))
        name = str(table.value(row, "query_id")) if "query_id" in table.columns else query
        sample = samples.setdefault(name, {"query": query, "positive": [], "negative": []})
        if sample["query"] != query:
            raise BadRowError(f"the query {name!r} has another text than in an earlier row.")
        sample["positive" if label else "negative"].append(document)

    _convert(table, read)
    useful = [sample for sample in samples.values() if sample["positive"] and sample["negative"]]
    if not useful:
        raise UserError(f"{table.source} has no query with both a relevant document (label 1) and another (label 0).")
    others = len(samples) - len(useful)
    note = (
        f"{others} of {len(samples)} queries left out: without relevant or without other documents" if others else ""
    )
    return {"samples": useful}, note


def _labelled_texts(table: Table) -> dict[str, list[str]]:
    columns = ("text",) if "text" in table.columns else ("title", "description")

    def read(row: Row) -> tuple[str, str]:
        parts = [table.value(row, column) for column in columns]
        text = check_text(" ".join(check_text(part) for part in parts if not is_missing(part)).strip())
        label = table.value(row, "label")
        if is_missing(label):
            raise EmptyRowError("the label is empty.")
        return text, class_name(label)

    return dict(zip(("texts", "labels"), map(list, zip(*_convert(table, read), strict=True)), strict=True))


def _check_classes(data: dict[str, list[str]], file: Path) -> None:
    """Check that a classifier can be trained."""
    counts = Counter(data.get("train_labels", data["labels"]))
    if len(counts) < 2:
        raise UserError(f"{file} has no label but {next(iter(counts))!r}: nothing to tell apart.")
    label, least = min(counts.items(), key=lambda item: item[1])
    if "train_labels" not in data and least < FOLDS:
        raise UserError(
            f"{file} has {least} rows of the label {label!r}, and {FOLDS} folds need {FOLDS} of each: leave rare "
            "labels out, or give a file train."
        )


def _clustering(folder: Path, files: dict[str, Path]) -> EmbeddingTask:
    if len(files) != 1:
        raise UserError(
            f"the folder {str(folder)!r} must have one table of texts to cluster, and has "
            f"{', '.join(path.name for path in files.values()) or 'none'}."
        )
    (file,) = files.values()
    table = read_table(file)
    if _kind(table) != "classification":
        raise UserError(
            f"{file} lacks the columns label and text of a set to cluster (a folder named {CLUSTERING}_...)."
        )
    data = _labelled_texts(table)
    if len({*data["labels"]}) < 2:
        raise UserError(f"{file} has no label but {data['labels'][0]!r}: nothing to tell apart.")
    return EmbeddingTask(folder.name, "test", "clustering", len(data["texts"]), data)


def _retrieval(folder: Path, files: dict[str, Path], split: str) -> EmbeddingTask | None:
    """A set of BEIR's format: corpus, queries, and qrels or qrels/<split>."""
    if "qrels" in files:
        judged = {"test": files["qrels"]}
    else:
        inner = _files(folder / "qrels") if (folder / "qrels").is_dir() else {}
        judged = {name: inner[stem] for name, stems in SPLITS.items() for stem in stems if stem in inner}
    if not judged:
        raise UserError(f"the folder {str(folder)!r} has a corpus and queries, but no qrels with the relevant texts.")
    if split == "dev" and "dev" not in judged:
        return _without_dev(folder)
    name = split if split in judged else "dev"
    documents = read_table(files["corpus"])
    corpus, queries = _texts_by_id(documents, may_be_empty=True), _texts_by_id(read_table(files["queries"]))
    table = read_table(judged[name])
    scores: dict[tuple[str, str], int] = {}

    def read(row: Row) -> None:
        query, text, score = (str(table.value(row, key)) for key in ("query-id", "corpus-id", "score"))
        for value, known, file in ((query, queries, "queries"), (text, corpus, "corpus")):
            if value not in known:
                raise BadRowError(f"{value!r} is not an _id of {files[file].name}.")
        number = _WHOLE.fullmatch(score)
        if number is None:
            raise BadRowError(f"the score {score!r} is not a whole number.")
        if scores.setdefault((query, text), int(number[1])) != int(number[1]):
            raise BadRowError(f"{query!r} and {text!r} have another score in an earlier row.")

    _convert(table, read)
    relevant: dict[str, set[str]] = {}
    for (query, text), score in scores.items():
        if score > 0:
            relevant.setdefault(query, set()).add(text)
    if not relevant:
        raise UserError(f"{table.source} has no score above 0: no text is relevant.")
    own = _own_documents(documents, queries, relevant)
    others = len(queries) - len(relevant)
    notes = [
        f"{others} of {len(queries)} queries left out: no text is relevant" if others else "",
        f"{len(own)} of {len(relevant)} queries are documents of the corpus and do not find themselves" if own else "",
    ]
    data = {"queries": queries, "corpus": corpus, "relevant": relevant, "own": own}
    return EmbeddingTask(folder.name, name, "retrieval", len(relevant), data, "; ".join(filter(None, notes)))


def _own_documents(documents: Table, queries: dict[str, str], relevant: dict[str, set[str]]) -> set[str]:
    """The queries that are documents of the corpus, as in ArguAna: with the same id and, maybe after a title, text."""
    own = set()
    for row in documents.readable:
        name = str(row["_id"])
        title, text = ([] if is_missing(row.get(column)) else row[column].split() for column in ("title", "text"))
        if name in relevant and name not in relevant[name] and queries[name].split() in (text, title + text):
            own.add(name)
    return own


def _texts_by_id(table: Table, may_be_empty: bool = False) -> dict[str, str]:
    """Texts, after their titles if they have any, by `_id`. Corpora of BEIR have some empty texts."""
    texts: dict[str, str] = {}

    def read(row: Row) -> None:
        parts = [row.get("title"), table.value(row, "text")]
        text = " ".join(check_text(part) for part in parts if not is_missing(part)).strip()
        name = table.value(row, "_id")
        if is_missing(name):
            raise EmptyRowError("the _id is empty.")
        if str(name) in texts:
            raise BadRowError(f"the _id {str(name)!r} is that of an earlier row.")
        texts[str(name)] = text if may_be_empty else check_text(text)

    _convert(table, read)
    return texts
