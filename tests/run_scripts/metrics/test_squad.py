"""The official definitions, written out once more, and the thresholds searched by trying all."""

import collections
import random

import pytest

from tokenmixers.run_scripts.metrics import load_metric
from tokenmixers.run_scripts.metrics.squad import exact_match, f1, normalize_answer


WORDS = ["the", "The", "a", "Norman", "Normans,", "10th", "10", "U.S.", "France!", "an", "of", "«", " x  y"]


def words(text: str) -> list[str]:
    kept = [c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    return [word for word in "".join(kept).split() if word not in ("a", "an", "the")]


def overlap(predicted: list[str], expected: list[str]) -> float:
    shared = 0
    for word, count in collections.Counter(predicted).items():
        shared += min(count, expected.count(word))
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def references_of(answers: dict) -> list[dict]:
    return [
        {"id": key, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for key, texts in answers.items()
    ]


def squad(predictions: dict, answers: dict) -> dict[str, float]:
    rows = [{"id": key, "prediction_text": text} for key, text in predictions.items()]
    return load_metric("squad").compute(predictions=rows, references=references_of(answers))


def squad_v2(predictions: dict, answers: dict, odds: dict, threshold: float) -> dict[str, float]:
    rows = [{"id": k, "prediction_text": text, "no_answer_probability": odds[k]} for k, text in predictions.items()]
    references = references_of(answers)
    return load_metric("squad_v2").compute(predictions=rows, references=references, no_answer_threshold=threshold)


def random_case(seed: int, unanswerable: bool) -> tuple[dict, dict, dict]:
    draw = random.Random(seed)

    def text(least: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, 4)))

    keys = [f"q{i}" for i in range(draw.randint(2, 25))]
    answers = {key: ["Norman", *(text(1) for _ in range(draw.randint(0, 2)))] for key in keys}
    if unanswerable:
        answers |= {key: [] for key in keys if draw.random() < 0.5} | {keys[0]: []}
    predictions = {key: draw.choice([text(0), text(1), *answers[key][:1]]) for key in keys}
    return predictions, answers, {key: draw.uniform(-3, 3) for key in keys}


def test_normalization():
    texts = {"The  Denver\tBroncos.": "denver broncos", "the-the a.n. AN": "thethe", "a": ""}
    texts |= {"O'Neil & theory": "oneil theory", "NAÏVE «B»": "naïve «b»"}
    assert {text: normalize_answer(text) for text in texts} == texts


def test_punctuation_goes_before_articles():
    # So "a.n." is the article "an" in the end: the order is part of the definition.
    assert normalize_answer("a.n. apple") == "apple"
    assert exact_match("An apple", "apple!") == 1.0
    assert exact_match("apples", "apple") == 0.0
    assert f1("the big red apple", "a big apple pie big") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))


@pytest.mark.parametrize("seed", range(8))
def test_v1(seed):
    predictions, answers, _ = random_case(seed, unanswerable=False)
    exact = [max(words(predictions[key]) == words(text) for text in texts) for key, texts in answers.items()]
    overlaps = [max(overlap(words(predictions[key]), words(text)) for text in texts) for key, texts in answers.items()]
    assert squad(predictions, answers) == {
        "exact_match": pytest.approx(100 * sum(exact) / len(exact), abs=1e-12),
        "f1": pytest.approx(100 * sum(overlaps) / len(overlaps), abs=1e-12),
    }


@pytest.mark.parametrize("seed", range(8))
def test_v2(seed):
    predictions, answers, odds = random_case(seed, unanswerable=True)

    def scores_at(threshold: float) -> dict[str, dict[str, float]]:
        scores = {"exact": {}, "f1": {}}
        for key, texts in answers.items():
            predicted = words(predictions[key]) if odds[key] <= threshold else []
            # Right answers that say nothing do not count, unless there is no other.
            right = [words(text) for text in texts if words(text)] or [[]]
            if texts and odds[key] > threshold:
                right = [["something else"]]  # "no answer" to a question that has one
            scores["exact"][key] = max(float(predicted == one) for one in right)
            scores["f1"][key] = max(overlap(predicted, one) if one else float(not predicted) for one in right)
        return scores

    threshold = random.Random(seed).uniform(-2, 2)
    metrics = squad_v2(predictions, answers, odds, threshold)
    groups = {
        "": list(answers),
        "HasAns_": [key for key in answers if answers[key]],
        "NoAns_": [key for key in answers if not answers[key]],
    }
    for prefix, keys in groups.items():
        assert metrics.get(f"{prefix}total", 0) == len(keys)
        for name, scores in scores_at(threshold).items():
            if keys:
                expected = 100 * sum(scores[key] for key in keys) / len(keys)
                assert metrics[prefix + name] == pytest.approx(expected, abs=1e-12)
    for name in ("exact", "f1"):
        # Predictions that are not empty but say nothing ("the") count as answers in the search, as officially.
        tried = {}
        for candidate in [-10.0, *odds.values()]:
            given = [key for key in answers if odds[key] <= candidate]
            total = len(groups["NoAns_"])
            for key in given:
                total += scores_at(10.0)[name][key] if answers[key] else -bool(predictions[key])
            tried[candidate] = 100 * total / len(answers)
        assert metrics[f"best_{name}"] == pytest.approx(max(tried.values()), abs=1e-12)
        if metrics[f"best_{name}_thresh"] in odds.values():
            best = metrics[f"best_{name}_thresh"]
            assert tried[best] == pytest.approx(max(tried.values()))
            assert all(tried[other] < tried[best] - 1e-12 for other in tried if other < best)
        else:
            assert metrics[f"best_{name}_thresh"] == 0.0
            assert tried[-10.0] == pytest.approx(max(tried.values()))


def test_figures_worked_out_by_hand():
    predictions = {"one": "the Normans", "two": "in France", "three": "Paris", "four": ""}
    answers = {"one": ["Normans", "Norman"], "two": ["France"], "three": [], "four": []}
    odds = {"one": -2.0, "two": -1.0, "three": 1.0, "four": 2.0}
    expected = {"exact": 75.0, "f1": 75.0, "total": 4, "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2}
    expected |= {"NoAns_exact": 100.0, "NoAns_f1": 100.0, "NoAns_total": 2, "best_exact": 75.0}
    expected |= {
        "best_exact_thresh": -2.0,
        "best_f1": pytest.approx(100 * (1 + 2 / 3 + 2) / 4),
        "best_f1_thresh": -1.0,
    }
    assert squad_v2(predictions, answers, odds, -1.5) == expected


def test_every_question_needs_a_prediction():
    with pytest.raises(ValueError, match=r"1 of 2 have none, e\.g\. \['b'\]"):
        squad({"a": "x", "c": "y"}, {"a": ["x"], "b": ["y"]})
    with pytest.raises(ValueError, match="the question 'b' has no right answer"):
        squad({"a": "x", "b": "y"}, {"a": ["x"], "b": []})
