import gc
import logging
import os
import random

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import Trainer
from transformers.utils.logging import get_logger

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import GenerationTrainingArguments, ScriptTrainingArguments
from tokenmixers.run_scripts.training import trial_step
from tokenmixers.run_scripts.training.trial_step import try_arguments


KINDS = pytest.mark.parametrize("kind", [ScriptTrainingArguments, GenerationTrainingArguments])


def arguments(tmp_path, kind=ScriptTrainingArguments, **given):
    return kind(str(tmp_path / "out"), **{"do_train": True, "do_eval": True, "use_cpu": True, **given})


@pytest.mark.fast_cases
@KINDS
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"label_smoothing_factor": 0.1, "neftune_noise_alpha": 5},
        {"max_steps": 100, "final_decay_steps": 50, "gradient_accumulation_steps": 8},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_drop_last": True},
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": '{"use_reentrant": false}'},
        {"optim": "adafactor", "optim_args": "scale_parameter=true", "torch_empty_cache_steps": 7},
        {"train_sampling_strategy": "group_by_length", "auto_find_batch_size": True, "eval_accumulation_steps": 3},
        {"optim": "sgd", "optim_args": "momentum=0.9, nesterov=false, dampening=0"},
        {"optim": "rmsprop", "optim_args": "alpha=0.9,centered=true,eps=1e-7"},
        {"optim": "adagrad", "optim_args": "lr_decay=0"},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 10},
        {"bf16_full_eval": True, "save_strategy": "best"},
        pytest.param({"torch_compile": True, "torch_compile_backend": "eager"}, marks=pytest.mark.slow),
        {"do_train": False},
        {"do_eval": False, "do_predict": True},
    ],
)
def test_what_can_be_used_passes(kind, given, tmp_path):
    try_arguments(arguments(tmp_path, kind, **given))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"batch_eval_metrics": True}, "--batch_eval_metrics true cannot be used here: When using `batch_eval_metr"),
        ({"eval_do_concat_batches": False}, "--eval_do_concat_batches false cannot be used here: metrics need"),
        ({"prediction_loss_only": True}, "--prediction_loss_only true cannot be used here: evaluations would have no"),
        ({"label_names": ["a", "b"]}, "--label_names a b cannot be used here: evaluations would have no metrics"),
        ({"fsdp": "full_shard"}, "--fsdp true cannot be used here: Using fsdp only works in distributed training"),
        ({"debug": "tpu_metrics_debug"}, "--debug tpu_metrics_debug cannot be used here: "),
        pytest.param(
            {"torch_compile_mode": "nope"},
            "--torch_compile_mode nope cannot be used here: .*reduce-overhead",
            marks=pytest.mark.slow,
        ),
        ({"torch_compile_backend": "nope"}, "'NOPE' is not a valid DynamoBackend"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "--lr_scheduler_type warmup_stable_decay cannot .*num_decay_s"),
        ({"optim_args": "momentum=0.9"}, "--optim_args has 'momentum', which --optim adamw_torch_fused does not"),
        ({"optim": "sgd", "optim_args": "momentum=0.9,lr_decay=1"}, "--optim_args has 'lr_decay', which --optim sgd"),
        ({"optim": "sgd", "optim_args": "momentum=x"}, "--optim_args momentum=x cannot be used here: could not conv"),
        ({"dataloader_multiprocessing_context": "fork"}, "--dataloader_multiprocessing_context fork cannot be used"),
        ({"max_steps": 5, "final_decay_steps": 9}, "--final_decay_steps 9 is more than the 5 training steps"),
        (
            {"lr_scheduler_type": "greedy", "eval_strategy": "epoch", "final_decay_steps": 9, "optim": "sgd"},
            "function of the step alone, but --lr_scheduler_type greedy with --optim sgd makes a GreedyLR",
        ),
        ({"activation_checkpointing_kwargs": '{"a": 1}'}, r'--.*_kwargs {"a": 1} cannot .*: Unexpected keyw.*: a\.'),
    ],
)
def test_what_cannot_be_used_is_named(given, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        try_arguments(arguments(tmp_path, **given))
    assert "\n" not in str(error.value)


@KINDS
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left(kind, fails, tmp_path, monkeypatch, capfd):
    """No file, no change of arguments, random numbers, environment or states, nothing said, and the Hub not asked."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Trainer, "init_hf_repo", None)
    given = {"push_to_hub": True, "full_determinism": True, "report_to": ["none"], "eval_strategy": "epoch"}
    args = arguments(tmp_path, kind, **given, batch_eval_metrics=fails)
    torch.manual_seed(3), random.seed(4), np.random.seed(5)
    deterministic, level = torch.are_deterministic_algorithms_enabled(), logging.root.manager.disable
    before, environment = dict(vars(args)), dict(os.environ)
    try:
        try_arguments(args)
    except UserError:
        assert fails
    assert dict(vars(args)) == before
    found = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(3), random.seed(4), np.random.seed(5)
    torch.testing.assert_close(found, (torch.rand(2), random.random(), np.random.rand()), rtol=0, atol=0)
    assert dict(os.environ) == environment
    assert AcceleratorState._shared_state == GradientState._shared_state == {}
    assert PartialState._shared_state
    assert (torch.are_deterministic_algorithms_enabled(), logging.root.manager.disable) == (deterministic, level)
    assert list(tmp_path.iterdir()) == []
    assert "".join(capfd.readouterr()) == ""


def test_warnings_of_the_run_itself_are_shown(tmp_path, monkeypatch):
    """What Transformers says once is not said by the trial, where nobody sees it."""
    logger, shown = get_logger("transformers.a_test"), []
    logger.setLevel("WARNING")  # other tests silence the library
    monkeypatch.setattr(logger, "handle", lambda record: shown.append(record.getMessage()))
    monkeypatch.setattr(trial_step, "_count", lambda prediction: logger.warning_once("said once") or {"counted": 1})
    try_arguments(arguments(tmp_path))
    assert not shown
    logger.warning_once("said once")
    assert shown == ["said once"]


@pytest.mark.parametrize("frozen", [False, True])
def test_objects_are_frozen_after_the_trial_as_before_it(frozen, tmp_path):
    """If the caller's thawed, each collection would look at all of them again: half of the time of a tiny run."""
    gc.freeze() if frozen else gc.unfreeze()
    before = gc.get_freeze_count()
    try:
        try_arguments(arguments(tmp_path))
        after = gc.get_freeze_count()
    finally:
        gc.freeze()  # as tests/conftest.py has it
    assert 0.99 * before < after <= before if frozen else after == before == 0  # frozen objects may still be freed


def test_a_defect_of_the_trial_itself_is_no_wrong_argument(tmp_path, monkeypatch):
    def fail(args):
        raise RuntimeError("a defect")

    monkeypatch.setattr(trial_step, "_trainer", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        try_arguments(arguments(tmp_path, learning_rate=1.0))
