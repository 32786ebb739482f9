"""Every shipped recipe: its script reads it, a few of its steps run, and whole (slow) it learns."""

import importlib
import json
import re
import shutil
from pathlib import Path
from unittest.mock import patch

import datasets
import pytest
import torch
import yaml
from transformers import (
    Adafactor,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    TrainingArguments,
)

from tokenmixers.configuration.configuration_synthesizer import PRESETS
from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES
from tokenmixers.run_scripts import (
    make_data,
    run_glue,
    run_image_classification,
    run_qa,
    run_sentence_embeddings,
    run_seq2seq,
    run_text_to_text,
)
from tokenmixers.run_scripts.base.arguments import ModelArguments, parse_arguments
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS, RECIPES
from tokenmixers.run_scripts.base.training_arguments import GenerationTrainingArguments, ScriptTrainingArguments
from tokenmixers.run_scripts.data.span_corruption import span_corruption_lengths
from tokenmixers.run_scripts.data.squad import FEATURES, load_squad_files
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments
from tokenmixers.run_scripts.data.text_corpus import BlockDataArguments, TextDataArguments
from tokenmixers.run_scripts.data.text_to_text import TextToTextArguments
from tokenmixers.run_scripts.run_seq2seq import MetricArguments, score_texts
from tokenmixers.run_scripts.run_span_corruption import SpanCorruptionArguments
from tokenmixers.run_scripts.small_data import number_names
from tokenmixers.run_scripts.training.hyperparameter_grid import GridArguments
from tokenmixers.run_scripts.training.model_loading import load_config
from tokenmixers.run_scripts.training.trainer import ScriptTrainer, ScriptTrainerMixin


#: Of papers: they are run with data and checkpoints of one's own, by the tests of their scripts.
OF_PAPERS = {"glue_gmlp.yaml", "text_to_text_glu.yaml", "text_to_text_synthesizer.yaml"}
#: With a teacher: run by its tests.
OF_PAPERS |= {"embedding_student.yaml"}
SMALL_SIZES = "hidden_size=16,intermediate_size=16,num_hidden_layers=1,num_attention_heads=2,head_dim=8"
NAMES = sorted(path.name for path in RECIPES.glob("*.yaml") if path.name not in OF_PAPERS)


def script_of(name: str):
    """The script that the recipe's head names, `run_mlm` if none."""
    found = re.search(r"tokenmixers(?: launch \S+)? (run_\w+) " + re.escape(name), (RECIPES / name).read_text())
    return importlib.import_module(f"tokenmixers.run_scripts.{found[1] if found else 'run_mlm'}")


#: One of each script is run by the fast tests.
RUN = {"quickstart.yaml", "synthesizer_clm_tiny.yaml", "synthesizer_span_corruption_tiny.yaml", "digits.yaml"}
RUN |= {"translation_tiny.yaml", "squad_tiny.yaml", "glue_tiny.yaml", "ner_tiny.yaml", "text_to_text_tiny.yaml"}
RUN |= {"sentence_embeddings_tiny.yaml"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch, arguments_are_tried):
    monkeypatch.chdir(tmp_path)


def questions_for(recipe: dict, folder: Path) -> dict[str, str | int]:
    """Small data, and a model and tokenizer from scratch, for a recipe of `run_qa`."""
    make_data.main(["python_docs_questions", "--output_dir", str(folder / "made")])
    train, validation = (str(folder / "made" / f"{split}.json") for split in ("train", "validation"))
    small = {"max_train_samples": 20, "max_eval_samples": 10, "version_2_with_negative": "true"}
    if "seeds" in recipe:
        small |= {"seeds": 1, "batch_sizes": 4}
    if "config_name" in recipe:
        return {**small, "train_file": train, "validation_file": validation}
    for split, file in (("train", train), ("validation", validation)):
        rows = load_squad_files([file]).rows
        path = Path(recipe["dataset_name"]) / f"{split}.parquet"
        datasets.Dataset.from_list(rows, features=FEATURES).to_parquet(path)
    sizes = f"hidden_size=8,intermediate_size=8,num_hidden_layers=1,max_position_embeddings={recipe['max_seq_length']}"
    return {**small, "config_name": "gmlp-base", "config_overrides": sizes, "train_tokenizer": 200}


