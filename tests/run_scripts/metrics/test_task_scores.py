import numpy as np
import pytest

from tokenmixers.run_scripts.metrics.task_scores import (
    SCORES,
    UNPARSEABLE,
    answer_scores,
    compute_scores,
    compute_scores_with_unparseable,
)


metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])
GUESSES = np.array([0, 1, 2, -1, -1, 0, 1, 1])


def test_unparseable_predictions_are_wrong_everywhere():
    found = compute_scores_with_unparseable(["accuracy", "macro_f1", "matthews_correlation"], GUESSES, LABELS, 3)
    assert found["accuracy"] == 4 / 8
    # By class: tp / (tp + (fp + fn) / 2); an unparseable prediction is a false negative of the label alone.
    assert found["macro_f1"] == pytest.approx(np.mean([1 / (1 + 3 / 2), 2 / (2 + 2 / 2), 1 / (1 + 1 / 2)]))
    assert found["matthews_correlation"] == pytest.approx(metrics.matthews_corrcoef(LABELS, GUESSES))


def test_unparseable_predictions_of_two_classes_are_the_other_one():
    labels, guesses = np.array([1, 1, 0, 0, 1]), np.array([1, UNPARSEABLE, UNPARSEABLE, 0, 1])
    found = compute_scores_with_unparseable(["f1", "accuracy"], guesses, labels, 2)
    assert found == {"f1": pytest.approx(2 / (2 + 2 / 2)), "accuracy": 3 / 5}
    for label in (0, 1):  # never right
        alone = compute_scores_with_unparseable(["accuracy"], np.array([UNPARSEABLE]), np.array([label]), 2)
        assert alone == {"accuracy": 0.0}


def test_unparseable_numbers_are_minus_one():
    labels, guesses = np.array([0.0, 2.5, 5.0, 4.0]), np.array([0.2, 2.4, UNPARSEABLE, 3.0])
    found = compute_scores_with_unparseable(["pearson", "spearman"], guesses, labels, None)
    assert found["pearson"] == pytest.approx(stats.pearsonr(guesses, labels)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(guesses, labels)[0])


@pytest.mark.parametrize("name", SCORES)
def test_without_unparseable_predictions_both_are_the_same(name):
    labels = LABELS % 2 if name == "f1" else LABELS
    guesses = np.roll(labels, 1)
    plain = compute_scores([name], guesses, labels)
    assert compute_scores_with_unparseable([name], guesses, labels, 3) == pytest.approx(plain)


def test_all_answers_to_a_question_must_be_right():
    labels, guesses = np.array([1, 0, 1, 0, 0]), np.array([1, 0, 0, 0, UNPARSEABLE])
    groups = [(1, 1), (1, 2), (1, 1), (1, 2), (2, 1)]
    found = compute_scores_with_unparseable(["f1", "exact_match"], guesses, labels, 2, groups)
    assert found == {"f1": pytest.approx(1 / (1 + 2 / 2)), "exact_match": pytest.approx(1 / 3)}


def test_the_best_of_several_answers_counts():
    found = answer_scores(["the red dog", "", "Cat"], [["a blue dog", "red dog"], ["x"], ["a cat!", "dog"]])
    assert found == {"exact_match": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3)}
    assert answer_scores(["red dog"], [["dog", "cat"]]) == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}
