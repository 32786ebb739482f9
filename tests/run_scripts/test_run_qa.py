import gzip
import json
import random
import shutil
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from transformers import AutoTokenizer, EvalPrediction, pipeline

from tokenmixers.run_scripts import make_data, run_qa
from tokenmixers.run_scripts.data.squad import (
    QuestionDataArguments,
    answers_in_no_window,
    check_questions,
    load_questions,
    load_squad_files,
    make_windows,
)
from tokenmixers.run_scripts.data.table_files import Table
from tokenmixers.run_scripts.metrics.squad import squad, squad_v2
from tokenmixers.run_scripts.small_data import python_docs_questions


SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=32"
NAMES = ["Ada", "Bo", "Cleo", "Dan"]
PLACES = ["Paris", "Rome", "Oslo", "Lima", "Cairo"]


def articles(seed: int, count: int, unanswerable: float = 0.0) -> list[dict]:
    """Who lives where, in SQuAD's own form."""
    draw, paragraphs = random.Random(seed), []
    for index in range(count):
        people = draw.sample(NAMES, 3)
        places = draw.sample(PLACES, 3)
        context = " ".join(f"{person} lives in {place}." for person, place in zip(people, places, strict=True))
        asked = draw.randrange(3)
        answers = [{"text": places[asked], "answer_start": context.index(places[asked])}]
        person = people[asked]
        if draw.random() < unanswerable:
            person, answers = next(name for name in NAMES if name not in people), []
        question = {"id": f"{seed}-{index}", "question": f"Where does {person} live?", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    return [{"title": "people", "paragraphs": paragraphs}]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """A folder with `train.json` and `validation.json`, and the same with unanswerable questions as `*_v2.json.gz`."""
    folder = tmp_path_factory.mktemp("questions")
    for name, seed, count in (("train", 0, 60), ("validation", 1, 20)):
        (folder / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": articles(seed, count)}))
        with gzip.open(folder / f"{name}_v2.json.gz", "wt", encoding="utf-8") as file:
            json.dump({"version": "2.0", "data": articles(seed, count, unanswerable=0.4)}, file)
    return folder


@pytest.fixture(scope="module")
def arguments(questions, as_words):
    """`arguments(output_dir=..., ...)`: those of a tiny run, with changes; `None` leaves an argument out."""
    settings = {
        "train_file": questions / "train.json",
        "validation_file": questions / "validation.json",
        "config_name": "gmlp-base",
        "config_overrides": SIZES,
        "train_tokenizer": 60,
        "doc_stride": 4,
        "max_question_length": 16,
        "max_answer_length": 5,
        "max_steps": 3,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-2,
    }
    return lambda *more, **changes: as_words(settings, *more, changes)


@pytest.fixture(scope="module")
def trained(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, run_qa.main(arguments(output_dir=folder, max_steps=5))


@pytest.fixture
def tokenizer(trained):
    return AutoTokenizer.from_pretrained(trained[0])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def right_answers(articles: list[dict]) -> list[dict]:
    asked = [question for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]]
    return [
        {"id": question["id"], "answers": {"text": [answer["text"] for answer in question["answers"]]}}
        for question in asked
    ]


def rows_of(texts: dict[str, str], odds: dict[str, float] | None = None) -> list[dict]:
    return [
        {"id": key, "prediction_text": text, "no_answer_probability": (odds or {}).get(key)}
        for key, text in texts.items()
    ]


def evaluation_of(folder, **changes) -> dict:
    """Arguments that evaluate the checkpoint in `folder`."""
    evaluation = {"do_train": None, "model_name_or_path": folder, "output_dir": folder.parent / "evaluation"}
    return evaluation | changes


@pytest.mark.parametrize("version_2", [False, True])
def test_a_grid_compares_f1(version_2):
    run = SimpleNamespace(data_args=QuestionDataArguments(version_2_with_negative=version_2))
    assert run_qa.QuestionAnswering().comparison(run).metrics[0] == "f1"


def test_trains_and_answers_as_the_pipeline_does(command, tmp_path, capsys):
    metrics = run_qa.main(command(max_steps=50, eval_strategy="steps", eval_steps=25))
    printed = capsys.readouterr().out
    assert "GMLPForQuestionAnswering (gmlp)" in printed
    assert f"| {'exact match':27} | {metrics['eval_exact_match']:>6.2f} |" in printed
    run = tmp_path / "run"
    assert read(run / "all_results.json")["eval_f1"] == metrics["eval_f1"]
    history = read(run / "trainer_state.json")["log_history"]
    assert len([entry for entry in history if "eval_f1" in entry]) >= 2
    # One of the three places in the text, though perhaps not the right one.
    predictions = read(run / "predictions_validation.json")
    assert sum(text.rstrip(".") in PLACES for text in predictions.values()) > 15
    assert squad(rows_of(predictions), right_answers(articles(1, 20))) == {
        "exact_match": metrics["eval_exact_match"],
        "f1": metrics["eval_f1"],
    }
    assert not (run / "null_odds_validation.json").exists()
    answer = pipeline("question-answering", model=str(run), trust_remote_code=True)
    n_best = read(run / "nbest_predictions_validation.json")
    for paragraph in articles(1, 20)[0]["paragraphs"]:
        (question,) = paragraph["qas"]
        found = answer(
            question=question["question"],
            context=paragraph["context"],
            max_seq_len=32,
            doc_stride=4,
            max_question_len=16,
            max_answer_len=5,
            top_k=20,
        )
        expected = n_best[question["id"]]
        assert found[0]["answer"] == predictions[question["id"]] == expected[0]["text"]
        assert [a["score"] for a in found] == pytest.approx([a["probability"] for a in expected], rel=1e-3, abs=1e-9)


def test_unanswerable_questions(command, questions, tmp_path, monkeypatch):
    files = {name: questions / f"{name.split('_')[0]}_v2.json.gz" for name in ("train_file", "validation_file")}
    metrics = run_qa.main(command(**files, version_2_with_negative=True, max_steps=30))
    run, right = tmp_path / "run", right_answers(articles(1, 20, unanswerable=0.4))
    predictions, odds = read(run / "predictions_validation.json"), read(run / "null_odds_validation.json")
    n_best = read(run / "nbest_predictions_validation.json")
    texts = {key: answers[0]["text"] for key, answers in n_best.items()}
    assert predictions == {key: "" if odds[key] > 0 else texts[key] for key in texts}
    expected = squad_v2(rows_of(texts, odds), right, 0.0)
    for name in ("exact", "f1", "HasAns_f1", "NoAns_exact", "best_f1", "best_f1_thresh"):
        assert metrics[f"eval_{name}"] == pytest.approx(expected[name], rel=1e-6)
    # What the official script says about the file of predictions alone.
    never = dict.fromkeys(odds, 0.0)
    assert squad_v2(rows_of(predictions, never), right, 0.0)["f1"] == pytest.approx(metrics["eval_f1"])
    # With the best threshold the best score is reached.
    changes = {"version_2_with_negative": True, "null_score_diff_threshold": metrics["eval_best_f1_thresh"] + 1e-6}
    answered, once = [], run_qa.select_spans
    monkeypatch.setattr(run_qa, "select_spans", lambda *given: answered.append(given) or once(*given))
    again = run_qa.main(command(**files, **evaluation_of(run, **changes)))
    assert len(answered) == len(predictions)  # once for metrics and files
    assert again["eval_f1"] == pytest.approx(metrics["eval_best_f1"])
    assert again["eval_best_f1_thresh"] == pytest.approx(metrics["eval_best_f1_thresh"], rel=1e-4)


def test_a_test_file_is_answered_with_and_without_answers(command, questions, trained, tmp_path, capsys):
    """Files of the same questions: of SQuAD's own form, a question a line, and both without answers."""
    run, metrics = trained
    rows = [{key: row[key] for key in ("id", "context", "question")} for row in flat_rows(1, 20)]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    empty = [{**row, "answers": {"text": [], "answer_start": []}} for row in rows]  # as on the Hub
    (tmp_path / "empty.jsonl").write_text("\n".join(map(json.dumps, empty)))
    nested = json.loads((questions / "validation.json").read_text())
    for question in (q for article in nested["data"] for part in article["paragraphs"] for q in part["qas"]):
        del question["answers"]
    (tmp_path / "nested.json").write_text(json.dumps(nested))
    options = {"do_eval": None, "do_predict": True, "validation_file": None, "train_file": None}

    def predict(file):
        options["test_file"], options["output_dir"] = file, tmp_path / f"run_{file.stem}"
        found = run_qa.main(command(**evaluation_of(run, **options)))
        written = [read(tmp_path / f"run_{file.stem}" / f"{name}_test.json") for name in files]
        assert written == [read(run / f"{name}_validation.json") for name in files]
        return found

    files = ("predictions", "nbest_predictions")
    found = predict(questions / "validation.json")
    assert found == {key.replace("eval", "test"): pytest.approx(metrics[key], rel=1e-5) for key in (
        "eval_exact_match", "eval_f1", "eval_loss"
    )}  # fmt: skip
    assert "on the test questions" in capsys.readouterr().out
    for name in ("lines.jsonl", "empty.jsonl", "nested.json"):
        assert predict(tmp_path / name) == {}
    assert "f1" not in capsys.readouterr().out
    rows[0] |= {"answers": flat_rows(1, 1)[0]["answers"]}
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit, match=r"some\.jsonl.*has no answer: give --version_2_with_negative"):
        predict(tmp_path / "some.jsonl")


@pytest.mark.parametrize("side, size", [("left", 7), ("right", 1)])
def test_padding_and_batches_change_nothing(command, trained, tokenizer, tmp_path, side, size):
    folder, metrics = trained
    shutil.copytree(folder, tmp_path / "run")
    tokenizer.padding_side = side
    tokenizer.save_pretrained(tmp_path / "run")
    again = run_qa.main(command(**evaluation_of(tmp_path / "run", per_device_eval_batch_size=size)))
    assert again["eval_f1"] == metrics["eval_f1"]
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-4)


