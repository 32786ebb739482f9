"""A tiny corpus, a command line that trains on it, and a Hub on loopback."""

import csv
import functools
import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tokenmixers import GMLPForMaskedLM
from tokenmixers.run_scripts.base import precision
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.small_data import (
    docstring_tasks,
    python_docs_corpus,
    python_docs_questions,
    python_docs_summaries,
)
from tokenmixers.run_scripts.training import model_loading
from tokenmixers.run_scripts.training import run as training_run
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


#: An argument -> those of a command's own settings that it replaces.
REPLACED = {
    "model_name_or_path": ("config_name", "config_overrides", "tokenizer_name", "train_tokenizer"),
    "tokenizer_name": ("train_tokenizer",),
}
SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=16"
CYCLE = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm"]


@pytest.fixture(autouse=True, scope="module")
def _no_bfloat16():
    """The processor reports no bfloat16: what tests compare would need wider tolerances with it.

    For whole modules, whose own fixtures train too.
    """
    without = dict.fromkeys((*precision.X86_INSTRUCTIONS, *precision.ARM_INSTRUCTIONS), False)
    found = torch.cpu.get_capabilities()
    changed = {name: without.get(name, value) for name, value in found.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cpu, "get_capabilities", lambda: changed)
        yield


errors_of = runpy.run_path(str(Path(__file__).parents[1] / "hub_metadata.py"))["metadata_errors"]


@pytest.fixture(autouse=True)
def _cards_keep_the_hubs_rules(monkeypatch):
    """Whatever card a script writes in a test of this folder, its metadata are such as the Hub takes."""
    save = huggingface_hub.ModelCard.save

    def check_and_save(self, *args, **kwargs):
        assert errors_of(str(self)) == []
        return save(self, *args, **kwargs)

    monkeypatch.setattr(huggingface_hub.ModelCard, "save", check_and_save)


@pytest.fixture
def history_is_drawn():
    """For tests that look at the picture of a run."""


@pytest.fixture
def arguments_are_tried():
    """For tests of calls with arguments that Transformers refuses."""


@pytest.fixture(autouse=True)
def _runs_are_short(request, monkeypatch):
    """Left out of runs: what has its own tests and takes as long as all else in a tiny one."""
    if "history_is_drawn" not in request.fixturenames:
        monkeypatch.setattr(training_run, "plot_history", lambda history, path: path.touch())
    if "arguments_are_tried" not in request.fixturenames:
        monkeypatch.setattr(training_run, "try_arguments", lambda args: None)
    # Trainers ask for a collection of garbage at their start and end.
    monkeypatch.setattr("accelerate.utils.memory.clear_device_cache", lambda garbage_collection=False: None)


@pytest.fixture(scope="session")
def as_words():
    """`as_words(settings, changes, ...)`: the command line of a run on the CPU, in which the last value counts.

    `None` leaves an argument out, a list has many. A checkpoint or a tokenizer replaces what described one before.
    """

    def build(*settings):
        merged = dict.fromkeys(("do_train", "do_eval", "use_cpu", "disable_tqdm"), True)
        for changes in settings:
            replaced = {name for given in REPLACED if changes.get(given) for name in REPLACED[given]}
            merged = {name: value for name, value in merged.items() if name not in replaced} | changes
        words = []
        for name, value in merged.items():
            values = value if isinstance(value, list | tuple) else [value]
            words += [] if value is None else [f"--{name}", *map(str, values)]
        return words

    return build


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0)
    for name, count in (("train", 120), ("validation", 20)):
        starts = [words.randrange(len(CYCLE)) for _ in range(count)]
        lines = [" ".join((CYCLE * 3)[start : start + words.randint(5, 15)]) for start in starts]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def tagged_sentences(tmp_path_factory):
    """People with a surname go to places, as CoNLL text and JSON lines; a tokenizer."""
    people, places = ("Ada", "Kurt", "Emmy"), ("Rome", "Oslo", "Lima")

    def sentences(count: int) -> list[list[tuple[str, str]]]:
        return [
            [
                (people[i % 3], "B-PER"),
                ("Smith", "I-PER"),
                ("went", "O"),
                ("to", "O"),
                (places[i % 2], "B-LOC"),
                (".", "O"),
            ]
            for i in range(count)
        ]

    folder = tmp_path_factory.mktemp("ner")
    for name, count in (("train", 40), ("validation", 8), ("test", 4)):
        rows = [
            {"tokens": [word for word, _ in sentence], "ner_tags": [tag for _, tag in sentence]}
            for sentence in sentences(count)
        ]
        blocks = ["\n".join(f"{word} X {tag}" for word, tag in sentence) for sentence in sentences(count)]
        (folder / f"{name}.conll").write_text("-DOCSTART- X O\n\n" + "\n\n".join(blocks) + "\n")
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = (" ".join(word for word, _ in sentence) for sentence in sentences(12))
    train_unigram_tokenizer(texts, 90, 32).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture
