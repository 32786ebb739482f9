"""Make the sets bbc_news and covid_qa in `retrieval_sets` from a folder `bbc` and a clone of COVID-QA."""

import json
import random
from pathlib import Path


def write(name, documents, pairs):
    """A folder with a corpus and 500 queries at random; `pairs` are a query and a document that it should find."""
    (folder := Path("retrieval_sets", name)).mkdir(parents=True)
    asked = random.Random(0).sample(sorted({query for query, _ in pairs}), 500)
    ids = {"queries": {text: str(number) for number, text in enumerate(asked)}}
    ids["corpus"] = {text: str(number) for number, text in enumerate(sorted({*documents}))}
    for title, texts in ids.items():
        lines = [json.dumps({"_id": number, "text": text}) for text, number in texts.items()]
        (folder / f"{title}.jsonl").write_text("\n".join(lines))
    found = sorted({(ids["queries"][query], ids["corpus"][text]) for query, text in pairs if query in asked})
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{text}\t1" for query, text in found)]
    (folder / "qrels.tsv").write_text("\n".join(lines))


news = [file.read_text("latin-1").strip().partition("\n") for file in Path("bbc").glob("*/*.txt")]
news = [(" ".join(headline.split()), " ".join(body.split()[:100])) for headline, _, body in news]
write("bbc_news", [body for _, body in news], news)

passages, questions = [], []
for article in json.loads(Path("COVID-QA/data/question-answering/200423_covidQA.json").read_text())["data"]:
    text, rows = article["paragraphs"][0]["context"], article["paragraphs"][0]["qas"]
    cut = [" ".join(text.split()[start : start + 100]) for start in range(0, len(text.split()), 100)]
    places = [len(text[: row["answers"][0]["answer_start"]].split()) // 100 for row in rows]
    questions += [(" ".join(row["question"].split()), cut[place]) for row, place in zip(rows, places)]
    passages += cut
write("covid_qa", passages, questions)
