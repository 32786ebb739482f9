import json
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tokenmixers.run_scripts import run_text_to_text
from tokenmixers.run_scripts.data.text_to_text import TEXT_TASKS
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


pytest.importorskip("sklearn")

WORDS = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm"]
SIZES = (
    "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_decoder_layers=1,num_attention_heads=2,head_dim=8,"
    "max_position_embeddings=48,hidden_dropout_prob=0.0,attention_dropout=0.0"
)


def write(file, lines):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CB, COPA, STS-B, MultiRC, ReCoRD, WSC and SQuAD in their official formats, with sentences of our own."""
    folder, draw = tmp_path_factory.mktemp("benchmarks"), random.Random(0)
    for split, count in (("train", 24), ("val", 6), ("test", 4)):
        sentences = [" ".join(draw.choices(WORDS, k=3)) for _ in range(count)]
        hidden, rows = split == "test", {name: [] for name in ("CB", "COPA", "MultiRC", "ReCoRD", "WSC")}
        for i, text in enumerate(sentences):
            kind, word = (("entailment", "yes"), ("contradiction", "no"), ("neutral", "maybe"))[i % 3]
            label = {} if hidden else {"label": kind}
            rows["CB"].append({"premise": f"{word} {text}", "hypothesis": text, "idx": i, **label})
            number = {} if hidden else {"label": i % 2}
            choices = {"choice1": text, "choice2": "a norm", "question": "cause"}
            rows["COPA"].append({"premise": text, **choices, "idx": i, **number})
            answers = [{"text": word, "idx": 2 * i + k} | ({} if hidden else {"label": k}) for k in (0, 1)]
            questions = [{"question": "which?", "idx": i, "answers": answers}]
            rows["MultiRC"].append({"idx": i, "passage": {"text": f"<b>{text}</b>", "questions": questions}})
            question = {"query": "@placeholder mixes", "idx": i} | (
                {} if hidden else {"answers": [{"start": 0, "end": 1, "text": text.split()[0]}]})  # fmt: skip
            entities = [{"start": 0, "end": len(text.split()[0]) - 1}]
            rows["ReCoRD"].append({"idx": i, "passage": {"text": text, "entities": entities}, "qas": [question]})
            spans = {"span1_text": "Ada", "span1_index": 0, "span2_text": "she", "span2_index": 3}
            label = {} if hidden else {"label": i % 2 == 0}
            rows["WSC"].append({"text": "Ada ran as she could .", "target": spans, "idx": i, **label})
        for name, lines in rows.items():
            write(folder / "super_glue" / name / f"{split}.jsonl", map(json.dumps, lines))
        name = {"val": "dev"}.get(split, split)
        scores = [] if hidden else ["score"]
        lines = [f"{i}\t{text}\t{text}" + ("" if hidden else f"\t{i % 6}.0") for i, text in enumerate(sentences)]
        write(
            folder / "glue" / "STS-B" / f"{name}.tsv",
            ["\t".join(["index", "sentence1", "sentence2", *scores]), *lines],
        )
        if not hidden:
            paragraphs = [
                {"context": text, "qas": [{"id": f"{i}", "question": "What?", "answers": [
                    {"text": text.split()[0], "answer_start": 0}]}]} for i, text in enumerate(sentences)
            ]  # fmt: skip
            write(folder / "squad" / f"{name}-v1.1.json", [json.dumps({"data": [{"paragraphs": paragraphs}]})])
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Words and characters: training a tokenizer twice does not give the same."""
    folder = tmp_path_factory.mktemp("tokenizer")
    names = [label for task in TEXT_TASKS.values() if task.num_classes for label in task.benchmark_task.labels]
    texts = [*WORDS, *names, "yes no maybe premise: hypothesis: cb 0123456789.", "Ada ran as *she* could"] * 3
    made = train_unigram_tokenizer(texts, 300, 48, kind="encoder-decoder")
    made.save_pretrained(folder)
    return folder


@pytest.fixture
def mixture(command, data, tokenizer):
    """`mixture(name=value, ...)`: arguments of a tiny run; `tasks` is a text with spaces between."""

    def build(tasks="cb copa", **changes):
        defaults = {
            "train_file": None,
            "validation_file": None,
            "data_dir": data,
            "config_name": "synthesizer-random-vanilla",
            "config_overrides": f"{SIZES},vocab_size={len(AutoTokenizer.from_pretrained(tokenizer))}",
            "tokenizer_name": tokenizer,
            "max_target_length": 12,
        }
        return [*command(defaults, **changes), *(["--tasks", *tasks.split()] if tasks else [])]

    return build


