"""Sentences in CoNLL's formats: a word per line, its tag in one of the columns, an empty line between sentences."""

import re
from collections.abc import Collection, Sequence
from operator import itemgetter
from pathlib import Path

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError, report_bad_data
from .files import COMPRESSIONS, ending, find_files, iterate_lines
from .table_files import BadRowError, Row, Table, join_tables


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

_Line = tuple[int, list[str]]


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
        lines = list(iterate_lines(path))
    sentences = _sentences(lines)
    if not sentences:
        raise UserError(f"the file {path!r} has no sentences.")
    width = len(sentences[0][0][1])
    placed: list[tuple[int, Row | BadRowError]] = []
    whole = []
    for sentence in sentences:
        wrong = next(((number, fields) for number, fields in sentence if len(fields) != width), None)
        if wrong is None:
            whole.append(sentence)
        else:
            placed.append((wrong[0], BadRowError(f"{len(wrong[1])} columns instead of {width}.")))
    word, tag = _find_columns(whole, width, path, tokens_column, tags_column)
    for sentence in filter(None, whole):
        row: Row = {tokens_column: [fields[word] for _, fields in sentence]}
        if tag is not None:
            row[tags_column] = [fields[tag] for _, fields in sentence]
        placed.append((sentence[0][0], row))
    return Table(path, [(path, f"line {number}", row) for number, row in sorted(placed, key=itemgetter(0))])


def _sentences(lines: Sequence[str]) -> list[list[_Line]]:
    """The numbered lines of each sentence, as columns, without comments."""
    first = next((line for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))), "")
    has_tabs = "\t" in first

    def columns(line: str) -> list[str]:
        # Not `split()`, which also splits at the no-break spaces inside words.
        return line.split("\t") if has_tabs else re.split("[ \t]+", line.strip(" \t"))

    width = len(columns(first))
    sentences: list[list[_Line]] = []
    words: list[_Line] = []
    for number, line in enumerate([*lines, ""], start=1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if words:
                sentences.append(words)
            words = []
        elif not _is_comment(line, len(columns(line)), width, has_tabs, not words):
            words.append((number, columns(line)))
    return sentences


def _is_comment(line: str, count: int, width: int, has_tabs: bool, is_first: bool) -> bool:
    """Whether a line is a comment, and not the word `#` or one that begins with it."""
    if not line.startswith("#"):
        return False
    if has_tabs and "\t" not in line:
        return True
    return is_first and (count != width or bool(_METADATA.match(line)))


def _find_columns(
    sentences: list[list[_Line]], width: int, path: str, tokens_column: str, tags_column: str
) -> tuple[int, int | None]:
    """Where word and tag are (`None`: no tag); removes lines that are no words, such as the columns' names."""
    if width == 1 or not sentences:
        return 0, None
    if width == len(_CONLLU) and all(_CONLLU_ID.fullmatch(fields[0]) for words in sentences for _, fields in words):
        for words in sentences:  # without ranges of words, and words that are not in the text
            words[:] = [(number, fields) for number, fields in words if fields[0].isdecimal()]
        name = tags_column.lower() if tags_column.lower() in _CONLLU else "upos"
        print(
            f"{path}: CoNLL-U; the tags are those of the column {name} (--label_column_name names another)", flush=True
        )
        return 1, _CONLLU.index(name)
    number, header = sentences[0][0]
    names = [name.strip().lower() for name in header]
    words = [place for place, name in enumerate(names) if name in _WORD_NAMES | {tokens_column.lower()}]
    tags = [fields[-1] for sentence in sentences for _, fields in sentence][1:]
    found = set(tags) - {IGNORED_TAG}
    odd = not marks_entities(names[-1:]) and bool(found - {"O", "o"}) and marks_entities(found)
    if (words and names[-1] in _TAG_NAMES | {tags_column.lower()}) or odd:
        print(f"{path}, line {number}: {' '.join(header)!r} is taken as the names of the columns", flush=True)
        del sentences[0][0]
        tag = names.index(tags_column.lower()) if tags_column.lower() in names else width - 1
        return words[0] if words else 0, tag
    counted = all(
        [fields[0] for _, fields in sentence] == [str(place) for place in range(1, len(sentence) + 1)]
        for sentence in sentences
    )
    return 1 if counted and width > 2 else 0, width - 1


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
