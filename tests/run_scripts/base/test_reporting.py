import csv
import platform
import re
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch

from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base import reporting
from tokenmixers.run_scripts.base.reporting import class_columns, progress_line, versions, write_table
from tokenmixers.run_scripts.data.table_files import read_list, read_table


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (
            {"loss": 4.21234, "grad_norm": 1.0, "learning_rate": 3e-3, "epoch": 0.5},
            "step 1,200: loss 4.212, learning rate 0.003",
        ),
        (
            {"eval_loss": 2.0, "eval_perplexity": 7.389, "eval_runtime": 3.1, "epoch": 0.5},
            "step 1,200, evaluation: loss 2, perplexity 7.389",
        ),
        ({"train_runtime": 9.0, "train_loss": 4.0, "total_flos": 1e9}, ""),
    ],
)
def test_a_report_is_one_short_line(logs, line):
    assert progress_line(1200, logs) == line


def test_scripts_show_one_bar_and_short_lines_for_evaluations(command, capfd):
    run_mlm.main(command(disable_tqdm=False, logging_steps=1, max_steps=3, eval_strategy="steps", eval_steps=2))
    written = "".join(capfd.readouterr())
    assert ", loss " in written and "step 2: loss" not in written
    assert "step 2, evaluation: loss" in written
    assert "Writing model shards" not in written and "Loading weights" not in written
    while_training = written[written.index("0/3 [") : written.rindex("3/3 [")]
    assert {*re.findall(r"(\d+) ?\[", while_training)} <= {"3"}, while_training  # bars of the evaluation have 1 or 2
    assert "evaluation: loss" in written
    assert "{'loss'" not in written
    assert "grad_norm" not in written


def test_versions_are_those_of_the_packages_that_are_there(monkeypatch):
    installed = versions()
    assert ", datasets " in installed

    def version(package):
        if package == "datasets":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(reporting, "version", version)
    assert versions().startswith("transformers 1.0, torch 1.0, tokenizers 1.0, Python ")


def test_the_device_that_was_used_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for on_gpu, name in ((True, "a GPU"), (False, platform.machine())):
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        assert versions().endswith(f", on {name}")


def test_written_numbers_have_all_digits(tmp_path):
    labels, predictions = np.float32([200006.94, 1e-7, 3]), np.float32([[200007.02], [1.25e-7], [0.1]])
    write_table(tmp_path / "predictions.csv", class_columns(predictions, labels, names=()))
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [np.float32(row["label"]) for row in rows] == labels.tolist()
    assert [np.float32(row["prediction"]) for row in rows] == predictions[:, 0].tolist()
    assert rows[0]["label"] == "200006.94"


def test_tables_are_read_back(tmp_path):
    rows = [{"index": 3, "label": ["a", 'b"c'], "prediction": "x,\ny"}, {"index": 5, "label": [], "prediction": "ß"}]
    write_table(tmp_path / "table.csv", {name: [row[name] for row in rows] for name in rows[0]})
    found = read_table(tmp_path / "table.csv").rows
    assert [{**row, "index": int(row["index"]), "label": read_list(row["label"])} for row in found] == rows
