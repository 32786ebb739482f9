"""The retrieval sets of the embeddings' pages: how they are made, and how students differ on them."""

import json
import shutil
from pathlib import Path

import numpy as np

from tokenmixers.run_scripts.embeddings.tasks import load_tasks


FOLDER = Path(__file__).parents[1] / "model_cards" / "embeddings"


def test_differences_between_students_are_those_of_the_code(tmp_path, monkeypatch):
    (tmp_path / "outputs" / "evaluation").mkdir(parents=True)
    shutil.copy(FOLDER / "quality.json", tmp_path / "outputs" / "evaluation" / "results.json")
    monkeypatch.chdir(tmp_path)
    exec(compile((FOLDER / "retrieval_intervals.py").read_text(), "page", "exec"), names := {})
    mean = {
        model.removeprefix("MiniLM, "): np.mean([*sets.values()], axis=0) for model, sets in names["shares"].items()
    }
    rows = (FOLDER / "comparisons.md").read_text().split("| first, second |")[1].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        pair, points, interval = (cell.strip() for cell in row.strip("|").split("|"))
        more, less = pair.split(", ")
        gap = mean[more] - mean[less]
        assert points == f"{gap[-1]:.1f}"
        assert interval == "{:.1f} to {:.1f}".format(*np.percentile(gap[:-1], [2.5, 97.5])), pair


def test_retrieval_sets_are_made_from_their_sources(tmp_path, monkeypatch):
    """With made-up sources whose queries and documents have numbers: each query finds its own."""
    monkeypatch.chdir(tmp_path)
    articles, answers = Path("bbc", "sport"), Path("COVID-QA", "data", "question-answering")
    articles.mkdir(parents=True)
    answers.mkdir(parents=True)
    for n in range(600):
        (articles / f"{n}.txt").write_text(f"Headline {n}\n\nBody {n} of the news\n")
    paragraphs = []
    for first in range(0, 60_000, 10_000):  # six articles, a question about each hundred words
        text = " ".join(f"word{n}" for n in range(first, first + 10_000))
        starts = {n: text.index(f"word{100 * n + 50} ") for n in range(first // 100, first // 100 + 100)}
        rows = [{"question": f"Question {n}", "answers": [{"answer_start": start}]} for n, start in starts.items()]
        paragraphs.append({"context": text, "qas": rows})
    data = {"data": [{"paragraphs": [paragraph]} for paragraph in paragraphs]}
    (answers / "200423_covidQA.json").write_text(json.dumps(data))
    exec(compile((FOLDER / "retrieval_sets.py").read_text(), "page", "exec"), {})
    made = {task.name: task.data for task in load_tasks(["retrieval_sets"])}
    assert sorted(made) == ["bbc_news", "covid_qa"]
    for name, task in made.items():
        assert len(task["relevant"]) == 500 and len(task["corpus"]) == 600
        for query, (document,) in task["relevant"].items():
            number = task["queries"][query].split()[1]
            expected = f"word{100 * int(number) + 50}" if name == "covid_qa" else number
            assert expected in task["corpus"][document].split()
