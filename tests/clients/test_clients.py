"""Programs that others write, on our models: each file here follows the public documentation of a library.

Those that need no part of this package run where it cannot be imported. `make test-clients` has all libraries.
"""

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file
from transformers import CLIPImageProcessorPil, PreTrainedTokenizerFast

import tokenmixers
from tokenmixers.run_scripts import export


pytestmark = pytest.mark.slow  # each trains, in a process of its own

HERE = Path(__file__).parent
FAMILIES = ("GMLP", "AMLP", "MLPMixer", "Synthesizer", "HybridBert")
WORDS = ["gate", "token", "channel", "mixes", "layer", "norm", "a", "the", "or"]
SHIPPED = {name: tokenmixers.shipped_model(name) for name in tokenmixers.shipped_models()}
EXPORTED = ("AMLPForTokenClassification", "GMLPForImageClassification", "HybridBertForSequenceClassification")
PINNED = HERE.parent / "shipped_embeddings.safetensors"


def needs(*packages: str):
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: make test-clients")


@pytest.fixture(scope="module")
def tokenizer():
    """A word a token, between [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    table = {word: index for index, word in enumerate([*special, *WORDS])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=16, **names)


@pytest.fixture
def checkpoint(tiny_model, tokenizer):
    """`checkpoint(class_name, folder)`: saves a model with random weights, and gives it."""

    def build(name: str, folder: Path) -> torch.nn.Module:
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "pad_token_id": 0}
        if "Synthesizer" in name:  # no dropout, as in the others: processes draw their own
            sizes |= {"hidden_dropout_prob": 0.0, "attention_dropout": 0.0}
        model = tiny_model(name, **sizes, max_position_embeddings=16)
        model.save_pretrained(folder)
        if "Image" in name:
            size = {"height": 8, "width": 8}
            CLIPImageProcessorPil(size=size, crop_size=size).save_pretrained(folder)
        else:
            tokenizer.save_pretrained(folder)
        return model

    return build


@pytest.fixture
def classifiers(checkpoint, tmp_path):
    """A folder with a classifier of each family, in `start` of a folder of its own."""
    for family in FAMILIES:
        checkpoint(f"{family}ForSequenceClassification", tmp_path / "models" / family / "start")
    return tmp_path / "models"


@pytest.fixture
def client(alone):
    """`client(file, arguments)`: what a program prints last, as JSON."""
    return lambda file, *arguments: json.loads(alone((HERE / file).read_text(), arguments).splitlines()[-1])


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_trainer(client, classifiers):
    accuracies = client("text_classification.py", classifiers)
    assert accuracies.keys() == {*FAMILIES}
    for family, (evaluated, from_the_pipeline) in accuracies.items():
        assert evaluated == pytest.approx(from_the_pipeline) and 0 < evaluated <= 1
        start, whole, resumed = (classifiers / family / name for name in ("start", "whole", "resumed"))
        assert weights(start) != weights(whole) == weights(resumed)
        assert weights(whole / "checkpoint-6") == weights(resumed / "checkpoint-6")  # also if an earlier one is best


def test_accelerate_on_two_processes(classifiers, tmp_path):
    answers = []
    for processes, launch in ((1, []), (2, ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"])):
        process = subprocess.run(
            [sys.executable, *launch, HERE / "accelerate_loop.py", classifiers, f"by-{processes}"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        answers.append(json.loads(process.stdout.splitlines()[-1]))
    assert answers[0] == answers[1] and {len(found) for found in answers[0].values()} == {10}
    for family in FAMILIES:
        start, one, two = (
            load_file(classifiers / family / name / "model.safetensors") for name in ("start", "by-1", "by-2")
        )
        assert any(np.abs(one[name] - start[name]).max() > 1e-3 for name in one)
        for name in one:
            np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=f"{family} {name}")


@needs("sentence_transformers")
def test_sentence_transformers(client, tmp_path):
    sentences = json.loads((HERE.parent / "shipped_sentences.json").read_text())
    shown = client("sentence_transformers_trainer.py", tmp_path, json.dumps(sentences), *SHIPPED.values())
    found, pinned = load_file(tmp_path / "embeddings.safetensors"), load_file(PINNED)
    for name, folder in SHIPPED.items():
        expected = pinned[name].astype(np.float32)
        cosines = (found[folder] * expected).sum(1) / np.linalg.norm(found[folder], axis=1)
        assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.999
    assert {*shown["similarity"]} == {"cosine"}
    assert shown["plain"] == pytest.approx(shown["before"], rel=1e-4)
    assert shown["cached"] == pytest.approx(shown["plain"], rel=1e-4)
    assert shown["cached_gradient"] == pytest.approx(shown["plain_gradient"], rel=1e-3)
    assert shown["after"] < 0.9 * shown["before"] and shown["reported"] == pytest.approx(shown["spearman"])
    np.testing.assert_allclose(found["again"], found["trained"], atol=1e-6)


@needs("peft", "sentence_transformers")
@pytest.mark.parametrize("family", ["GMLP", "HybridBert"])
@pytest.mark.parametrize("package", [True, False], ids=["with the package", "without"])
def test_lora(family, package, client, checkpoint, tmp_path, monkeypatch, capsys):
    checkpoint(f"{family}ForSequenceClassification", tmp_path / "start")
    if package:
        monkeypatch.setattr(sys, "argv", ["lora.py", str(tmp_path / "start"), str(tmp_path), "package"])
        runpy.run_path(str(HERE / "lora.py"))
        shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    else:
        shown = client("lora.py", tmp_path / "start", tmp_path)
    assert shown["losses"][-1] < 0.8 * shown["losses"][0] and 0 < shown["share"] < 0.5
    np.testing.assert_allclose(*shown["logits"], rtol=1e-4, atol=1e-5)
    if package:
        before, adapted, again = map(np.array, shown["embeddings"])
        assert np.abs(adapted - before).max() > 1e-3
        np.testing.assert_allclose(again, adapted, atol=1e-5)


@needs("setfit")
def test_setfit(client, tmp_path):
    shown = client("few_shot.py", SHIPPED["aft-minilm-small"], tmp_path)
    assert shown["accuracy"] == 1 and shown["answers"] == ["good", "bad"]
    np.testing.assert_allclose(*shown["probabilities"], atol=1e-5)


@needs("sklearn", "sentence_transformers")
def test_scikit_learn(client, tmp_path):
    shown = client("scikit_learn.py", SHIPPED["aft-minilm-small"], tmp_path)
    assert shown["validated"] == shown["by_hand"]
    assert shown["answers"] == shown["loaded"] == [0, 1]


@needs("onnx", "onnxscript", "onnxruntime", "openvino")
def test_onnxruntime_and_openvino(checkpoint, tokenizer, tmp_path):
    texts = ["the gate mixes a token", "norm", "a layer or the channel or a gate or the norm"]
    given = {**tokenizer(texts, padding=True, return_tensors="pt"), "pixel_values": torch.randn(3, 3, 8, 8)}
    np.savez(tmp_path / "inputs.npz", **{name: tensor.numpy() for name, tensor in given.items()})
    models = {name: checkpoint(name, tmp_path / name) for name in EXPORTED}
    folders = [tmp_path / f"{name}-out" for name in models]
    for name, folder in zip(models, folders, strict=True):
        arguments = ["--model", tmp_path / name, "--output_dir", folder, "--formats", "onnx", "openvino"]
        sizes = {result["file"]: result["bytes"] for result in export.main([*map(str, arguments)])}
        assert sizes["openvino/openvino_model.xml"] > 4 * models[name].num_parameters()
    subprocess.run([sys.executable, HERE / "runtimes.py", tmp_path / "inputs.npz", *folders], check=True)
    for (name, model), folder in zip(models.items(), folders, strict=True):
        read = ("pixel_values",) if "Image" in name else ("input_ids", "attention_mask")
        with torch.no_grad():
            expected = model(**{port: given[port] for port in read}).logits.numpy()
        real = given["attention_mask"].bool().numpy() if "Token" in name else ...
        found = np.load(folder / "found.npz")
        assert {*found} == {"onnx", "openvino"}
        for runtime, logits in found.items():
            assert logits.shape == expected.shape
            np.testing.assert_allclose(logits[real], expected[real], rtol=1e-3, atol=1e-4, err_msg=runtime)
