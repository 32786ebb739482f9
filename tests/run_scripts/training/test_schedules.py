"""Learning rates of whole runs, against formulas; resumed; and what a schedule is refused for."""

import pytest
import torch
from transformers import Adafactor, Trainer
from transformers.optimization import get_scheduler
from transformers.trainer_utils import SchedulerType

import tokenmixers
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.training.schedules import choose_epochs, choose_learning_rate, choose_student_rate
from tokenmixers.run_scripts.training.trainer import ScriptTrainer
from tokenmixers.run_scripts.training.trial_step import try_arguments
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


#: Functions of the step alone; the others look at the loss.
OF_THE_STEP = [kind for kind in SchedulerType if kind.value not in ("reduce_lr_on_plateau", "greedy")]
NEEDED = {"cosine_with_min_lr": {"min_lr": 0.1}, "cosine_warmup_with_min_lr": {"min_lr": 0.1}}
NEEDED["warmup_stable_decay"] = {"num_decay_steps": 3}


@pytest.fixture
def trainer(tmp_path):
    """`trainer(**arguments)`: with an optimizer for one weight, and what those arguments make of it."""

    def build(**arguments) -> ScriptTrainer:
        settings = {"output_dir": str(tmp_path), "use_cpu": True, "disable_tqdm": True, "optim": "sgd", **arguments}
        built = ScriptTrainer(torch.nn.Linear(1, 1, bias=False), ScriptTrainingArguments(**settings))
        built.create_optimizer()
        return built

    return build


def learning_rates(scheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def test_the_schedule_of_t5(trainer):
    """In Mesh TensorFlow: the inverse square root of the step, at least 10 here, and its share of the last tenth."""
    settings = {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 10, "learning_rate": 10**-0.5}
    scheduler = trainer(**settings, constant_warmup=True, final_decay_steps=0.1).create_scheduler(105)
    expected = [max(step, 10) ** -0.5 * min(1.0, (105 - step) / 10.5) for step in range(105)]
    assert learning_rates(scheduler, 105) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected[-1] < expected[-2] < expected[93] < expected[10] == expected[0]


@pytest.mark.parametrize("kind", OF_THE_STEP)
@pytest.mark.parametrize(("constant", "decay"), [(False, None), (True, None), (False, 4), (True, 0.2)])
def test_they_apply_to_every_schedule_of_transformers(kind, constant, decay, trainer):
    steps, warmup = 20, 5
    settings = {"lr_scheduler_type": kind.value, "warmup_steps": warmup, "learning_rate": 2.0}
    settings["lr_scheduler_kwargs"] = NEEDED.get(kind.value)
    changed = trainer(**settings, constant_warmup=constant, final_decay_steps=decay).create_scheduler(steps)
    plain = get_scheduler(kind, torch.optim.SGD([torch.zeros(1)], lr=2.0), warmup, steps, NEEDED.get(kind.value))
    without = learning_rates(plain, steps)
    expected = [without[warmup]] * warmup + without[warmup:] if constant else without
    if decay:
        expected = expected[:16] + [rate * left / 4 for rate, left in zip(expected[16:], (4, 3, 2, 1), strict=True)]
    assert learning_rates(changed, steps) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["constant_warmup", "final_decay_steps"])
@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_schedules_of_the_loss_are_refused(name, kind, tmp_path):
    given = {"lr_scheduler_type": kind, "eval_strategy": "epoch", "warmup_steps": 1, name: 1}
    with pytest.raises(UserError, match=f"{name}.* a function of the step alone, but --lr_scheduler_type {kind} with"):
        try_arguments(ScriptTrainingArguments(str(tmp_path), do_train=True, **given))


def test_a_decay_longer_than_the_training_is_refused(trainer):
    with pytest.raises(UserError, match="--final_decay_steps 30 is more than the 20 training steps"):
        trainer(final_decay_steps=30).create_scheduler(20)
    for decay, steps in ((20, 1), (1, 20)):
        found = trainer(lr_scheduler_type="constant", final_decay_steps=decay).create_scheduler(20)
        assert learning_rates(found, steps) == [5e-5] * steps


