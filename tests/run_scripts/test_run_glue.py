import csv
import json
import logging
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    pipeline,
)

from tokenmixers import GMLPConfig, GMLPModel
from tokenmixers.run_scripts import run_glue
from tokenmixers.run_scripts.training import classification
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


pytest.importorskip("sklearn")

SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=64,classifier_pooling=mean"
GOOD, BAD = ("fine", "lovely", "great"), ("dull", "awful", "poor")


def sentences(count: int, start: int = 0) -> list[tuple[str, int]]:
    """Sentences with one of six telling words."""
    words = [(word, int(word in GOOD)) for word in (*GOOD, *BAD)]
    return [
        (f"the film number {index} is {words[index % 6][0]} and it is over", words[index % 6][1])
        for index in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_unigram_tokenizer([text for text, _ in sentences(60)], 80, 64).save_pretrained(folder)
    # Training counts in parallel: order and scores of the pieces, not the pieces, differ from run to run.
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    special = [token["content"] for token in state["added_tokens"]]
    pieces = sorted(piece for piece, _ in state["model"]["vocab"] if piece not in special)
    assert [piece for piece, _ in state["model"]["vocab"][: len(special)]] == special
    state["model"]["vocab"] = [[piece, -1.0] for piece in special + pieces]
    file.write_text(json.dumps(state), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """SST-2, MNLI, STS-B and COPA in their official formats, with sentences of our own."""
    folder = tmp_path_factory.mktemp("glue")
    for task in ("SST-2", "MNLI", "STS-B", "COPA"):
        (folder / task).mkdir()
    for name, count in (("train", 60), ("dev", 18), ("test", 6)):
        rows = sentences(count, start=len(name))
        hidden = name == "test"
        lines = ["index\tsentence" if hidden else "sentence\tlabel"]
        lines += [f"{index}\t{text}" if hidden else f"{text}\t{label}" for index, (text, label) in enumerate(rows)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(lines))
        lines = ["index\tsentence1\tsentence2" + ("" if hidden else "\tscore")]
        lines += [
            f"{i}\t{text}\tit is" + ("" if hidden else f"\t{5 * label:.3f}") for i, (text, label) in enumerate(rows)
        ]
        (folder / "STS-B" / f"{name}.tsv").write_text("\n".join(lines))
        kinds = ("neutral", "entailment", "contradiction")
        for part in ("",) if name == "train" else ("_matched", "_mismatched"):
            lines = ["index\tsentence1\tsentence2" + ("" if hidden else "\tgold_label")]
            lines += [
                f"{i}\t{text}\tit is" + ("" if hidden else f"\t{kinds[i % 3]}") for i, (text, _) in enumerate(rows)
            ]
            (folder / "MNLI" / f"{name}{part}.tsv").write_text("\n".join(lines))
        choices = []
        for index in range(count):
            row = {"premise": "the film", "question": "cause", "choice1": "it is fine", "choice2": "it is over"}
            choices.append(row | {"idx": index + 100} | ({} if hidden else {"label": index % 2}))
        content = "\n".join(map(json.dumps, choices))
        (folder / "COPA" / f"{ {'dev': 'val'}.get(name, name) }.jsonl").write_text(content)
    return folder


@pytest.fixture
def command(data, tokenizer, tmp_path):
    """`command(name=value, ...)`: arguments of a tiny run, with changes; `None` leaves an argument out."""

    def build(**changes) -> list[str]:
        settings = {
            "task_name": "sst2",
            "data_dir": data,
            "config_name": "gmlp-base",
            "config_overrides": f"{SIZES},vocab_size=80",
            "tokenizer_name": tokenizer,
            "output_dir": tmp_path / "run",
            "do_train": True,
            "do_eval": True,
            "use_cpu": True,
            "max_steps": 2,
            "per_device_train_batch_size": 6,
            "per_device_eval_batch_size": 9,  # half of the rows: those of a short last batch would weigh more
            "learning_rate": 1e-2,
            "disable_tqdm": True,
            "save_strategy": "no",
            **changes,
        }
        parts = []
        for name, value in settings.items():
            values = value if isinstance(value, list) else [value]
            parts += [] if value is None else [f"--{name}", *map(str, values)]
        return parts

    return build


#: Of a checkpoint: nothing that describes one from scratch.
TRAINED = {"do_train": None, "config_name": None, "config_overrides": None, "tokenizer_name": None}


#: Enough to learn six words.
LEARN = {"max_steps": 40, "per_device_train_batch_size": 30, "learning_rate": 3e-2}


def test_predictions_have_the_texts_next_to_them():
    assert run_glue.text_columns([["a"], ["b"]]) == {"text": ["a", "b"]}
    assert run_glue.text_columns([["a", "c"], ["b", "d"]]) == {"text": ["a", "b"], "text_pair": ["c", "d"]}
    assert run_glue.text_columns([["q", "x", "y"]]) == {"texts": [["q", "x", "y"]]}


def test_trains_reports_predicts_and_reloads(command, tmp_path, capsys, table_of):
    results = run_glue.main(command(**LEARN, do_predict=True))
    printed = capsys.readouterr().out
    assert "GMLPForSequenceClassification (gmlp)" in printed
    assert "| accuracy     | 100.00 |               50.00 |" in printed
    assert results["eval_accuracy"] == 1.0 and results["majority_accuracy"] == 0.5
    folder = tmp_path / "run"
    assert json.loads((folder / "all_results.json").read_text())["eval_accuracy"] == 1.0
    expected = [label for _, label in sentences(6, start=4)]
    lines = ["index\tprediction", *(f"{index}\t{label}" for index, label in enumerate(expected))]
    assert (folder / "SST-2.tsv").read_text().splitlines() == lines
    rows = table_of(folder / "predictions_validation.csv")
    assert [row["label"] for row in rows] == [row["prediction"] for row in rows]
    assert [row["text"] for row in rows] == [text for text, _ in sentences(18, start=3)]
    assert "SST-2" in (folder / "README.md").read_text()

    classify = pipeline("text-classification", model=str(folder))
    assert [classify(text)[0]["label"] for text, _ in sentences(2, start=2)] == ["positive", "negative"]

    # The reported loss, computed over again in the plainest way from what was saved.
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    losses = []
    for text, label in sentences(18, start=3):
        with torch.no_grad():
            losses.append(-model(**tokenizer(text, return_tensors="pt")).logits.log_softmax(-1)[0, label].item())
    assert results["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    evaluated = run_glue.main(command(**TRAINED, model_name_or_path=folder, output_dir=tmp_path / "evaluation"))
    assert evaluated["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-4)


@pytest.mark.usefixtures("history_is_drawn")
def test_mnli_has_two_evaluation_and_two_test_sets(command, tmp_path, capsys):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}
    results = run_glue.main(command(task_name="mnli", do_predict=True, **{**options, "save_strategy": "steps"}))
    assert {"eval_matched_accuracy", "eval_mismatched_accuracy"} <= results.keys()
    assert "matched set: 18 rows; mismatched set: 18 rows" in capsys.readouterr().out
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        lines = (tmp_path / "run" / name).read_text().splitlines()
        assert len(lines) == 7 and lines[1].split("\t")[1] in ("entailment", "neutral", "contradiction")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "matched accuracy" in card and "mismatched accuracy" in card
    assert (tmp_path / "run" / "predictions_validation_mismatched.csv").is_file()


def test_an_unknown_metric_to_compare_by_is_found_before_training(command, tmp_path):
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    for name in ("nope", "eval_loss_"):
        with pytest.raises(SystemExit, match=f"--metric_for_best_model {name} is unknown; there are loss, .*accuracy"):
            run_glue.main(command(**options, metric_for_best_model=name, output_dir=tmp_path / name))
        assert not [*(tmp_path / name).rglob("checkpoint-*")]
    # One that the card does not name.
    options |= {"max_steps": None, "num_train_epochs": 1, "metric_for_best_model": "runtime"}
    run_glue.main(command(**options))
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert next(entry["step"] for entry in history if "eval_accuracy" in entry) == 0
    # One that it names needs no evaluation before.
    run_glue.main(command(**options | {"metric_for_best_model": "accuracy", "output_dir": tmp_path / "named"}))
    history = json.loads((tmp_path / "named" / "trainer_state.json").read_text())["log_history"]
    assert next(entry["step"] for entry in history if "eval_accuracy" in entry) > 0


def test_stsb_is_a_regression(command, tmp_path):
    with pytest.raises(SystemExit, match="--label_smoothing_factor is for classes, this model is trained on scores"):
        run_glue.main(command(task_name="stsb", label_smoothing_factor=0.1))
    assert not (tmp_path / "run").exists()
    results = run_glue.main(command(**LEARN, task_name="stsb", do_predict=True))
    assert results["eval_pearson"] > 0.5 and results["eval_spearman"] > 0.5
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    assert model.config.problem_type == "regression" and model.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    lines = (tmp_path / "run" / "STS-B.tsv").read_text().splitlines()[1:]
    for line, (text, _) in zip(lines, sentences(6, start=4), strict=True):
        with torch.no_grad():
            score = model(**tokenizer(text, "it is", return_tensors="pt")).logits.item()
        assert float(line.split("\t")[1]) == pytest.approx(score, abs=1e-3)


def test_copa_is_multiple_choice(command, tmp_path):
    results = run_glue.main(command(task_name="copa", do_predict=True))
    assert results["eval_accuracy"] == 0.5
    rows = [json.loads(line) for line in (tmp_path / "run" / "COPA.jsonl").read_text().splitlines()]
    assert [row["idx"] for row in rows] == list(range(100, 106)) and {row["label"] for row in rows} <= {0, 1}


def test_multirc_is_scored_by_answer_and_by_question(command, tmp_path, table_of):
    (tmp_path / "MultiRC").mkdir()
    for split in ("train", "val", "test"):
        lines = []
        for number in range(6):  # a question has a right and a wrong answer
            answers = [{"text": text, "idx": index} for index, text in enumerate(("it is fine", "it is dull"))]
            answers = [row | ({} if split == "test" else {"label": 1 - row["idx"]}) for row in answers]
            questions = [{"question": "how is it", "idx": number, "answers": answers}]
            lines.append(json.dumps({"idx": 7, "passage": {"text": "<b>a film</b>", "questions": questions}}))
        (tmp_path / "MultiRC" / f"{split}.jsonl").write_text("\n".join(lines))
    options = {"task_name": "multirc", "data_dir": tmp_path, "do_predict": True}
    results = run_glue.main(command(**options, max_steps=1, learning_rate=0))
    rows = table_of(tmp_path / "run" / "predictions_validation.csv")
    right = [row["label"] == row["prediction"] for row in rows]
    assert results["eval_exact_match"] == sum(a and b for a, b in zip(right[::2], right[1::2], strict=True)) / 6
    assert results["eval_f1"] in (0.0, pytest.approx(2 / 3))  # the same class for all, without training
    assert results["majority_exact_match"] == 0.0
    (line,) = (tmp_path / "run" / "MultiRC.jsonl").read_text().splitlines()
    submitted = json.loads(line)
    assert submitted["idx"] == 7
    assert [len(question["answers"]) for question in submitted["passage"]["questions"]] == [2] * 6


def test_submissions_are_in_order_where_training_groups_rows_by_length(command, tmp_path):
    run_glue.main(command(**LEARN, task_name="stsb", do_predict=True))
    options = {**TRAINED, "task_name": "stsb", "do_predict": True, "model_name_or_path": tmp_path / "run"}
    options |= {"train_sampling_strategy": "group_by_length", "per_device_eval_batch_size": 1}
    run_glue.main(command(**options, output_dir=tmp_path / "grouped"))
    found, expected = ((tmp_path / name / "STS-B.tsv").read_text() for name in ("grouped", "run"))
    assert found == expected


def own_files(folder, suffix: str):
    for name, count in (("train", 60), ("validation", 18), ("test", 6)):
        rows = [{"body": text, "other": "it is", "kind": ("no", "yes")[label]} for text, label in sentences(count)]
        with (folder / f"{name}.{suffix}").open("w", newline="") as file:
            if suffix == "jsonl":
                file.writelines(json.dumps(row) + "\n" for row in rows)
            else:
                writer = csv.DictWriter(file, rows[0], delimiter="\t" if suffix == "tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
    return {f"{name}_file": folder / f"{name}.{suffix}" for name in ("train", "validation", "test")}


OWN = {"task_name": None, "data_dir": None, "text_column_names": "body", "label_column_name": "kind"}


def test_own_files(command, tmp_path):
    options = {**OWN, **own_files(tmp_path, "csv"), "text_column_names": ["body", "other"], "do_predict": True}
    results = run_glue.main(command(**options, **LEARN))
    assert results["eval_accuracy"] == results["eval_macro_f1"] == results["test_accuracy"] == 1.0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(config["id2label"].values()) == ["no", "yes"]
    assert (tmp_path / "run" / "predictions_test.csv").is_file()
    options |= {"train_file": None, "model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "evaluation"}
    assert run_glue.main(command(**{**options, **TRAINED}))["test_accuracy"] == 1.0


def test_several_labels_per_text(command, tmp_path, capsys, table_of):
    """The Trainer, the pipeline, scikit-learn and binary cross entropy say the same."""
    from sklearn.metrics import f1_score

    words = (*GOOD, *BAD)
    rows = []
    for index in range(60):
        first, second = words[index % 6], words[(index // 6) % 6]
        kinds = [name for name, word in (("film", first), ("music, sound", second)) if word in GOOD]
        rows.append({"text": f"the film is {first} and it is {second}", "label": kinds})
    held_out = [dict(row) for row in rows[40:]]
    held_out[0]["label"] = [*held_out[0]["label"], "new"]  # which the model cannot predict
    files = {"train_file": tmp_path / "train.json", "validation_file": tmp_path / "validation.json"}
    files["test_file"] = tmp_path / "test.json"
    for file, part in zip(
        files.values(), (rows[:40], held_out, [{"text": row["text"]} for row in held_out]), strict=True
    ):
        file.write_text(json.dumps(part))
    run = {**files, "task_name": None, "data_dir": None, "do_predict": True, "per_device_eval_batch_size": 7}
    results = run_glue.main(command(**run, max_steps=40))
    names = ["film", "music, sound"]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.problem_type == "multi_label_classification"
    assert list(model.config.id2label.values()) == names
    classify = pipeline("text-classification", model=str(tmp_path / "run"), top_k=None)
    scores = [{a["label"]: a["score"] for a in answer} for answer in classify([row["text"] for row in held_out])]
    found = [[score[name] > 0.5 for name in names] + [False] for score in scores]
    right = [[name in row["label"] for name in (*names, "new")] for row in held_out]
    assert 0.6 < results["eval_micro_f1"] == pytest.approx(f1_score(right, found, average="micro"))
    assert results["eval_macro_f1"] == pytest.approx(f1_score(right, found, average="macro", zero_division=0))
    assert results["eval_accuracy"] == sum(map(list.__eq__, found, right)) / len(right)
    losses = [
        -math.log(score[name] if is_right else 1 - score[name])
        for score, row in zip(scores, right, strict=True)
        for name, is_right in zip(names, row, strict=False)
    ]
    assert json.loads((tmp_path / "run" / "eval_results.json").read_text())["eval_loss"] == pytest.approx(
        sum(losses) / len(losses), rel=1e-3
    )
    for name in ("predictions_validation.csv", "predictions_test.csv"):
        written = table_of(tmp_path / "run" / name)
        assert ("label" in written[0]) == (name == "predictions_validation.csv")
        assert [json.loads(row["prediction"]) for row in written] == [
            [name for name in names if score[name] > 0.5] for score in scores
        ]
        assert [float(row["score_film"]) for row in written] == pytest.approx([s["film"] for s in scores], abs=1e-4)
    counts = [sum(name in row["label"] for row in rows[:40]) for name in names]
    guess = [[name == names[counts.index(max(counts))] for name in (*names, "new")]] * len(right)
    assert results["majority_micro_f1"] == pytest.approx(f1_score(right, guess, average="micro"))
    assert "top_k=None" in (tmp_path / "run" / "README.md").read_text()
    # Evaluated again, from the checkpoint alone.
    again = {"do_train": None, "config_name": None, "config_overrides": None, "tokenizer_name": None}
    again |= {"train_file": None, "model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "again"}
    assert run_glue.main(command(**{**run, **again}))["eval_micro_f1"] == results["eval_micro_f1"]
    with pytest.raises(SystemExit, match="--label_smoothing_factor is for one label per text"):
        run_glue.main(command(**run, label_smoothing_factor=0.1, output_dir=tmp_path / "smooth"))


def test_held_out_training_data_are_evaluated_and_found_again(command, tmp_path, table_of):
    data = {"train_file": own_files(tmp_path, "csv")["train_file"], "validation_file": None, "train_val_split": 0.25}
    found = run_glue.main(command(**OWN, **data, **LEARN))
    rows = table_of(tmp_path / "run" / "predictions_validation.csv")
    count = len(table_of(data["train_file"]))
    assert [int(row["index"]) for row in rows] == sorted(
        np.random.default_rng(0).permutation(count)[: round(count / 4)]
    )
    assert "(a part held out of training)" in (tmp_path / "run" / "README.md").read_text()
    again = command(
        **OWN, **data, **TRAINED, model_name_or_path=tmp_path / "run", output_dir=tmp_path / "again", seed=9
    )
    assert run_glue.main(again)["eval_loss"] == pytest.approx(found["eval_loss"], rel=1e-5)


def test_of_a_benchmark_training_data_are_held_out_in_place_of_its_validation_sets(command, tmp_path, table_of):
    options = {"task_name": "mnli", "train_val_split": 0.25, "max_steps": 1}
    summary = run_glue.main([*command(**options), "--learning_rates", "1e-2", "1e-9"])
    folder = tmp_path / "run" / summary["runs"][0]["folder"]
    results = json.loads((folder / "all_results.json").read_text())
    assert "eval_matched_accuracy" not in results and summary["runs"][0]["score"] == results["eval_accuracy"]
    rows = table_of(folder / "predictions_validation.csv")
    assert [int(row["index"]) for row in rows] == sorted(np.random.default_rng(0).permutation(60)[:15])
    assert "the training set of GLUE's MNLI (a part held out of training)" in (folder / "README.md").read_text()


def test_own_data_set_with_class_labels(command, tmp_path, table_of):
    import datasets

    labels = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"body": datasets.Value("string"), "kind": labels})
    for name in ("train", "validation"):
        texts, numbers = zip(*sentences(12), strict=True)
        rows = datasets.Dataset.from_dict({"body": texts, "kind": numbers}, features=features)
        rows.to_parquet(tmp_path / "data" / f"{name}.parquet")
    run_glue.main(command(**OWN, dataset_name=tmp_path / "data", max_train_samples=9, max_eval_samples=5))
    places = np.sort(np.random.default_rng(0).permutation(12)[:5])
    written = table_of(tmp_path / "run" / "predictions_validation.csv")
    right = [("no", "yes")[sentences(12)[place][1]] for place in places]
    assert [(int(row["index"]), row["label"]) for row in written] == list(zip(places, right, strict=True))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["label2id"] == {"no": 0, "yes": 1}


def test_models_of_transformers_and_heads_of_other_tasks(command, tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    BertConfig(max_position_embeddings=32, vocab_size=80, **sizes).save_pretrained(tmp_path / "bert")
    run_glue.main(command(config_name=tmp_path / "bert", config_overrides=None, task_name="mnli"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "bert"
    options = {**TRAINED, "model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "next"}
    with pytest.raises(SystemExit, match="the model predicts 'entailment', 'neutral', 'contradiction', the data ask"):
        run_glue.main(command(**options))
    run_glue.main(command(**{**options, "do_train": True, "config_overrides": "hidden_dropout_prob=0.2"}))
    config = json.loads((tmp_path / "next" / "config.json").read_text())
    assert len(config["id2label"]) == 2 and config["hidden_dropout_prob"] == 0.2
    for wrong in ("hidden_size=10", "hidden_dropout_prob=0.1,vocab_size=90", "num_hidden_layers=2", "num_labels=3"):
        with pytest.raises(
            SystemExit, match=f"{wrong}': of a checkpoint only dropout rates and classifier_pooling can be"
        ):
            run_glue.main(command(**{**options, "config_overrides": wrong}))
    with pytest.raises(SystemExit, match="names 'hidden_sise', which is no field of BertConfig"):
        run_glue.main(command(**{**options, "config_overrides": "hidden_sise=9"}))


def test_a_checkpoint_with_another_pooling(command, tmp_path):
    """Field that leaves the weights as they are: equal to the same weights with another configuration file."""
    run_glue.main(command(max_steps=1))
    other = {**TRAINED, "model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "next"}
    before = run_glue.main(command(**other))
    found = run_glue.main(command(**{**other, "config_overrides": "classifier_pooling=cls,hidden_dropout_prob=0.2"}))
    file = tmp_path / "run" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"classifier_pooling": "cls", "hidden_dropout_prob": 0.2})
    )
    expected = run_glue.main(command(**other))
    assert found["eval_loss"] == expected["eval_loss"] != before["eval_loss"]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_checkpoint_in_half_precision_trains_as_its_copy_in_float32(kind, command, tmp_path):
    run_glue.main(command(max_steps=1))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").to(kind)
    states = {}
    for name in ("half", "whole"):
        model.to(kind if name == "half" else torch.float32).save_pretrained(
            shutil.copytree(tmp_path / "run", tmp_path / name)
        )
        run_glue.main(
            command(**{**TRAINED, "do_train": True}, model_name_or_path=tmp_path / name, output_dir=tmp_path / "next")
        )
        states[name] = load_file(tmp_path / "next" / "model.safetensors")
        assert json.loads((tmp_path / "next" / "config.json").read_text())["dtype"] == "float32"
        shutil.rmtree(tmp_path / "next")
    before = load_file(tmp_path / "half" / "model.safetensors")
    assert {value.dtype for value in before.values()} == {kind}
    for name, value in states["whole"].items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(states["half"][name], value, rtol=0, atol=0)
    assert not all(torch.equal(states["half"][name], before[name].float()) for name in before)


def test_the_rows_of_a_head_follow_the_classes(command, tmp_path):
    """A model of MNLI, whose classes the benchmark orders, on the same rows as own files, which are sorted."""
    run_glue.main(command(**LEARN, task_name="mnli"))
    before = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert list(before.config.id2label.values()) == ["entailment", "neutral", "contradiction"]
    own = {"text_column_names": ["sentence1", "sentence2"], "label_column_name": "gold_label"}
    own |= {"task_name": None, "data_dir": None, **TRAINED, "model_name_or_path": tmp_path / "run", "do_train": True}
    files = {f"{name}_file": tmp_path / "mnli.jsonl" for name in ("train", "validation")}
    rows = [
        {"sentence1": text, "sentence2": "it is", "gold_label": ("neutral", "entailment", "contradiction")[index % 3]}
        for index, (text, _) in enumerate(sentences(24, start=len("train")))
    ]
    (tmp_path / "mnli.jsonl").write_text("\n".join(map(json.dumps, rows)))
    expected = run_glue.main(command(**{**own, **files, "train_file": None, "do_train": None}))
    own |= {"output_dir": tmp_path / "next", "learning_rate": 0, "max_steps": 1}
    found = run_glue.main(command(**own, **files))
    assert found["eval_accuracy"] == expected["eval_accuracy"]
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    after = AutoModelForSequenceClassification.from_pretrained(tmp_path / "next")
    assert list(after.config.id2label.values()) == ["contradiction", "entailment", "neutral"]
    # And evaluated alone, in the benchmark's order again.
    alone = {"task_name": "mnli", **TRAINED, "output_dir": tmp_path / "evaluation"}
    losses = []
    for name in ("run", "next"):
        results = run_glue.main(command(**{**alone, "model_name_or_path": tmp_path / name}))
        losses.append(
            (
                results["eval_matched_loss"],
                (tmp_path / "evaluation" / "predictions_validation_matched.csv").read_text(),
            )
        )
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def encoder(tokenizer, tmp_path_factory):
    """A checkpoint without a head."""
    config = GMLPConfig(vocab_size=80, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_labels=2)
    config.max_position_embeddings, config.classifier_pooling = 64, "mean"
    folder = tmp_path_factory.mktemp("encoder")
    GMLPModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


BY_DEFAULT = {"config_name": None, "config_overrides": None, "tokenizer_name": None, "learning_rate": None}


def test_without_a_rate_a_checkpoint_starts_with_a_linear_probe(command, encoder, tmp_path, capsys):
    results = run_glue.main(command(**BY_DEFAULT, model_name_or_path=encoder))
    printed = capsys.readouterr().out
    assert "learning rate 0.0002 (default for gmlp checkpoints), from the start" in printed
    assert "the new output layer starts with a regression on the features of 60 training rows" in printed
    card = " ".join((tmp_path / "run" / "README.md").read_text().split())
    assert "| `learning_rate` | 0.0002 |" in card and "| `linear_probe` | True |" in card
    # A head that was trained stays, and with a rate it starts at random.
    run_glue.main(command(**BY_DEFAULT, model_name_or_path=tmp_path / "run", output_dir=tmp_path / "further"))
    given = {**BY_DEFAULT, "learning_rate": 2e-4, "model_name_or_path": encoder, "output_dir": tmp_path / "given"}
    other = run_glue.main(command(**given))
    printed = capsys.readouterr().out
    assert "starts with a regression" not in printed and "learning rate 0.0002, from the start" in printed
    assert results["eval_loss"] < other["eval_loss"]
    with pytest.raises(SystemExit, match="--linear_probe is for a new output layer of a checkpoint"):
        run_glue.main(command(linear_probe=True, output_dir=tmp_path / "scratch"))


@pytest.mark.parametrize("task_name", ["sst2", "stsb", "mnli"])
def test_the_probe_is_the_regression_on_what_the_model_reads(task_name, command, encoder, tmp_path, data):
    """Without a step that changes it, the saved output layer is scikit-learn's."""
    from sklearn.linear_model import LogisticRegression, Ridge

    options = {**BY_DEFAULT, "learning_rate": 0, "linear_probe": True, "task_name": task_name, "max_steps": 1}
    run_glue.main(command(**options, model_name_or_path=encoder))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = [text for text, _ in sentences(60, start=5)]
    pairs = texts if task_name == "sst2" else [(text, "it is") for text in texts]
    features, logits = [], []
    for text in pairs:
        inputs = tokenizer(*([text] if task_name == "sst2" else text), return_tensors="pt")
        with torch.no_grad():
            features.append(model.model(**inputs).last_hidden_state[0].mean(dim=0).double().numpy())
            logits.append(model(**inputs).logits[0].double().numpy())
    features, logits = np.array(features), np.array(logits)
    scaled = np.c_[features / np.sqrt((features**2).sum(axis=1).mean()), np.ones(60)]
    if task_name == "stsb":
        scores = np.array([5.0 * label for _, label in sentences(60, start=5)])
        peer = Ridge(alpha=1 / 3, fit_intercept=False).fit(scaled, (scores - scores.mean()) / scores.std())
        np.testing.assert_allclose(logits[:, 0], peer.predict(scaled) * scores.std() + scores.mean(), atol=1e-3)
        return
    labels = [label for _, label in sentences(60, start=5)]
    found, weight = logits[:, 1:] - logits[:, :1], 6  # weights of two classes share the penalty
    if task_name == "mnli":
        kinds = ["neutral", "entailment", "contradiction"]
        labels, found, weight = [model.config.label2id[kinds[i % 3]] for i in range(60)], logits, 3
    peer = LogisticRegression(C=weight, fit_intercept=False, tol=1e-8, max_iter=1000).fit(scaled, labels)
    np.testing.assert_allclose(found, scaled @ peer.coef_.T, atol=2e-3)


def test_a_probed_run_that_was_killed_ends_as_an_uninterrupted_one(command, encoder, tmp_path, monkeypatch):
    options = {**BY_DEFAULT, "model_name_or_path": encoder, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    run_glue.main(command(**options, output_dir=tmp_path / "whole"))

    class KilledError(BaseException): ...

    step, steps = run_glue.ClassificationTrainer.training_step, []

    def step_or_die(trainer, *args, **kwargs):
        steps.append(1)
        if len(steps) == 4:
            raise KilledError
        return step(trainer, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(run_glue.ClassificationTrainer, "training_step", step_or_die)
        run_glue.main(command(**options))
    monkeypatch.setattr(run_glue, "start_with_probe", None)  # a run that goes on has its weights
    run_glue.main(command(**options))
    whole, found = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(whole[name], found[name]) for name in whole)


def test_the_output_folder_and_validation_data_are_asked_for(command, tmp_path):
    with pytest.raises(SystemExit, match="give --output_dir, the folder for what the command writes"):
        run_glue.main(command(output_dir=None))
    files = own_files(tmp_path, "csv") | {"validation_file": None, "test_file": None}
    with pytest.raises(SystemExit, match=r"--train_val_split 0\.1 holds out a tenth of the training data"):
        run_glue.main(command(**OWN, **files))
    assert not (tmp_path / "run").exists()
    run_glue.main(command(**OWN, **files, train_val_split=0.1))


def test_the_papers_recipe(command, tmp_path):
    small = dict.fromkeys(("do_train", "do_eval", "max_steps", "learning_rate", "config_overrides"))
    small |= {"num_train_epochs": 0.1, "batch_sizes": [4, 6], "config_name": None, "tokenizer_name": None}
    small |= {"seeds": [1], "learning_rates": None, "per_device_train_batch_size": None, "max_seq_length": 32}
    run_glue.main(command(max_steps=1, output_dir=tmp_path / "checkpoint"))
    summary = run_glue.main(["glue_gmlp.yaml", *command(**small, model_name_or_path=tmp_path / "checkpoint")])
    assert {(run["learning_rate"], run["batch_size"]) for run in summary["runs"]} == {
        (rate, size) for rate in (1e-5, 2e-5, 3e-5) for size in (4, 6)
    }
    assert all(run["score"] == run["eval_accuracy"] for run in summary["runs"])
    state = json.loads((tmp_path / "run" / "lr1e-05_batch4_seed1" / "config.json").read_text())
    assert state["hidden_dropout_prob"] == 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_name": None, "train_file": "x.csv"}, "--data_dir holds the files of a benchmark"),
        (
            {**OWN, "train_file": "missing.csv"},
            "give the validation data as either --dataset_name or --validation_file",
        ),
        ({"task_name": "cola"}, "there is no file"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_written(command, tmp_path, changes, message):
    with pytest.raises(SystemExit, match="error: ") as caught:
        run_glue.main(command(**changes))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"body": "  ", "kind": "no"}', "line 2: the text is empty"),
        ('{"body": "text"}', "line 2: the label is missing"),
        ('{"body": "text", "kind": null}', "line 2: the label is missing"),
        ('{"body": "text", "kind": NaN}', "line 2: the label is missing"),
    ],
)
def test_a_bad_row_is_named(row, message, command, tmp_path):
    files = own_files(tmp_path, "jsonl")
    files["validation_file"].write_text('{"body": "text", "kind": "no"}\n' + row + "\n")
    with pytest.raises(SystemExit, match="error: ") as caught:
        run_glue.main(command(**OWN, **files))
    assert f"{files['validation_file']}, {message}" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_labels_that_only_evaluation_data_have_are_misses(command, tmp_path, monkeypatch, table_of):
    warnings: list[str] = []
    monkeypatch.setattr(classification.logger, "warning", warnings.append)
    files = own_files(tmp_path, "jsonl")
    known = files["validation_file"].read_text()
    for name in ("validation", "test"):
        # As numbers, which are no indices of classes with names.
        others = "".join(json.dumps({"body": "the film", "other": "is", "kind": kind}) + "\n" for kind in ("maybe", 1))
        files[f"{name}_file"].write_text(known + others)
    options = {
        **OWN,
        **files,
        "text_column_names": ["body", "other"],
        "do_predict": True,
        "per_device_eval_batch_size": 1,
    }
    results = run_glue.main(command(**options, **LEARN))
    assert (
        len(warnings) == 1 and "2 labels of the validation and test data" in warnings[0] and "'maybe'" in warnings[0]
    )
    count = known.count("\n")
    assert results["eval_accuracy"] == results["test_accuracy"] == pytest.approx(count / (count + 2))
    assert math.isfinite(results["eval_loss"]) and results["eval_loss"] < 1
    assert list(json.loads((tmp_path / "run" / "config.json").read_text())["id2label"].values()) == ["no", "yes"]
    for name in ("predictions_validation.csv", "predictions_test.csv"):
        rows = table_of(tmp_path / "run" / name)
        assert [row["label"] for row in rows[-2:]] == ["maybe", "1"]
        assert {row["prediction"] for row in rows} == {"no", "yes"}


def test_other_labels_altogether_are_a_mistake(command, tmp_path):
    files = own_files(tmp_path, "jsonl")
    files["validation_file"].write_text('{"body": "text", "kind": "cat"}\n{"body": "text", "kind": "dog"}\n')
    with pytest.raises(SystemExit, match=r"none of the labels of the validation data \('cat', 'dog'\) is one of the"):
        run_glue.main(command(**OWN, **files))


@pytest.mark.parametrize("length", [{"max_steps": 2}, {"max_steps": None, "num_train_epochs": 1}])
def test_data_without_a_batch_are_an_error(length, command, tmp_path):
    options = {"dataloader_drop_last": True, "per_device_train_batch_size": 61, "save_strategy": "epoch", **length}
    with pytest.raises(SystemExit, match=r"the 60 training rows give no batch of 61\. Give more"):
        run_glue.main(command(**options))
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit, match=r"the 60 training rows give no batch of 61\. Give more"):
        run_glue.main(command(**options, seeds=[1, 2], output_dir=tmp_path / "grid"))
    assert not (tmp_path / "grid").exists()
    run_glue.main(command(**options | {"per_device_train_batch_size": 60}))


# --- distillation ------------------------------------------------------------------------------------------------


@pytest.fixture
def teacher(tokenizer, tmp_path):
    """`teacher(labels, kind=..., **sizes)`: the folder of a BERT with random weights and these labels."""

    def build(*labels, kind=BertForSequenceClassification, **changes):
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
        sizes |= {"vocab_size": 80, "max_position_embeddings": 64, **changes}
        model = kind(BertConfig(**sizes, id2label=dict(enumerate(labels))))
        for parameter in model.parameters():  # with initial weights it would say nothing
            parameter.data.normal_(std=0.3)
        folder = tmp_path / "teacher"
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
        return folder

    return build


@pytest.mark.parametrize(
    ("task", "labels", "kind"),
    [("stsb", "score", BertForSequenceClassification), ("copa", "LABEL_0", BertForMultipleChoice)],
)
def test_a_student_learns_scores_and_choices_from_a_teacher(task, labels, kind, command, teacher, tmp_path):
    options = {"task_name": task, "teacher": teacher(labels, kind=kind), "distillation_alpha": 1.0, "max_steps": 30}
    options |= {"tokenizer_name": None, "config_overrides": SIZES, "logging_steps": 1, "do_eval": None}
    run_glue.main(command(**options))
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("bad", "good"), "predicts 'bad', 'good', the data ask for 'negative', 'positive': give a teacher"),
        (("negative", "neutral", "positive"), "'positive', the data ask for 'negative', 'positive': give a teacher"),
    ],
)
def test_teachers_with_other_labels(labels, message, command, teacher, tmp_path):
    with pytest.raises(SystemExit) as caught:
        run_glue.main(command(teacher=teacher(*labels)))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_unnamed_labels_is_warned_about(command, teacher, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    run_glue.main(command(teacher=teacher("LABEL_0", "LABEL_1"), do_eval=None))
    assert "have no names: they are taken for negative, positive, in this order" in caplog.text
