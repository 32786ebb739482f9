import itertools
import json
import re

import pytest

from tokenmixers.run_scripts.base.pictures import DPI
from tokenmixers.run_scripts.embeddings import pictures


pytest.importorskip("matplotlib")


def points_of(axis):
    """What has a marker."""
    return {tuple(*line.get_xydata()) for line in axis.lines if line.get_marker() != "None"}


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
        {"threads": threads, "name": f"{name}, {kind}", "model": name, "format": kind, "sentences_per_second": speed}
        for threads in (2, 1)
        for place, name in enumerate(names)
        for kind, speed in (
            ("float32", 300 + place * threads),
            ("bfloat16", 500),
            ("onnx-int8", 900 + place * threads),
        )
    ]
    for file, content in {"quality": {"results": results}, "speed": {"speeds": [{"rows": speeds}]}}.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    figure = pictures.picture(*pictures.published(tmp_path))
    assert figure.get_figwidth() * DPI <= 1000
    similarity, retrieval = figure.axes
    assert similarity.get_ylabel() == "Spearman's correlation times 100, mean of 2 sets"
    assert retrieval.get_ylabel() == "nDCG@10 times 100, far"
    assert similarity.get_xlabel() == "sentences per second, 1 thread"
    scores = [100 * (0.9 - place / 99) for place in range(len(names))]
    expected = [(speed + place, pytest.approx(scores[place])) for speed in (300, 900) for place in range(len(names))]
    for axis in figure.axes:
        assert sorted(points_of(axis)) == expected
        assert {text.get_text() for text in axis.texts} == {pictures.TITLES.get(name, name) for name in names}
        boxes = [text.get_window_extent() for text in axis.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert not any(re.search(r"\^|10\{", label.get_text()) for label in axis.get_xticklabels())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["float32", "int8, ONNX Runtime", "hollow: quality of float32"]
