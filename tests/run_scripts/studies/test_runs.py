"""Planning and doing the runs of a study, with a training command that takes no time."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies import runs, workspace
from tokenmixers.run_scripts.studies.analysis import Analysis
from tokenmixers.run_scripts.studies.claims import HOLDS
from tokenmixers.run_scripts.studies.definition import build_study, merge
from tokenmixers.run_scripts.studies.runs import Executor
from tokenmixers.run_scripts.studies.workspace import Workspace


#: Writes what a training command writes. Its results follow from the recipe: `plain` has perplexity 20 + seed, ...
TRAINER = """
import json, pathlib, sys, time
import yaml

recipe = yaml.safe_load(open(sys.argv[1]))
folder = pathlib.Path(recipe["output_dir"])
with open(pathlib.Path(__file__).with_name("calls.txt"), "a") as calls:
    calls.write(sys.argv[1] + "\\n")
time.sleep(recipe.get("logging_steps", 0))
if recipe.get("weight_decay") == recipe.get("learning_rate", 0):
    sys.exit("error: the training loss is nan at step 3; saved checkpoints are older.")
if recipe.get("weight_decay") == 1:
    sys.exit("Traceback ...\\nerror: there is no file 'x'.")
folder.mkdir(parents=True)
if "train_tokenizer" in recipe:
    (folder / "config.json").write_text(json.dumps({"vocab_size": recipe["train_tokenizer"] - 1}))
    result = 0
elif recipe["max_steps"] == 1:
    time.sleep(0.5)  # a run that did not wait would be called first, or at the same time
    result = 0
else:
    width = recipe["config_overrides"].get("hidden_size", 0)
    result = 20 - width + recipe["seed"] + recipe["learning_rate"] * 10
    result += recipe["config_overrides"].get("bad_luck", 0) * (recipe["seed"] == 1)
history = [{"step": 2, "eval_perplexity": 2 * result}, {"step": 4, "eval_perplexity": result}]
state = {"global_step": 4, "num_input_tokens_seen": 64, "log_history": history}
(folder / "trainer_state.json").write_text(json.dumps(state))
results = {"eval_perplexity": result, "unigram": 100.0, "tokens_per_second": 8.0}
(folder / "all_results.json").write_text(json.dumps(results))
(folder / "checkpoint-4").mkdir()
"""

DEFINITION = {
    "title": "Fake",
    "seeds": [1, 2],
    "command": "run_mlm",
    "arguments": {"max_steps": 4, "logging_steps": 0, "config_overrides": {}},
    "data": {"files": {"train_file": ["{data_dir}/train.txt"]}, "hub": {"dataset_name": "me/texts"}},
    "tokenizer": 60,
    "example": {"input_ids": [8]},
    "variants": {"plain": {}, "wide net": {"config_overrides": {"hidden_size": 5}}},
    "learning_rates": [0.1, 0.01],
    "metric": "perplexity",
    "better": "lower",
    "plateau": "unigram",
    "claims": [{"claim": "Wide is better.", "source": "none", "better": "wide net", "than": "plain"}],
}
PLAN = [("plain", 0.1, 1), ("plain", 0.01, 1), ("wide net", 0.1, 1), ("wide net", 0.01, 1)]
PLAN += [("plain", 0.01, 2), ("wide net", 0.01, 2)]
#: No two measurements of steps are equal.
TIMED = itertools.count(1)


def new_trainer(place: Path, monkeypatch) -> Path:
    folder = place / "trainer"
    folder.mkdir()
    (folder / "fake_trainer.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(runs, "module_of", lambda command: "fake_trainer")
    monkeypatch.setattr(runs, "step_seconds", lambda study, task, device: dict.fromkeys(task.models, next(TIMED)))
    return folder


def do_study(definition, folder, jobs=1):
    study = build_study("fake", "default", definition)
    models = {
        task.name: {name: {"parameters": 10, "flops": 10, "bytes": 40} for name in task.models}
        for task in study.tasks.values()
    }
    return Executor(Workspace(study, folder, None), models, jobs).execute()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished study, for copies."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        new_trainer(folder, patch)
        do_study(DEFINITION, folder / "out")
    return folder


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    return new_trainer(tmp_path, monkeypatch)


@pytest.fixture
def execute(trainer, tmp_path):
    """`execute(changes)`: do the study with these changes, and return its report."""
    return lambda changes=None, folder=None, jobs=1: do_study(
        merge(DEFINITION, changes or {}), folder or tmp_path / "out", jobs
    )


@pytest.fixture
def done(finished, trainer, tmp_path):
    """The report of a study that is finished in the test's folder."""
    for name in ("out", "trainer"):
        shutil.copytree(finished / name, tmp_path / name, dirs_exist_ok=True)
    return json.loads((tmp_path / "out" / "fake.json").read_text())


