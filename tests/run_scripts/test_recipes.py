"""Every shipped recipe: its script reads it, a few of its steps run, and whole (slow) it learns."""

import importlib
import json
import re
import shutil
from pathlib import Path

import datasets
import pytest
import torch
import yaml
from transformers import TrainingArguments

from tokenmixers.run_scripts import run_image_classification, run_qa, run_seq2seq, run_text_to_text
from tokenmixers.run_scripts.base.shipped_files import RECIPES
from tokenmixers.run_scripts.data.squad import load_squad_files
from tokenmixers.run_scripts.run_seq2seq import MetricArguments, score_texts
from tokenmixers.run_scripts.small_data import (
    digits_images,
    docstring_tasks,
    number_names,
    python_docs_corpus,
    python_docs_questions,
    python_docs_summaries,
)
from tokenmixers.run_scripts.training.trainer import ScriptTrainerMixin


#: Of papers: they are run with data and checkpoints of one's own, by the tests of their scripts.
OF_PAPERS = {"glue_gmlp.yaml", "text_to_text_glu.yaml", "text_to_text_synthesizer.yaml"}
SMALL_SIZES = "hidden_size=16,intermediate_size=16,num_hidden_layers=1,num_attention_heads=2,head_dim=8"
NAMES = sorted(path.name for path in RECIPES.glob("*.yaml") if path.name not in OF_PAPERS)


def script_of(name: str):
    """The script that the recipe's head names, `run_mlm` if none."""
    found = re.search(r"tokenmixers(?: launch \S+)? (run_\w+) " + re.escape(name), (RECIPES / name).read_text())
    return importlib.import_module(f"tokenmixers.run_scripts.{found[1] if found else 'run_mlm'}")


#: One of each script is run by the fast tests.
RUN = {"quickstart.yaml", "synthesizer_clm_tiny.yaml", "synthesizer_span_corruption_tiny.yaml", "digits.yaml"}
RUN |= {"translation_tiny.yaml", "squad_tiny.yaml", "glue_tiny.yaml", "ner_tiny.yaml", "text_to_text_tiny.yaml"}


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
    return {**small, "config_name": "gmlp-base", "config_overrides": sizes, "train_tokenizer": 200}


def texts_for(recipe: dict, corpus: Path) -> dict[str, str | int]:
    """Lines of text where the recipe expects a corpus of the Hub, and a model of that length but small."""
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_dict({"text": (corpus / f"{split}.txt").read_text().splitlines()})
        rows.to_parquet(Path(recipe["dataset_name"]) / f"{split}.parquet")
    sizes = f"hidden_size=8,intermediate_size=8,num_hidden_layers=1,max_position_embeddings={recipe['max_seq_length']}"
    small = {"dataset_config_name": "default", "max_eval_samples": 5, "config_overrides": sizes}
    return {**small, "train_tokenizer": 60}


def pairs_for(recipe: dict, folder: Path) -> dict[str, str]:
    """Small data in the form that a recipe of `run_seq2seq` reads."""
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    made, sides = folder / "made", {"source": "digits", "target": "words"}
    number_names.main(["--output_dir", str(made), "--train_count", "30", "--validation_count", "6"])
    files = {}
    for split in ("train", "validation"):
        lines = {side: made / f"{split}.{kind}.txt" for side, kind in sides.items()}
        if "train_source_file" in recipe:
            files |= {f"{split}_{side}_file": str(file) for side, file in lines.items()}
            continue
        rows = list(zip(*(file.read_text().splitlines() for file in lines.values()), strict=True))
        dialogue = str(recipe.get("train_file", "")).endswith(".txt']")
        file = made / f"{split}.{'txt' if dialogue else 'jsonl'}"
        if dialogue:
            file.write_text("".join(f"{i} {source}\t{target}\n" for i, (source, target) in enumerate(rows, 1)))
        else:
            file.write_text("".join(json.dumps(example(recipe, *row)) + "\n" for row in rows))
        files[f"{split}_file"] = str(file)
    if "dataset_name" in recipe:
        data_set = Path(recipe["dataset_name"])
        data_set.mkdir(parents=True)
        shutil.copy(files.pop("train_file"), data_set / "train.jsonl")
        for split in ("validation", "test"):
            shutil.copy(files["validation_file"], data_set / f"{split}.jsonl")
        paths = "".join(f"  - {{split: {name}, path: {name}.jsonl}}\n" for name in ("train", "validation", "test"))
        configuration = f"configs:\n- config_name: {recipe['dataset_config_name']}\n  data_files:\n{paths}"
        (data_set / "README.md").write_text(f"---\n{configuration}---\n")
        return {}
    return files


def example(recipe: dict, source: str, target: str) -> dict:
    """A row with the columns that a recipe names; `a.b` is `b` inside `a`."""
    row: dict = {}
    for column, text in (
        (recipe.get("source_column", "source"), source),
        (recipe.get("target_column", "target"), target),
    ):
        outer, _, inner = column.partition(".")
        if inner:
            row.setdefault(outer, {})[inner] = text
        else:
            row[outer] = text
    return row


