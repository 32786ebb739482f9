"""What all training commands do alike with grids, models of Transformers, teachers and several processes."""

import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.images import load_image_processor
from tokenmixers.run_scripts.training.model_loading import load_config


TINY_RUNS = runpy.run_path(str(Path(__file__).with_name("tiny_runs.py")))
SCRIPTS = TINY_RUNS["SCRIPTS"]
AUGMENTED = TINY_RUNS["AUGMENTED"]
PLAIN = TINY_RUNS["PLAIN"]
run_here = TINY_RUNS["run_here"]
without_times = TINY_RUNS["without_times"]


def test_all_training_commands_are_in_the_table():
    assert {*SCRIPTS, "run_sentence_embeddings"} == {*TRAINING_COMMANDS}


# One of each kind of Trainer that run_mlm, which has its own test, has not.
@pytest.mark.fast_cases(script=[script for script in SCRIPTS if re.search("text_to_text|embeddings", script)])
@pytest.mark.parametrize("script", [script for script in SCRIPTS if script != "run_mlm"])
def test_a_grid_is_its_single_runs(script, arguments, data, same_weights, tmp_path):
    """Nothing of the first run is left in the second one."""
    changes = {**PLAIN, "max_steps": 3, **(AUGMENTED if script == "run_image_classification" else {})}
    if "train_tokenizer" in SCRIPTS[script]:
        changes |= {"train_tokenizer": None, "tokenizer_name": data / "encoder"}
    _, second = run_here(script, arguments(script, tmp_path / "grid", **changes, seeds=[1, 2]))["runs"]
    run_here(script, arguments(script, tmp_path / "single", **changes, seed=second["seed"]))
    single = json.loads((tmp_path / "single" / "all_results.json").read_text())
    compared = {name: value for name, value in second.items() if name.startswith("eval_")}
    assert compared and compared == {name: single[name] for name in compared}
    assert same_weights(tmp_path / "grid" / second["folder"], tmp_path / "single")


BERT = "hidden_size=8,num_attention_heads=2,intermediate_size=8,num_hidden_layers=1,max_position_embeddings=24"


#: Command -> a model type of Transformers, and a small configuration of it; `bert` for all others.
FOREIGN = {"run_clm": ("gpt2", "n_positions=24,n_embd=8,n_layer=1,n_head=2,vocab_size=60")}
FOREIGN |= dict.fromkeys(
    ("run_span_corruption", "run_seq2seq", "run_text_to_text"),
    ("t5", "d_model=8,d_kv=4,d_ff=8,num_layers=1,num_decoder_layers=1,num_heads=2,vocab_size=160"),
)
FOREIGN["run_image_classification"] = ("vit", f"image_size=8,patch_size=4,{BERT.rpartition(',')[0]}")


@pytest.mark.parametrize("script", SCRIPTS)
def test_models_of_transformers_itself(script, arguments, tmp_path):
    """From a model type, without a configuration file."""
    model_type, sizes = FOREIGN.get(script, ("bert", f"{BERT},vocab_size=60"))
    changes = {**PLAIN, "config_name": None, "model_type": model_type, "max_steps": 1}
    if model_type == "t5":
        names = ("max_seq_length",) if script == "run_span_corruption" else ("max_source_length", "max_target_length")
        changes |= dict.fromkeys(names, 24)
    command = arguments(script, tmp_path / "run", **changes)
    command[command.index("--config_overrides") + 1] = sizes
    results = run_here(script, command)
    assert all(np.isfinite(value) for name, value in results.items() if not isinstance(value, str))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model_type"] == model_type and "sparse_prediction" not in config
    assert "trained from scratch" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_glue", "run_token_classification", "run_qa", "run_image_classification"])
def test_two_processes_train_and_predict_as_one_with_twice_the_batch(
    script, arguments, data, in_two_processes, table_of, tmp_path
):
    changes = {**PLAIN, "optim": "sgd", "max_grad_norm": 1e9, "learning_rate": 0.1, "do_predict": True}
    changes |= (
        {} if script == "run_image_classification" else {"train_tokenizer": None, "tokenizer_name": data / "encoder"}
    )

    def command(folder, **others):
        found = arguments(script, tmp_path / folder, **changes, **others)
        return [part.replace("hidden_dropout_prob=0.1", "hidden_dropout_prob=0.0") for part in found]

    run_here(script, command("one"))
    in_two_processes(script, command("two", per_device_train_batch_size=2, per_device_eval_batch_size=2))
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        numbers = [entry["loss"] for entry in history if "loss" in entry]
        assert len(numbers) == 5
        results = without_times(json.loads((folder / "all_results.json").read_text()))
        numbers += [results[name] for name in sorted(results) if name.startswith(("eval_", "test_"))]
        rows = [row for file in sorted(folder.glob("predictions*.csv")) for row in table_of(file)]
        numbers += [float(row.pop("score")) for row in rows if "score" in row]
        found.append((numbers, rows, [file.read_text() for file in sorted(folder.glob("predictions*.json"))]))
    (one, *written), (two, *others) = found
    assert one == pytest.approx(two, rel=1e-3, abs=2e-4)
    assert written == others and any(written)


#: Command -> the names of its classes.
WITH_HEADS = {"run_mlm": None, "run_clm": None, "run_glue": ["cat", "dog"], "run_qa": None}
WITH_HEADS |= {"run_token_classification": ["B-PER", "O"], "run_image_classification": ["bottom", "top"]}