# --- data --------------------------------------------------------------------------------------------------------


def table_of(rows: list[dict]) -> Table:
    return Table("training", [("training", f"row {number}", row) for number, row in enumerate(rows, start=1)])


def flat_rows(seed: int, count: int) -> list[dict]:
    return [
        {
            "id": question["id"],
            "title": "people",
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {
                "text": [answer["text"] for answer in question["answers"]],
                "answer_start": [answer["answer_start"] for answer in question["answers"]],
            },
        }
        for paragraph in articles(seed, count)[0]["paragraphs"]
        for question in paragraph["qas"]
    ]


def test_every_kind_of_file_gives_the_same_questions(questions, tmp_path):
    rows = flat_rows(1, 20)
    (tmp_path / "flat.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "flat.parquet")
    texts = [{**row, "answers": json.dumps(row["answers"])} for row in rows]
    datasets.Dataset.from_list(texts).to_csv(tmp_path / "flat.csv")
    with gzip.open(tmp_path / "nested.json.gz", "wt") as file:
        file.write((questions / "validation.json").read_text())
    expected = [{key: row[key] for key in ("id", "context", "question", "answers")} for row in rows]
    names = ["flat.json", "lines.json", "lines.jsonl", "flat.parquet", "flat.csv", "nested.json.gz"]
    for file in [questions / "validation.json", *(tmp_path / name for name in names)]:
        loaded = load_questions(QuestionDataArguments(validation_file=[str(file)]), ["validation"])
        assert loaded["validation"].to_list() == expected, file
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "hub" / "validation.parquet")
    arguments = QuestionDataArguments(dataset_name=str(tmp_path / "hub"), max_eval_samples=7)
    few = load_questions(arguments, ["validation"])["validation"].to_list()
    assert len(few) == 7
    assert all(row in expected for row in few)