def test_trains_one_model_for_all_and_reports_each(mixture, tmp_path, capsys, table_of):
    tasks = "cb stsb multirc record wsc squad"
    options = {"eval_strategy": "steps", "eval_steps": 2, "do_predict": True, "train_tokenizer": 200}
    options |= {"generation_max_length": 5, "mixing_limit": 100}
    options |= {"tokenizer_name": None, "config_overrides": SIZES}
    results = run_text_to_text.main(mixture(tasks, **options))
    run = tmp_path / "run"
    assert json.loads((run / "all_results.json").read_text()).items() >= results.items()
    printed = capsys.readouterr().out
    assert "| in percent " in printed and "| squad exact match " in printed and "| wsc " in printed
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    for name in tasks.split():
        task = TEXT_TASKS[name]
        texts = table_of(run / f"predictions_validation_{name}.csv")
        assert results[f"eval_{name}_unparseable"] == sum(row["parsed"] == "False" for row in texts)
        assert len(texts) == (12 if name == "multirc" else 6)
        for metric in task.metrics:
            found = [entry[f"eval_{name}_{metric}"] for entry in history if f"eval_{name}_{metric}" in entry]
            assert len(found) == 2
            assert results[f"best_{name}_{metric}"] in found
            assert f"majority_{name}_{metric}" in results
        assert results[f"best_{name}_step"] in (2, 4)
        if name != "squad":
            assert (run / task.benchmark_task.submission()).is_file()
            assert 0 <= results[f"test_{name}_unparseable"] <= 8
    assert "eval_glue" not in results and "eval_super_glue" not in results
    assert run_text_to_text.TextToText().comparison(None).metrics == ["mean_of_tasks"]
    assert "eval_mean_of_tasks" in results
    card = (run / "README.md").read_text()
    assert "SuperGLUE's CB, GLUE's STS-B" in card and "SQuAD 1.1" in card
    assert "freeze_embeddings" not in card and "`mixing_limit`" in card
    submitted = [json.loads(line) for line in (run / "MultiRC.jsonl").read_text().splitlines()]
    assert [len(row["passage"]["questions"][0]["answers"]) for row in submitted] == [2] * 4


def test_the_saved_model_writes_what_was_scored(mixture, tmp_path, table_of):
    run_text_to_text.main(mixture("cb", max_steps=30))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert model.generation_config.max_length == 13
    for row in table_of(tmp_path / "run" / "predictions_validation_cb.csv"):
        ids = tokenizer(row["source"], truncation=True, max_length=48, return_tensors="pt")
        text = tokenizer.decode(model.generate(**ids)[0], skip_special_tokens=True)
        assert " ".join(text.split()) == row["prediction"]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_run_goes_on_with_the_same_frozen_parameters_alone(mixture, tmp_path, frozen):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3, "do_eval": None}
    run_text_to_text.main(mixture(**options, freeze_embeddings=frozen))
    shutil.copytree(tmp_path / "run" / "checkpoint-2", tmp_path / "other" / "checkpoint-2")
    with pytest.raises(SystemExit) as caught:
        run_text_to_text.main(mixture(**options, freeze_embeddings=not frozen, output_dir=tmp_path / "other"))
    message = str(caught.value)
    assert f"'{tmp_path / 'other' / 'checkpoint-2'}' was written with --freeze_embeddings" in message


@pytest.mark.parametrize("tied", ["true", "false"])
def test_frozen_embeddings_stay_as_they_are_and_all_else_changes(mixture, tmp_path, tied):
    overrides = mixture()[mixture().index("--config_overrides") + 1] + f",tie_word_embeddings={tied}"
    run_text_to_text.main(mixture(max_steps=1, do_eval=None, learning_rate=0, output_dir=tmp_path / "start",
                                  config_overrides=overrides, seed=3))  # fmt: skip
    options = {"max_steps": 4, "do_eval": None, "save_strategy": "steps", "save_steps": 4, "weight_decay": 0.1}
    run_text_to_text.main(mixture(**options, model_name_or_path=tmp_path / "start", freeze_embeddings=True))
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("start", "run"))
    frozen = {name for name in before if name.endswith(("shared.weight", "lm_head.weight", "embed_tokens.weight"))}
    assert len(frozen) >= (1 if tied == "true" else 2)
    assert {name for name in before if torch.equal(before[name], after[name])} == frozen
    states = torch.load(tmp_path / "run" / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    parameters = [parameter for _, parameter in model.named_parameters()]
    assert len(states) == len(parameters) - (1 if tied == "true" else 2)


def test_epochs_are_steps_over_the_examples_that_count(mixture, tmp_path, capsys):
    """16 of CB's 24 examples count, and 16 of COPA's: 32 in an epoch, 4 batches of 8."""
    options = {"max_steps": None, "num_train_epochs": 2, "mixing_limit": 16, "do_eval": None}
    run_text_to_text.main(mixture(**options))
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == 8
    assert "| cb   |                24 |        50.00 % |" in capsys.readouterr().out


def test_training_examples_are_held_out_in_place_of_the_validation_sets(mixture, tmp_path, table_of):
    results = run_text_to_text.main(mixture(train_val_split=0.25, do_predict=True))
    for name in ("cb", "copa"):
        rows = table_of(tmp_path / "run" / f"predictions_validation_{name}.csv")
        assert [int(row["index"]) for row in rows] == sorted(np.random.default_rng(0).permutation(24)[:6])
        assert f"test_{name}_unparseable" in results
    assert "parts of the training sets of SuperGLUE's CB, SuperGLUE's COPA" in (tmp_path / "run/README.md").read_text()


def test_the_best_of_several_checkpoints_is_loaded(mixture, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    run_text_to_text.main(mixture(**options, load_best_model_at_end=True))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    losses = {entry["step"]: entry["eval_cb_loss"] for entry in state["log_history"] if "eval_cb_loss" in entry}
    assert state["best_metric"] == min(losses.values())