def part_of_the_library(monkeypatch):
    """The scripts that make data of Python's own documentation read every tenth module, or two packages of eight."""
    every_file = python_docs_corpus.library_files
    for script in (python_docs_corpus, python_docs_questions, python_docs_summaries):
        monkeypatch.setattr(script, "library_files", lambda root: every_file(root)[::10])
    monkeypatch.setattr(docstring_tasks, "PACKAGES", ("logging", "xml"))


@pytest.fixture(params=["part", pytest.param("whole", marks=pytest.mark.slow)])
def library(request):
    """The share of the modules that those scripts read: a part, and (slow) all."""
    if request.param == "part":
        request.getfixturevalue("part_of_the_library")
    return {"part": 0.1, "whole": 1.0}[request.param]


@pytest.fixture(scope="module")
def arguments(corpus, as_words):
    """`arguments(output_dir=..., ...)`: those of a tiny run, with changes as those of `as_words`."""
    tiny = {
        "train_file": corpus / "train.txt",
        "validation_file": corpus / "validation.txt",
        "config_name": "gmlp-base",
        "config_overrides": SIZES,
        "train_tokenizer": 60,
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
    }
    return lambda *settings, **changes: as_words(tiny, *settings, changes)


@pytest.fixture
def command(arguments, tmp_path):
    """The same, for a run in a folder of the test's own."""
    return functools.partial(arguments, {"output_dir": tmp_path / "run"})


@pytest.fixture(scope="session")
def tokenizer_of():
    """`tokenizer_of(folder)`: what makes the tiny run's model one for the tokenizer in a folder."""

    def build(folder):
        vocabulary = len(transformers.AutoTokenizer.from_pretrained(folder))
        return {"tokenizer_name": folder, "config_overrides": f"{SIZES},vocab_size={vocabulary}"}

    return build


@pytest.fixture(scope="session")
def table_of():
    def read(path):
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return read


@pytest.fixture(scope="session")
def same_weights():
    """`same_weights(one, other)`: whether the models in two folders have the same tensors."""

    def compare(one, other):
        first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
        return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)

    return compare


@pytest.fixture
def tokenizers_trained(monkeypatch):
    train, sizes = model_loading.train_unigram_tokenizer, []

    def count(texts, size, *args, **kwargs):
        sizes.append(size)
        return train(texts, size, *args, **kwargs)

    monkeypatch.setattr(model_loading, "train_unigram_tokenizer", count)
    return sizes


@pytest.fixture(scope="session")
def torchrun():
    """`torchrun(file, ...)`: how two processes of a Python file, or of a module after `-m`, ended."""

    def run(*words, **environment):
        return subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *map(str, words)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def in_two_processes(torchrun):
    """`in_two_processes(script, arguments)`: run a script with `torchrun`; what it printed."""

    def run(script, arguments):
        process = torchrun("-m", f"tokenmixers.run_scripts.{script}", *arguments)
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    return run


@pytest.fixture
def refuses(tmp_path):
    """`refuses(main, arguments, message)`: a command ends in a sentence, before it writes anything."""

    def check(main, arguments, message):
        with pytest.raises(UserError, match=r"^error: ") as caught:
            main(arguments)
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    return check


@pytest.fixture
def overwrites_nothing(tmp_path):
    """`overwrites_nothing(convert)`: `convert(folder)` refuses a folder with files, and leaves it as it is."""

    def check(convert):
        folder = tmp_path / "full"
        folder.mkdir()
        (folder / "precious.txt").write_text("mine")
        with pytest.raises(SystemExit, match="not empty"):
            convert(folder)
        assert [path.name for path in folder.iterdir()] == ["precious.txt"]
        assert (folder / "precious.txt").read_text() == "mine"

    return check


@pytest.fixture
def checkpoint(tiny_config, randomise, tmp_path):
    folder = tmp_path / "trained"
    randomise(GMLPForMaskedLM(tiny_config())).save_pretrained(folder)
    (folder / "README.md").write_text(f'---\nlicense: apache-2.0\n---\n# Mine\nload("{folder}")\n')
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(b"an older one")
    return folder


@pytest.fixture
def hub():
    """`(state, address)` of a Hub on loopback: see hub_stand_in.py."""
    state, server = runpy.run_path(str(Path(__file__).with_name("hub_stand_in.py")))["start"]()
    yield state, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def online(hub, monkeypatch, tmp_path):
    """`online(token)`: from here on this process knows that Hub alone, with this token, "good" by default, or `None`.

    A lost connection costs no time: the client's pauses between attempts are skipped.
    """
    constants, address = huggingface_hub.constants, hub[1]

    def log_in(token: str | None = "good") -> None:
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN", raising=False)

    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)  # new in later versions
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    huggingface_hub.close_session()  # which knows the proxies
    log_in()
    yield log_in
    huggingface_hub.close_session()


@pytest.fixture
def call(hub, tmp_path):
    """`call(code)`: run Python in a fresh process with a cold cache that knows this Hub alone; what it prints."""

    def run(code: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {
            "HF_ENDPOINT": hub[1],
            "HF_HOME": str(tmp_path / f"cache-{len(list(tmp_path.glob('cache-*')))}"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": "good",
            "NO_PROXY": "127.0.0.1",
        }
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run
