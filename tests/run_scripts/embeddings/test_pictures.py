import itertools
import json
import re

import numpy as np
import pytest

from tokenmixers.run_scripts.base.pictures import DPI
from tokenmixers.run_scripts.embeddings import pictures


pytest.importorskip("matplotlib")


def points_of(axis):
    return {tuple(*line.get_xydata()) for line in axis.lines if line.get_marker() != "None"}


def test_published_speeds_are_medians_of_ratios_of_the_rounds_of_one_machine(tmp_path):
    def rows(**seconds):
        return [
            {"name": f"{model}, float32", "model": model, "format": "float32", "threads": 1, "seconds": times}
            | {"sentences_per_second": 100 / float(np.median(times))}
            for model, times in seconds.items()
        ]

    runs = [{"processor": name} for name in ("another", "this", "this")]
    tables = [rows(a=[1, 1, 1], b=[9, 9, 9]), rows(a=[1, 2, 1], b=[1, 1, 2]), rows(a=[4, 4, 4], b=[1, 4, 1])]
    content = {"runs": runs, "speeds": [{"run": run, "rows": table} for run, table in enumerate(tables)]}
    (tmp_path / "speed.json").write_text(json.dumps(content))
    first, second = pictures.published_speeds(tmp_path)
    assert (first["speed"], first["sentences_per_second"]) == (1, (100 + 25) / 2)
    assert (second["model"], second["speed"]) == ("b", (1 + 2) / 2)  # of 1, 2, 1/2, 4, 1, 4
    assert second["sentences_per_second"] == 1.5 * 62.5


def test_the_published_picture(tmp_path):
    """Similarity beside retrieval, each the mean over the sets of all models, and names that cover no other."""
    names = ["all-MiniLM-L6-v2", *(f"MiniLM, {count} layers" for count in (4, 3, 2)), "gmlp-minilm", "model2vec"]
    sets = {"one": "similarity", "two": "similarity", "of-some": "similarity", "far": "retrieval"}
    metrics = {"similarity": "spearman_cosine", "retrieval": "ndcg@10"}
    results = [
        {
            "model": name,
            "format": "float32",
            "set": of,
            "kind": kind,
            "metric": metrics[kind],
            "score": 0.9 - place / 99,
        }
        for place, name in enumerate((*names, "without speed"))
        for of, kind in sets.items()
        if (of, name) != ("of-some", "model2vec")
    ]
    speeds = [
        {"threads": threads, "name": f"{name}, {kind}", "model": name, "format": kind}
        | {"seconds": [1 / speed], "sentences_per_second": speed}
        for threads in (2, 1)
        for place, name in enumerate(names)
        for kind, speed in (
            ("float32", 300 + place * threads),
            ("bfloat16", 500),
            ("onnx-int8", 900 + place * threads),
        )
    ]
    speed = {"runs": [{"processor": "one"}], "speeds": [{"run": 0, "rows": speeds}]}
    for file, content in {"quality": {"results": results}, "speed": speed}.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    figure = pictures.picture(*pictures.published(tmp_path))
    assert figure.get_figwidth() * DPI <= 1000
    similarity, retrieval = figure.axes
    assert similarity.get_ylabel() == "Spearman's correlation times 100, mean of 2 sets"
    assert retrieval.get_ylabel() == "nDCG@10 times 100, far"
    assert similarity.get_xlabel() == "sentences per second, 1 thread"
    scores = [100 * (0.9 - place / 99) for place in range(len(names))]
    places = [(speed + place, scores[place]) for speed in (300, 900) for place in range(len(names))]
    for axis in figure.axes:
        assert np.array(sorted(points_of(axis))) == pytest.approx(np.array(places))
        shown = {pictures.TITLES[names[0]], *(name.removeprefix("MiniLM, ") for name in names[1:])}
        assert {text.get_text() for text in axis.texts} == shown
        boxes = [text.get_window_extent() for text in axis.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert not any(re.search(r"\^|10\{", label.get_text()) for label in axis.get_xticklabels())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["float32", "int8, ONNX Runtime", "hollow: quality of float32"]
