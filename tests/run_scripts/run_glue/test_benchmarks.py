"""run_glue on the files of GLUE and SuperGLUE: metrics, submissions, recipes."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from tokenmixers.run_scripts import run_glue


pytest.importorskip("sklearn")


def test_trains_reports_predicts_and_reloads(sentences, trained, learn, command, tmp_path, capsys, table_of):
    results = run_glue.main(command(**learn, do_predict=True))
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
    card = (folder / "README.md").read_text()
    assert "SST-2" in card and 'classify("This is a text.")' in card

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
    evaluated = run_glue.main(command(**trained))
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
    assert '"text_pair": "This is another one."' in card
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


def test_stsb_is_a_regression(sentences, learn, command, tmp_path):
    with pytest.raises(SystemExit, match="--label_smoothing_factor is for classes, this model is trained on scores"):
        run_glue.main(command(task_name="stsb", label_smoothing_factor=0.1))
    assert not (tmp_path / "run").exists()
    results = run_glue.main(command(**learn, task_name="stsb", do_predict=True))
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


def test_of_a_benchmark_training_data_are_held_out_in_place_of_its_validation_sets(command, tmp_path, table_of):
    options = {"task_name": "mnli", "train_val_split": 0.25, "max_steps": 1}
    summary = run_glue.main([*command(**options), "--learning_rates", "1e-2", "1e-9"])
    folder = tmp_path / "run" / summary["runs"][0]["folder"]
    results = json.loads((folder / "all_results.json").read_text())
    assert "eval_matched_accuracy" not in results and summary["runs"][0]["score"] == results["eval_accuracy"]
    rows = table_of(folder / "predictions_validation.csv")
    assert [int(row["index"]) for row in rows] == sorted(np.random.default_rng(0).permutation(60)[:15])
    assert "the training set of GLUE's MNLI (a part held out of training)" in (folder / "README.md").read_text()


def test_the_papers_recipe(command, tmp_path):
    small = dict.fromkeys(("do_train", "do_eval", "max_steps", "learning_rate", "per_device_train_batch_size"))
    small |= {"num_train_epochs": 0.1, "batch_sizes": [4], "seeds": [1], "max_seq_length": 32}
    run_glue.main(command(max_steps=1, output_dir=tmp_path / "checkpoint"))
    summary = run_glue.main(["glue_gmlp.yaml", *command(**small, model_name_or_path=tmp_path / "checkpoint")])
    assert [(run["learning_rate"], run["batch_size"]) for run in summary["runs"]] == [(1e-5, 4), (2e-5, 4), (3e-5, 4)]
    assert all(run["score"] == run["eval_accuracy"] for run in summary["runs"])
    state = json.loads((tmp_path / "run" / "lr1e-05_batch4_seed1" / "config.json").read_text())
    assert state["hidden_dropout_prob"] == 0.1
