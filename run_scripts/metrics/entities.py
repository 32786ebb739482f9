"""Precision, recall and F1 of entities, counted here as CoNLL's own scorer and seqeval count them."""

from collections import Counter
from collections.abc import Sequence


#: Prefixes of BILOU and BMES -> those of IOBES.
_SAME = {"L": "E", "U": "S", "M": "I"}


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities that a sentence's tags mark, read as CoNLL's own scorer reads them.

    An entity goes on as long as `I-` tags of its type follow, up to an `E-` tag. An `I-` or `E-` tag with nothing of
    its type before it starts one as `B-` does, so IOB1, IOB2 and IOBES can all be read. In BILOU `L-` is `E-` and `U-`
    is `S-`; in BMES `M-` is `I-`.

    Args:
        tags: `O`, `B-TYPE`, `I-TYPE`, `E-TYPE` or `S-TYPE`, one per word, or those of BILOU or BMES; in any case.

    Returns:
        Type, first word and the word after the last, of each.

    Raises:
        ValueError: If a tag has another form.
    """
    found, kind, start = set(), None, 0
    for index, tag in enumerate([*tags, "O"]):
        written, dash, tag_kind = tag.partition("-")
        prefix = _SAME.get(written.upper(), written.upper())
        if tag not in ("O", "o") and not (prefix in ("B", "I", "E", "S") and dash):
            raise ValueError(f"the tag {tag!r} is not O, nor of the form B-TYPE, I-TYPE, E-TYPE or S-TYPE.")
        if kind is not None and (prefix not in ("I", "E") or tag_kind != kind):
            found.add((kind, start, index))
            kind = None
        if kind is None and prefix != "O":
            kind, start = tag_kind, index
        if kind is not None and prefix in ("E", "S"):
            found.add((kind, start, index + 1))
            kind = None
    return found


def seqeval(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, float | dict[str, float]]:
    """Precision, recall and F1 of entities, which count only if their type and both ends are right (conlleval).

    Args:
        predictions: The tags of every sentence, one for each word: see `entities`.
        references: The labels.

    Returns:
        overall_precision, overall_recall, overall_f1: Over all entities; 0 where there are none to count.
        overall_accuracy: Share of right tags.
        TYPE: `precision`, `recall` and `f1` of every type, and the `number` of its right entities.
    """
    for row, (ours, theirs) in enumerate(zip(predictions, references, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"sentence {row} has {len(theirs)} tags, but {len(ours)} are predicted.")
    predicted = {(row, *entity) for row, tags in enumerate(predictions) for entity in entities(tags)}
    wanted = {(row, *entity) for row, tags in enumerate(references) for entity in entities(tags)}
    groups = (predicted & wanted, predicted, wanted)
    right, given, number = (Counter(kind for _, kind, _, _ in group) for group in groups)
    scores: dict[str, float | dict[str, float]] = {
        kind: {**_scores(right[kind], given[kind], number[kind]), "number": number[kind]}
        for kind in sorted({*given, *number})
    }
    pairs = [
        ours == theirs for row in zip(predictions, references, strict=True) for ours, theirs in zip(*row, strict=True)
    ]
    overall = _scores(*map(len, groups)) | {"accuracy": sum(pairs) / len(pairs) if pairs else 0.0}
    return scores | {f"overall_{name}": value for name, value in overall.items()}


def _scores(right: int, predicted: int, wanted: int) -> dict[str, float]:
    return {
        "precision": right / predicted if predicted else 0.0,
        "recall": right / wanted if wanted else 0.0,
        "f1": 2 * right / (predicted + wanted) if predicted + wanted else 0.0,
    }
