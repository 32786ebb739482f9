"""Shares of the teacher's nDCG@10 with intervals, from the results of `evaluate_embeddings` in outputs/evaluation."""

import json
from pathlib import Path

import numpy as np

results = json.loads(Path("outputs/evaluation/results.json").read_text())["results"]
scores = {}  # set -> model -> nDCG@10 of each query
for row in results:
    if "by_query" in row:
        scores.setdefault(row["set"], {})[Path(row["model"]).name] = np.array([*row["by_query"].values()])
random, shares = np.random.default_rng(0), {}
for name, models in scores.items():
    draws = random.integers(len(models["all-MiniLM-L6-v2"]), size=(10_000, len(models["all-MiniLM-L6-v2"])))
    means = {model: np.append(found[draws].mean(axis=1), found.mean()) for model, found in models.items()}
    for model, values in means.items():
        shares.setdefault(model, {})[name] = 100 * values / means["all-MiniLM-L6-v2"]
for model, sets in shares.items():
    for name, values in {**sets, "mean": sum(sets.values()) / len(sets)}.items():
        low, high = np.percentile(values[:-1], [2.5, 97.5])
        print(model, name, f"{values[-1]:.0f} % ({low:.0f} to {high:.0f})")
