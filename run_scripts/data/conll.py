"""Sentences in CoNLL's formats: a word per line, its tag in one of the columns, an empty line between sentences."""

import re
from collections.abc import Collection, Sequence
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

#: Sentences that are joined at once: an array of strings holds 2 GB.
_SENTENCES = 100_000


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
    names = {name: place for name, place in zip((tokens_column, tags_column), places, strict=True) if place is not None}
    good = _by_sentence(words, path, names)
    if not bad:
        return Table(path, good)
    lines = words["line"].take(pa.array(_starts(words))).to_pylist()
    rows = [*zip(lines, good, strict=True), *((line, (path, f"line {line}", bad[line])) for line in bad)]
    return Table(path, [row for _, row in sorted(rows, key=itemgetter(0))])


def _read_words(path: str) -> tuple[pa.Table, dict[int, BadRowError]]:
    """The words of a file, without comments.

    Returns:
        Numbered columns as strings, and the numbers of each `line` and `sentence`, for sentences whose lines have as
        many columns as the first; and of each other sentence the number of its first wrong line, and what is wrong.
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
    names, found = [*map(str, range(width)), "line", "sentence"], []
    bad: dict[int, tuple[int, BadRowError]] = {}
    line, sentence, is_inside = 1, 0, False
    for block in iterate_blocks(path):
        texts = pa.array(split_lines(block), pa.string())
        is_end = _as_numpy(compute.or_(is_blank(texts), compute.starts_with(texts, "-DOCSTART-")))
        is_word, sentences = ~is_end, sentence + np.cumsum(is_end)
        begins = np.maximum.accumulate(np.where(is_end, np.arange(1, len(texts) + 1), 0))  # of each line's sentence
        for place in np.flatnonzero(is_word & _as_numpy(compute.starts_with(texts, "#"))):
            is_first = not (is_word[begins[place] : place].any() or (is_inside and not begins[place]))
            text, count = texts[place].as_py(), len(columns(texts[place : place + 1])[0])
            is_word[place] = not _is_comment(text, count, width, has_tabs, is_first)
        is_inside = bool(is_word[begins[-1] :].any() or (is_inside and not begins[-1]))
        places, fields = np.flatnonzero(is_word), columns(texts.filter(pa.array(is_word)))
        counts = compute.list_value_length(fields).to_numpy()
        for place, count in zip(places[counts != width], counts[counts != width], strict=True):
            problem = BadRowError(f"{count} columns instead of {width}.")
            bad.setdefault(int(sentences[place]), (line + int(place), problem))
        places, values = places[counts == width], fields.filter(pa.array(counts == width)).flatten()
        parts = [values.take(pa.array(np.arange(number, len(values), width))) for number in range(width)]
        found.append(pa.table([*parts, line + places, sentences[places]], names))
        line, sentence = line + len(texts), sentences[-1]
    words = pa.concat_tables(found) if found else pa.table([pa.array([], pa.string())] * len(names), names)
    if bad:
        words = words.filter(~np.isin(words["sentence"], [*bad]))
    return words, dict(bad.values())


def _as_numpy(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)


def _starts(words: pa.Table) -> np.ndarray:
    """The place of each sentence's first word."""
    return np.flatnonzero(np.diff(words["sentence"], prepend=-1))


def _by_sentence(words: pa.Table, path: str, names: dict[str, int]) -> ColumnRows:
    """The sentences: lists of the words in the columns of these numbers, by name."""
    starts, kind = _starts(words), pa.list_(pa.string())
    ends, parts = [*starts, len(words)], {name: [pa.array([], kind)] for name in names}
    for first in range(0, len(starts), _SENTENCES):
        part = np.array(ends[first : first + _SENTENCES + 1])
        for name, number in names.items():
            values = words[str(number)][part[0] : part[-1]].combine_chunks()
            parts[name].append(pa.ListArray.from_arrays(pa.array(part - part[0], pa.int32()), values))
    lines = compute.cast(words["line"].take(pa.array(starts)), pa.string())
    source = pa.DictionaryArray.from_arrays(np.zeros(len(starts), np.int32), [path])
    places = {"source": source, "place": compute.binary_join_element_wise("line", lines, " ")}
    return ColumnRows(pa.table(places), pa.table({name: pa.chunked_array(parts[name], kind) for name in names}))


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
    """The lines that are words, not e.g. names of columns, and where word and tag are (`None`: no tag)."""
    width = words.num_columns - len(("line", "sentence"))
    if width == 1 or not len(words):
        return words, 0, None
    first, last = words["0"], words[str(width - 1)]
    ids = first.unique().to_pylist() if width == len(_CONLLU) else [""]
    if all(map(_CONLLU_ID.fullmatch, ids)):
        # Without ranges of words, and words that are not in the text.
        words = words.filter(compute.is_in(first, pa.array([*filter(str.isdecimal, ids)], pa.string())))
        name = tags_column.lower() if tags_column.lower() in _CONLLU else "upos"
        print(
            f"{path}: CoNLL-U; the tags are those of the column {name} (--label_column_name names another)", flush=True
        )
        return words, 1, _CONLLU.index(name)
    header = [words[str(number)][0].as_py() for number in range(width)]
    names = [name.strip().lower() for name in header]
    word = [place for place, name in enumerate(names) if name in _WORD_NAMES | {tokens_column.lower()}]
    found = {*last[1:].unique().to_pylist()} - {IGNORED_TAG}
    odd = not marks_entities(names[-1:]) and bool(found - {"O", "o"}) and marks_entities(found)
    if (word and names[-1] in _TAG_NAMES | {tags_column.lower()}) or odd:
        line = words["line"][0].as_py()
        print(f"{path}, line {line}: {' '.join(header)!r} is taken as the names of the columns", flush=True)
        tag = names.index(tags_column.lower()) if tags_column.lower() in names else width - 1
        return words[1:], word[0] if word else 0, tag
    return words, 1 if width > 2 and _is_count(words) else 0, width - 1


def _is_count(words: pa.Table) -> bool:
    """Whether the first column counts the words of each sentence, from 1 on."""
    starts = _starts(words)
    sizes = np.diff(starts, append=len(words))
    numbers = np.arange(len(words)) - np.repeat(starts, sizes)
    known = pa.array([str(number) for number in range(1, sizes.max() + 1)])
    return np.array_equal(compute.index_in(words["0"], known).fill_null(-1), numbers)


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
