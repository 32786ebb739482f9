"""The program of the guide "Add a training command" trains, resumes, evaluates, and writes a card."""

import json
import re
import runpy
import shutil
from dataclasses import make_dataclass
from pathlib import Path

import pytest
from transformers import pipeline

import tokenmixers
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training.run import Run


GUIDE = Path(tokenmixers.__file__).parent / "run_scripts" / "guides" / "training_command.md"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    (code,) = re.findall(r"^```python\n(.+?)^```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    program = tmp_path_factory.mktemp("guide") / "classify_folders.py"
    program.write_text(code, encoding="utf-8")
    return runpy.run_path(str(program))["FolderClassification"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for split, count in (("train", 12), ("validation", 4)):
        for label, word in (("animals", "cat"), ("plants", "fern")):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                text = f"number {number} is a {word}, as it was"
                (folder / split / label / f"{number}.txt").write_text(text)
    return folder


@pytest.fixture
def command(texts, as_words, tmp_path):
    sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=32"
    settings = {"config_name": "gmlp-base", "config_overrides": sizes, "train_tokenizer": 60}
    settings |= {"train_dir": texts / "train", "validation_dir": texts / "validation"}
    settings |= {"max_steps": 6, "save_steps": 3, "learning_rate": 1e-2}

    def build(**changes):
        given = {**settings, "output_dir": tmp_path / "run", **changes}
        return as_words(given)

    return build


def test_the_program_of_the_guide_is_a_training_command(task, command, texts, same_weights, tmp_path, capsys):
    results = Run(task(), command()).command()
    assert "| on the validation examples |" in capsys.readouterr().out
    (file,) = (tmp_path / "run").glob("predictions*.csv")
    rows = [row.split(",") for row in file.read_text().splitlines()[1:]]
    assert [label for _, label, *_ in rows] == ["animals"] * 4 + ["plants"] * 4
    right = [label == prediction for _, label, prediction, _ in rows]
    assert results["eval_accuracy"] == sum(right) / len(right)
    assert 'pipeline("text-classification"' in (tmp_path / "run" / "README.md").read_text()
    text = (texts / "validation" / "animals" / "0.txt").read_text()
    assert pipeline("text-classification", model=str(tmp_path / "run"))(text)[0]["label"] == rows[0][2]
    # Interrupted after three steps, and started again.
    shutil.copytree(tmp_path / "run" / "checkpoint-3", tmp_path / "again" / "checkpoint-3")
    Run(task(), command(output_dir=tmp_path / "again")).command()
    assert same_weights(tmp_path / "run", tmp_path / "again")
    written = json.loads((tmp_path / "again" / "all_results.json").read_text())
    assert written["eval_loss"] == results["eval_loss"]


def test_a_task_of_another_kind_brings_its_example(task, command, tmp_path):
    class Other(task):
        arguments = (make_dataclass("Folders", [("train_dir", str, None), ("validation_dir", str, None)]),)
        pipeline_tag = "summarization"

    with pytest.raises(ValueError, match="no example for the task 'summarization'"):
        Run(Other(), command()).command()
    assert not [*tmp_path.rglob("checkpoint-*")], "nothing was trained"

    class WithExample(Other):
        def card_facts(self, run, model):
            return {"example": f"print({run.max_seq_length})"}

    Run(WithExample(), command()).command()
    card = (tmp_path / "run" / "README.md").read_text()
    assert "```python\nprint(32)\n```" in card and "pipeline_tag: summarization" in card


def test_its_mistakes_are_sentences(task, command, tmp_path):
    with pytest.raises(UserError, match="--validation_dir: there are no txt files in the folders of None"):
        Run(task(), command(validation_dir=None)).command()
    assert not (tmp_path / "run").exists()
