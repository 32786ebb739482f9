import math

import pytest
import torch

from tokenmixers.run_scripts.metrics import load_metric


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities():
    probabilities = [[0.5, 0.1, 0.25], [0.125], [0.9, 0.3]]
    losses = [sum(-math.log(p) for p in row) for row in probabilities]
    product = math.prod(p for row in probabilities for p in row)
    scores = load_metric("token_perplexity").compute(predictions=losses, references=[3, 1, 2])
    assert scores == {"perplexity": pytest.approx(product ** (-1 / 6))}


def test_perplexity_of_torch_s_cross_entropy():
    logits, labels = torch.randn(4, 7, 11), torch.randint(0, 11, (4, 7))
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(dim=1)
    scores = load_metric("token_perplexity").compute(predictions=losses, references=[7] * 4)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert scores["perplexity"] == pytest.approx(math.exp(mean))


def test_what_no_float_holds_is_infinite():
    metric = load_metric("token_perplexity")
    assert metric.compute(predictions=[1e5], references=[2]) == {"perplexity": math.inf}
    for loss in (699.0, 709.7):  # the largest number is e^709.78
        assert metric.compute(predictions=[loss], references=[1]) == {"perplexity": pytest.approx(math.exp(loss))}
    assert metric.compute(predictions=[709.8], references=[1]) == {"perplexity": math.inf}
    with pytest.raises(ValueError, match="needs at least one token, got 0 in 2 texts"):
        metric.compute(predictions=[0.0, 0.0], references=[0, 0])
