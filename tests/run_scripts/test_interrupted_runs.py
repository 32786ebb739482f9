"""What all training commands do alike: a run that is killed and started again ends as if it had not been."""

import errno
import importlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
)

from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS, module_of
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.images import load_image_processor
from tokenmixers.run_scripts.training.model_loading import load_config
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SCRIPTS = {
    "run_mlm": {"train_tokenizer": 60},
    "run_clm": {"config_overrides": "is_decoder=true", "save_total_limit": 1},
    "run_span_corruption": {
        "config_name": "synthesizer-random",
        "config_overrides": "num_attention_heads=2,head_dim=8",
    },
    "run_seq2seq": {"config_name": "synthesizer-random", "config_overrides": "num_attention_heads=2,head_dim=8"}
    | {"do_predict": True, "generation_max_length": 8},
    "run_text_to_text": {"config_name": "synthesizer-random", "config_overrides": "num_attention_heads=2,head_dim=8"}
    | {"tasks": ["cb", "squad"], "freeze_embeddings": True, "generation_max_length": 8}
    | {"eval_strategy": "steps", "eval_steps": 2},
    "run_glue": {"do_predict": True, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2},
    "run_token_classification": {"do_predict": True, "train_tokenizer": 60, "eval_strategy": "epoch", "save_steps": 3},
    "run_qa": {"do_predict": True, "doc_stride": 4, "max_question_length": 8},
    "run_image_classification": {"config_name": "gmlp-ti16-224", "config_overrides": "image_size=8,patch_size=4"}
    | {"do_predict": True},
}
if importlib.util.find_spec("sentence_transformers") is not None:
    SCRIPTS["run_sentence_embeddings"] = {"do_predict": True, "anchor_column": "text", "positive_column": "text"}
#: A grid of two runs, whose tokenizer the first of them trains. Its operations are many: some of them are sampled.
GRID = "run_mlm --seeds"
SCRIPTS_AND_GRID = {**SCRIPTS, GRID: {"train_tokenizer": 60, "max_steps": 3, "seeds": [1, 2]}}
#: A run whose teacher reads the texts first.
TEACHER = "run_sentence_embeddings --teacher"
if "run_sentence_embeddings" in SCRIPTS:
    SCRIPTS_AND_GRID[TEACHER] = {"teacher": "encoder-model", "anchor_column": "text", "positive_column": "animal"}
    SCRIPTS_AND_GRID[TEACHER] |= {"max_train_samples": 12}  # so that a second epoch begins
SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=24"
IMAGE_SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=1"
TIMES = ("runtime", "per_second")
FINISHED = "holds a finished run"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files for every script: sentences about which of two animals there is, and pictures."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, count in (("train", 24), ("validation", 6), ("test", 6)):
        rows = []
        for index in range(count):
            name, animal = draw.choice(["Ada", "Bo", "Cleo"]), draw.choice(["cat", "dog"])
            rows.append(
                {"text": f"{name} has a {animal} that is old.", "label": animal, "animal": animal, "id": index}
            )
        (folder / f"{split}.txt").write_text("\n".join(row["text"] for row in rows))
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        pairs = ({"source": row["text"], "target": row["label"]} for row in rows)
        (folder / f"{split}_pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        words = ([f"{word} {'B-PER' if not i else 'O'}" for i, word in enumerate(row["text"].split())] for row in rows)
        (folder / f"{split}.conll").write_text("\n\n".join("\n".join(lines) for lines in words) + "\n")
        paragraphs = [
            {
                "context": row["text"],
                "qas": [
                    {
                        "id": str(row["id"]),
                        "question": "Which animal?",
                        "answers": [{"text": row["label"], "answer_start": row["text"].index(row["label"])}],
                    }
                ],
            }
            for row in rows
        ]
        squad = {"version": "1.1", "data": [{"title": "animals", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(squad))
        for name in ("squad", "CB"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "squad" / f"{split}.json").write_text(json.dumps(squad))
        names = {"cat": "entailment", "dog": "neutral"}
        pairs = (
            {"premise": r["text"], "hypothesis": "A cat.", "label": names[r["label"]], "idx": r["id"]} for r in rows
        )
        name = {"validation": "val"}.get(split, split)
        (folder / "CB" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        for label, rows_lit in (("bottom", slice(4, 8)), ("top", slice(0, 4))):
            (folder / split / label).mkdir(parents=True)
            for index in range(count // 2):
                pixels = np.full((8, 8), index, dtype=np.uint8)
                pixels[rows_lit] += 120
                Image.fromarray(pixels).save(folder / split / label / f"{index}.png")
    lines = (folder / "train.txt").read_text().splitlines()
    tokenizer = train_unigram_tokenizer(lines, 60, 24, show_progress=False)
    for name in ("encoder", "encoder-model"):
        tokenizer.save_pretrained(folder / name)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    teacher = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))
    teacher.save_pretrained(folder / "encoder-model")
    t5 = train_unigram_tokenizer(lines, 160, 24, show_progress=False, kind="encoder-decoder")
    t5.save_pretrained(folder / "encoder-decoder")
    return folder


@pytest.fixture(scope="module")
def arguments(data):
    """`arguments(script, folder, **changes)`: those of a tiny run of the script that saves every second step."""

    def build(script: str, folder: Path, **changes) -> list[str]:
        images, mixture = script == "run_image_classification", script == "run_text_to_text"
        texts_to_texts = mixture or script in ("run_seq2seq", "run_span_corruption")
        ending = {
            "run_seq2seq": "_pairs.jsonl",
            "run_glue": ".jsonl",
            "run_sentence_embeddings": ".jsonl",
            TEACHER: ".jsonl",
            "run_token_classification": ".conll",
            "run_qa": ".json",
        }.get(script, "" if images else ".txt")
        kind = "encoder-decoder" if texts_to_texts else "encoder"
        own = SCRIPTS_AND_GRID[script]
        settings = {
            "config_name": "gmlp-base",
            "tokenizer_name": None if images or "train_tokenizer" in own else data / kind,
            "output_dir": folder,
            "do_train": True,
            "do_eval": True,
            "use_cpu": True,
            "precision": "fp32",
            "max_steps": 5,
            "save_strategy": "steps",
            "save_steps": 2,
            "logging_steps": 1,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "disable_tqdm": True,
            **own,
            **changes,
        }
        for split in ("train", "validation", *(["test"] if settings.get("do_predict") else [])) if not mixture else ():
            settings[f"{split}_{'dir' if images else 'file'}"] = data / f"{split}{ending}"
        if mixture:
            settings["data_dir"] = data
        if "teacher" in settings:
            settings["teacher"] = data / settings["teacher"]
        vocabulary = 160 if texts_to_texts else 60
        sizes = IMAGE_SIZES if images else f"{SIZES},vocab_size={vocabulary},hidden_dropout_prob=0.1"
        settings["config_overrides"] = ",".join(filter(None, [sizes, settings.get("config_overrides", "")]))
        parts = []
        for name, value in settings.items():
            values = value if isinstance(value, list) else [value]
            parts += [] if value is None else [f"--{name}", *map(str, values)]
        return parts

    return build


@pytest.fixture(scope="module")
def start(data):
    """`start(script, arguments, folder, at=None, seconds=None)`: see run_and_kill.py."""
    command = [sys.executable, Path(__file__).with_name("run_and_kill.py"), data / "encoder", *SCRIPTS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(**request) -> dict:
        process.stdin.write(json.dumps(request, default=str) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield lambda script, arguments, folder, **when: ask(
        script=script.split()[0], arguments=arguments, folder=folder, **when
    )
    process.stdin.close()
    assert process.wait() == 0


def without_times(value):
    """Results without what depends on the speed of the machine."""
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_times(item) for key, item in value.items() if not key.endswith(TIMES)}


def as_lists(value):
    """Tensors in nested dictionaries and lists as lists, which can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list) else value


def end_state(folder: Path) -> dict:
    """What a run leaves, in a form that can be compared."""
    state = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith("_finished"):  # left by a kill after the end
            continue
        if path.parent.parent.name == "_teacher_embeddings" and path.name.startswith("_"):  # left by a kill in a part
            continue
        if path.is_dir() or path.name == "training_args.bin":
            state[name] = None
        elif path.suffix == ".safetensors":
            state[name] = {key: tensor.tolist() for key, tensor in load_file(path).items()}
        elif path.name.endswith("results.json") or path.name == "trainer_state.json":
            state[name] = without_times(json.loads(path.read_text()))
        elif path.name in ("optimizer.pt", "scheduler.pt"):
            state[name] = as_lists(torch.load(path, weights_only=True))
        elif path.suffix in (".pth", ".pt", ".png"):
            state[name] = None
        else:
            state[name] = path.read_text()
    return state


@pytest.fixture(scope="module")
def states():
    """Script -> for each operation of an uninterrupted run a hash of what was on the disk before it."""
    return {}


@pytest.fixture(scope="module")
def whole(start, arguments, states, tmp_path_factory):
    """`whole(script)`: the folder for runs of a script, the state of an uninterrupted one, and its operations."""
    known = {}

    def build(script: str) -> tuple[Path, dict, list[str]]:
        if script not in known:
            folder = tmp_path_factory.mktemp(script) / "run"
            answer = start(script, arguments(script, folder), folder)
            assert answer["status"] == 0, answer["output"]
            known[script] = folder, end_state(folder), answer["operations"]
            states[script] = answer["states"]
        return known[script]

    return build


def check_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], name


def check_killed_at(script, numbers, start, arguments, whole):
    folder, expected, operations = whole(script)
    command, failures = arguments(script, folder), {}
    for number in numbers:
        shutil.rmtree(folder, ignore_errors=True)
        first = start(script, command, folder, at=number)
        assert first["status"] == "killed", first["output"]
        second = start(script, command, folder)
        if second["status"] != 0 and FINISHED not in second["output"]:
            failures[f"{number}: {operations[number - 1]}"] = second["output"][-300:]
            continue
        try:
            check_same(end_state(folder), expected)
        except AssertionError as error:
            failures[f"{number}: {operations[number - 1]}"] = str(error)[:300]
    assert not failures, json.dumps(failures, indent=1)


def run_here(script: str, arguments: list[str]) -> dict:
    return importlib.import_module(module_of(script)).main(arguments)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_training_commands_are_in_the_table():
    assert {*SCRIPTS, "run_sentence_embeddings"} == {*TRAINING_COMMANDS}


#: Command and changes, for orders of the rows and evaluations that a resumed run has to repeat.
RESUMED = [(script, {}) for script in SCRIPTS if script != "run_mlm"]  # whose test has all its kinds of data
RESUMED += [(script, {"train_sampling_strategy": "group_by_length"}) for script in ("run_seq2seq", "run_text_to_text")]
AUGMENTED = {"auto_augment": True, "random_resized_crop": True, "random_shift": 1, "horizontal_flip": True}
AUGMENTED |= {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "label_smoothing_factor": 0.1}
RESUMED += [("run_image_classification", AUGMENTED)]
if "run_sentence_embeddings" in SCRIPTS:
    # Of six steps in an epoch: the first run ends in the second one.
    ending = {"eval_strategy": "epoch", "per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 4}
    RESUMED += [("run_sentence_embeddings", {"eval_strategy": "steps", "eval_steps": 2})]
    RESUMED += [("run_sentence_embeddings", ending)]


@pytest.mark.parametrize(("script", "changes"), RESUMED)
def test_an_interrupted_run_ends_with_the_same_weights(script, changes, arguments, tmp_path):
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    changes = {"max_steps": 4, "save_steps": 2, "save_total_limit": None, "do_predict": None, **changes}
    run_here(script, arguments(script, whole, **changes))
    checkpoint = f"checkpoint-{changes['save_steps']}"
    shutil.copytree(whole / checkpoint, interrupted / checkpoint)
    run_here(script, arguments(script, interrupted, **changes))
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, interrupted))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    results = [json.loads((folder / "all_results.json").read_text()) for folder in (whole, interrupted)]
    evaluated = [{k: v for k, v in without_times(each).items() if k.startswith("eval_")} for each in results]
    assert evaluated[0] == evaluated[1] != {}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_diverging_loss_and_a_full_disk_are_survived(script, arguments, tmp_path, monkeypatch):
    """Both end in one sentence, and the checkpoints before stay as they were."""
    saving = {"save_steps": 1, "max_steps": 3, "save_total_limit": None, "load_best_model_at_end": None}
    saving |= dict.fromkeys(("do_eval", "do_predict", "eval_strategy", "eval_steps"))
    diverging = {"learning_rate": 1e30, "lr_scheduler_type": "constant"}
    with pytest.raises(UserError, match=r"training (loss|gradient) is (nan|inf) at step [123]; saved"):
        run_here(script, arguments(script, tmp_path / "nan", **saving, **diverging))
    for checkpoint in (tmp_path / "nan").glob("checkpoint-*"):
        assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())
    save, before = torch.save, {}

    def save_until_full(content, path, *args, **kwargs):
        if "checkpoint-2" in str(path):
            before.update(contents(tmp_path / "full" / "checkpoint-1"))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(content, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", save_until_full)
    with pytest.raises(UserError, match=r"disk of .* is full. Earlier checkpoints are untouched"):
        run_here(script, arguments(script, tmp_path / "full", **saving))
    assert before and contents(tmp_path / "full" / "checkpoint-1") == before


#: A run without evaluations and checkpoints in between, and without a test set.
PLAIN = dict.fromkeys(("do_predict", "load_best_model_at_end", "eval_strategy", "eval_steps")) | {
    "save_strategy": "no"
}


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script != "run_mlm"])  # which has its own test
def test_a_grid_is_its_single_runs(script, arguments, data, tmp_path):
    """Nothing of the first run is left in the second one."""
    changes = {**PLAIN, "max_steps": 3, **(AUGMENTED if script == "run_image_classification" else {})}
    if "train_tokenizer" in SCRIPTS[script]:
        changes |= {"train_tokenizer": None, "tokenizer_name": data / "encoder"}
    _, second = run_here(script, arguments(script, tmp_path / "grid", **changes, seeds=[1, 2]))["runs"]
    run_here(script, arguments(script, tmp_path / "single", **changes, seed=second["seed"]))
    single = json.loads((tmp_path / "single" / "all_results.json").read_text())
    compared = {name: value for name, value in second.items() if name.startswith("eval_")}
    assert compared and compared == {name: single[name] for name in compared}
    weights = [load_file(tmp_path / name / "model.safetensors") for name in (f"grid/{second['folder']}", "single")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


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
    changes = {**PLAIN, "config_name": None, "model_type": model_type, "max_steps": 2}
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
    with pytest.raises(UserError, match=r"headless' has no weights for .*: it was not trained for this task\."):
        run_here(script, command)
    assert not [*tmp_path.glob("out/*results.json")]


AUTO_CLASSES = {"run_mlm": AutoModelForMaskedLM, "run_seq2seq": AutoModelForSeq2SeqLM}
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
    changes = {**PLAIN, "teacher": tmp_path / "teacher", "distillation_alpha": 1.0, "max_steps": 30, **changes}
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


def test_killed_in_a_checkpoint_and_at_the_end(start, arguments, whole):
    _, _, operations = whole("run_mlm")
    half = operations.index("half of checkpoint-4/optimizer.pt") + 1
    check_killed_at("run_mlm", [half, len(operations) - 1], start, arguments, whole)


def test_a_grid_killed_when_its_second_run_starts(start, arguments, whole):
    _, _, operations = whole(GRID)
    second = operations.index("os.mkdir lr0.01_batch4_seed2") + 1
    check_killed_at(GRID, [second], start, arguments, whole)


@pytest.mark.slow
def test_a_grid_killed_at_sampled_operations_on_files(start, arguments, whole):
    _, _, operations = whole(GRID)
    shared = [number for number, name in enumerate(operations, start=1) if "lr0.01" not in name]
    assert len(shared) > 5, "the folder's settings, the tokenizer, the summary"
    check_killed_at(GRID, sorted({*shared, *range(1, len(operations) + 1, 7)}), start, arguments, whole)


def different_kills(operations: list[str], states: list[str]) -> list[int]:
    """The numbers of the operations at which a kill leaves something else on the disk than all kills before.

    Many operations change nothing, such as making a folder that is there. A kill at `half of` a file leaves the half.
    """
    numbers, seen = [], set()
    for number, (name, state) in enumerate(zip(operations, states, strict=True), start=1):
        if name.startswith("half of"):
            numbers.append(number)
        elif state not in seen:
            numbers.append(number)
            seen.add(state)
    return numbers


def last_of_each_kind(numbers: list[int], operations: list[str]) -> list[int]:
    """Of operations whose names differ in numbers and random parts alone, such as a checkpoint's step, the last."""
    kinds = {re.sub(r"incomplete-\w+|\d+", "", operations[number - 1]): number for number in numbers}
    return sorted(kinds.values())


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in SCRIPTS_AND_GRID if script != GRID])
def test_killed_at_every_operation_on_files(script, start, arguments, whole, states):
    """At all operations that change something; but for one command at those of one checkpoint alone."""
    _, _, operations = whole(script)
    numbers = different_kills(operations, states[script])
    assert len(operations) > len(numbers) > 50
    if script != "run_mlm":
        numbers = last_of_each_kind(numbers, operations)
    check_killed_at(script, numbers, start, arguments, whole)


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in SCRIPTS_AND_GRID if script != GRID])
def test_killed_twenty_times_at_random_moments(script, start, arguments, whole):
    folder, expected, _ = whole(script)
    command, draw, kills = arguments(script, folder), random.Random(script), 0
    seconds = start(script, arguments(script, folder.with_name("other")), folder.with_name("other"))["seconds"]
    while kills < 20:
        shutil.rmtree(folder, ignore_errors=True)
        answer = {"status": "killed"}
        while answer["status"] == "killed":
            when = draw.uniform(0, seconds) if kills < 20 else None  # on a slower machine all might come too early
            answer = start(script, command, folder, seconds=when)
            kills += answer["status"] == "killed"
        # The last kill may have come when all was done.
        assert answer["status"] == 0 or FINISHED in answer["output"], answer["output"]
        check_same(end_state(folder), expected)