def test_spaces_around_answers_are_left_out():
    row = {
        **flat_rows(0, 1)[0],
        "context": "She lives in  Rome .",
        "answers": {"text": [" Rome "], "answer_start": [13]},
    }
    (checked,) = check_questions(table_of([row]), unanswerable=False)
    assert checked["answers"] == {"text": ["Rome"], "answer_start": [14]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "id '0-0': its question is empty"),
        ({"context": ""}, "id '0-0': its context is empty"),
        ({"answers": {"text": ["Atlantis"], "answer_start": [3]}}, "its answer 'Atlantis' is not in the context at"),
        ({"answers": {"text": ["Rome"], "answer_start": [-4]}}, "at character -4, where '' is"),
        ({"answers": {"text": ["Rome", "Oslo"], "answer_start": [3]}}, "2 answers, but 1 starts"),
        ({"answers": {"text": [], "answer_start": []}}, "has no answer: give --version_2_with_negative"),
        ({"answers": "Rome"}, "its answers are not valid JSON"),
        ({"id": "0-1"}, "id '0-1': every question needs an id of its own"),
        ({"id": None}, "id None: every question needs an id"),
    ],
)
def test_wrong_questions(changes, message):
    rows = flat_rows(0, 2)
    rows = [{**rows[0], **changes}, rows[1]] if "id" in changes else [{**rows[0], **changes}]
    with pytest.raises(SystemExit) as caught:
        check_questions(table_of(rows), unanswerable=False)
    assert message in str(caught.value)


def test_kinds_of_json_may_be_mixed(questions, tmp_path):
    (tmp_path / "flat.json").write_text(json.dumps([{**row, "id": f"flat {row['id']}"} for row in flat_rows(0, 2)]))
    nested, flat = questions / "train.json", tmp_path / "flat.json"
    counts = [len(load_squad_files(list(map(str, files))).rows) for files in ([nested], [flat], [nested, flat])]
    assert counts == [counts[0], 2, counts[0] + 2]


