"""A run of any training command that is killed and started again ends as if it had not been."""

import errno
import importlib
import json
import os
import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tokenmixers.run_scripts.base.errors import UserError


TINY_RUNS = runpy.run_path(str(Path(__file__).with_name("tiny_runs.py")))
SCRIPTS = TINY_RUNS["SCRIPTS"]
SCRIPTS_AND_GRID = TINY_RUNS["SCRIPTS_AND_GRID"]
GRID = TINY_RUNS["GRID"]
AUGMENTED = TINY_RUNS["AUGMENTED"]
run_here = TINY_RUNS["run_here"]
without_times = TINY_RUNS["without_times"]

FINISHED = "holds a finished run"


@pytest.fixture(scope="module")
def start(data, tmp_path_factory):
    """`start(script, arguments, folder, at=None)`: see run_and_kill.py."""
    for module in ("evaluate", "sacrebleu", *(f"tokenmixers.run_scripts.{script}" for script in SCRIPTS)):
        importlib.import_module(module)  # once, instead of in every fork
    run = runpy.run_path(str(Path(__file__).with_name("run_and_kill.py")))["run"]
    given, own = {"tokenizer": data / "encoder"}, tmp_path_factory.mktemp("killed")
    return lambda script, arguments, folder, **when: run(
        {"script": script.split()[0], "arguments": arguments, "folder": folder, **given, **when}, own
    )


