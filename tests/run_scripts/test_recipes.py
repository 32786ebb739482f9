"""Every shipped recipe: its script reads it, a few of its steps run, and whole (slow) it learns."""

import importlib
import re
from pathlib import Path

import pytest
import yaml
from transformers import TrainingArguments

from tokenmixers.run_scripts import (
    digits_images,
    python_docs_corpus,
    python_docs_questions,
    run_image_classification,
    run_qa,
)
from tokenmixers.run_scripts.arguments import RECIPES
from tokenmixers.run_scripts.squad_data import load_squad_files


NAMES = sorted(path.name for path in RECIPES.glob("*.yaml"))


def script_of(name: str):
    """The script that the recipe's head names, `run_mlm` if none."""
    found = re.search(r"run_scripts\.(run_\w+) " + re.escape(name), (RECIPES / name).read_text())
    return importlib.import_module(f"tokenmixers.run_scripts.{found[1] if found else 'run_mlm'}")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def questions_for(recipe: dict, folder: Path) -> dict[str, str | int]:
    """Small data, and a model and tokenizer from scratch, for a recipe of `run_qa`."""
    python_docs_questions.main(["--output_dir", str(folder / "made"), "--unanswerable_percentage", "30"])
    train, validation = (str(folder / "made" / f"{split}.json") for split in ("train", "validation"))
    small = {"max_train_samples": 20, "max_eval_samples": 10, "version_2_with_negative": "true"}
    if "config_name" in recipe:
        return {**small, "train_file": train, "validation_file": validation}
    for split, file in (("train", train), ("validation", validation)):
        load_squad_files([file]).to_parquet(Path(recipe["dataset_name"]) / f"{split}.parquet")
    sizes = f"hidden_size=8,intermediate_size=8,num_hidden_layers=1,max_position_embeddings={recipe['max_seq_length']}"
    return {**small, "config_name": "gmlp-base", "config_overrides": sizes, "train_tokenizer": 200, "bf16": "false"}


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps(name, corpus, tmp_path):
    recipe = yaml.safe_load((RECIPES / name).read_text())
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "warmup_steps": 1, "eval_steps": 2, "save_steps": 2}
    small |= {"disable_tqdm": True}
    if script_of(name) is run_image_classification:
        small |= {"gradient_accumulation_steps": 1, "dataloader_num_workers": 0, "bf16": "false"}
        small["max_eval_samples"] = 10
        if "config_overrides" not in recipe:
            small["config_overrides"] = "image_size=32,hidden_size=8,intermediate_size=16,num_hidden_layers=2"
    if script_of(name) is run_qa:
        small |= questions_for(recipe, tmp_path)
    elif "train_file" in recipe:
        small |= {"train_file": corpus / "train.txt", "validation_file": corpus / "validation.txt"}
    else:
        pytest.importorskip("sklearn")
        digits_images.main(["--output_dir", recipe["dataset_name"]])
    arguments = [part for key, value in small.items() for part in (f"--{key}", str(value))]
    results = script_of(name).main([name, *arguments])
    assert all(value >= 0 for key, value in results.items() if not key.endswith("thresh"))
    assert results
    assert (tmp_path / recipe["output_dir"] / "model.safetensors").is_file()
    assert {key for key in recipe if hasattr(TrainingArguments, key)} >= {"max_steps", "learning_rate", "seed"}


@pytest.mark.parametrize("size", ["ti", "s", "b"])
def test_imagenet_recipes_are_300_epochs_of_4096_pictures(size):
    recipe = yaml.safe_load((RECIPES / f"imagenet_gmlp_{size}16.yaml").read_text())
    rows = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    assert rows == 4096
    assert recipe["max_steps"] * rows / 1_281_167 == pytest.approx(300, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("digits.yaml", 0.95), ("imagenet_tiny.yaml", 0.5)])
def test_whole_recipes_learn_digits(name, least):
    pytest.importorskip("sklearn")
    digits_images.main(["--output_dir", "outputs/quickstart/digits"])
    assert script_of(name).main([name, "--disable_tqdm", "true"])["eval_accuracy"] > least


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch("synthesizer_.*_tiny.yaml", name)])
def test_whole_recipes_learn_from_real_text(name):
    python_docs_corpus.main(["--output_dir", "outputs/quickstart/corpus"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    assert results["trained"] < 0.05 * results["untrained"]
    assert results["trained"] < 0.7 * results.get("unigram", float("inf"))


@pytest.mark.slow
def test_the_whole_squad_recipe_is_better_than_chance():
    python_docs_questions.main(["--output_dir", "outputs/questions"])
    results = script_of("squad_tiny.yaml").main(["squad_tiny.yaml", "--disable_tqdm", "true"])
    assert results["eval_exact_match"] > 30  # one of the four names at random would be 25
