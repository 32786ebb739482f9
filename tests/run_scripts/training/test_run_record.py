"""Runs that go on with other arguments, other classes, or another number of processes."""

import functools
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, TrainerState

from tokenmixers import HybridBertConfig
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training import run_record
from tokenmixers.run_scripts.training.run_folder import UNFINISHED, checkpoint_to_resume
from tokenmixers.run_scripts.training.run_record import EXTENDED, RunRecord, check_model_of, check_settings, extensions


SETTINGS = {"learning_rate": 0.01, "lr_scheduler_type": "linear", "warmup_steps": 0, "max_steps": 6}
SETTINGS |= {"weight_decay": 0.0}
SETTINGS |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "world_size": 1, "bf16": True}
SETTINGS |= {"optim_args": None, "max_seq_length": 16}
SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "logging_steps": 1}


@pytest.fixture
def notes(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(run_record.logger, "warning", found.append)
    return found


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_mlm.main(arguments(**SAVING, output_dir=folder))
    return folder


@pytest.fixture
def interrupted(whole, arguments, tokenizer_of, tmp_path):
    """The folder of a run that was killed after step 4, and `command(**changes)`."""
    folder = tmp_path / "run"
    for step in (2, 4):
        shutil.copytree(whole / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    (folder / UNFINISHED).mkdir()
    return folder, functools.partial(arguments, {**SAVING, **tokenizer_of(whole), "output_dir": folder})


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def saved_state(settings):
    return TrainerState(stateful_callbacks=[RunRecord(settings)])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rate": 0.02}, "--learning_rate 0.01, now 0.02"),
        ({"lr_scheduler_type": "cosine"}, "--lr_scheduler_type linear, now cosine"),
        ({"warmup_steps": 2}, "--warmup_steps 0, now 2"),
        ({"max_steps": 5}, "--max_steps 6, now 5"),
        (
            {"max_steps": None, "num_train_epochs": 3.0},
            "--max_steps 6, now left out; --num_train_epochs left out, now",
        ),
        ({"weight_decay": 0.1}, "--weight_decay 0.0, now 0.1"),
        ({"optim_args": "beta1=0.9"}, "--optim_args left out, now beta1=0.9"),
        ({"max_seq_length": 12, "mixup_alpha": 0.5}, "--max_seq_length 16, now 12; --mixup_alpha left out, now 0.5"),
        ({"per_device_train_batch_size": 4}, "8 rows a step, now 4"),
        ({"gradient_accumulation_steps": 2}, "8 rows a step, now 16"),
    ],
)
def test_other_settings_are_refused(changes, told):
    state = saved_state(SETTINGS)
    check_settings("checkpoint-2", state, SETTINGS)
    with pytest.raises(
        UserError, match=f"'checkpoint-2' was written with {told}.*: a run goes on with the arguments that"
    ):
        check_settings("checkpoint-2", state, {**SETTINGS, **changes})


def test_models_are_told_apart_by_their_files():
    before = {**SETTINGS, "teacher": "teacher", "teacher_files": "12", "starting_files": None}
    state = saved_state(before)
    check_settings("checkpoint-2", state, {**before, "teacher": "renamed"})
    check_settings("checkpoint-2", saved_state(SETTINGS), {**SETTINGS, "starting_files": "34"})  # from before
    for name, option in (("teacher_files", "--teacher"), ("starting_files", "--model_name_or_path")):
        with pytest.raises(UserError, match=f"was written with another model as {option}: a run goes on"):
            check_settings("checkpoint-2", state, {**before, name: "34"})


def test_what_may_change(notes):
    state = saved_state(SETTINGS)
    check_settings("checkpoint-2", state, {**SETTINGS, "training_rows": 5, "training_data": "12ab"})  # from before
    check_settings("checkpoint-2", saved_state({**SETTINGS, "training_data": "12ab"}), SETTINGS)
    divided = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    check_settings("checkpoint-2", state, SETTINGS | divided)
    check_settings("checkpoint-2", TrainerState(), SETTINGS | {"learning_rate": 1.0})  # without a record
    assert notes == []
    check_settings("checkpoint-2", state, {**SETTINGS, "max_steps": 8, "bf16": False})
    assert notes == [
        "'checkpoint-2' was written with --max_steps 6, this run goes on with 8.",
        "'checkpoint-2' was written with --bf16 True, this run goes on with False.",
    ]


@pytest.mark.parametrize("explicit", [False, True])
def test_another_learning_rate_is_refused_and_nothing_is_written(explicit, interrupted):
    folder, command = interrupted
    before = contents(folder)
    new = folder.with_name("new")
    where = {"resume_from_checkpoint": folder / "checkpoint-4", "output_dir": new} if explicit else {}
    for changes, told in (
        ({"learning_rate": 1e-3}, "--learning_rate 0.01, now 0.001"),
        ({"mlm_probability": 0.3}, "--mlm_probability 0.15, now 0.3"),
        ({"max_train_samples": 9}, r"\d+ training rows, now \d+"),
    ):
        with pytest.raises(SystemExit, match=f"checkpoint-4' was written with {told}"):
            run_mlm.main(command(**changes, **where))
    assert contents(folder) == before
    assert contents(new) == {}


