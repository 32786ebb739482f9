"""Sentences in CoNLL's formats: a word per line, its tag in one of the columns, an empty line between sentences."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError, report_bad_data
from .files import COMPRESSIONS, ending, find_files, iterate_blocks, iterate_lines, split_lines
from .rows import BadRowError, ColumnRows, is_blank
from .table_files import Table, join_tables


#: The tag of a word that has none: it is not trained, and counts nowhere.
IGNORED_TAG = str(IGNORED_LABEL)

#: Endings of files that are read as CoNLL's; `""` stands for no ending.
CONLL_KINDS = (".conll", ".conllu", ".conllup", ".conll03", ".txt", ".tsv", ".iob", ".iob2", ".bio", ".bio2", ".bioes")
CONLL_KINDS += (".iobes", ".bilou", ".ner", ".pos", ".tags", ".tagged", ".data", ".train", ".dev", ".valid", ".test")
CONLL_KINDS += (".testa", ".testb", "")

#: The columns of CoNLL-U.
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_ID = re.compile(r"\d+([-.]\d+)?")

#: Names of columns in the first line of a file.
_WORD_NAMES = {"word", "words", "token", "tokens", "form", "text"}
_TAG_NAMES = {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "entity", "bio", "iob", "pos", "upos"}

#: Comments of CoNLL-U and its relatives, such as `# sent_id = 1`.
_METADATA = re.compile(r"#\s*((newdoc|newpar|sent_id|text|id|global\.columns)\b|\S+\s*=)")


def marks_entities(tags: Collection[str]) -> bool:
    """Whether tags mark entities: `O`, and `B-`, `I-`, `E-`, `S-` or `L-`, `U-`, `M-` before a type, in any case.

    Others label words, such as parts of speech.
    """
    return all(tag in ("O", "o") or (tag[:1].upper() in "BIESLUM" and tag[1:2] == "-") for tag in tags)


def read_conll(
    paths: str | Path | Sequence[str], tokens_column: str = "tokens", tags_column: str = "ner_tags"
) -> Table:
    r"""Read sentences: a word per line, an empty line between sentences.

    Tabs separate columns if the first line has one, else spaces. The first column is the word, the last its tag;
    a file with one column has no tags. A first column that counts the words of each sentence is passed over. Lines
    that begin with `-DOCSTART-` and comments are left out, and so is a line with the names of the columns, which say
    where word and tag are. In CoNLL-U the tag is `upos`, or the column that `tags_column` names.

    Args:
        paths: Names of files, glob patterns or folders; files are UTF-8, with or without byte order mark.
        tokens_column: Name of the column with the list of words in the result.
        tags_column: Name of the column with the list of tags.

    Raises:
        UserError: If a file is missing, of another kind, empty or not UTF-8. Sentences with different numbers of
            columns are named by `Table.convert`.
    """
    return join_tables([_read_file(file, tokens_column, tags_column) for file in find_files(paths, CONLL_KINDS)])


def _read_file(path: str, tokens_column: str, tags_column: str) -> Table:
    if ending(path) not in CONLL_KINDS and not re.fullmatch(r"\.\d+", ending(path)):
        raise UserError(
            f"the file {path!r} is of no known kind. Known endings of CoNLL text: {', '.join(CONLL_KINDS[:-1])}, each "
            f"also with one of {', '.join(COMPRESSIONS)}. Other tables: .json, .jsonl, .parquet, .csv."
        )
    with report_bad_data():
        words, bad = _read_words(path)
    if not len(words) and not bad:
        raise UserError(f"the file {path!r} has no sentences.")
    words, *places = _find_columns(words, path, tokens_column, tags_column)
    names = zip((tokens_column, tags_column), places, strict=True)
    cells = pa.table({name: words[str(place)] for name, place in names if place is not None})
    lines = compute.list_element(words["line"], 0)
    source = pa.DictionaryArray.from_arrays(np.zeros(len(words), np.int32), [path])
    where = {"source": source, "place": compute.binary_join_element_wise("line", lines.cast(pa.string()), " ")}
    good = ColumnRows(pa.table(where), cells)
    if not bad:
        return Table(path, good)
    rows = [*zip(lines.to_pylist(), good, strict=True), *((line, (path, f"line {line}", bad[line])) for line in bad)]
    return Table(path, [row for _, row in sorted(rows, key=itemgetter(0))])


def _read_words(path: str) -> tuple[pa.Table, dict[int, BadRowError]]:
    """The sentences of a file, without comments.

    Returns:
        Numbered columns with the strings in a sentence's lines, and `line` with their numbers, of sentences whose
        lines have as many columns as the first; of each other the number of its first wrong line -> what is wrong.
    """

    def is_text(line: str) -> bool:
        return bool(line.strip()) and not line.startswith(("#", "-DOCSTART-"))

    first = next(filter(is_text, iterate_lines(path)), "")
    has_tabs = "\t" in first

    def columns(lines: pa.Array) -> pa.ListArray:
        # Not at all white space: words have no-break spaces inside.
        if has_tabs:
            return compute.split_pattern(lines, "\t")
        return compute.split_pattern_regex(compute.utf8_trim(lines, " \t"), "[ \t]+")

    width = len(columns(pa.array([first]))[0])
    names, found, bad = [*map(str, range(width)), "line"], [], {}
    start = 1
    for lines, is_end in _whole_sentences(path):
        is_word = ~is_end
        begins = np.maximum.accumulate(np.where(is_end, np.arange(1, len(lines) + 1), 0))  # of each line's sentence
        for place in np.flatnonzero(is_word & _as_numpy(compute.starts_with(lines, "#"))):
            text, count = lines[place].as_py(), len(columns(lines[place : place + 1])[0])
            is_first = not is_word[begins[place] : place].any()
            is_word[place] = not _is_comment(text, count, width, has_tabs, is_first)
        fields, places = columns(lines.filter(pa.array(is_word))), np.flatnonzero(is_word)
        counts = compute.list_value_length(fields).to_numpy()
        if (is_wrong := counts != width).any():
            sentences, firsts = np.unique(begins[places[is_wrong]], return_index=True)
            for wrong in np.flatnonzero(is_wrong)[firsts]:
                bad[start + int(places[wrong])] = BadRowError(f"{counts[wrong]} columns instead of {width}.")
            is_good = ~np.isin(begins[places], sentences)
            fields, places = fields.filter(pa.array(is_good)), places[is_good]
        ends = np.append(np.flatnonzero(np.diff(begins[places], prepend=-1)), len(places))
        cells, numbers = fields.flatten(), np.arange(len(places)) * width
        parts = [
            *(cells.take(pa.array(numbers + place)) for place in range(width)),
            pa.array(start + places, pa.int32()),
        ]
        found.append(pa.table([_lists(ends, part) for part in parts], names))
        start += len(lines)
    return pa.concat_tables(found), bad


def _whole_sentences(path: str) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The lines of many sentences, and whether each ends one: it is blank, or begins a document."""
    parts = [(pa.array([], pa.string()), np.empty(0, bool))]
    for block in iterate_blocks(path):
        lines = pa.array(split_lines(block), pa.string())
        is_end = _as_numpy(compute.or_(is_blank(lines), compute.starts_with(lines, "-DOCSTART-")))
        if is_end.any():
            end = 1 + np.flatnonzero(is_end)[-1]
            yield _joined([*parts, (lines[:end], is_end[:end])])
            parts = []
            lines, is_end = lines[end:], is_end[end:]
        parts.append((lines, is_end))
    yield _joined(parts)


