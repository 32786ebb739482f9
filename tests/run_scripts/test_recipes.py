"""Every shipped recipe: its script reads it, a few of its steps run, and whole (slow) it learns."""

import importlib
import re

import pytest
import yaml
from transformers import TrainingArguments

from tokenmixers.run_scripts import python_docs_corpus
from tokenmixers.run_scripts.arguments import RECIPES


NAMES = sorted(path.name for path in RECIPES.glob("*.yaml"))


def script_of(name: str):
    """The script that the recipe's head names, `run_mlm` if none."""
    found = re.search(r"run_scripts\.(run_\w+) " + re.escape(name), (RECIPES / name).read_text())
    return importlib.import_module(f"tokenmixers.run_scripts.{found[1] if found else 'run_mlm'}")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps(name, corpus, tmp_path):
    recipe = yaml.safe_load((RECIPES / name).read_text())
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "warmup_steps": 1, "eval_steps": 2, "save_steps": 2}
    small |= {"train_file": corpus / "train.txt", "validation_file": corpus / "validation.txt", "disable_tqdm": True}
    arguments = [part for key, value in small.items() for part in (f"--{key}", str(value))]
    results = script_of(name).main([name, *arguments])
    assert results["trained"] > 0
    assert (tmp_path / recipe["output_dir"] / "model.safetensors").is_file()
    assert {key for key in recipe if hasattr(TrainingArguments, key)} >= {"max_steps", "learning_rate", "seed"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_tiny.yaml")])
def test_whole_recipes_learn_from_real_text(name):
    python_docs_corpus.main(["--output_dir", "outputs/quickstart/corpus"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    assert results["trained"] < 0.05 * results["untrained"]
    assert results["trained"] < 0.7 * results.get("unigram", float("inf"))