def texts_for(recipe: dict, corpus: Path) -> dict[str, str | int]:
    """Lines of text where the recipe expects a corpus of the Hub, and a model of that length but small."""
    length = recipe.get("max_seq_length", recipe.get("block_size"))
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_dict({"text": (corpus / f"{split}.txt").read_text().splitlines()})
        rows.to_parquet(Path(recipe["dataset_name"]) / f"{split}.parquet")
    sizes = f"hidden_size=8,intermediate_size=8,num_hidden_layers=1,max_position_embeddings={length}"
    if "model_type" in recipe:
        sizes += ",num_attention_heads=2"
    small = {"dataset_config_name": "default", "max_eval_samples": 5, "config_overrides": sizes}
    if "noise_density" in recipe:  # the vocabulary has a hundred sentinels
        return {**small, "train_tokenizer": 160, "config_overrides": f"{SMALL_SIZES},num_decoder_layers=1"}
    return {**small, "train_tokenizer": 60}


def classes_for(recipe: dict) -> dict[str, str | int]:
    """Texts of two classes where the recipe expects a data set of the Hub with the splits train and test."""
    rows = [
        {"text": " ".join([word] * 9 + [str(number)]), "label": word}
        for number in range(9)
        for word in ("bad", "good")
    ]
    for split in ("train", "test"):
        datasets.Dataset.from_list(rows).to_parquet(Path(recipe["dataset_name"]) / f"{split}.parquet")
    return {"train_tokenizer": 60}


def pairs_for(recipe: dict, folder: Path) -> dict[str, str]:
    """Small data in the form that a recipe of `run_seq2seq` reads."""
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    made, sides = folder / "made", {"source": "digits", "target": "words"}
    with patch.multiple(number_names, TRAIN_COUNT=30, VALIDATION_COUNT=6):
        make_data.main(["number_names", "--output_dir", str(made)])
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
    if script_of(name) is run_sentence_embeddings:
        pytest.importorskip("sentence_transformers")
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "warmup_steps": 1, "eval_steps": 2, "save_steps": 2}
    small |= {"disable_tqdm": True}
    if script_of(name) is run_image_classification:
        small |= {"gradient_accumulation_steps": 1, "dataloader_num_workers": 0}
        small["max_eval_samples"] = 10
        if "config_overrides" not in recipe:
            small["config_overrides"] = "image_size=32,hidden_size=8,intermediate_size=16,num_hidden_layers=2"
            small["config_overrides"] += ",num_attention_heads=2" if "model_type" in recipe else ""
    if script_of(name) is run_sentence_embeddings:
        make_data.main(["python_docs_summaries", "--output_dir", "outputs/summaries"])
        small |= {"max_train_samples": 60, "max_eval_samples": 20, "train_tokenizer": 300}
    elif "docstrings" in recipe["output_dir"]:
        make_data.main(["docstring_tasks", "--output_dir", "outputs/docstrings"])
        small |= {"max_train_samples": 200, "max_eval_samples": 20, "train_tokenizer": 300}
    elif script_of(name) is run_text_to_text:
        make_data.main(["docstring_tasks", "--output_dir", "outputs/docstrings"])
        small |= {"max_train_samples": 60, "max_eval_samples": 10, "train_tokenizer": 300, "generation_max_length": 5}
    elif script_of(name) is run_qa:
        small |= questions_for(recipe, tmp_path)
    elif recipe.get("dataset_name") == "allenai/c4":
        small |= texts_for(recipe, corpus)
    elif script_of(name) is run_glue and "dataset_name" in recipe:
        small |= classes_for(recipe)
    elif script_of(name) is run_seq2seq:
        small |= pairs_for(recipe, tmp_path) | {"train_tokenizer": 160, "generation_max_length": 5}
    elif "train_file" in recipe:
        small |= {"train_file": corpus / "train.txt", "validation_file": corpus / "validation.txt"}
    else:
        pytest.importorskip("sklearn")
        make_data.main(["digits_images", "--output_dir", recipe["dataset_name"]])
    if "train_tokenizer" in recipe and "Tiny twin" in (RECIPES / name).read_text():  # a large model
        small |= {"config_overrides": SMALL_SIZES}  # beside the recipe's
        small |= {"gradient_accumulation_steps": 1}
        small |= {} if script_of(name) is run_glue else {"preprocessing_num_workers": 1}
    arguments = [part for key, value in small.items() for part in (f"--{key}", str(value))]
    return script_of(name).main([name, *arguments])


