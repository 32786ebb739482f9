"""The start of a new output layer, next to scikit-learn's regressions and to a model that is read by hand."""

import datasets
import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from tokenmixers import GMLPConfig, GMLPForSequenceClassification
from tokenmixers.run_scripts.data.loading import drawn
from tokenmixers.run_scripts.training import linear_probe
from tokenmixers.run_scripts.training.linear_probe import new_output_layer, regression, start_with_probe
from tokenmixers.run_scripts.training.model_loading import MISSING_WEIGHTS


linear_model = pytest.importorskip("sklearn.linear_model")

SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEAD = ["classifier.bias", "classifier.weight"]


@pytest.fixture
def features():
    return 5 + 3 * torch.randn(60, 7, dtype=torch.float64)


@pytest.fixture
def scaled(features):
    """Features with a mean square norm of 1, and a column of ones, as NumPy has them."""
    found = features.numpy() / np.sqrt((features.numpy() ** 2).sum(axis=1).mean())
    return np.concatenate([found, np.ones((60, 1))], axis=1)


def logits_of(weights, features):
    return (features @ weights[:, :-1].T + weights[:, -1]).numpy()


def test_classes_are_those_of_scikit_learn(features, scaled):
    labels = torch.randint(3, (60,))
    weights = regression(features, labels, 3, "single_label_classification")
    peer = linear_model.LogisticRegression(C=3, fit_intercept=False, tol=1e-8, max_iter=1000).fit(scaled, labels)
    expected = scaled @ peer.coef_.T
    np.testing.assert_allclose(logits_of(weights, features), expected, atol=1e-4)


def test_several_labels_are_a_regression_each(features, scaled):
    labels = torch.randint(2, (60, 2)).float()
    found = logits_of(regression(features, labels, 2, "multi_label_classification"), features)
    for column in range(2):
        peer = linear_model.LogisticRegression(C=3, fit_intercept=False, tol=1e-8, max_iter=1000)
        expected = scaled @ peer.fit(scaled, labels[:, column]).coef_[0]
        np.testing.assert_allclose(found[:, column], expected, atol=1e-4)


def test_numbers_are_a_ridge_regression(features, scaled):
    labels = 100 + 20 * torch.randn(60)
    found = logits_of(regression(features, labels, 1, "regression"), features)[:, 0]
    values = labels.double().numpy()
    standard = (values - values.mean()) / values.std()
    expected = linear_model.Ridge(alpha=1 / 3, fit_intercept=False).fit(scaled, standard).predict(scaled)
    np.testing.assert_allclose(found, expected * values.std() + values.mean(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["single_label_classification", "regression"])
def test_what_has_no_variation_gives_finite_weights(kind):
    weights = regression(torch.zeros(4, 3, dtype=torch.float64), torch.ones(4, dtype=torch.long), 3, kind)
    assert weights.isfinite().all()


@pytest.fixture
def rows(tokenizer_of_letters):
    texts = ["a b c", "b", "c d e f", "a a", "f e d", "d"]
    encoded = tokenizer_of_letters(texts)
    return datasets.Dataset.from_dict(
        {**encoded, "label": [0, 1, 1, 0, 1, 0], "index": [*range(6)], "group": list("xxyyzz")}
    )


@pytest.fixture
def tokenizer_of_letters():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(
        models.WordLevel({"[PAD]": 0, "[UNK]": 1, **{c: 2 + i for i, c in enumerate("abcdef")}}, "[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def test_the_layer_reads_pooled_states_without_dropout(rows, tokenizer_of_letters, monkeypatch):
    config = GMLPConfig(**SIZES, max_position_embeddings=8, hidden_dropout_prob=0.5, classifier_pooling="mean")
    config.problem_type = "single_label_classification"
    model = GMLPForSequenceClassification(config).train()
    setattr(model, MISSING_WEIGHTS, HEAD)
    monkeypatch.setattr(linear_probe, "_BATCH", 4)
    state = torch.get_rng_state()
    assert start_with_probe(model, rows, DataCollatorWithPadding(tokenizer_of_letters)) == 6
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert not model.classifier._forward_pre_hooks
    model.eval()
    with torch.no_grad():
        states = [model.model(torch.tensor([row["input_ids"]])).last_hidden_state[0].mean(dim=0) for row in rows]
    expected = regression(torch.stack(states).double(), torch.tensor(rows["label"][:]), 2, config.problem_type)
    found = torch.cat([model.classifier.weight, model.classifier.bias[:, None]], dim=1)
    torch.testing.assert_close(found.detach().double(), expected, atol=1e-4, rtol=1e-3)


def test_of_many_rows_some_are_drawn(rows, tokenizer_of_letters, monkeypatch):
    monkeypatch.setattr(linear_probe, "MOST_ROWS", 4)
    found = []
    for data in (rows, drawn(rows, 4)):
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(**SIZES, num_attention_heads=2))
        model.config.problem_type = "single_label_classification"
        setattr(model, MISSING_WEIGHTS, HEAD)
        assert start_with_probe(model, data, DataCollatorWithPadding(tokenizer_of_letters)) == 4
        found.append(model.classifier.weight)
    assert torch.equal(*found)


def test_a_layer_that_reads_every_token_stays(rows, tokenizer_of_letters):
    model = BertForTokenClassification(BertConfig(**SIZES, num_attention_heads=2))
    setattr(model, MISSING_WEIGHTS, HEAD)
    before = model.classifier.weight.clone()
    assert start_with_probe(model, rows, DataCollatorWithPadding(tokenizer_of_letters)) == 0
    assert torch.equal(model.classifier.weight, before) and not model.classifier._forward_pre_hooks


def test_only_a_new_layer_with_a_bias_is_set(monkeypatch):
    bert = BertForSequenceClassification(BertConfig(**SIZES, num_attention_heads=2, num_labels=4))
    assert new_output_layer(bert) is None, "from scratch"
    setattr(bert, MISSING_WEIGHTS, ["bert.pooler.dense.bias"])
    assert new_output_layer(bert) is None, "the checkpoint has it"
    setattr(bert, MISSING_WEIGHTS, HEAD)
    assert new_output_layer(bert) is bert.classifier
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert new_output_layer(bert) is None
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    gpt = GPT2ForSequenceClassification(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    setattr(gpt, MISSING_WEIGHTS, ["score.weight"])
    assert new_output_layer(gpt) is None
