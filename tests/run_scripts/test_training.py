import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.arguments import UserError
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "do_eval": None}


@pytest.fixture
def whole(command, corpus, tmp_path):
    """Weights of an uninterrupted run, and the command of an interrupted one."""
    lines = (corpus / "train.txt").read_text().splitlines()
    train_unigram_tokenizer(lines, 60, 16).save_pretrained(tmp_path / "tokenizer")  # not the same each time
    overrides = "vocab_size=60,hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=16"
    options = {**SAVING, "train_tokenizer": None, "tokenizer_name": tmp_path / "tokenizer"}
    options["config_overrides"] = overrides
    run_mlm.main(command(**options, output_dir=tmp_path / "whole"))
    return load_file(tmp_path / "whole" / "model.safetensors"), command(**options, output_dir=tmp_path / "run")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def equal(folder: Path, weights: dict[str, torch.Tensor]) -> bool:
    found = load_file(folder / "model.safetensors")
    return found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize("written", ["model.safetensors", "optimizer.pt", "rng_state.pth", "half a state"])
@pytest.mark.parametrize("step", [2, 4])
def test_an_incomplete_checkpoint_does_not_count(step, written, whole, tmp_path):
    weights, command = whole
    folder = tmp_path / "run"
    for number in range(2, step + 1, 2):
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{number}", folder / f"checkpoint-{number}")
    state = folder / f"checkpoint-{step}" / "trainer_state.json"
    if written == "half a state":
        state.write_text(state.read_text()[:100])
    else:
        state.unlink()
        stop = state.with_name(written).stat().st_mtime_ns
        for path in list(state.parent.iterdir()):
            if path.stat().st_mtime_ns > stop:
                path.unlink()
    run_mlm.main(command)
    assert equal(folder, weights)


@pytest.mark.parametrize("save_steps", [1, 3])
def test_a_loss_that_is_not_finite_ends_the_run(save_steps, command, tmp_path):
    options = {**SAVING, "save_steps": save_steps, "logging_steps": 100, "lr_scheduler_type": "constant"}
    with pytest.raises(UserError, match=r"training (loss|gradient) is (nan|inf) at step \d"):
        run_mlm.main(command(**options, learning_rate=1e30))
    checkpoints = list((tmp_path / "run").glob("checkpoint-*"))
    assert len(checkpoints) == (save_steps == 1)
    for checkpoint in checkpoints:
        assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())


@pytest.mark.parametrize("module, name", [(torch, "save"), (os, "replace")], ids=["optimizer", "weights"])
def test_a_full_disk_is_said_and_survived(module, name, whole, tmp_path, monkeypatch):
    weights, command = whole
    write = getattr(module, name)

    def write_until_full(source, target, *args, **kwargs):
        if "checkpoint-4" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(source, target, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, write_until_full)
        with pytest.raises(UserError, match=r"disk of .* is full"):
            run_mlm.main(command)
    earlier = tmp_path / "run" / "checkpoint-2"
    assert equal(earlier, load_file(tmp_path / "whole" / "checkpoint-2" / "model.safetensors"))
    before = contents(earlier)
    run_mlm.main(command)
    assert contents(earlier) == before
    assert equal(tmp_path / "run", weights)


def test_the_history_is_drawn_and_kept(command, tmp_path):
    pytest.importorskip("matplotlib")
    run_mlm.main(command(eval_strategy="steps", eval_steps=2, logging_steps=1))
    assert (tmp_path / "run" / "history.png").read_bytes().startswith(b"\x89PNG")
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [0, 2, 4]