@pytest.mark.parametrize("streaming", [False, True])
def test_other_training_texts_of_the_same_number_are_refused(streaming, corpus, arguments, tokenizer_of, tmp_path):
    lines, folder = (corpus / "train.txt").read_text().splitlines(), tmp_path / "run"
    swaps = str.maketrans("ae", "ea")  # as long, with the same letters
    (tmp_path / "same").mkdir()
    shutil.copy(corpus / "train.txt", tmp_path / "same")
    (tmp_path / "other.txt").write_text("\n".join([*lines[:-2], lines[-2].translate(swaps), lines[-1]]))
    options = {**SAVING, "max_steps": 2, "line_by_line": True, "do_eval": None, "validation_file": None}
    options |= {"max_eval_samples": 5, "streaming": True} if streaming else {"validation_file": corpus / "train.txt"}
    run_mlm.main(arguments(**options, output_dir=folder))
    options |= {"resume_from_checkpoint": folder / "checkpoint-2", "output_dir": tmp_path / "new", "max_steps": 3}
    options |= tokenizer_of(folder)
    with pytest.raises(SystemExit, match="checkpoint-2' was written with other training data: a run goes on"):
        run_mlm.main(arguments(**options, train_file=tmp_path / "other.txt"))
    assert contents(tmp_path / "new") == {}
    run_mlm.main(arguments(**options, train_file=tmp_path / "same" / "train.txt"))


def test_the_same_arguments_go_on(interrupted, notes):
    run_mlm.main(interrupted[1]())
    assert notes == []


def test_a_checkpoint_from_before_there_was_a_record_goes_on_and_gets_one(interrupted):
    folder, command = interrupted
    file = folder / "checkpoint-4" / "trainer_state.json"
    state = json.loads(file.read_text())
    record = state["stateful_callbacks"].pop("RunRecord")
    file.write_text(json.dumps(state))
    run_mlm.main(command())
    after = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    found = after["stateful_callbacks"]["RunRecord"]
    # The first run trained the tokenizer that this one loads.
    assert record["args"]["settings"].pop("tokenizer_files") is None
    assert len(found["args"]["settings"].pop("tokenizer_files")) == 32
    assert found == record
    assert record["args"]["settings"]["learning_rate"] == 1e-2


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_finished_run_is_extended(schedule, arguments, tokenizer_of, same_weights, tmp_path, capsys):
    """As one long run where the schedule is constant; otherwise with the rate of the longer schedule from there on."""
    options = {**SAVING, "lr_scheduler_type": schedule, "save_strategy": "steps", "save_total_limit": 1}
    run_mlm.main(arguments(options, max_steps=3, output_dir=tmp_path / "run"))
    options |= tokenizer_of(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"holds a finished run\. Choose .* larger --max_steps or"):
        run_mlm.main(arguments(options, max_steps=3, output_dir=tmp_path / "run"))
    with pytest.raises(SystemExit, match=r"-3' was written with --learning_rate 0\.01, now 0\.1: a run goes on"):
        run_mlm.main(arguments(options, learning_rate=0.1, output_dir=tmp_path / "run"))
    capsys.readouterr()
    extended = run_mlm.main(arguments(**options, output_dir=tmp_path / "run"))
    assert "extending the run that ended at step 3: its learning rate is that of the longer" in capsys.readouterr().out
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    rates = {entry["step"]: entry["learning_rate"] for entry in history if "learning_rate" in entry}
    if schedule == "constant":
        shutil.copytree(tmp_path / "run", tmp_path / "tokenizer")
        options["tokenizer_name"] = tmp_path / "tokenizer"
        assert run_mlm.main(arguments(**options, output_dir=tmp_path / "long"))["trained"] == extended["trained"]
        assert same_weights(tmp_path / "run", tmp_path / "long")
    else:
        assert rates == pytest.approx({step: 1e-2 * (1 - (step - 1) / (3 if step < 4 else 6)) for step in range(1, 7)})
        card = (tmp_path / "run" / "README.md").read_text()
        assert "6 steps. The run was extended at step 3: from there the learning rate follows the schedule" in card


def test_a_finished_run_without_its_last_checkpoint_is_not_extended(arguments, tmp_path):
    options = {**SAVING, "do_eval": None, "output_dir": tmp_path / "run"}
    run_mlm.main(arguments(options, save_strategy="no", max_steps=1))
    before = contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"no checkpoint of its last step.* give --model_name_or_path .*run to start"):
        run_mlm.main(arguments(options, max_steps=2))
    assert contents(tmp_path / "run") == before


def test_extensions_are_remembered():
    epochs = {name: value for name, value in SETTINGS.items() if name != "max_steps"}
    first = saved_state(epochs | {"num_train_epochs": 1.0})
    first.global_step = 5
    longer = epochs | {"num_train_epochs": 2.5}
    assert extensions(first, longer) == [5]
    assert extensions(first, epochs | {"num_train_epochs": 1.0}) == []
    again = saved_state(longer | {EXTENDED: [5]})
    again.global_step = 12
    check_settings("checkpoint-12", again, longer)
    assert extensions(again, longer) == [5]  # an interrupted extension
    assert extensions(again, longer | {"num_train_epochs": 3.0}) == [5, 12]


