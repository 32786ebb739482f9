"""What all metrics have in common: `evaluate`'s interface, without network, files and slow imports."""

import random
import socket
import subprocess
import sys

import evaluate
import numpy as np
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.metrics import METRICS, check_packages, load_metric


for _package in ("rouge_score", "sacrebleu", "scipy", "sklearn"):
    pytest.importorskip(_package)

WORDS = ["the gate", "The gates", "tokens", "a cat saw the sun", "dog"]
TAGS = ["O", "B-A", "I-A", "B-B"]


def examples(name: str, count: int = 30) -> dict[str, list]:
    """Predictions and references of a metric's kind."""
    draw = random.Random(0)

    def choices(values, length: int = count) -> list:
        return [draw.choice(values) for _ in range(length)]

    def pair(values) -> dict[str, list]:
        return {"predictions": choices(values), "references": choices(values)}

    if name in ("sacrebleu", "rouge"):
        return pair(WORDS)
    if name in ("pearsonr", "spearmanr"):
        return pair([i / 7 for i in range(20)])
    if name == "seqeval":
        return {side: [choices(TAGS, 1 + i % 5) for i in range(count)] for side in ("predictions", "references")}
    if name == "token_perplexity":
        return {"predictions": [draw.uniform(1, 20) for _ in range(count)], "references": choices(range(1, 9))}
    if name in ("squad", "squad_v2"):
        more = {"no_answer_probability": 0.5} if name == "squad_v2" else {}
        given, right = enumerate(choices(WORDS)), enumerate(choices(WORDS))
        return {
            "predictions": [{"id": str(i), "prediction_text": text, **more} for i, text in given],
            "references": [{"id": str(i), "answers": {"text": [text], "answer_start": [i]}} for i, text in right],
        }
    return pair([0, 1])


@pytest.fixture
def _no_network(monkeypatch):
    def connect(*args):
        raise AssertionError("a connection was tried")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


@pytest.mark.parametrize("name", METRICS)
def test_batches_are_the_same_as_all_at_once(name, _no_network):
    pairs = examples(name)
    metric = load_metric(name)
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == name
    assert metric.description and "Args:" in metric.inputs_description and "Returns:" in metric.inputs_description
    whole = metric.compute(**pairs)
    start = 0
    for end in (1, 7, 8, 30):
        metric.add_batch(**{side: values[start:end] for side, values in pairs.items()})
        start = end
    assert len(metric) == 30
    assert metric.compute() == whole
    for prediction, reference in zip(*pairs.values(), strict=True):
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == whole
    half = {side: values[:15] for side, values in pairs.items()}
    assert metric.compute(**half) == load_metric(name).compute(**half)  # nothing is left of what was computed before


@pytest.mark.usefixtures("_no_network")
def test_combined_metrics():
    pairs = examples("accuracy")
    metrics = [load_metric("accuracy"), load_metric("f1")]
    combined = evaluate.combine(metrics)
    scores = combined.compute(**pairs)
    accuracy, f1 = (load_metric(name).compute(**pairs)[name] for name in ("accuracy", "f1"))
    expected = {"accuracy": accuracy, "f1": f1}
    assert scores == expected
    for start in (0, 10, 20):
        combined.add_batch(**{side: values[start : start + 10] for side, values in pairs.items()})
    assert combined.compute() == expected
    pair = evaluate.combine({"words": load_metric("sacrebleu"), "rouge": load_metric("rouge")}, force_prefix=True)
    assert {"words_score", "rouge_rougeL"} <= pair.compute(**examples("rouge")).keys()


def test_arrays_and_tensors_are_predictions_too():
    import torch

    pairs = examples("f1")
    expected = load_metric("f1").compute(**pairs)
    for kind in (np.array, torch.tensor):
        assert load_metric("f1").compute(**{side: kind(values) for side, values in pairs.items()}) == expected


def test_mistakes_say_what_is_allowed():
    with pytest.raises(ValueError, match="there is no metric 'bleurt'; there are accuracy, f1"):
        load_metric("bleurt")
    with pytest.raises(ValueError, match=r"`config_name='cola'` is not possible here: give one of default,"):
        load_metric("accuracy", "cola")
    metric = load_metric("accuracy")
    for compute in (metric.compute, lambda: metric.compute(predictions=[], references=[])):
        with pytest.raises(ValueError, match="accuracy: give `predictions` and `references`, at least one of each"):
            compute()
    with pytest.raises(ValueError, match=r"Mismatch in the number of predictions \(2\) and references \(1\)"):
        metric.compute(predictions=[0, 1], references=[0])
    assert metric.compute(predictions=[0, 1], references=[0, 0]) == {"accuracy": 0.5}


@pytest.mark.parametrize("name", [name for name, definition in METRICS.items() if definition.packages])
def test_a_missing_package_is_named(name, monkeypatch):
    package, extra = METRICS[name].packages[0], METRICS[name].extra
    monkeypatch.setitem(sys.modules, package, None)
    for load_or_check in (load_metric, check_packages):
        with pytest.raises(UserError, match=rf"the metric {name} needs {package}.*pip install '\.\[{extra}\]'"):
            load_or_check(name)


@pytest.mark.parametrize(
    "modules",
    [
        ["metrics"],
        pytest.param(["run_glue", "run_qa", "run_seq2seq", "run_token_classification"], marks=pytest.mark.slow),
        pytest.param(["run_image_classification", "run_mlm", "run_clm"], marks=pytest.mark.slow),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(modules):
    """Parts of Transformers import scikit-learn and scipy."""
    heavy = {"evaluate", "rouge_score", "sacrebleu", *(["scipy", "sklearn"] if modules == ["metrics"] else [])}
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module("tokenmixers.run_scripts." + module)
print(sorted({heavy} & sys.modules.keys()))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.stdout == "[]\n", process.stderr
