import torch

from tokenmixers.run_scripts.studies.definition import build_study, merge, read_study
from tokenmixers.run_scripts.studies.models import new_model
from tokenmixers.run_scripts.studies.step_times import random_batch, step_seconds


def tiny(name, **changes):
    """A shipped study with a small vocabulary."""
    return build_study(name, "default", merge(read_study(name).definition, {"tokenizer": 64, **changes}))


def test_the_batches_of_all_shipped_tasks_train():
    for name in ("tiny_attention", "synthesizers", "images"):
        study = read_study(name, "quick")
        for task in study.tasks.values():
            model = new_model(study, task, next(iter(task.models)), "cpu")
            batch = random_batch(task, model)
            assert {len(value) for value in batch.values()} == {task.arguments["per_device_train_batch_size"]}
            loss = model(**batch).loss
            loss.backward()
            assert loss.isfinite()
            assert any(parameter.grad is not None for parameter in model.parameters())


def test_a_share_of_the_tokens_is_masked():
    study = tiny("toeplitz", arguments={"per_device_train_batch_size": 64, "mlm_probability": 0.3})
    (task,) = study.tasks.values()
    labels = random_batch(task, new_model(study, task, "full", "cpu"))["labels"]
    assert labels.shape == (64, 128)
    assert abs((labels != -100).float().mean() - 0.3) < 0.02


def test_more_layers_take_longer():
    layers = {"full": {"config_overrides": {"num_hidden_layers": 1}}}
    study = tiny("toeplitz", arguments={"per_device_train_batch_size": 2}, variants=layers)
    (task,) = study.tasks.values()
    seconds = step_seconds(study, task, torch.device("cpu"), rounds=3)
    assert 0 < seconds["full"] < seconds["toeplitz"]


def test_students_that_inherit_are_timed():
    shape = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 48}
    definition = read_study("inheritance", "quick").definition
    study = build_study("inheritance", "quick", merge(definition, {"arguments": {"config_overrides": shape}}))
    (task,) = study.tasks.values()
    seconds = step_seconds(study, task, torch.device("cpu"), rounds=1)
    assert "static" in seconds and seconds.keys() == task.models.keys() and min(seconds.values()) > 0
