"""Every shipped recipe: its script reads it, a few of its steps run, and whole (slow) it learns."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import Adafactor, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from tokenmixers.configuration.configuration_synthesizer import PRESETS
from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES
from tokenmixers.run_scripts import make_data, run_seq2seq, run_text_to_text
from tokenmixers.run_scripts.base.arguments import ModelArguments, parse_arguments
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS, RECIPES
from tokenmixers.run_scripts.base.training_arguments import GenerationTrainingArguments, ScriptTrainingArguments
from tokenmixers.run_scripts.data.span_corruption import span_corruption_lengths
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments
from tokenmixers.run_scripts.data.text_corpus import BlockDataArguments, TextDataArguments
from tokenmixers.run_scripts.data.text_to_text import TextToTextArguments
from tokenmixers.run_scripts.run_seq2seq import MetricArguments, score_texts
from tokenmixers.run_scripts.run_span_corruption import SpanCorruptionArguments
from tokenmixers.run_scripts.training import run as training_run
from tokenmixers.run_scripts.training.hyperparameter_grid import GridArguments
from tokenmixers.run_scripts.training.model_loading import load_config
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


NAMES = sorted(path.name for path in RECIPES.glob("*.yaml"))
#: Recipe -> the data set of `make_data` that it reads, and the folder.
CORPUS, DOCSTRINGS = ("python_docs_corpus", "quickstart/corpus"), ("docstring_tasks", "docstrings")
DATA = dict.fromkeys(("quickstart.yaml", *filter(re.compile("synthesizer_.*_tiny").match, NAMES)), CORPUS)
DATA |= dict.fromkeys(("glue_tiny.yaml", "ner_tiny.yaml", "text_to_text_tiny.yaml"), DOCSTRINGS)
DATA |= dict.fromkeys(("digits.yaml", "imagenet_tiny.yaml"), ("digits_images", "quickstart/digits"))
DATA |= {
    f"{name}_tiny.yaml": ("python_docs_summaries", "summaries") for name in ("sentence_embeddings", "summarization")
}
DATA |= {"squad_tiny.yaml": ("python_docs_questions", "questions")}
DATA |= {"translation_tiny.yaml": ("number_names", "numbers")}
#: Of several recipes of a command, the fast tests run one.
ALIKE = {"imagenet_tiny.yaml", "summarization_tiny.yaml", "synthesizer_mlm_tiny.yaml"}


def script_of(name: str):
    """The script that the recipe's head names, `run_mlm` if none."""
    found = re.search(r"tokenmixers(?: launch \S+)? (run_\w+) " + re.escape(name), (RECIPES / name).read_text())
    return importlib.import_module(f"tokenmixers.run_scripts.{found[1] if found else 'run_mlm'}")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch, arguments_are_tried):
    monkeypatch.chdir(tmp_path)


class ParsedError(Exception):
    """Carries what a command parsed out of it."""


@pytest.mark.parametrize("name", NAMES)
def test_its_command_reads_every_recipe(name, monkeypatch):
    """And its model has a configuration; of some, the tests below know more."""

    def parse_only(types, argv):
        raise ParsedError(parse_arguments(types, argv))

    monkeypatch.setattr(training_run, "parse_arguments", parse_only)
    with pytest.raises(ParsedError) as parsed:
        script_of(name).main(
            [name, "--output_dir", "run", *(["--task_name", "sst2"] if name == "glue_gmlp.yaml" else [])]
        )
    (arguments,) = parsed.value.args
    (model,) = (each for each in arguments if isinstance(each, ModelArguments))
    assert isinstance(arguments[-1], ScriptTrainingArguments)
    if model.config_name or model.model_type:
        assert load_config(model).num_hidden_layers > 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@pytest.mark.usefixtures("part_of_the_library")
