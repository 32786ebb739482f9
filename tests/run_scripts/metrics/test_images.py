import numpy as np
import pytest

from tokenmixers.run_scripts.metrics import load_metric


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_counts_better_scores(k):
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(60, 12)), random.integers(0, 12, 60)
    expected = np.mean([sum(row > row[label]) < k for row, label in zip(scores, labels, strict=True)])
    ranked = scores.argsort(axis=-1)[:, ::-1]
    pairs = {"predictions": ranked[:, :5], "references": labels}
    assert load_metric("top_k_accuracy").compute(**pairs, k=k) == {"top_k_accuracy": pytest.approx(expected)}
    if k == 5:
        assert load_metric("top_k_accuracy").compute(**pairs) == {"top_k_accuracy": pytest.approx(expected)}
    if k == 1:
        accuracy = load_metric("accuracy").compute(predictions=ranked[:, 0], references=labels)["accuracy"]
        assert accuracy == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 3])
def test_there_must_be_as_many_classes(k):
    with pytest.raises(ValueError, match=f"`k={k}` must be at least 1, and not more than the 2 classes"):
        load_metric("top_k_accuracy").compute(predictions=[[0, 1, 2], [1, 2]], references=[0, 1], k=k)