def test_weights_of_other_classes_are_refused(tmp_path):
    BertConfig(id2label={0: "no", 1: "yes"}).save_pretrained(tmp_path)
    check_model_of(str(tmp_path), BertConfig(id2label={0: "no", 1: "yes"}))
    with pytest.raises(UserError, match="has the classes 'no', 'yes', the data 'yes', 'no': a run goes on with the"):
        check_model_of(str(tmp_path), BertConfig(id2label={0: "yes", 1: "no"}))


def test_weights_of_another_model_are_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    check_model_of(str(tmp_path), BertConfig(pad_token_id=3, problem_type="single_label_classification"))
    for changes, told in (
        ({"hidden_dropout_prob": 0.3}, "hidden_dropout_prob 0.1, now 0.3"),
        ({"hidden_act": "relu", "num_hidden_layers": 2}, "hidden_act gelu, now relu; num_hidden_layers 12, now 2"),
    ):
        with pytest.raises(UserError, match=f"is of a model with {told}: a run goes on with the model that it began"):
            check_model_of(str(tmp_path), BertConfig(**changes))


def test_token_mixing_that_transformers_does_not_know_is_compared(tmp_path):
    mixed = {"num_hidden_layers": 2, "token_mixers": ["random_synthesizer", "full_attention"]}
    HybridBertConfig(**mixed).save_pretrained(tmp_path)
    check_model_of(str(tmp_path), HybridBertConfig(**mixed))
    with pytest.raises(UserError, match="intermediate_size 3072, now 8"):
        check_model_of(str(tmp_path), HybridBertConfig(**mixed, intermediate_size=8))


# --- another number of processes ---------------------------------------------------------------------------------


@pytest.fixture
def checkpoint_of(tmp_path):
    """`checkpoint_of(processes, recorded)`: the path of a checkpoint of 8 rows a step."""

    def build(processes, recorded=True):
        path = tmp_path / "checkpoint-2"
        path.mkdir()
        settings = {**SETTINGS, "world_size": processes, "per_device_train_batch_size": 8 // processes}
        (saved_state(settings) if recorded else TrainerState()).save_to_json(str(path / "trainer_state.json"))
        for rank in range(processes):
            torch.save({}, path / ("rng_state.pth" if processes == 1 else f"rng_state_{rank}.pth"))
        return path

    return build


def run_of(folder, processes, **changes):
    values = {"output_dir": str(folder), "do_train": True, "resume_from_checkpoint": None, "save_only_model": False}
    values |= {"save_on_each_node": False, "world_size": processes, "process_index": 0, "local_process_index": 0}
    values |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_steps": -1}
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (4, 2), (2, 4)])
def test_a_checkpoint_of_another_number_of_processes_goes_on(before, now, explicit, recorded, checkpoint_of, notes):
    path = checkpoint_of(before, recorded)
    run = run_of(path.parent, now, resume_from_checkpoint=str(path) if explicit else None)
    assert checkpoint_to_resume(run) == str(path)
    assert f"was written by {before} processes, this run has {now}: it goes on" in notes[0]
    if recorded:
        assert run.per_device_train_batch_size * now == 8
        assert notes[0].endswith("now.") == (now > 1)


def test_processes_that_cannot_share_the_rows_of_a_step(checkpoint_of, notes):
    path = checkpoint_of(1)
    with pytest.raises(UserError, match="by 1 processes with 8 rows a step, which this run's 3 cannot share: start 1"):
        checkpoint_to_resume(run_of(path.parent, 3))
    run = run_of(path.parent, 3, max_steps=9)
    assert checkpoint_to_resume(run) == str(path)
    assert run.per_device_train_batch_size == 8 and notes[0].endswith("a step has 24 rows instead of 8.")


def test_what_a_process_has_not_written_is_missed(checkpoint_of):
    path = checkpoint_of(4)
    (path / "rng_state_3.pth").write_bytes(b"")
    for processes in (1, 2, 4):
        assert checkpoint_to_resume(run_of(path.parent, processes)) is None


@pytest.mark.slow
def test_one_process_goes_on_with_two_and_two_with_one(interrupted, whole, in_two_processes):
    folder, command = interrupted
    before = contents(folder / "checkpoint-4")
    in_two_processes("run_mlm", command(precision="fp32"))
    assert contents(folder / "checkpoint-4") == before
    # A batch has the same rows, and there is no dropout.
    histories = [json.loads((path / "trainer_state.json").read_text())["log_history"] for path in (folder, whole)]
    losses = [[entry["loss"] for entry in history if "loss" in entry] for history in histories]
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert "| `per_device_train_batch_size` |" in (folder / "README.md").read_text()
    # And back.
    again = folder.with_name("again")
    shutil.copytree(folder / "checkpoint-6", again / "checkpoint-6")
    shutil.rmtree(folder)
    run_mlm.main(command(output_dir=again, max_steps=8))
    state = json.loads((again / "trainer_state.json").read_text())
    assert state["global_step"] == 8
