import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tokenmixers.run_scripts import study
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies.definition import read_study
from tokenmixers.run_scripts.studies.workspace import read_report


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 16}


@pytest.fixture
def small_study(corpus, tmp_path):
    """The file of a study of two tiny models on a tiny corpus."""
    definition = {
        "title": "Tiny gates",
        "seeds": [1, 2],
        "command": "run_mlm",
        "arguments": {
            "max_steps": 6,
            "per_device_train_batch_size": 4,
            "warmup_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_steps": 2,
            "config_name": "gmlp-base",
            "config_overrides": SIZES,
        },
        "data": {"files": {f"{split}_file": [f"{{data_dir}}/{split}.txt"] for split in ("train", "validation")}},
        "tokenizer": 60,
        "example": {"input_ids": [16]},
        "variants": {
            "split": {"config_overrides": {"intermediate_size": 32}},
            "linear": {"config_overrides": {"intermediate_size": 24, "gate_type": "linear"}},
        },
        "baseline": "split",
        "learning_rates": [1e-2],
        "metric": "perplexity",
        "better": "lower",
        "compared_as": "log",
        "claims": [{"claim": "Split is better.", "source": "gMLP, Table 3", "better": "split", "than": "linear"}],
    }
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(definition, sort_keys=False))
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the first argument is the name of a study: depth, "),
        (["--quick"], "the first argument is the name of a study: depth, "),
        (["gate"], "there is no study file 'gate.yaml'. Shipped study files: depth.yaml, "),
        (["gates", "--quick", "--setting", "large"], "--quick is itself a setting"),
        (["gates", "--setting", "huge"], "the study gates has no setting 'huge'"),
        (["gates", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["gates", "--colour", "red"], "unknown arguments: --colour red"),
    ],
)
def test_wrong_calls(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        study.main(arguments)
    assert message in str(raised.value)
    assert not list(tmp_path.iterdir())


GATES = Path(__file__).parents[2] / "model_cards" / "studies" / "gates.json"


def test_the_report_of_published_results(tmp_path):
    study.write_report(read_report(GATES), tmp_path, read_study("gates"))
    for name in ("gates.md", "claims.csv"):
        assert "The split gate is better than the multiplicative one." in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gates: 1", "is not JSON"),
        ("{}", "is not a report of a study"),
        (GATES.read_text().replace('"model": ', '"contestant": '), "another version: its run 1 has no 'model'"),
    ],
    ids=["no JSON", "no report", "another version"],
)
def test_other_files_are_refused_as_reports(text, message, tmp_path):
    (tmp_path / "depth.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_report(tmp_path / "depth.json")


def test_unequal_models_are_refused_before_anything_is_written(small_study, tmp_path):
    definition = yaml.safe_load(small_study.read_text())
    definition["variants"]["linear"]["config_overrides"]["intermediate_size"] = 32
    small_study.write_text(yaml.safe_dump(definition))
    with pytest.raises(UserError, match=r"linear has [\d,]+ parameters, the baseline split has [\d,]+: \+"):
        study.main([str(small_study), "--output_dir", str(tmp_path / "out"), "--data_dir", str(tmp_path)])
    assert not (tmp_path / "out").exists()


def test_a_study_without_scipy_ends_before_it_trains(small_study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UserError, match=r"a study needs scipy, .*pip install"):
        study.main([str(small_study), "--output_dir", str(tmp_path / "out"), "--data_dir", str(tmp_path)])
    assert not (tmp_path / "out").exists()


def call(*arguments: object, **options: object) -> subprocess.Popen:
    """Start the command in a group of processes of its own."""
    command = [sys.executable, "-m", "tokenmixers.run_scripts.study", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, start_new_session=True, env=environment, text=True, **options)


def without_times(file: Path) -> dict:
    """A report without what depends on the speed of the machine, and on the texts of a new tokenizer."""
    report = json.loads(file.read_text())
    for run in report["runs"]:
        run.pop("seconds")
    for facts in (facts for found in report["models"].values() for facts in found.values()):
        facts.pop("step_seconds")
    return {key: value for key, value in report.items() if key not in ("dates", "machine")}


@pytest.mark.slow
@pytest.mark.parametrize("terminated", [False, True])
def test_a_study_that_was_killed_goes_on(small_study, corpus, tmp_path, terminated):
    """Killed with the run that it does, or terminated alone, and started again, it has the results of a whole one."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = (small_study, "--data_dir", corpus)
    assert call(*arguments, "--output_dir", whole).wait() == 0
    killed.mkdir()
    # Training a tokenizer twice does not give the same one: both have that of the first.
    for name in ("study.json", "tiny/tokenizer"):
        (killed / name).parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", whole / name, killed / name], check=True)
    process = call(*arguments, "--output_dir", killed)
    checkpoint = killed / "tiny" / "linear_lr0.01_seed1" / "checkpoint-2" / "trainer_state.json"
    while not checkpoint.is_file():
        assert process.poll() is None
        time.sleep(0.01)
    if terminated:
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):  # the run has ended too
            os.killpg(process.pid, 0)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert [run["model"] for run in json.loads((killed / "tiny.json").read_text())["runs"]] == ["split"]
    again = call(*arguments, "--output_dir", killed, stdout=subprocess.PIPE)
    output, _ = again.communicate()
    assert again.returncode == 0
    assert "started tiny: split, learning rate 0.01, seed 1" not in output
    log = (killed / "tiny" / "linear_lr0.01_seed1.log").read_text()
    assert "continuing from" in log
    assert without_times(killed / "tiny.json") == without_times(whole / "tiny.json")
    assert (killed / "tiny.png").is_file() and "| claim" in (killed / "tiny.md").read_text()


@pytest.mark.slow
def test_quick(tmp_path, monkeypatch):
    """The whole path of a shipped study; its results say that they decide nothing, and have a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study.main(["images", "--quick"])
    folder = tmp_path / "outputs" / "studies" / "images-quick"
    report = json.loads((folder / "images-quick.json").read_text())
    assert report["setting"] == "quick"
    assert len(report["runs"]) == 3 * 3
    assert all(run["seconds"] > 0 for run in report["runs"])
    assert all(facts["step_seconds"] > 0 for facts in report["models"]["images"].values())
    assert "These are results of `--quick`" in (folder / "images-quick.md").read_text()
    assert (folder / "images-quick.png").is_file()
    with pytest.raises(UserError, match="holds results with setting quick, now it is default"):
        study.main(["images", "--output_dir", str(folder)])