def calls(trainer: Path) -> list[str]:
    file = trainer / "calls.txt"
    return [Path(line).stem for line in file.read_text().splitlines()] if file.is_file() else []


def keys(report):
    return [(run["model"], run["learning_rate"], run["seed"]) for run in report["runs"]]


def test_every_learning_rate_with_one_seed_and_the_best_one_with_the_others(execute, trainer, tmp_path, capsys):
    report = execute()
    assert keys(report) == PLAN
    assert report == json.loads((tmp_path / "out" / "fake.json").read_text())
    assert calls(trainer)[0] == "tokenizer" and len(calls(trainer)) == 7
    first = report["runs"][0]
    assert first["result"] == 22 and first["evaluations"] == [[2, 44], [4, 22]]
    assert (first["steps"], first["seconds"], first["plateau"]) == (4, 8, 100)
    machine = report["machine"]
    assert {run["machine"] for run in report["runs"]} == {f"{machine['processor']}, {machine['instructions']}"}
    recipe = yaml.safe_load((tmp_path / "out" / "fake" / "wide_net_lr0.01_seed2.yaml").read_text())
    assert recipe["config_overrides"] == {"hidden_size": 5, "vocab_size": 59}
    assert recipe["tokenizer_name"] == str(tmp_path / "out" / "fake" / "tokenizer")
    assert (recipe["dataset_name"], recipe["seed"], recipe["learning_rate"]) == ("me/texts", 2, 0.01)
    assert not list((tmp_path / "out").rglob("*_lr*/checkpoint-*"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 runs done; started fake: tokenizer"
    assert lines[-2].startswith("6 runs done; finished fake: wide net, ")


def test_a_model_tries_its_own_learning_rates(execute):
    own = [run for run in PLAN if run[0] == "plain"] + [("wide net", 0.02, seed) for seed in (1, 2)]
    assert sorted(keys(execute({"variants": {"wide net": {"learning_rates": [0.02]}}}))) == sorted(own)


def test_finished_runs_are_not_repeated(execute, done, trainer, capsys):
    again = execute()
    assert len(calls(trainer)) == 7
    assert again["runs"] == done["runs"] and again["models"] == done["models"]
    capsys.readouterr()
    more = execute({"seeds": [1, 2, 3]})
    assert keys(more)[:6] == PLAN and len(calls(trainer)) == 9
    assert capsys.readouterr().out.startswith("6 runs done; started")


def test_a_report_is_enough_to_continue_on_another_machine(execute, done, trainer, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "out" / "fake.json", other)
    with pytest.raises(UserError, match=r"plain, .* 0\.1, seed 1, which the study's file now describes differently"):
        execute({"arguments": {"weight_decay": 5}}, folder=other)
    before = calls(trainer)
    more = execute({"seeds": [1, 2, 3]}, folder=other)
    assert calls(trainer)[len(before) :] == ["tokenizer", "plain_lr0.01_seed3", "wide_net_lr0.01_seed3"]
    assert sorted(keys(more)) == sorted([*PLAN, ("plain", 0.01, 3), ("wide net", 0.01, 3)])
    assert [run for run in done["runs"] if run not in more["runs"]] == [] and more["models"] == done["models"]


def test_models_that_are_finetuned_need_their_folders(execute, trainer, tmp_path):
    second = {"starts_from": "first", "learning_rates": [0.1]}
    changes = {"tasks": {"first": {}, "second": second}, "claims": [{**DEFINITION["claims"][0], "task": "second"}]}
    report = execute(changes)
    before = len(calls(trainer))
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "out" / "fake.json", tmp_path / "other")
    assert sorted(map(str, execute(changes, folder=tmp_path / "other")["runs"])) == sorted(map(str, report["runs"]))
    assert len(calls(trainer)) - before == 1 + len(PLAN)  # the tokenizer, and all of the first task


def test_a_model_can_be_removed(execute):
    wider = execute({"variants": {"wider net": {}}})
    report = execute()
    assert keys(report) == PLAN
    assert report["models"]["fake"] == {name: wider["models"]["fake"][name] for name in ("plain", "wide net")}
    assert all("step_seconds" in facts for facts in report["models"]["fake"].values())


def test_a_learning_rate_can_be_added(execute, trainer, tmp_path):
    """Which rate the further seeds have is known again when the new one was tried: they are not repeated."""
    execute({"seeds": [1, 2, 3]})
    before = calls(trainer)
    report = execute({"seeds": [1, 2, 3], "learning_rates": [0.2, 0.1, 0.01]})
    assert calls(trainer)[len(before) :] == ["plain_lr0.2_seed1", "wide_net_lr0.2_seed1"]
    assert len(report["runs"]) == 10


def test_runs_with_what_was_the_best_learning_rate_stay_in_the_report(execute, trainer, tmp_path):
    changes = {"seeds": [1, 2, 3], "learning_rates": [0.1, 0.02]}
    before = execute(changes)["runs"]
    for again in range(2):  # after the second start too, which finds all runs finished
        after = execute({**changes, "learning_rates": [0.1, 0.02, 0.01]})["runs"]
        assert len(before) == 8 and len(after) == 14 and [run for run in before if run not in after] == []
        assert len(calls(trainer)) == 1 + 14, again
    with pytest.raises(UserError, match=r"seed1\.yaml was run with max_steps=4, the study now has 5"):
        only = {"learning_rates": [0.05], "arguments": {**DEFINITION["arguments"], "max_steps": 5}}
        execute({**changes, **only})


def test_models_are_finetuned_again_if_an_added_learning_rate_is_the_best_of_pretraining(execute, trainer, tmp_path):
    second = {"starts_from": "first", "learning_rates": [0.1]}
    claims = [{**DEFINITION["claims"][0], "task": "second"}]
    rates = [0.1, 0.02]
    execute({"tasks": {"first": {"learning_rates": rates}, "second": second}, "claims": claims})
    before = len(calls(trainer))
    changes = {"tasks": {"first": {"learning_rates": [*rates, 0.01]}, "second": second}, "claims": claims}
    report = execute(changes)
    pretrained = [f"{name}_lr0.01_seed{seed}" for seed in (1, 2) for name in ("plain", "wide_net")]
    finetuned = [f"{name}_lr0.1_from_lr0.01_seed{seed}" for seed in (1, 2) for name in ("plain", "wide_net")]
    assert sorted(calls(trainer)[before:]) == sorted(pretrained + finetuned)
    starts = [run["start_learning_rate"] for run in report["runs"] if run["task"] == "second"]
    assert sorted(starts) == [0.01] * 4 + [0.02] * 4
    assert len(list((tmp_path / "out" / "second").glob("*_from_lr0.02_seed*/trainer_state.json"))) == 4  # not touched
    analysis = Analysis(report)
    used = analysis.runs(analysis.study.tasks["second"], "plain")
    assert {seed: run["start_learning_rate"] for seed, run in used.items()} == {1: 0.01, 2: 0.01}


def test_other_files_with_the_reports_name_are_kept(execute, trainer, tmp_path):
    file = tmp_path / "out" / "fake.json"
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(UserError, match=r"fake\.json is not a report of a study"):
        execute()
    assert file.read_text() == "{}" and list(file.parent.iterdir()) == [file] and not calls(trainer)


@pytest.mark.usefixtures("done")
def test_undecided_claims_get_more_seeds(execute, tmp_path):
    """With two seeds and equal differences the claim is decided; a third value spoils it."""
    assert keys(execute({"more_seeds": [4, 5]})) == PLAN
    claim = {"claim": "", "source": "", "equal": "wide net", "to": "plain", "margin": 5}  # the difference itself
    report = execute({"more_seeds": [4, 5], "claims": [claim]}, folder=tmp_path / "close")
    more = [(name, 0.01, seed) for seed in (4, 5) for name in ("plain", "wide net")]
    assert keys(report)[6:] == more
    # All of them, also if the first ones decide the claim: here the differences are 2.5, 5, 5 and 5.
    unlucky = {"variants": {"wide net": {"config_overrides": {"bad_luck": 2.5}}}}
    report = execute({"more_seeds": [4, 5], **unlucky}, folder=tmp_path / "unlucky")
    assert keys(report)[6:] == more
    three = Analysis({**report, "runs": [run for run in report["runs"] if run["seed"] <= 4]})
    assert [verdict for _, _, verdict in three.verdicts()] == [HOLDS]


def test_a_learning_rate_that_diverges_is_the_worst(execute, tmp_path):
    report = execute({"arguments": {"weight_decay": 0.01}})
    task = Analysis(report).study.tasks["fake"]
    assert [run["result"] for run in report["runs"] if run["learning_rate"] == 0.01] == [None, None]
    assert Analysis(report).learning_rate(task, "plain") == 0.1
    again = execute({"arguments": {"weight_decay": 0.01}})
    assert again["runs"] == report["runs"]


def test_a_teacher_reads_the_texts_before_other_runs_start(execute, trainer, tmp_path, capsys):
    data = {"files": {"cache_teacher": "{made}"}}
    assert len(execute({"data": data, "tokenizer": None}, jobs=3)["runs"]) == len(PLAN)
    assert calls(trainer)[0] == "teacher" and len(calls(trainer)) == 1 + len(PLAN)
    assert capsys.readouterr().out.splitlines()[1] == "0 runs done; started fake: plain, learning rate 0.1, seed 1"
    recipes = [yaml.safe_load(file.read_text()) for file in (tmp_path / "out" / "fake").glob("*.yaml")]
    assert {recipe["cache_teacher"] for recipe in recipes} == {str(tmp_path / "out" / "data" / "fake")}
    assert sorted(recipe["max_steps"] for recipe in recipes) == [1] + len(PLAN) * [4]


def test_other_failures_end_the_study(execute, trainer, tmp_path):
    with pytest.raises(UserError, match=r"learning rate 0.1, seed 1 failed, see .*log: there is no file 'x'"):
        execute({"arguments": {"weight_decay": 1}, "tokenizer": None})
    assert len(calls(trainer)) == 1
    assert keys(execute({"tokenizer": None})) == PLAN  # mended: nothing had come of it
    with pytest.raises(UserError, match=r"fake: the tokenizer could not be prepared, see .*log: there is no file 'x'"):
        execute({"arguments": {"weight_decay": 1}}, folder=tmp_path / "other")


def test_results_of_another_version_of_the_study_are_refused(execute, done, trainer, tmp_path):
    with pytest.raises(UserError, match=r"plain_lr0.1_seed1.yaml was run with weight_decay=None, the study now has 5"):
        execute({"arguments": {"weight_decay": 5}})
    claim = {**DEFINITION["claims"][0], "claim": "Wide is much better."}
    execute({"claims": [claim]})  # another text is no other rule
    del claim["better"], claim["than"]
    with pytest.raises(UserError, match=r"holds results with rules of the claims .*, now it is .*'equal'"):
        execute({"claims": [{**claim, "equal": "plain", "to": "wide net", "margin": 1}]})
    assert len(calls(trainer)) == 7
    assert json.loads((tmp_path / "out" / "fake.json").read_text())["runs"] == done["runs"]


def test_finetuning_starts_from_the_model_of_the_same_seed(execute, tmp_path):
    tasks = {"first": {}, "second": {"starts_from": "first", "tokenizer": None, "learning_rates": [0.1]}}
    claim = {"claim": "", "source": "", "task": "second", "better": "wide net", "than": "plain"}
    report = execute({"tasks": tasks, "claims": [claim]})
    assert sum(run["task"] == "second" for run in report["runs"]) == 4
    recipe = yaml.safe_load((tmp_path / "out" / "second" / "plain_lr0.1_from_lr0.01_seed2.yaml").read_text())
    assert recipe["model_name_or_path"] == str(tmp_path / "out" / "first" / "plain_lr0.01_seed2")
    assert "tokenizer_name" not in recipe and recipe["config_overrides"] == {}


@pytest.mark.parametrize("change", ["setting", "versions", "foreign"])
@pytest.mark.usefixtures("done")
def test_folders_of_something_else_are_not_touched(execute, tmp_path, monkeypatch, change):
    out = tmp_path / "out"
    if change == "foreign":
        (out / "study.json").unlink()
        (out / "fake.json").unlink()
        message = "is not empty and holds no study"
    elif change == "versions":
        monkeypatch.setattr(workspace, "package_versions", lambda: {"torch": "1.0"})
        message = r"holds results with versions .*, now it is {'torch': '1.0'}"
    else:
        file = out / "study.json"
        file.write_text(file.read_text().replace('"default"', '"quick"'))
        message = "holds results with setting quick, now it is default"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(UserError, match=message):
        execute()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_data_of_files_and_of_the_hub(tmp_path):
    study = build_study("fake", "default", DEFINITION)
    task = study.tasks["fake"]
    assert Workspace(study, tmp_path / "hub", None).data_arguments(task) == {"dataset_name": "me/texts"}
    files = Workspace(study, tmp_path / "files", str(tmp_path)).data_arguments(task)
    assert files == {"train_file": [f"{tmp_path}/train.txt"]}
    only_files = build_study("fake", "default", DEFINITION | {"data": {"files": DEFINITION["data"]["files"]}})
    with pytest.raises(UserError, match="fake has no data set on the Hub: give --data_dir"):
        Workspace(only_files, tmp_path / "none", None).data_arguments(only_files.tasks["fake"])


@pytest.mark.skipif(sys.platform == "win32", reason="no locks that processes inherit")
def test_runs_that_outlive_the_study_lock_its_folder(tmp_path):
    study = build_study("fake", "default", DEFINITION)
    lock = Workspace(study, tmp_path / "out", None).lock()
    orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.fileno(),))
    lock.close()
    with pytest.raises(UserError, match="runs of an earlier start work in"):
        Workspace(study, tmp_path / "out", None).lock()
    orphan.communicate(b"\n")
    Workspace(study, tmp_path / "out", None).lock().close()


def test_processes_end_with_the_study(execute, trainer, monkeypatch):
    def interrupt(self):
        time.sleep(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Executor, "_wait", interrupt)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(runs.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(KeyboardInterrupt):
        execute({"arguments": {"logging_steps": 60}, "tokenizer": None})
    assert [process.poll() for process in started] == [-15]