@pytest.mark.usefixtures("part_of_the_library")
@pytest.mark.parametrize(
    "name", [name if name in RUN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_few_steps(name, corpus, tmp_path):
    results, recipe = run_small(name, corpus, tmp_path), yaml.safe_load((RECIPES / name).read_text())
    folder = tmp_path / recipe["output_dir"]
    if "seeds" in recipe:
        (results,) = results["runs"]
        folder /= results.pop("folder")
    assert all(
        value >= 0 for key, value in results.items() if not key.endswith(("thresh", "signature", "correlation"))
    )
    assert results
    assert (folder / "model.safetensors").is_file()
    assert {key for key in recipe if hasattr(TrainingArguments, key)} >= {"max_steps", "learning_rate"}
    assert "seed" in recipe or "seeds" in recipe


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


#: Recipe, name of the row, its arguments, and the parameters in millions, as the heads of the recipes say.
ROWS = [
    pytest.param(path.name, *row, id=f"{path.stem}, {row[0]}")
    for path in sorted(RECIPES.glob("*.yaml"))
    for row in re.findall(r"^#   (.+?): (--\S.*) -> ([\d.]+)M$", path.read_text(), flags=re.MULTILINE)
]


def config_of(name: str, arguments: str):
    """The configuration of the model that a recipe with further arguments trains."""
    recipe = yaml.safe_load((RECIPES / name).read_text())
    fields = {key: value for key, value in recipe.items() if key in ("config_name", "model_type", "config_overrides")}
    Path("model.json").write_text(json.dumps(fields))
    (chosen,) = parse_arguments((ModelArguments,), ["model.json", *arguments.split()])
    return load_config(chosen)


def test_rows_of_papers_are_of_the_kinds_that_they_name():
    configs = {row.values[:2]: config_of(row.values[0], row.values[2]) for row in ROWS}
    gates = {configs["realnews_mlm_ablations.yaml", title].gate_type for title in ("f(Z)", "Z + f(Z)", "Z * f(Z)")}
    assert gates == {"linear", "additive", "multiplicative"}
    sizes = [
        configs["realnews_mlm_ablations.yaml", f"aMLP, attention size {size}"].attention_size for size in (64, 128)
    ]
    assert sizes == [64, 128]
    transformers = [config for (name, _), config in configs.items() if name == "realnews_mlm_transformer.yaml"]
    for config in transformers:
        assert config.hidden_size == config.num_attention_heads * config.head_dim and not config.is_encoder_decoder
        assert config.position_embedding_type == "none" and config.mixture == "sum"
    assert [config.attention_components for config in transformers].count(["relative"]) == 1


def arguments_of(recipe: str, *own: type, **changes: str) -> list:
    """A recipe of pretraining with a few changes: model, data, own and training arguments."""
    text = BlockDataArguments if "lm1b" in recipe else TextDataArguments
    types = (ModelArguments, text, *own, ScriptTrainingArguments)
    return list(parse_arguments(types, [recipe, *(part for key in changes for part in (f"--{key}", changes[key]))]))


def head_of(recipe: str) -> str:
    return "".join(line for line in (RECIPES / recipe).read_text().splitlines(keepends=True) if line.startswith("#"))


def built(auto_class: type, config):
    with torch.device("meta"):
        return auto_class.from_config(config)


C4 = ["c4_span_corruption_glu.yaml", "c4_span_corruption_synthesizer.yaml"]


@pytest.mark.parametrize("recipe", C4)
def test_c4_recipes_train_as_mesh_tensorflow_does(recipe):
    """128 inputs of 512 tokens, targets of 114; Adafactor relative to the parameters, and the schedule's formula."""
    _, data, spans, args = arguments_of(recipe, SpanCorruptionArguments, eval_strategy="no")
    assert data.max_seq_length == 512
    assert span_corruption_lengths(512, spans.noise_density, spans.mean_noise_span_length) == (568, 114)
    assert 8 * args.per_device_train_batch_size * args.gradient_accumulation_steps == 128  # "eight devices"
    trainer = ScriptTrainer(torch.nn.Linear(1, 1), args)
    trainer.create_optimizer_and_scheduler(args.max_steps)
    assert isinstance(trainer.optimizer, Adafactor)
    expected = {"lr": 0.01, "scale_parameter": True, "relative_step": False, "clip_threshold": 1.0, "decay_rate": -0.8}
    expected |= {"eps": (1e-30, 1e-3), "beta1": None, "weight_decay": 0.0}
    assert {key: trainer.optimizer.defaults[key] for key in expected} == expected
    assert args.max_grad_norm == 0
    steps = args.max_steps
    assert steps == 2**19
    for step in (0, 1, 9_999, 10_000, 10_001, 300_000, 471_858, 471_860, 500_000, steps - 1):
        decay = min(1.0, (steps - step) / (0.1 * steps)) if "glu" in recipe else 1.0
        found = 0.01 * trainer.lr_scheduler.lr_lambdas[0](step)
        assert found == pytest.approx(max(step, 10_000) ** -0.5 * decay, rel=1e-12)


@pytest.mark.parametrize("recipe", ["text_to_text_glu.yaml", "text_to_text_synthesizer.yaml"])
def test_mixtures_are_finetuned_as_with_mesh_tensorflow(recipe):
    """128 rows a step, a constant rate of 0.001 relative to the parameters: its Adafactor's default."""
    types = (ModelArguments, TextToTextArguments, run_text_to_text.FreezingArguments, GenerationTrainingArguments)
    _, data, freezing, args = parse_arguments(types, [recipe, "--eval_strategy", "no", "--output_dir", "run"])
    assert data.mixing_limit is None
    assert freezing.freeze_embeddings == ("glu" in recipe)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 128
    trainer = ScriptTrainer(torch.nn.Linear(1, 1), args)
    trainer.create_optimizer_and_scheduler(args.max_steps)
    expected = {"scale_parameter": True, "relative_step": False, "clip_threshold": 1.0, "weight_decay": 0.0}
    assert {key: trainer.optimizer.defaults[key] for key in expected} == expected
    assert args.max_steps == (2**17 if "glu" in recipe else 2**18)
    assert {trainer.lr_scheduler.lr_lambdas[0](step) * args.learning_rate for step in (0, 1, 100_000)} == {1e-3}


@pytest.mark.parametrize("kind", FEED_FORWARD_TYPES)
def test_the_glu_recipe_has_the_papers_models_without_dropout(kind):
    name = f"synthesizer-t5-base-{kind}"
    model, *_ = arguments_of(C4[0], SpanCorruptionArguments, config_name=name)
    config = load_config(model)
    assert built(AutoModelForSeq2SeqLM, config).num_parameters() == 222_903_552
    assert (config.feed_forward_type, config.hidden_dropout_prob, config.attention_dropout) == (kind, 0, 0)
    short, deviation, long = re.search(rf" {kind} ([\d.]+) \(([\d.]+)\), ([\d.]+)", head_of(C4[0])).groups()
    assert f"| {short} ({deviation}) | {long} |" in (MODEL_CARDS / name / "README.md").read_text()


def test_the_language_modelling_recipe_builds_every_row_of_the_papers_table():
    head = head_of("lm1b_synthesizer.yaml")
    quoted = dict(re.findall(r"(synthesizer-\S+) +([\d.]+)  \d+M", head))
    names = [f"synthesizer-{name.replace('_', '-')}" for name in list(PRESETS)[:11]]
    assert {*quoted} | {*re.search(r"#   (synthesizer.+): no figure", head)[1].split(", ")} == {*names}
    for name in names:
        model, data, args = arguments_of("lm1b_synthesizer.yaml", config_name=name)
        config = load_config(model)
        decoder = built(AutoModelForCausalLM, config)
        assert decoder.config.is_decoder and not decoder.config.is_encoder_decoder
        ids = torch.zeros((1, data.block_size), dtype=torch.long, device="meta")
        assert decoder(ids).logits.shape == (1, data.block_size, config.vocab_size)
        assert args.max_steps == 300_000
        text = (MODEL_CARDS / name / "README.md").read_text()
        figures = re.findall(r"^" + r"\| [^|]+ " * 5 + r"\| ([\d.]+) \|$", text, re.MULTILINE)  # of six columns
        assert figures == ([quoted[name]] if name in quoted else [])


@pytest.mark.parametrize("recipe", ["ag_news_synthesizer.yaml", "movie_reviews_synthesizer.yaml"])
@pytest.mark.parametrize("name", ["factorized-random", "factorized-random-vanilla"])
def test_the_papers_encoders_classify_texts(recipe, name):
    types = (ModelArguments, TextClassificationArguments, GridArguments, ScriptTrainingArguments)
    model, data, *_ = parse_arguments(types, [recipe, "--config_name", f"synthesizer-{name}"])
    classifier = built(AutoModelForSequenceClassification, load_config(model))
    assert not classifier.config.is_encoder_decoder
    ids = torch.ones((1, data.max_seq_length), dtype=torch.long, device="meta")
    assert classifier(ids).logits.shape == (1, 2)


def test_the_quickstart_trains_a_shipped_size_as_it_is():
    recipe = yaml.safe_load((RECIPES / "quickstart.yaml").read_text())
    assert (MODEL_CARDS / recipe["config_name"] / "config.json").is_file()
    assert not {"config_overrides", "model_type"} & recipe.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("digits.yaml", 0.95), ("imagenet_tiny.yaml", 0.5)])