def run_small(name: str, corpus: Path, tmp_path: Path) -> dict:
    """Run a recipe for two steps, with small data and a small model; the results."""
    recipe = yaml.safe_load((RECIPES / name).read_text())
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "warmup_steps": 1, "eval_steps": 2, "save_steps": 2}
    small |= {"disable_tqdm": True}
    if script_of(name) is run_image_classification:
        small |= {"gradient_accumulation_steps": 1, "dataloader_num_workers": 0}
        small["max_eval_samples"] = 10
        if "config_overrides" not in recipe:
            small["config_overrides"] = "image_size=32,hidden_size=8,intermediate_size=16,num_hidden_layers=2"
    if "docstrings" in recipe["output_dir"]:
        docstring_tasks.main(["--output_dir", "outputs/docstrings"])
        small |= {"max_train_samples": 200, "max_eval_samples": 20, "train_tokenizer": 300}
    elif script_of(name) is run_text_to_text:
        docstring_tasks.main(["--output_dir", "outputs/docstrings"])
        small |= {"max_train_samples": 60, "max_eval_samples": 10, "train_tokenizer": 300, "generation_max_length": 5}
    elif script_of(name) is run_qa:
        small |= questions_for(recipe, tmp_path)
    elif recipe.get("dataset_name") == "allenai/c4":
        small |= texts_for(recipe, corpus)
    elif script_of(name) is run_seq2seq:
        small |= pairs_for(recipe, tmp_path) | {"train_tokenizer": 160, "generation_max_length": 5}
    elif "train_file" in recipe:
        small |= {"train_file": corpus / "train.txt", "validation_file": corpus / "validation.txt"}
    else:
        pytest.importorskip("sklearn")
        digits_images.main(["--output_dir", recipe["dataset_name"]])
    if "train_tokenizer" in recipe and "Tiny twin" in (RECIPES / name).read_text():  # a large model
        small |= {"config_overrides": SMALL_SIZES}  # beside the recipe's
        small |= {"gradient_accumulation_steps": 1, "preprocessing_num_workers": 1}
    arguments = [part for key, value in small.items() for part in (f"--{key}", str(value))]
    return script_of(name).main([name, *arguments])


@pytest.mark.usefixtures("part_of_the_library")
@pytest.mark.parametrize(
    "name", [name if name in RUN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_few_steps(name, corpus, tmp_path):
    results, recipe = run_small(name, corpus, tmp_path), yaml.safe_load((RECIPES / name).read_text())
    assert all(
        value >= 0 for key, value in results.items() if not key.endswith(("thresh", "signature", "correlation"))
    )
    assert results
    assert (tmp_path / recipe["output_dir"] / "model.safetensors").is_file()
    assert {key for key in recipe if hasattr(TrainingArguments, key)} >= {"max_steps", "learning_rate", "seed"}


@pytest.mark.usefixtures("part_of_the_library")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in RUN])
def test_everything_is_built_before_training_starts(name, corpus, tmp_path, monkeypatch):
    built = []

    def keep(trainer, **kwargs):
        built.append(trainer)
        raise KeyboardInterrupt

    monkeypatch.setattr(ScriptTrainerMixin, "train", keep)
    with pytest.raises(KeyboardInterrupt):
        run_small(name, corpus, tmp_path)
    (trainer,) = built
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        assert trainer.compute_loss(trainer.model, batch).isfinite()


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_papers_recipes_name_a_tiny_twin_of_the_same_script(path):
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    if "arXiv" not in head and "Pay Attention" not in head:
        assert "two CPU cores" in head or "processor time" in head, "a small recipe says how long it takes"
        return
    (twin,) = re.findall(r"Tiny twin, for two CPU cores: (\w+\.yaml)", head)
    assert "Tiny twin" not in (RECIPES / twin).read_text()
    assert script_of(twin) is script_of(path.name)


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
@pytest.mark.parametrize(
    ("name", "metric", "least"), [("glue_tiny.yaml", "accuracy", 0.75), ("ner_tiny.yaml", "f1", 0.9)]
)
def test_whole_recipes_learn_from_docstrings(name, metric, least):
    docstring_tasks.main(["--output_dir", "outputs/docstrings"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    assert results[f"eval_{metric}"] > least > results.get(f"majority_{metric}", 0.0) + 0.3


@pytest.mark.slow
def test_the_whole_mixture_recipe_is_better_than_the_most_frequent_texts():
    docstring_tasks.main(["--output_dir", "outputs/docstrings"])
    results = script_of("text_to_text_tiny.yaml").main(["text_to_text_tiny.yaml", "--disable_tqdm", "true"])
    for metric in ("cola_matthews_correlation", "squad_exact_match"):
        assert results[f"eval_{metric}"] > results[f"majority_{metric}"] + 25


@pytest.mark.slow
def test_the_whole_squad_recipe_is_better_than_chance():
    python_docs_questions.main(["--output_dir", "outputs/questions"])
    results = script_of("squad_tiny.yaml").main(["squad_tiny.yaml", "--disable_tqdm", "true"])
    assert results["eval_exact_match"] > 30  # one of the four names at random would be 25


@pytest.mark.slow
def test_the_whole_translation_recipe_writes_numbers_it_has_not_seen():
    number_names.main(["--output_dir", "outputs/numbers"])
    assert (
        script_of("translation_tiny.yaml").main(["translation_tiny.yaml", "--disable_tqdm", "true"])["eval_bleu"] > 90
    )


@pytest.mark.slow
def test_the_whole_summarization_recipe_is_better_than_one_summary_for_all():
    python_docs_summaries.main(["--output_dir", "outputs/summaries"])
    results = script_of("summarization_tiny.yaml").main(["summarization_tiny.yaml", "--disable_tqdm", "true"])
    train, validation = (
        [json.loads(line)["target"] for line in Path(f"outputs/summaries/{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    )
    most_frequent = max(set(train), key=train.count)
    rouge, references = MetricArguments(metric=["rouge"]), [[text] for text in validation]
    constant, _ = score_texts([most_frequent] * len(validation), references, rouge)
    assert results["eval_rouge1"] > constant["rouge1"] + 5