def as_lists(value):
    """Tensors in nested dictionaries and lists as lists, which can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list) else value


def end_state(folder: Path) -> dict:
    """What a run leaves, in a form that can be compared."""
    state = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith("_finished"):  # left by a kill after the end
            continue
        if path.parent.parent.name == "_teacher_embeddings" and path.name.startswith("_"):  # left by a kill in a part
            continue
        if path.is_dir() or path.name == "training_args.bin":
            state[name] = None
        elif path.suffix == ".safetensors":
            state[name] = {key: tensor.tolist() for key, tensor in load_file(path).items()}
        elif path.name.endswith("results.json") or path.name == "trainer_state.json":
            state[name] = without_times(json.loads(path.read_text()))
        elif path.name in ("optimizer.pt", "scheduler.pt"):
            state[name] = as_lists(torch.load(path, weights_only=True))
        elif path.suffix in (".pth", ".pt", ".png"):
            state[name] = None
        else:
            state[name] = path.read_text()
    return state


@pytest.fixture(scope="module")
def states():
    """Script -> for each operation of an uninterrupted run a hash of what was on the disk before it."""
    return {}


@pytest.fixture(scope="module")
def whole(start, arguments, states, tmp_path_factory):
    """`whole(script)`: the folder for runs of a script, the state of an uninterrupted one, and its operations."""
    known = {}

    def build(script: str) -> tuple[Path, dict, list[str]]:
        if script not in known:
            folder = tmp_path_factory.mktemp(script) / "run"
            answer = start(script, arguments(script, folder), folder)
            assert answer["status"] == 0, answer["output"]
            known[script] = folder, end_state(folder), answer["operations"]
            states[script] = answer["states"]
        return known[script]

    return build


def check_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], name


def check_killed_at(script, numbers, start, arguments, whole):
    folder, expected, operations = whole(script)
    command, failures = arguments(script, folder), {}
    for number in numbers:
        shutil.rmtree(folder, ignore_errors=True)
        first = start(script, command, folder, at=number)
        assert first["status"] == "killed", first["output"]
        second = start(script, command, folder)
        if second["status"] != 0 and FINISHED not in second["output"]:
            failures[f"{number}: {operations[number - 1]}"] = second["output"][-300:]
            continue
        try:
            check_same(end_state(folder), expected)
        except AssertionError as error:
            failures[f"{number}: {operations[number - 1]}"] = str(error)[:300]
    assert not failures, json.dumps(failures, indent=1)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


#: Command and changes, for orders of the rows and evaluations that a resumed run has to repeat. The test of run_mlm
#: has all its kinds of data.
RESUMED = [(script, {}) for script in ("run_span_corruption", "run_text_to_text", "run_glue")]
RESUMED += [("run_seq2seq", {"train_sampling_strategy": "group_by_length"})]
RESUMED += [("run_image_classification", AUGMENTED)]
if "run_sentence_embeddings" in SCRIPTS:
    # Of six steps in an epoch: the first run ends in the second one.
    ending = {"eval_strategy": "epoch", "per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 4}
    inherited = {"keep_layers": [0], "token_mixers": ["aft"], "config_name": None, "tokenizer_name": None}
    RESUMED += [(TINY_RUNS["TEACHER"], {**inherited, "eval_strategy": "steps", "eval_steps": 2})]
    RESUMED += [("run_sentence_embeddings", ending)]
#: Commands whose rows are drawn as those of another one above.
ALIKE = [(script, {}) for script in ("run_clm", "run_seq2seq", "run_token_classification", "run_qa")]
ALIKE += [("run_text_to_text", {"train_sampling_strategy": "group_by_length"})]


@pytest.mark.parametrize(
    ("script", "changes"), [*RESUMED, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALIKE)]
)
def test_an_interrupted_run_ends_with_the_same_weights(script, changes, arguments, same_weights, tmp_path):
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    changes = {"max_steps": 4, "save_steps": 2, "save_total_limit": None, "do_predict": None, **changes}
    run_here(script, arguments(script, whole, **changes))
    checkpoint = f"checkpoint-{changes['save_steps']}"
    shutil.copytree(whole / checkpoint, interrupted / checkpoint)
    run_here(script, arguments(script, interrupted, **changes))
    assert same_weights(whole, interrupted)
    results = [json.loads((folder / "all_results.json").read_text()) for folder in (whole, interrupted)]
    evaluated = [{k: v for k, v in without_times(each).items() if k.startswith("eval_")} for each in results]
    assert evaluated[0] == evaluated[1] != {}


# One of each kind of Trainer.
@pytest.mark.fast_cases(script=[script for script in SCRIPTS if re.search("mlm|seq2seq|embeddings", script)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_diverging_loss_and_a_full_disk_are_survived(script, arguments, tmp_path, monkeypatch):
    """Both end in one sentence, and the checkpoints before stay as they were."""
    saving = {"save_steps": 1, "max_steps": 3, "save_total_limit": None, "load_best_model_at_end": None}
    saving |= dict.fromkeys(("do_eval", "do_predict", "eval_strategy", "eval_steps"))
    diverging = {"learning_rate": 1e30, "lr_scheduler_type": "constant", "logging_steps": 100}
    with pytest.raises(UserError, match=r"training (loss|gradient) is (nan|inf) at step [123]; saved"):
        run_here(script, arguments(script, tmp_path / "nan", **saving, **diverging))
    for checkpoint in (tmp_path / "nan").glob("checkpoint-*"):
        assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())
    save, before = torch.save, {}

    def save_until_full(content, path, *args, **kwargs):
        if "checkpoint-2" in str(path):
            before.update(contents(tmp_path / "full" / "checkpoint-1"))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(content, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", save_until_full)
    with pytest.raises(UserError, match=r"disk of .* is full. Earlier checkpoints are untouched"):
        run_here(script, arguments(script, tmp_path / "full", **saving))
    assert before and contents(tmp_path / "full" / "checkpoint-1") == before


def test_killed_in_a_checkpoint_and_at_the_end(start, arguments, whole):
    _, _, operations = whole("run_mlm")
    half = operations.index("half of checkpoint-4/optimizer.pt") + 1
    check_killed_at("run_mlm", [half, len(operations) - 1], start, arguments, whole)


def test_a_grid_killed_when_its_second_run_starts(start, arguments, whole):
    _, _, operations = whole(GRID)
    second = operations.index("os.mkdir lr0.01_batch4_seed2") + 1
    check_killed_at(GRID, [second], start, arguments, whole)


@pytest.mark.slow
def test_a_grid_killed_at_sampled_operations_on_files(start, arguments, whole):
    _, _, operations = whole(GRID)
    shared = [number for number, name in enumerate(operations, start=1) if "lr0.01" not in name]
    assert len(shared) > 5, "the folder's settings, the tokenizer, the summary"
    check_killed_at(GRID, sorted({*shared, *range(1, len(operations) + 1, 7)}), start, arguments, whole)


def different_kills(operations: list[str], states: list[str]) -> list[int]:
    """The numbers of the operations at which a kill leaves something else on the disk than all kills before.

    Many operations change nothing, such as making a folder that is there. A kill at `half of` a file leaves the half.
    """
    numbers, seen = [], set()
    for number, (name, state) in enumerate(zip(operations, states, strict=True), start=1):
        if name.startswith("half of"):
            numbers.append(number)
        elif state not in seen:
            numbers.append(number)
            seen.add(state)
    return numbers


def last_of_each_kind(numbers: list[int], operations: list[str]) -> list[int]:
    """Of operations whose names differ in numbers and random parts alone, such as a checkpoint's step, the last."""
    kinds = {re.sub(r"incomplete-\w+|\d+", "", operations[number - 1]): number for number in numbers}
    return sorted(kinds.values())


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in SCRIPTS_AND_GRID if script != GRID])
def test_killed_at_every_operation_on_files(script, start, arguments, whole, states):
    """At all operations that change something; but for one command at those of one checkpoint alone."""
    _, _, operations = whole(script)
    numbers = different_kills(operations, states[script])
    assert len(operations) > len(numbers) > 50
    if script != "run_mlm":
        numbers = last_of_each_kind(numbers, operations)
    check_killed_at(script, numbers, start, arguments, whole)
