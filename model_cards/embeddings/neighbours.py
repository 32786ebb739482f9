"""Cosines, shared neighbours and thresholds of the shipped models next to their teacher, of the sets in embedding_eval."""

import numpy as np
from sentence_transformers import SentenceTransformer

import tokenmixers
from tokenmixers.run_scripts.embeddings.tasks import load_tasks

sets = {task.name: task.data for task in load_tasks(["embedding_eval"])}
candidates = [text for sample in sets["rerank_wikiqa"]["samples"] for text in sample["positive"] + sample["negative"]]
sources = [sets["ag_news"]["texts"], sets["cr"]["texts"], candidates]
sources += [sets["retrieval_cisi"]["corpus"].values(), sets["pair_twitter_url"]["sentence2"]]
draw, texts = np.random.default_rng(0), []
for source in sources:
    different = sorted({*filter(None, source)})
    texts += [different[index] for index in draw.choice(len(different), 1000, replace=False)]


def neighbours(queries, index):
    scores = queries @ index.T
    np.fill_diagonal(scores, -1)  # not the text itself
    return [{*best} for best in np.argsort(-scores)[:, :10]]


def threshold(scores, alike, precision):
    order = np.argsort(-scores)
    right = np.cumsum(alike[order])
    last = np.flatnonzero(right / np.arange(1, len(right) + 1) >= precision)[-1]
    return f"from {scores[order[last]]:.2f}: {right[last] / right[-1]:.0%}"


def shared(ours, theirs):
    return np.mean([len(one & other) / 10 for one, other in zip(ours, theirs)])


pairs = {"Twitter URL": (sets["pair_twitter_url"], np.array(sets["pair_twitter_url"]["label"]) == 1)}
pairs["STS15"] = (sets["sts15"], np.array(sets["sts15"]["score"]) >= 4)
teacher = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
target = teacher.encode(texts)
alone = neighbours(target, target)
for model in (teacher, *(SentenceTransformer(tokenmixers.shipped_model(one)) for one in tokenmixers.shipped_models())):
    found = model.encode(texts)
    places = (found, found), (found, target), (target, found)
    print((found * target).sum(1).mean(), *(shared(neighbours(*both), alone) for both in places))
    for title, (rows, alike) in pairs.items():
        scores = (model.encode(rows["sentence1"]) * model.encode(rows["sentence2"])).sum(1)
        print(title, [threshold(scores, alike, precision) for precision in (0.7, 0.9)])