@pytest.mark.parametrize("script", WITH_HEADS)
def test_a_checkpoint_without_its_head_is_not_evaluated(script, arguments, data, tmp_path):
    """Figures of random weights mean nothing."""
    own = arguments(script, tmp_path / "out")
    given = dict(zip(own[::2], own[1::2], strict=True))
    new = ModelArguments(config_name=given["--config_name"], config_overrides=given["--config_overrides"])
    config = load_config(new)
    config.tie_word_embeddings = False  # else a decoder has no weights of a head
    if WITH_HEADS[script] is not None:
        config.id2label = dict(enumerate(WITH_HEADS[script]))
    AutoModel.from_config(config).save_pretrained(tmp_path / "headless")
    changes = dict.fromkeys(("do_train", "do_predict", "config_name", "config_overrides", "train_tokenizer"))
    changes |= {"model_name_or_path": tmp_path / "headless", "load_best_model_at_end": None, "eval_strategy": None}
    images = script == "run_image_classification"
    prepares = load_image_processor(new, config) if images else AutoTokenizer.from_pretrained(data / "encoder")
    prepares.save_pretrained(tmp_path / "headless")
    command = [*arguments(script, tmp_path / "out", **changes), "--config_overrides", ""]
    with pytest.raises(UserError, match=r"headless' has no weights for .*: it was not trained for this task, or is"):
        run_here(script, command)
    assert not [*tmp_path.glob("out/*results.json")]


CLASSIFIERS = {
    "run_glue": AutoModelForSequenceClassification,
    "run_token_classification": AutoModelForTokenClassification,
}
CLASSIFIERS |= {"run_image_classification": AutoModelForImageClassification}


@pytest.mark.parametrize("script", CLASSIFIERS)
def test_the_rows_of_a_head_follow_the_names(script, arguments, table_of, tmp_path):
    """Those of a checkpoint that has the classes in another order than the data, trained on or evaluated alone."""
    results = {"run": run_here(script, arguments(script, tmp_path / "run", **PLAIN, max_steps=2))}
    model = CLASSIFIERS[script].from_pretrained(tmp_path / "run")
    names = list(model.config.id2label.values())
    for parameter in model.classifier.parameters():
        parameter.data = parameter.flip(0)
    model.config.id2label = dict(enumerate(names[::-1]))
    model.config.label2id = {name: index for index, name in model.config.id2label.items()}
    model.save_pretrained(shutil.copytree(tmp_path / "run", tmp_path / "foreign"))
    changes = dict.fromkeys(("config_name", "tokenizer_name", "train_tokenizer"))
    changes |= {**PLAIN, "model_name_or_path": tmp_path / "foreign", "learning_rate": 0, "max_steps": 1}
    for folder, more in (("tuned", {}), ("alone", {"do_train": None})):
        command = [*arguments(script, tmp_path / folder, **changes, **more), "--config_overrides", ""]
        results[folder] = run_here(script, command)
    assert list(CLASSIFIERS[script].from_pretrained(tmp_path / "tuned").config.id2label.values()) == names
    rows = [
        [row["prediction"] for row in table_of(tmp_path / folder / "predictions_validation.csv")] for folder in results
    ]
    assert rows[0] == rows[1] == rows[2]
    losses = [found["eval_loss"] for found in results.values()]
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-5) and losses[0] > 0


#: Command -> the class of its teacher. The teacher of `run_mlm` is in its own tests.
AUTO_CLASSES = {"run_seq2seq": AutoModelForSeq2SeqLM}
AUTO_CLASSES |= {"run_glue": AutoModelForSequenceClassification, "run_qa": AutoModelForQuestionAnswering}
AUTO_CLASSES |= {"run_image_classification": AutoModelForImageClassification}
TAUGHT = [(script, {}) for script in AUTO_CLASSES]
TAUGHT += [("run_image_classification", {"distillation_type": "hard", **AUGMENTED})]


@pytest.mark.parametrize(("script", "changes"), TAUGHT)
def test_a_student_learns_from_a_model_of_transformers(script, changes, arguments, data, tmp_path):
    """From a teacher alone, which says something, as its weights are large; the labels have no weight."""
    model_type, sizes = FOREIGN.get(script, ("bert", f"{BERT},vocab_size=60"))
    new = ModelArguments(model_type=model_type, config_overrides=sizes)
    config = load_config(new)
    if WITH_HEADS.get(script) is not None:
        config.id2label = dict(enumerate(WITH_HEADS[script]))
    if model_type == "t5":
        config.decoder_start_token_id = config.pad_token_id
    torch.manual_seed(0)
    teacher = AUTO_CLASSES[script].from_config(config)
    for parameter in teacher.parameters():
        parameter.data.normal_(std=0.3)
    teacher.save_pretrained(tmp_path / "teacher")
    kind = "encoder-decoder" if model_type == "t5" else "encoder"
    images = script == "run_image_classification"
    prepares = load_image_processor(new, config) if images else AutoTokenizer.from_pretrained(data / kind)
    prepares.save_pretrained(tmp_path / "teacher")
    changes = {**PLAIN, "teacher": tmp_path / "teacher", "distillation_alpha": 1.0, "max_steps": 20, **changes}
    run_here(script, arguments(script, tmp_path / "run", **changes, train_tokenizer=None, tokenizer_name=None))
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    labels = {name: value for name, value in changes.items() if not name.startswith(("teacher", "distillation"))}
    labels |= {"max_steps": 1, "train_tokenizer": None, "tokenizer_name": None if images else tmp_path / "teacher"}
    run_here(script, arguments(script, tmp_path / "alone", **labels))
    alone = json.loads((tmp_path / "alone" / "trainer_state.json").read_text())["log_history"]
    assert losses[0] != pytest.approx(next(entry["loss"] for entry in alone if "loss" in entry), rel=1e-3)
    assert re.search(r"^\| `?teacher`? +\| +teacher +\|$", (tmp_path / "run" / "README.md").read_text(), re.MULTILINE)
