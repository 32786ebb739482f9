"""Where the time of `encode` goes: milliseconds of 512 sentences in the tokenizer, in the layers, and in the rest."""

import csv
import time
from collections import Counter
from statistics import median

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

import tokenmixers


torch.set_num_threads(1)
with open("glue/STS-B/dev.tsv", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
texts = list(dict.fromkeys(row[key] for key in ("sentence1", "sentence2") for row in rows))[:512]
names = {name: tokenmixers.shipped_model(name) for name in tokenmixers.shipped_models()}
for name, folder in {"all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2", **names}.items():
    model, spent, rounds = SentenceTransformer(folder, device="cpu"), Counter(), []

    def timed(part, function):
        def call(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            spent[part] += time.perf_counter() - start
            return result

        return call

    model.preprocess = timed("tokenizer", model.preprocess)
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for layer in layers:
        layer.forward = timed("layers", layer.forward)
    for _ in range(12):
        spent.clear()
        timed("whole", model.encode)(texts, batch_size=32)
        rounds.append([1000 * spent[part] for part in ("tokenizer", "layers", "whole")])
    tokenizer, inside, whole = map(median, zip(*rounds[2:], strict=True))
    print(f"{name}: tokenizer {tokenizer:.0f}, layers {inside:.0f}, rest {whole - tokenizer - inside:.0f}")