@pytest.mark.parametrize("name", sorted(DATA.keys() - ALIKE))
def test_a_few_steps(name, made):
    pytest.importorskip("sentence_transformers" if "embeddings" in name else "sklearn")
    data, folder = DATA[name]
    if not (made / data).exists():
        make_data.main([data, "--output_dir", str(made / data)])
    Path("outputs", folder).parent.mkdir(parents=True)
    Path("outputs", folder).symlink_to(made / data)
    recipe = yaml.safe_load((RECIPES / name).read_text())
    small = {"max_steps": 2, "per_device_train_batch_size": 4, "warmup_steps": 1, "eval_steps": 2}
    small |= {"max_train_samples": 40, "max_eval_samples": 8, "disable_tqdm": True}
    if "train_tokenizer" in recipe:
        small["train_tokenizer"] = 160 if data == "number_names" else 300
    if script_of(name) in (run_seq2seq, run_text_to_text):
        small["generation_max_length"] = 5
    results = script_of(name).main([name, *(part for key in small for part in (f"--{key}", str(small[key])))])
    signed = ("thresh", "signature", "correlation")
    assert results and all(value >= 0 for key, value in results.items() if not key.endswith(signed))
    assert Path(recipe["output_dir"], "model.safetensors").is_file()
    assert {"max_steps", "learning_rate", "seed"} <= recipe.keys()


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
    model, data, freezing, args = parse_arguments(types, [recipe, "--eval_strategy", "no", "--output_dir", "run"])
    assert "hidden_dropout_prob=0.1" in model.config_overrides and "attention_dropout=0.1" in model.config_overrides
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
    quoted = re.search(rf" {kind} ([\d.]+ \([\d.]+\)), ([\d.]+)", head_of(C4[0])).groups()
    text = (MODEL_CARDS / name / "README.md").read_text()
    assert tuple(re.findall(r"^\| log-perplexity, .*\| (.+) \|$", text, re.MULTILINE)) == quoted


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
        figures = re.findall(r"^\| LM1B .*\| ([\d.]+) \|$", text, re.MULTILINE)
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


def knows_context(found: dict) -> bool:
    """Better than a model that knows no context, but where spans are predicted: than one that knows nothing."""
    return found["trained"] < (0.7 * found["unigram"] if "unigram" in found else 0.05 * found["untrained"])


def beats_the_most_frequent_texts(found: dict) -> bool:
    names = ("cola_matthews_correlation", "squad_exact_match")
    return all(found[f"eval_{name}"] > found[f"majority_{name}"] + 25 for name in names)


def beats_one_summary_for_all(found: dict) -> bool:
    train, validation = (
        [json.loads(line)["target"] for line in Path(f"outputs/summaries/{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    )
    constant, references = [max(set(train), key=train.count)] * len(validation), [[text] for text in validation]
    scores, _ = score_texts(constant, references, MetricArguments(metric=["rouge"]))
    return found["eval_rouge1"] > scores["rouge1"] + 5


#: Recipe -> whether its results are those of a model that has learned.
HAS_LEARNED = {name: knows_context for name in DATA if DATA[name] == CORPUS and name != "quickstart.yaml"} | {
    "digits.yaml": lambda found: found["eval_accuracy"] > 0.95,
    "imagenet_tiny.yaml": lambda found: found["eval_accuracy"] > 0.5,
    "glue_tiny.yaml": lambda found: found["eval_accuracy"] > 0.75 > found["majority_accuracy"] + 0.3,
    "ner_tiny.yaml": lambda found: found["eval_f1"] > 0.9,
    "text_to_text_tiny.yaml": beats_the_most_frequent_texts,
    "squad_tiny.yaml": lambda found: found["eval_exact_match"] > 30,  # of four names at random it would be 25
    "translation_tiny.yaml": lambda found: found["eval_bleu"] > 90,
    "summarization_tiny.yaml": beats_one_summary_for_all,
    "sentence_embeddings_tiny.yaml": lambda found: found["eval_cosine_ndcg@10"] > 3 * found["before_cosine_ndcg@10"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HAS_LEARNED)
def test_whole_recipes_learn(name):
    pytest.importorskip("sentence_transformers" if "embeddings" in name else "sklearn")
    data, folder = DATA[name]
    make_data.main([data, "--output_dir", f"outputs/{folder}"])
    results = script_of(name).main([name, "--disable_tqdm", "true"])
    assert HAS_LEARNED[name](results), results
