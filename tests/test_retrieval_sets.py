"""The retrieval sets of the embeddings' pages are made from their sources as the pages say."""

import json
from pathlib import Path

from tokenmixers.run_scripts.embeddings.tasks import load_tasks


FOLDER = Path(__file__).parents[1] / "model_cards" / "embeddings"


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