def test_a_resumed_run_has_the_same_rates(arguments, corpus, tokenizer_of, same_weights, tmp_path, monkeypatch):
    lines = (corpus / "train.txt").read_text().splitlines()
    train_unigram_tokenizer(lines, 60, 16, show_progress=False).save_pretrained(tmp_path / "tokenizer")
    command = tokenizer_of(tmp_path / "tokenizer")
    command |= {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2, "constant_warmup": "true", "max_steps": 8}
    command |= {"final_decay_steps": 0.5, "optim": "adafactor", "optim_args": "scale_parameter=true"}
    command |= {"save_strategy": "steps", "save_steps": 3, "do_eval": None}
    rates: dict[int, list[float]] = {}
    training_step, last = Trainer.training_step, 9

    def step_or_stop(self, *args, **kwargs):
        if self.state.global_step == last:
            raise KeyboardInterrupt
        rates.setdefault(self.state.global_step, []).append(self.optimizer.param_groups[0]["lr"])
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", step_or_stop)
    run_mlm.main(arguments(output_dir=tmp_path / "whole", **command))
    last = 5
    with pytest.raises(KeyboardInterrupt):
        run_mlm.main(arguments(output_dir=tmp_path / "resumed", **command))
    assert [path.name for path in (tmp_path / "resumed").glob("checkpoint-*")] == ["checkpoint-3"]
    last = 9
    run_mlm.main(arguments(output_dir=tmp_path / "resumed", **command))
    for step, found in rates.items():
        expected = 1e-2 * (2 / max(step, 2)) ** 0.5 * min(1.0, (8 - step) / 4)
        assert found == pytest.approx([expected] * (3 if step in (3, 4) else 2))
        assert len(set(found)) == 1
    assert same_weights(tmp_path / "whole", tmp_path / "resumed")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"scale_parameter": False}),
        ("scale_parameter=true", {"scale_parameter": True}),
        ("scale_parameter=True, clip_threshold=2", {"scale_parameter": True, "clip_threshold": 2.0}),
        ("decay_rate=-0.7,beta1=0.9", {"scale_parameter": False, "decay_rate": -0.7, "beta1": 0.9}),
    ],
)
def test_arguments_of_adafactor(options, expected, trainer):
    built = trainer(optim="adafactor", optim_args=options, learning_rate=0.5)
    defaults = {"lr": 0.5, "eps": (1e-30, 1e-3), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None}
    defaults |= {"relative_step": False, "warmup_init": False} | expected
    assert isinstance(built.optimizer, Adafactor)
    assert {key: built.optimizer.defaults[key] for key in defaults} == defaults


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("relative_step=true", "'relative_step', which adafactor does not take here; there are scale_parameter, "),
        ("scale_parameter=perhaps", "scale_parameter must be true or false, got 'perhaps'"),
        ("clip_threshold=0", "clip_threshold must be a finite number above 0, got '0'"),
        ("decay_rate=fast", "decay_rate must be a finite number, got 'fast'"),
        ("beta1=1", "beta1 must be a share from 0 to less than 1, got '1'"),
    ],
)
def test_what_adafactor_does_not_take(options, words, tmp_path):
    with pytest.raises(UserError, match=words):
        try_arguments(ScriptTrainingArguments(str(tmp_path), do_train=True, optim="adafactor", optim_args=options))


HYBRID = tokenmixers.shipped_model("aft-minilm")


@pytest.mark.parametrize(
    ("model", "rate", "reason"),
    [
        ({"model_name_or_path": tokenmixers.shipped_model("gmlp-minilm")}, 2e-4, "default for gmlp checkpoints"),
        ({"model_name_or_path": HYBRID}, 2e-4, "default for hybrid_bert checkpoints"),
        ({"config_name": "amlp-tiny"}, 1e-3, "default for a new amlp"),
        ({"model_type": "bert"}, 5e-5, "Transformers' default"),
        ({}, 5e-5, "Transformers' default"),
    ],
)
def test_a_rate_that_is_not_given_is_chosen_for_the_model(model, rate, reason, tmp_path):
    args = ScriptTrainingArguments(str(tmp_path))
    choose_learning_rate(args, ModelArguments(**model))
    assert (args.learning_rate, args.rate_reason) == (rate, reason)
    args = ScriptTrainingArguments(str(tmp_path), learning_rate=3e-4)
    choose_learning_rate(args, ModelArguments(**model))
    assert (args.learning_rate, args.rate_reason, args.default_rate) == (3e-4, None, rate)


@pytest.mark.parametrize(("rows", "epochs"), [(0, 6), (300, 6), (301, 5), (450, 4), (451, 3), (5_000, 3)])
def test_epochs_that_are_not_given_are_chosen_for_few_rows(rows, epochs, tmp_path):
    args = ScriptTrainingArguments(str(tmp_path))
    choose_epochs(args, rows, "bert")  # whose rate differs: not measured
    assert args.num_train_epochs == 3
    choose_epochs(args, rows, "gmlp")
    assert args.num_train_epochs == epochs
    assert args.epochs_reason == ("default for few rows" if epochs > 3 else "Transformers' default")
    args = ScriptTrainingArguments(str(tmp_path), num_train_epochs=3)
    choose_epochs(args, rows, "gmlp")
    assert args.num_train_epochs == 3 and args.epochs_reason is None


@pytest.mark.parametrize(
    ("kept", "rate", "of"), [([0, 2], 5e-4, "layers of a teacher"), ([], 5e-3, "static embeddings")]
)
def test_a_rate_that_is_not_given_is_chosen_for_a_teachers_layers(kept, rate, of, tmp_path):
    args = ScriptTrainingArguments(str(tmp_path))
    choose_student_rate(args, kept)
    assert (args.learning_rate, args.rate_reason) == (rate, f"default for {of}")
