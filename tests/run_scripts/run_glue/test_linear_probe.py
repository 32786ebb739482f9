"""The regression that a checkpoint's new output layer starts with."""

import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tokenmixers import GMLPConfig, GMLPModel
from tokenmixers.run_scripts import run_glue


pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def encoder(tokenizer, tmp_path_factory):
    config = GMLPConfig(vocab_size=80, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_labels=2)
    config.max_position_embeddings, config.classifier_pooling = 64, "mean"
    folder = tmp_path_factory.mktemp("encoder")
    GMLPModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def test_without_a_rate_a_checkpoint_starts_with_a_linear_probe(command, encoder, tmp_path, capsys):
    results = run_glue.main(command(learning_rate=None, model_name_or_path=encoder))
    printed = capsys.readouterr().out
    assert "learning rate 0.0002 (default for gmlp checkpoints), from the start" in printed
    assert "the new output layer starts with a regression on the features of 60 training rows" in printed
    card = " ".join((tmp_path / "run" / "README.md").read_text().split())
    assert "| `learning_rate` | 0.0002 |" in card and "| `linear_probe` | True |" in card
    # The same rate, given: the same start. A head that was trained stays, and with another rate it starts at random.
    same = run_glue.main(command(learning_rate=2e-4, model_name_or_path=encoder, output_dir=tmp_path / "same"))
    printed = capsys.readouterr().out
    assert "learning rate 0.0002, from the start" in printed and "starts with a regression" in printed
    assert same["eval_loss"] == results["eval_loss"]
    run_glue.main(command(learning_rate=None, model_name_or_path=tmp_path / "run", output_dir=tmp_path / "further"))
    other = run_glue.main(command(learning_rate=3e-4, model_name_or_path=encoder, output_dir=tmp_path / "given"))
    printed = capsys.readouterr().out
    assert "starts with a regression" not in printed and "learning rate 0.0003, from the start" in printed
    assert results["eval_loss"] < other["eval_loss"]
    with pytest.raises(SystemExit, match="--linear_probe is for a new output layer of a checkpoint"):
        run_glue.main(command(linear_probe=True, output_dir=tmp_path / "scratch"))


def test_few_rows_are_read_more_often(command, encoder, tmp_path, capsys):
    """At the default rate, given or not. With another rate it is Transformers' number."""
    options = {"model_name_or_path": encoder, "learning_rate": None, "max_steps": None, "save_strategy": "epoch"}
    options["per_device_train_batch_size"] = 30
    run_glue.main(command(**options))
    assert "training for 6 epochs (default for few rows), 30 rows a step" in capsys.readouterr().out
    card = " ".join((tmp_path / "run" / "README.md").read_text().split())
    assert "12 steps." in card and "| `num_train_epochs` | 6.0 |" in card
    with pytest.raises(SystemExit, match="holds a finished run"):
        run_glue.main(command(**options))
    run_glue.main(command(**options, num_train_epochs=7))  # a longer run goes on
    assert "extending the run that ended at step 12" in capsys.readouterr().out
    for name, given, expected in (
        ("rate", {"learning_rate": 1e-4}, "3 epochs (Transformers' default), 30"),
        ("default rate", {"learning_rate": 2e-4}, "6 epochs (default for few rows), 30"),
    ):
        run_glue.main(command(options, **given, output_dir=tmp_path / name))
        assert f"training for {expected} rows a step" in capsys.readouterr().out


@pytest.mark.parametrize("task_name", ["sst2", "stsb", "mnli"])
def test_the_probe_is_the_regression_on_what_the_model_reads(sentences, task_name, command, encoder, tmp_path):
    """Without a step that changes it, the saved output layer is scikit-learn's."""
    from sklearn.linear_model import LogisticRegression, Ridge

    options = {"learning_rate": 0, "linear_probe": True, "task_name": task_name, "max_steps": 1}
    run_glue.main(command(**options, model_name_or_path=encoder))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = [text for text, _ in sentences(60, start=5)]
    pairs = texts if task_name == "sst2" else [(text, "it is") for text in texts]
    features, logits = [], []
    for text in pairs:
        inputs = tokenizer(*([text] if task_name == "sst2" else text), return_tensors="pt")
        with torch.no_grad():
            features.append(model.model(**inputs).last_hidden_state[0].mean(dim=0).double().numpy())
            logits.append(model(**inputs).logits[0].double().numpy())
    features, logits = np.array(features), np.array(logits)
    scaled = np.c_[features / np.sqrt((features**2).sum(axis=1).mean()), np.ones(60)]
    if task_name == "stsb":
        scores = np.array([5.0 * label for _, label in sentences(60, start=5)])
        peer = Ridge(alpha=1 / 3, fit_intercept=False).fit(scaled, (scores - scores.mean()) / scores.std())
        np.testing.assert_allclose(logits[:, 0], peer.predict(scaled) * scores.std() + scores.mean(), atol=1e-3)
        return
    labels = [label for _, label in sentences(60, start=5)]
    found, weight = logits[:, 1:] - logits[:, :1], 6  # weights of two classes share the penalty
    if task_name == "mnli":
        kinds = ["neutral", "entailment", "contradiction"]
        labels, found, weight = [model.config.label2id[kinds[i % 3]] for i in range(60)], logits, 3
    peer = LogisticRegression(C=weight, fit_intercept=False, tol=1e-8, max_iter=1000).fit(scaled, labels)
    np.testing.assert_allclose(found, scaled @ peer.coef_.T, atol=2e-3)


def test_a_probed_run_that_goes_on_ends_as_a_whole_one(command, encoder, same_weights, tmp_path, monkeypatch):
    options = {"model_name_or_path": encoder, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    options["learning_rate"] = None
    run_glue.main(command(**options, output_dir=tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    monkeypatch.setattr(run_glue, "start_with_probe", None)  # a run that goes on has its weights
    run_glue.main(command(**options))
    assert same_weights(tmp_path / "whole", tmp_path / "run")