def _joined(parts: Sequence[tuple[pa.Array, np.ndarray]]) -> tuple[pa.Array, np.ndarray]:
    lines, is_end = zip(*parts, strict=True)
    return pa.concat_arrays(lines), np.concatenate(is_end)


def _as_numpy(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)


def _lists(ends: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def _is_comment(line: str, count: int, width: int, has_tabs: bool, is_first: bool) -> bool:
    """Whether a line is a comment, and not the word `#` or one that begins with it."""
    if not line.startswith("#"):
        return False
    if has_tabs and "\t" not in line:
        return True
    return is_first and (count != width or bool(_METADATA.match(line)))


def _find_columns(
    words: pa.Table, path: str, tokens_column: str, tags_column: str
) -> tuple[pa.Table, int, int | None]:
    """The sentences without what is no word, e.g. the columns' names, and where word and tag are (`None`: no tag)."""
    width = words.num_columns - 1  # without the numbers of lines
    if width == 1 or not len(words):
        return words, 0, None
    ids = compute.list_flatten(words["0"]).unique().to_pylist() if width == len(_CONLLU) else [""]
    if all(map(_CONLLU_ID.fullmatch, ids)):
        # Without ranges of words, and words that are not in the text.
        numbers = pa.array([*filter(str.isdecimal, ids)], pa.string())
        name = tags_column.lower() if tags_column.lower() in _CONLLU else "upos"
        print(
            f"{path}: CoNLL-U; the tags are those of the column {name} (--label_column_name names another)", flush=True
        )
        words = _only(words, lambda ids: _as_numpy(compute.is_in(ids, numbers)))
        return words, 1, _CONLLU.index(name)
    line, *header = (words[name][0].as_py()[0] for name in ("line", *map(str, range(width))))
    names = [name.strip().lower() for name in header]
    word = [place for place, name in enumerate(names) if name in _WORD_NAMES | {tokens_column.lower()}]
    found = {*compute.list_flatten(words[str(width - 1)])[1:].unique().to_pylist()} - {IGNORED_TAG}
    odd = not marks_entities(names[-1:]) and bool(found - {"O", "o"}) and marks_entities(found)
    if (word and names[-1] in _TAG_NAMES | {tags_column.lower()}) or odd:
        print(f"{path}, line {line}: {' '.join(header)!r} is taken as the names of the columns", flush=True)
        words = pa.concat_tables([_only(words[:1], lambda ids: np.arange(len(ids)) > 0), words[1:]])
        tag = names.index(tags_column.lower()) if tags_column.lower() in names else width - 1
        return words, word[0] if word else 0, tag
    counted = width > 2 and all(map(_is_counted, words["0"].chunks))
    return words, 1 if counted else 0, width - 1


def _only(words: pa.Table, is_wanted: Callable[[pa.Array], np.ndarray]) -> pa.Table:
    """The sentences with the words that a function of the first column wants, of those that have any."""
    parts = []
    for batch in words.to_batches():
        wanted = is_wanted(batch["0"].flatten())
        ends = np.append(0, np.cumsum(wanted))[np.append(0, np.cumsum(batch["0"].value_lengths()))]
        lists = {name: _lists(ends, batch[name].flatten().filter(pa.array(wanted))) for name in words.column_names}
        parts.append(pa.table(lists).filter(pa.array(np.diff(ends) > 0)))
    return pa.concat_tables(parts)


def _is_counted(column: pa.ListArray) -> bool:
    """Whether a column counts the words of each sentence, from 1 on."""
    sizes = _as_numpy(column.value_lengths())
    numbers = 1 + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return column.flatten().equals(pa.array(numbers).cast(pa.string()))


def write_conll(path: Path, columns: Sequence[Sequence[Sequence[str]]]) -> None:
    """Write sentences as `conlleval` reads them: a word per line with its tags, an empty line behind each sentence.

    Args:
        path: The file.
        columns: For each column of the file, a list for each sentence: its words, their tags, the predicted tags.
            White space inside a word becomes `_`. Words with an ignored tag are left out, as in the metrics.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sentence in zip(*columns, strict=True):
            for fields in zip(*sentence, strict=True):
                if IGNORED_TAG not in fields[1:]:
                    print(*(re.sub(r"\s+", "_", field) for field in fields), file=file)
            print(file=file)
