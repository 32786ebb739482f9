"""A tiny corpus, and a command line that trains on it."""

import errno
import os
import random

import pytest
import torch
from safetensors.torch import load_file

from tokenmixers.run_scripts.arguments import UserError


CYCLE = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0)
    for name, count in (("train", 120), ("validation", 20)):
        starts = [words.randrange(len(CYCLE)) for _ in range(count)]
        lines = [" ".join((CYCLE * 3)[start : start + words.randint(5, 15)]) for start in starts]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def command(corpus, tmp_path):
    """`command(name=value, ...)`: arguments of a tiny run, with changes; `None` leaves an argument out."""

    def build(**changes):
        settings = {
            "train_file": corpus / "train.txt",
            "validation_file": corpus / "validation.txt",
            "config_name": "gmlp-base",
            "config_overrides": "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=16",
            "train_tokenizer": 60,
            "output_dir": tmp_path / "run",
            "do_train": True,
            "do_eval": True,
            "use_cpu": True,
            "max_steps": 4,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "disable_tqdm": True,
            **changes,
        }
        return [part for name, value in settings.items() if value is not None for part in (f"--{name}", str(value))]

    return build


@pytest.fixture
def survives(tmp_path, monkeypatch):
    """`survives(main, command, **changes)`: a script ends with one sentence when the loss diverges or the disk fills.

    In both cases the checkpoints before stay as they were.
    """

    def contents(folder):
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def check(main, command, **changes):
        saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "do_eval": None, **changes}
        options = {**saving, "lr_scheduler_type": "constant", "learning_rate": 1e30, "output_dir": tmp_path / "nan"}
        with pytest.raises(UserError, match=r"training (loss|gradient) is (nan|inf) at step [123]; saved"):
            main(command(**options))
        for checkpoint in (tmp_path / "nan").glob("checkpoint-*"):
            assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())
        save = torch.save

        def save_until_full(content, path, *args, **kwargs):
            if "checkpoint-2" in str(path):
                before.update(contents(tmp_path / "full" / "checkpoint-1"))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return save(content, path, *args, **kwargs)

        before: dict = {}
        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", save_until_full)
            with pytest.raises(UserError, match=r"disk of .* is full. Earlier checkpoints are untouched"):
                main(command(**saving, output_dir=tmp_path / "full"))
        assert before
        assert contents(tmp_path / "full" / "checkpoint-1") == before

    return check
