"""run_glue on a user's own files and data sets: labels, and rows that are wrong."""

import csv
import json
import math

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from tokenmixers.run_scripts import run_glue
from tokenmixers.run_scripts.training import classification


pytest.importorskip("sklearn")


def test_predictions_have_the_texts_next_to_them():
    assert run_glue.text_columns([["a"], ["b"]]) == {"text": ["a", "b"]}
    assert run_glue.text_columns([["a", "c"], ["b", "d"]]) == {"text": ["a", "b"], "text_pair": ["c", "d"]}
    assert run_glue.text_columns([["q", "x", "y"]]) == {"texts": [["q", "x", "y"]]}


@pytest.fixture
def own_files(sentences, tmp_path):
    """`own_files(suffix)`: the arguments that name the files with training, validation and test sentences."""

    def write(suffix: str):
        for name, count in (("train", 60), ("validation", 18), ("test", 6)):
            rows = [{"body": text, "other": "it is", "kind": ("no", "yes")[label]} for text, label in sentences(count)]
            with (tmp_path / f"{name}.{suffix}").open("w", newline="") as file:
                if suffix == "jsonl":
                    file.writelines(json.dumps(row) + "\n" for row in rows)
                else:
                    writer = csv.DictWriter(file, rows[0], delimiter="\t" if suffix == "tsv" else ",")
                    writer.writeheader()
                    writer.writerows(rows)
        return {f"{name}_file": tmp_path / f"{name}.{suffix}" for name in ("train", "validation", "test")}

    return write


OWN = {"task_name": None, "data_dir": None, "text_column_names": "body", "label_column_name": "kind"}


def test_own_files(own_files, trained, learn, command, tmp_path):
    options = {**OWN, **own_files("csv"), "text_column_names": ["body", "other"], "do_predict": True}
    results = run_glue.main(command(**options, **learn))
    assert results["eval_accuracy"] == results["eval_macro_f1"] == results["test_accuracy"] == 1.0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(config["id2label"].values()) == ["no", "yes"]
    assert (tmp_path / "run" / "predictions_test.csv").is_file()
    assert run_glue.main(command(options, **trained, train_file=None))["test_accuracy"] == 1.0


def test_several_labels_per_text(trained, command, tmp_path, table_of):
    """The Trainer, the pipeline, scikit-learn and binary cross entropy say the same."""
    from sklearn.metrics import f1_score

    words, rows = ("fine", "lovely", "great", "dull", "awful", "poor"), []
    for index in range(60):
        first, second = words[index % 6], words[(index // 6) % 6]
        kinds = [name for name, word in (("film", first), ("music, sound", second)) if word in words[:3]]
        rows.append({"text": f"the film is {first} and it is {second}", "label": kinds})
    held_out = [dict(row) for row in rows[40:]]
    held_out[0]["label"] = [*held_out[0]["label"], "new"]  # which the model cannot predict
    files = {"train_file": tmp_path / "train.json", "validation_file": tmp_path / "validation.json"}
    files["test_file"] = tmp_path / "test.json"
    unlabelled = [{"text": row["text"]} for row in held_out]
    for file, part in zip(files.values(), (rows[:40], held_out, unlabelled), strict=True):
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
    saved = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert saved["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    for name in ("predictions_validation.csv", "predictions_test.csv"):
        written = table_of(tmp_path / "run" / name)
        assert ("label" in written[0]) == (name == "predictions_validation.csv")
        predicted = [[name for name in names if score[name] > 0.5] for score in scores]
        assert [json.loads(row["prediction"]) for row in written] == predicted
        assert [float(row["score_film"]) for row in written] == pytest.approx([s["film"] for s in scores], abs=1e-4)
    counts = [sum(name in row["label"] for row in rows[:40]) for name in names]
    guess = [[name == names[counts.index(max(counts))] for name in (*names, "new")]] * len(right)
    assert results["majority_micro_f1"] == pytest.approx(f1_score(right, guess, average="micro"))
    assert "top_k=None" in (tmp_path / "run" / "README.md").read_text()
    # Evaluated again, from the checkpoint alone.
    again = run_glue.main(command(run, **trained, train_file=None))
    assert again["eval_micro_f1"] == results["eval_micro_f1"]
    with pytest.raises(SystemExit, match="--label_smoothing_factor is for one label per text"):
        run_glue.main(command(**run, label_smoothing_factor=0.1, output_dir=tmp_path / "smooth"))


def test_own_data_set_with_class_labels(sentences, command, tmp_path, table_of):
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


def test_the_output_folder_and_validation_data_are_asked_for(own_files, command, tmp_path):
    with pytest.raises(SystemExit, match="give --output_dir, the folder for what the command writes"):
        run_glue.main(command(output_dir=None))
    files = own_files("csv") | {"validation_file": None, "test_file": None}
    with pytest.raises(SystemExit, match=r"--train_val_split 0\.1 holds out a tenth of the training data"):
        run_glue.main(command(**OWN, **files))
    assert not (tmp_path / "run").exists()
    run_glue.main(command(**OWN, **files, train_val_split=0.1))


def test_labels_that_only_evaluation_data_have_are_misses(own_files, learn, command, tmp_path, monkeypatch, table_of):
    warnings: list[str] = []
    monkeypatch.setattr(classification.logger, "warning", warnings.append)
    files = own_files("jsonl")
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
    results = run_glue.main(command(**options, **learn))
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