def test_whole_recipes_learn_digits(name, least):
    pytest.importorskip("sklearn")
    make_data.main(["digits_images", "--output_dir", "outputs/quickstart/digits"])
    assert script_of(name).main([name, "--disable_tqdm", "true"])["eval_accuracy"] > least


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch("synthesizer_.*_tiny.yaml", name)])
def test_whole_recipes_learn_from_real_text(name):
    make_data.main(["python_docs_corpus", "--output_dir", "outputs/quickstart/corpus"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    # The perplexity of a model that knows no context, but where spans are predicted: of one that knows nothing.
    bound = 0.7 * results["unigram"] if "unigram" in results else 0.05 * results["untrained"]
    assert results["trained"] < bound


@pytest.mark.slow
def test_the_whole_recipe_of_sentence_embeddings_finds_docstrings():
    pytest.importorskip("sentence_transformers")
    make_data.main(["python_docs_summaries", "--output_dir", "outputs/summaries"])
    results = run_sentence_embeddings.main(["sentence_embeddings_tiny.yaml", "--disable_tqdm", "true"])
    assert results["eval_cosine_ndcg@10"] > 3 * results["before_cosine_ndcg@10"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "least"), [("glue_tiny.yaml", "accuracy", 0.75), ("ner_tiny.yaml", "f1", 0.9)]
)
def test_whole_recipes_learn_from_docstrings(name, metric, least):
    make_data.main(["docstring_tasks", "--output_dir", "outputs/docstrings"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    assert results[f"eval_{metric}"] > least > results.get(f"majority_{metric}", 0.0) + 0.3


@pytest.mark.slow
def test_the_whole_mixture_recipe_is_better_than_the_most_frequent_texts():
    make_data.main(["docstring_tasks", "--output_dir", "outputs/docstrings"])
    results = script_of("text_to_text_tiny.yaml").main(["text_to_text_tiny.yaml", "--disable_tqdm", "true"])
    for metric in ("cola_matthews_correlation", "squad_exact_match"):
        assert results[f"eval_{metric}"] > results[f"majority_{metric}"] + 25


@pytest.mark.slow
def test_the_whole_squad_recipe_is_better_than_chance():
    make_data.main(["python_docs_questions", "--output_dir", "outputs/questions"])
    results = script_of("squad_tiny.yaml").main(["squad_tiny.yaml", "--disable_tqdm", "true"])
    assert results["eval_exact_match"] > 30  # one of the four names at random would be 25


@pytest.mark.slow
def test_the_whole_translation_recipe_writes_numbers_it_has_not_seen():
    make_data.main(["number_names", "--output_dir", "outputs/numbers"])
    assert (
        script_of("translation_tiny.yaml").main(["translation_tiny.yaml", "--disable_tqdm", "true"])["eval_bleu"] > 90
    )


@pytest.mark.slow
def test_the_whole_summarization_recipe_is_better_than_one_summary_for_all():
    make_data.main(["python_docs_summaries", "--output_dir", "outputs/summaries"])
    results = script_of("summarization_tiny.yaml").main(["summarization_tiny.yaml", "--disable_tqdm", "true"])
    train, validation = (
        [json.loads(line)["target"] for line in Path(f"outputs/summaries/{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    )
    most_frequent = max(set(train), key=train.count)
    rouge, references = MetricArguments(metric=["rouge"]), [[text] for text in validation]
    constant, _ = score_texts([most_frequent] * len(validation), references, rouge)
    assert results["eval_rouge1"] > constant["rouge1"] + 5
