import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainerState

from tokenmixers.run_scripts import run_mlm, run_seq2seq
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training import run as training_run
from tokenmixers.run_scripts.training import run_folder
from tokenmixers.run_scripts.training.run_folder import UNFINISHED, checkpoint_to_resume
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5, "logging_steps": 1}


class Killed(BaseException):
    """Ends a run as nothing that the scripts catch would."""


def kill(*args, **kwargs):
    raise Killed


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    """The folder of an uninterrupted run, whose tokenizer all other runs load."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_mlm.main(arguments(**SAVING, output_dir=folder))
    return folder


@pytest.fixture
def run(whole, arguments, tokenizer_of, tmp_path):
    return tmp_path / "run", arguments(**SAVING, **tokenizer_of(whole), output_dir=tmp_path / "run")


def check_same(folder: Path, whole: Path) -> None:
    weights, expected = (load_file(path / "model.safetensors") for path in (folder, whole))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())
    assert (folder / "README.md").read_text() == (whole / "README.md").read_text().replace(str(whole), str(folder))
    for name in ("train_results.json", "eval_results.json", "all_results.json"):
        found, wanted = (json.loads((path / name).read_text()) for path in (folder, whole))
        assert found.keys() | {"tokens_per_second"} == wanted.keys() | {"tokens_per_second"}
        same = [key for key in wanted if not key.endswith(("runtime", "per_second"))]
        assert [found[key] for key in same] == [wanted[key] for key in same]


@pytest.mark.parametrize("state", ["", "{"])
def test_a_folder_without_a_complete_checkpoint_is_not_resumed(state, run, tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(state)
    with pytest.raises(UserError, match="checkpoint-2' is no folder with a complete checkpoint"):
        run_mlm.main([*run[1], "--resume_from_checkpoint", str(tmp_path / "checkpoint-2")])


@pytest.mark.parametrize("left", [None, UNFINISHED, "checkpoint-2"])
def test_data_without_a_batch_leave_what_an_earlier_start_has_written_and_nothing_else(left, arguments, tmp_path):
    """Nor the tokenizer that was trained. The checkpoint is not complete."""
    folder = tmp_path / "run"
    if left is not None:
        (folder / left).mkdir(parents=True)
    with pytest.raises(UserError, match="training rows give no batch of 600"):
        run_mlm.main(arguments(output_dir=folder, dataloader_drop_last=True, per_device_train_batch_size=600))
    found = [path.name for path in folder.iterdir()] if folder.exists() else None
    assert found == (None if left is None else [left])


def test_the_evaluation_of_an_epoch_is_made_up_for(run, tmp_path, monkeypatch):
    """A checkpoint of an epoch's last step is saved before the epoch's evaluation."""
    _, command = run
    folders = [tmp_path / "whole", tmp_path / "killed"]
    epoch = ["--eval_strategy", "epoch", "--max_steps", "8", "--max_train_samples", "6", "--save_steps", "1"]
    commands = [[*command, *epoch, "--output_dir", str(folder)] for folder in folders]
    run_mlm.main(commands[0])
    evaluate, steps = ScriptTrainer._evaluate, []

    def kill_at_two(self, *args, **kwargs):
        if self.args.output_dir != str(folders[1]):  # the trial of the arguments
            return evaluate(self, *args, **kwargs)
        steps.append(self.state.global_step)
        return kill() if self.state.global_step > 0 else evaluate(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ScriptTrainer, "_evaluate", kill_at_two)
        run_mlm.main(commands[1])
    assert 0 < steps[-1] < 8 and (folders[1] / f"checkpoint-{steps[-1]}").is_dir()
    run_mlm.main(commands[1])
    histories = [json.loads((folder / "trainer_state.json").read_text())["log_history"] for folder in folders]
    found, expected = ([(e["step"], e["eval_loss"]) for e in h if "eval_loss" in e] for h in histories)
    assert found == expected
    assert [step for step, _ in expected] == [0, 4, 8]


@pytest.mark.parametrize("checkpoint", [2, 5])
def test_a_resumed_run_ends_as_an_uninterrupted_one(checkpoint, whole, run):
    """Also from the last checkpoint, after which no step is left."""
    folder, command = run
    for step in (2, 4, 5):
        if step <= checkpoint:
            shutil.copytree(whole / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    run_mlm.main(command)
    check_same(folder, whole)
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 5


def test_results_of_an_evaluation_are_no_finished_run(run):
    folder, command = run
    folder.mkdir()
    run_folder.write_results(folder, {"eval_loss": 1.0})
    with pytest.raises(UserError, match="is not empty and holds no checkpoint"):
        run_mlm.main(command)
    assert [path.name for path in folder.iterdir()] == ["all_results.json"]


def test_checkpoints_are_removed_while_a_run_is_resumed(whole, run):
    folder, command = run
    shutil.copytree(whole / "checkpoint-2", folder / "checkpoint-2")
    results = run_mlm.main([*command, "--save_total_limit", "1"])
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-5"]
    assert results["tokens_per_second"] > 0


def test_the_removal_of_a_checkpoint_is_completed(whole, run):
    folder, command = run
    shutil.copytree(whole / "checkpoint-5", folder / "checkpoint-5")
    (folder / "checkpoint-4").mkdir()
    run_mlm.main([*command, "--save_total_limit", "1"])
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-5"]


#: What ends a run, in this order.
ENDS = [(Trainer, "save_metrics"), (Trainer, "save_state"), (training_run, "plot_history")]
ENDS += [(ScriptTrainer, "create_model_card"), (training_run, "write_results"), (training_run, "mark_finished")]


def test_a_run_that_is_killed_at_its_end_is_ended_by_the_same_command(whole, run, monkeypatch):
    folder, command = run
    for owner, name in ENDS:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(owner, name, kill)
            run_mlm.main(command)
        assert (folder / UNFINISHED).is_dir()
    run_mlm.main(command)
    with pytest.raises(UserError, match="holds a finished run"):
        run_mlm.main(command)
    check_same(folder, whole)


def test_a_push_that_was_killed_is_made_up_for(run, whole, online, hub, monkeypatch):
    folder, command = run
    command = [*command, "--push_to_hub", "--hub_model_id", "me/run", "--hub_strategy", "end"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "push_to_hub", kill)
        run_mlm.main(command)
    assert (folder / "all_results.json").is_file()
    run_mlm.main(command)
    pushed = hub[0].commits[hub[0].branches["me/run"]["main"]]
    assert pushed["model.safetensors"] == (whole / "model.safetensors").read_bytes()
    assert {"README.md", "all_results.json", "tokenizer.json"} <= pushed.keys()
    assert not [name for name in pushed if name.startswith(("_", "checkpoint"))]
    assert not (folder / UNFINISHED).exists()


def test_a_trained_tokenizer_is_kept_for_the_next_attempt(
    arguments, corpus, tokenizers_trained, tmp_path, monkeypatch
):
    file = tmp_path / "train.txt"
    lines = (corpus / "train.txt").read_text().splitlines()
    file.write_text("\n".join(lines))
    command = arguments(**SAVING, output_dir=tmp_path / "run", train_file=file)

    def killed(*changes):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Trainer, "training_step", kill)
            run_mlm.main([*command, *changes])
        return (tmp_path / "run" / UNFINISHED / "tokenizer" / "tokenizer.json").read_text()

    kept = killed()
    assert killed() == kept
    assert tokenizers_trained == [60]
    killed("--train_tokenizer", "50")  # is another command
    killed()
    file.write_text("\n".join(lines[::-1]))  # are other data
    kept = killed()
    run_mlm.main(command)
    assert tokenizers_trained == [60, 50, 60, 60]
    assert (tmp_path / "run" / "tokenizer.json").read_text() == kept
    assert not (tmp_path / "run" / UNFINISHED).exists()


def test_a_half_written_tokenizer_is_not_used(tmp_path, monkeypatch):
    settings = {"train_tokenizer": 50}

    class Tokenizer:
        def save_pretrained(self, folder):
            folder.mkdir(parents=True)
            (folder / "tokenizer.json").write_text("{}")

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run_folder.os, "rename", kill)
        run_folder.mark_unfinished(tmp_path / "run", Tokenizer(), settings)
    assert run_folder.kept_tokenizer(tmp_path / "run", settings) is None
    run_folder.mark_unfinished(tmp_path / "run", Tokenizer(), settings)
    assert run_folder.kept_tokenizer(tmp_path / "run", settings).endswith("tokenizer")
    assert run_folder.kept_tokenizer(tmp_path / "run", {"train_tokenizer": 60}) is None
    assert [path.name for path in (tmp_path / "run" / UNFINISHED).iterdir()] == ["tokenizer"]


def test_test_data_are_predicted_again(run, whole, tmp_path, monkeypatch):
    """A run that is killed after its predictions have begun, of a script that predicts test data."""
    rows = "\n".join(json.dumps({"source": "gate token", "target": "token gate"}) for _ in range(4))
    (file := tmp_path / "pairs.jsonl").write_text(rows)
    files = ["--train_file", file, "--validation_file", file, "--test_file", file]
    sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=16"
    command = [*files, "--config_name", "synthesizer-random", "--train_tokenizer", 120, "--do_train", "--do_predict"]
    command += ["--config_overrides", sizes + ",num_attention_heads=2,head_dim=8", "--use_cpu", "--max_steps", 2]
    command += ["--output_dir", tmp_path / "pairs", "--generation_max_length", 4, "--disable_tqdm", "True"]
    command = [str(part) for part in command]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run_seq2seq.GenerationEvaluation, "columns", kill)
        run_seq2seq.main(command)
    results = run_seq2seq.main(command)
    assert len((tmp_path / "pairs" / "predictions_test.csv").read_text().splitlines()) == 5
    written = json.loads((tmp_path / "pairs" / "all_results.json").read_text())
    assert written["test_bleu"] == results["test_bleu"]
    tokenizer = json.loads((tmp_path / "pairs" / "tokenizer.json").read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)  # whether tokenizing was cached or not
    card = (tmp_path / "pairs" / "README.md").read_text()
    assert "/pairs.jsonl:" in card and f"| {results['test_perplexity']:.4f} |" in card


@pytest.mark.parametrize(("on_each_node", "complete"), [(True, True), (False, False)])
def test_a_checkpoint_on_each_node_has_the_files_of_its_processes(on_each_node, complete, tmp_path, monkeypatch):
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    TrainerState().save_to_json(str(checkpoint / "trainer_state.json"))
    arguments = SimpleNamespace(output_dir=str(tmp_path), do_train=True, resume_from_checkpoint=None)
    vars(arguments).update(save_only_model=False, save_on_each_node=on_each_node, world_size=4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in (2, 3):  # the second of two machines
        torch.save({}, checkpoint / f"rng_state_{rank}.pth")
        vars(arguments).update(process_index=rank, local_process_index=rank - 2)
        found = checkpoint_to_resume(arguments)
        assert found == (str(checkpoint) if complete and rank == 3 else None)
