"""Exact match and F1 of SQuAD 1.1 and 2.0, equal to those of the official evaluation scripts.

Computed here because the official scripts are not a package, and Transformers has dropped its own.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra white space, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1.0 if both are equal after normalisation, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall of the words, counted with repetition; 0.0 if none is shared."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    # In the official script's order of operations: another one rounds differently.
    precision, recall = shared / len(predicted), shared / len(expected)
    return (2 * precision * recall) / (precision + recall)


def squad(predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Exact match and F1 of SQuAD 1.1, as its official script defines them.

    Args:
        predictions: `{"id": ..., "prediction_text": ...}` of every question.
        references: `{"id": ..., "answers": {"text": [...], "answer_start": [...]}}` of every question, with
            right answers, of which the best counts.

    Returns:
        exact_match, f1: In percent of the questions.
    """
    texts, answers = _texts_and_answers(predictions, references)
    unanswerable = [key for key, right in answers.items() if not right]
    if unanswerable:
        raise ValueError(f"the question {unanswerable[0]!r} has no right answer, which SQuAD 2.0 alone knows.")
    exact = [max(exact_match(texts[key], text) for text in right) for key, right in answers.items()]
    overlap = [max(f1(texts[key], text) for text in right) for key, right in answers.items()]
    return {"exact_match": _percent(exact), "f1": _percent(overlap)}


def squad_v2(
    predictions: Sequence[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """Exact match and F1 of SQuAD 2.0, as its official script defines them.

    Args:
        predictions: `{"id": ..., "prediction_text": ..., "no_answer_probability": ...}` of every question: its best
            text, whether or not it is above the threshold, and how likely it has no answer, in any unit.
        references: `{"id": ..., "answers": {"text": [...], "answer_start": [...]}}` of every question, with empty
            lists if it has no answer.
        no_answer_threshold: Questions with a higher `no_answer_probability` count as answered with "no answer".

    Returns:
        exact, f1: In percent of all questions.
        HasAns_*, NoAns_*: The same for questions with and without an answer, if there are any.
        best_exact, best_f1: At the best thresholds, `best_exact_thresh` and `best_f1_thresh`.
        total, HasAns_total, NoAns_total: Numbers of questions.
    """
    texts, answers = _texts_and_answers(predictions, references)
    null_odds = {row["id"]: row["no_answer_probability"] for row in predictions}
    raw = {
        name: {key: _best_score(score, texts[key], right) for key, right in answers.items()}
        for name, score in (("exact", exact_match), ("f1", f1))
    }
    given = {key: null_odds[key] <= no_answer_threshold for key in answers}
    metrics = {}
    groups = {
        "": list(answers),
        "HasAns_": [k for k in answers if answers[k]],
        "NoAns_": [k for k in answers if not answers[k]],
    }
    for prefix, keys in groups.items():
        if keys:
            for name, scores in raw.items():
                metrics[prefix + name] = _percent([scores[k] if given[k] else float(not answers[k]) for k in keys])
            metrics[f"{prefix}total"] = len(keys)
    for name, scores in raw.items():
        best = _best_threshold(scores, texts, answers, null_odds)
        metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best
    return metrics


def _texts_and_answers(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Predicted text and right answers by question.

    Raises:
        ValueError: If a question has no prediction.
    """
    texts = {row["id"]: row["prediction_text"] for row in predictions}
    answers = {row["id"]: row["answers"]["text"] for row in references}
    missing = [key for key in answers if key not in texts]
    if missing:
        raise ValueError(
            f"every question needs a prediction: {len(missing)} of {len(answers)} have none, e.g. {missing[:3]}."
        )
    return texts, answers


def _best_score(score: Callable[[str, str], float], prediction: str, texts: Sequence[str]) -> float:
    texts = [text for text in texts if normalize_answer(text)]
    if texts:
        return max(score(prediction, text) for text in texts)
    return float(not normalize_answer(prediction))


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best mean score in percent, and the lowest threshold that gives it.

    Starts from "no answer" to every question, and gives the answers one by one, the surest first. As in the official
    script: questions with equal odds, too, one after the other, and the threshold of no answers at all is 0.
    """
    order = sorted((key for key in null_odds if key in answers), key=null_odds.__getitem__)
    unanswerable = sum(not texts for texts in answers.values())
    gains = [scores[key] if answers[key] else -float(bool(predictions[key])) for key in order]
    totals = np.cumsum([unanswerable, *gains])
    best = int(totals.argmax())
    return 100.0 * float(totals[best]) / len(answers), null_odds[order[best - 1]] if best else 0.0


def _percent(scores: Sequence[float]) -> float:
    return 100.0 * sum(scores) / len(scores)
