import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys

import datasets
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    TorchAoConfig,
)

import tokenmixers
from tokenmixers import AMLPConfig, SynthesizerConfig
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.run_scripts import serving_formats
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks.serving_formats import default_length, is_configuration, load
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize
from tokenmixers.run_scripts.data.row_seeds import ROW_NUMBER, SeededCollator
from tokenmixers.run_scripts.exports.formats import PACKAGES
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


LENGTH = 8
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 16}


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """`trained(model_type)`: a checkpoint that has learned the corpus, so that wrong logits show in its perplexity."""

    @functools.cache
    def train(model_type):
        folder, lines = tmp_path_factory.mktemp(model_type) / "model", (corpus / "train.txt").read_text().splitlines()
        tokenizer = train_unigram_tokenizer(lines, 60, 16, show_progress=False)
        sizes = {**SIZES, "vocab_size": len(tokenizer), "hidden_dropout_prob": 0.0}
        sizes |= {"num_attention_heads": 2, "head_dim": 8} if model_type == "synthesizer" else {}
        torch.manual_seed(0)
        family = FAMILIES[model_type]
        config = getattr(tokenmixers, family.config)(**sizes)
        model = getattr(tokenmixers, family.models["AutoModelForMaskedLM"])(config)
        collate = SeededCollator(MaskingCollator(tokenizer), seed=0)
        # Packed, as the text of the evaluation: an MLP-Mixer knows a text by its places.
        rows = tokenize(datasets.Dataset.from_dict({"text": lines}), row_encoder(tokenizer, LENGTH, pack=True))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        for step in range(80):
            numbers = range(40 * step, 40 * (step + 1))
            model(**collate([{**rows[n % len(rows)], ROW_NUMBER: n} for n in numbers])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return train


@pytest.fixture
def checkpoint(trained):
    return trained("gmlp")


def run(*models, formats, **options):
    options = {"length": LENGTH, "rounds": 1, **options}
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return serving_formats.main(["--models", *map(str, models), "--formats", *formats, *arguments])


def test_formats_agree_and_are_reported(checkpoint, corpus, tmp_path, capsys):
    results = run(
        checkpoint,
        formats=["float32", "bfloat16"],
        validation_file=corpus / "validation.txt",
        output_dir=tmp_path / "results",
    )
    assert [result["format"] for result in results] == ["float32", "bfloat16"]
    assert json.loads((tmp_path / "results" / "results.json").read_text())["results"] == results
    single, half = results
    assert single["perplexity"] < 40  # of 60 for logits that are all the same, and more for wrong ones
    assert half["perplexity"] == pytest.approx(single["perplexity"], rel=0.02)
    assert half["bytes"] < 0.6 * single["bytes"]
    assert all(result["milliseconds"] > 0 for result in results)
    assert "| model, bfloat16 " in capsys.readouterr().out


def test_a_checkpoint_on_the_hub_has_a_perplexity(checkpoint, corpus, online):
    online()
    AutoModelForMaskedLM.from_pretrained(checkpoint).push_to_hub("me/gmlp")
    AutoTokenizer.from_pretrained(checkpoint).push_to_hub("me/gmlp")
    options = {"formats": ["float32"], "validation_file": corpus / "validation.txt"}
    here, there = (run(name, **options)[0] for name in (checkpoint, "me/gmlp"))
    assert there["perplexity"] == here["perplexity"]


@pytest.mark.slow  # 15 seconds for an export
@pytest.mark.parametrize("model_type", FAMILIES)
def test_onnx_agrees(model_type, trained, corpus, capsys):
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    formats = ["float32", "bfloat16", "onnx", "onnx-int8"]
    results = run(trained(model_type), formats=formats, validation_file=corpus / "validation.txt")
    assert [result["format"] for result in results] == formats
    single, half, onnx, onnx_int8 = results
    assert single["perplexity"] < 40
    assert half["perplexity"] == pytest.approx(single["perplexity"], rel=0.02)
    assert onnx["perplexity"] == pytest.approx(single["perplexity"], rel=1e-4)
    assert onnx_int8["perplexity"] == pytest.approx(single["perplexity"], rel=0.05)
    assert "| model, onnx " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_int8_and_openvino(model_type, trained, corpus):
    for package in ("torchao", "openvino"):
        pytest.importorskip(package)
    formats = ["float32", "int8", "int8-spatial", "openvino", "openvino-float32"]
    single, *others = run(trained(model_type), formats=formats, validation_file=corpus / "validation.txt")
    assert single["perplexity"] < 40
    for result in others:
        assert result["perplexity"] == pytest.approx(single["perplexity"], rel=0.02), result["format"]
    assert others[-1]["perplexity"] == pytest.approx(single["perplexity"], rel=1e-4)


def test_configurations_of_any_family_are_compared(tmp_path, capsys):
    AMLPConfig(**SIZES, vocab_size=50).save_pretrained(tmp_path / "amlp")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertConfig(**sizes, vocab_size=50).save_pretrained(tmp_path / "bert")
    results = run(tmp_path / "amlp", tmp_path / "bert", formats=["float32"])
    assert [result["model"] for result in results] == [str(tmp_path / "amlp"), str(tmp_path / "bert")]
    assert len({result["parameters"] for result in results}) == 2
    assert [result["random_weights"] for result in results] == [True, True]
    assert "| amlp, random weights, float32 " in capsys.readouterr().out


def test_only_models_with_a_limit_refuse_a_length(tmp_path):
    for config in (SynthesizerConfig(**SIZES, attention_components=["vanilla"]), AMLPConfig(**SIZES)):
        config.save_pretrained(tmp_path / config.model_type)
    assert run(tmp_path / "synthesizer", formats=["float32"], length=17)[0]["milliseconds"] > 0
    with pytest.raises(UserError, match=r"--length 17 does not fit '.*amlp', which takes 16 tokens"):
        run(tmp_path / "amlp", formats=["float32"], length=17)


def test_weights_in_an_older_format_are_used(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(checkpoint)
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    loaded = load(str(tmp_path / "model"))
    assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert not is_configuration(str(tmp_path / "model"))
    (tmp_path / "model" / "pytorch_model.bin").rename(tmp_path / "model" / "adapter.bin")
    with pytest.raises(UserError, match=r"model' cannot be loaded"):
        load(str(tmp_path / "model"))


def test_the_default_length_fits_all_models(checkpoint, tmp_path, capsys):
    AMLPConfig(**{**SIZES, "max_position_embeddings": 12}, vocab_size=50).save_pretrained(tmp_path / "amlp")
    SynthesizerConfig(**SIZES, attention_components=["vanilla"]).save_pretrained(tmp_path / "synthesizer")
    assert default_length([str(checkpoint)]) == 16
    assert default_length([str(checkpoint), str(tmp_path / "amlp")]) == 12
    assert default_length([str(tmp_path / "synthesizer")]) == 128
    serving_formats.main(["--models", str(checkpoint), "--formats", "float32", "--rounds", "1"])
    assert "batch 1, 16 tokens," in capsys.readouterr().out
    with pytest.raises(UserError, match=r"nothing' cannot be loaded"):
        default_length([str(tmp_path / "nothing")])


def test_a_checkpoint_of_another_task_is_refused(checkpoint, tmp_path):
    AutoModelForSequenceClassification.from_pretrained(checkpoint).save_pretrained(tmp_path / "classifier")
    with pytest.raises(UserError, match=r"classifier' has no weights for .*: it was not trained for this task"):
        run(tmp_path / "classifier", formats=["float32"])


def test_a_folder_comes_before_a_shipped_configuration_of_its_name(checkpoint, tmp_path, monkeypatch):
    shutil.copytree(checkpoint, tmp_path / "gmlp-base")
    assert is_configuration("gmlp-base")
    monkeypatch.chdir(tmp_path)
    (result,) = run("gmlp-base", formats=["float32"])
    assert not result["random_weights"]
    assert result["parameters"] == AutoModelForMaskedLM.from_pretrained(checkpoint).num_parameters()


def test_checkpoints_in_bfloat16_are_converted_from_float32(checkpoint, tmp_path):
    AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    assert load(str(tmp_path / "half")).dtype == torch.float32
    AutoModelForMaskedLM.from_pretrained(tmp_path / "half").config.save_pretrained(tmp_path / "configuration")
    assert load(str(tmp_path / "configuration")).dtype == torch.float32


def test_the_report_names_the_cpu(checkpoint, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    run(checkpoint, formats=["float32"])
    assert f", on {platform.machine()}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind, module, extra",
    [("openvino", "openvino", "edge"), ("onnx", "onnxscript", "export"), ("int8", "torchao", "quantize")],
)
def test_missing_packages_are_noticed_before_anything_is_timed(kind, module, extra, monkeypatch):
    monkeypatch.setattr(serving_formats, "load", None)  # would raise
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9999")
    for other in PACKAGES.get(kind, ("torchao",)):
        monkeypatch.setitem(sys.modules, other, None if other == module else sys)
    with pytest.raises(UserError, match=rf"{kind!r}.*{module}.*pip install '\.\[{extra}\]'"):
        run("model", formats=["float32", kind])


def test_mistakes(checkpoint, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "a text"}')
    with pytest.raises(UserError, match=r"the file '.*' has no column 'text'; it has 'body'"):
        run(checkpoint, formats=["float32"], validation_file=tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match=r"nothing' cannot be loaded"):
        run(tmp_path / "nothing", formats=["float32"])
    with pytest.raises(UserError, match="'float8' is unknown"):
        run(checkpoint, formats=["float8"])
    with pytest.raises(UserError, match=r"--models has .*model' twice"):
        run(checkpoint, checkpoint, formats=["float32"])
    with pytest.raises(UserError, match="--formats has 'float32' twice"):
        run(checkpoint, formats=["float32", "float32"])


# In a process without this package.
INT8_ALONE = """
import sys
sys.modules["tokenmixers"] = None
import torch
from transformers import AutoModelForMaskedLM
torch.set_num_threads(1)
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
assert any(hasattr(parameter, "qdata") for parameter in model.parameters())
with torch.no_grad():
    torch.save(model(torch.tensor([[3, 4, 5]])).logits, sys.argv[2])
"""


@pytest.mark.parametrize("model_type", FAMILIES)
def test_int8_can_be_saved_and_loaded_again(model_type, trained, tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    config, checkpoint = TorchAoConfig(quantization.Int8DynamicActivationInt8WeightConfig()), trained(model_type)
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, quantization_config=config).eval()
    modules = dict(model.base_model.named_modules()).items()
    linear = [module.weight for name, module in modules if "layers." in name and type(module) is torch.nn.Linear]
    assert linear and all(weight.qdata.dtype == torch.int8 for weight in linear)
    if model_type in ("gmlp", "amlp"):
        assert type(model.model.layers[0].sgu.spatial_proj.weight) is torch.nn.Parameter
    model.save_pretrained(tmp_path / "int8")
    again, ids = AutoModelForMaskedLM.from_pretrained(tmp_path / "int8").eval(), torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = AutoModelForMaskedLM.from_pretrained(checkpoint).eval()(ids).logits
        assert torch.equal(again(ids).logits, model(ids).logits)
        torch.testing.assert_close(again(ids).logits, expected, rtol=0.1, atol=0.1 * expected.abs().max().item())
        assert expected.abs().max() > 3  # trained: neither zeros nor other signs are so close
    if model_type == "gmlp":
        process = subprocess.run(
            [sys.executable, "-c", INT8_ALONE, tmp_path / "int8", tmp_path / "alone.pt"],
            cwd=tmp_path,
            env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        assert torch.equal(torch.load(tmp_path / "alone.pt"), model(ids).logits)