def test_a_stride_without_room_and_missing_columns(command, tmp_path):
    with pytest.raises(SystemExit, match="must be more than `doc_stride=30`"):
        run_qa.main(command(doc_stride=30))
    assert not (tmp_path / "run").exists()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "context": "text", "question": "What?"}))
    with pytest.raises(SystemExit, match=r"rows\.jsonl, line 1: there is no column 'answers'; the columns are"):
        run_qa.main(command(train_file=tmp_path / "rows.jsonl"))


def test_windows_hold_the_answers(tokenizer):
    split = check_questions(table_of(flat_rows(0, 30)), unanswerable=False)
    arguments = QuestionDataArguments(doc_stride=8, max_question_length=16)
    windows = make_windows(split, tokenizer, 32, arguments)
    assert len(windows) > len(split)
    held = set()
    for window in windows:
        question = split[window["example"]]
        start, end = window["start_positions"], window["end_positions"]
        if start == window["null_position"]:
            assert end == start
        else:
            held.add(window["example"])
            text = question["context"][window["offsets"][start][0] : window["offsets"][end][1]]
            assert text == question["answers"]["text"][0]
    assert held == set(range(len(split)))
    assert answers_in_no_window(split, windows) == 0
    # Windows of five tokens of context hold no answer that is a whole context.
    whole = [{**row, "answers": {"text": [row["context"]], "answer_start": [0]}} for row in flat_rows(0, 3)]
    split = check_questions(table_of([*whole, *flat_rows(3, 9)]), unanswerable=False)
    narrow = make_windows(split, tokenizer, 24, QuestionDataArguments(doc_stride=0, max_question_length=16))
    assert answers_in_no_window(split, narrow) == 3


def test_the_scores_of_perfect_windows(tokenizer):
    """Logits that point at the right tokens give full marks, whatever stands behind a window's tokens."""
    split = check_questions(table_of(flat_rows(0, 30)), unanswerable=False)
    arguments = QuestionDataArguments(doc_stride=8, max_question_length=16)
    windows = make_windows(split, tokenizer, 32, arguments)
    logits = np.full((2, len(windows), 40), -100.0)
    for index, window in enumerate(windows):
        logits[:, index, : len(window["offsets"])] = 0
        logits[:, index, len(window["offsets"]) :] = 1e6
        logits[0, index, window["start_positions"]] = 10
        logits[1, index, window["end_positions"]] = 10
    evaluation = run_qa.SquadEvaluation(split, windows, arguments)
    assert evaluation.metrics(EvalPrediction(tuple(logits), None)) == {"exact_match": 100.0, "f1": 100.0}
    with pytest.raises(ValueError, match="windows, but scores of 3"):
        evaluation.answers(*logits[:, :3])


# --- questions about Python's own documentation ------------------------------------------------------------------


def test_questions_about_docstrings(tmp_path, monkeypatch):
    library = tmp_path / "library"
    library.mkdir()
    listed = [f'def f{i}():\n    """Return the number {i} times two.\n\n    More."""' for i in range(5)]
    hidden = 'def _private():\n    """Return what nobody asks for."""\ndef bare(): ...'
    (library / "many.py").write_text("\n".join([*listed, hidden]))
    (library / "few.py").write_text(listed[0])
    (library / "broken.py").write_text("def")
    monkeypatch.setattr(python_docs_questions, "FUNCTIONS", 2)
    (article,) = python_docs_questions.articles(library)
    assert article["title"] == "many.py"
    assert len(article["paragraphs"]) == 4 * 2
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            (number,) = [i for i in range(5) if question["question"].endswith(f"Return the number {i} times two.")]
            assert question["answers"][0]["text"] == f"f{number}"
            rest = paragraph["context"][question["answers"][0]["answer_start"] :]
            assert rest.startswith(f"f{number}: Return the number {number} times two.")


def test_files_of_questions(library, tmp_path, capsys):
    make_data.main(["python_docs_questions", "--output_dir", str(tmp_path / "made")])
    assert "questions about" in capsys.readouterr().out
    arguments = QuestionDataArguments(
        train_file=[str(tmp_path / "made" / "train.json")],
        validation_file=[str(tmp_path / "made" / "validation.json")],
    )
    splits = load_questions(arguments, ["train", "validation"])
    assert len(splits["train"]) > 1000 * library < 20 * len(splits["validation"])
    assert not {*splits["train"]["context"]} & {*splits["validation"]["context"]}
