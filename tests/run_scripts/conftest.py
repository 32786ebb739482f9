"""A tiny corpus, and a command line that trains on it."""

import random

import pytest


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
