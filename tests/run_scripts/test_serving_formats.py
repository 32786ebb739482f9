import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, TorchAoConfig

from tokenmixers import AMLPConfig, GMLPForMaskedLM, SynthesizerConfig, SynthesizerForMaskedLM
from tokenmixers.run_scripts import serving_formats
from tokenmixers.run_scripts.arguments import UserError
from tokenmixers.run_scripts.serving_formats import perplexity_of, round_to_int8, token_mixing_weights
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 16}


@pytest.fixture
def checkpoint(corpus, tiny_config, tmp_path):
    tokenizer = train_unigram_tokenizer((corpus / "train.txt").read_text().splitlines(), 60, 16)
    GMLPForMaskedLM(tiny_config(**SIZES, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run(*models, formats, **options):
    options = {"length": 8, "rounds": 1, **options}
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return serving_formats.main(["--models", *map(str, models), "--formats", *formats, *arguments])


def test_formats_agree_and_are_reported(checkpoint, corpus, tmp_path, capsys):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("transformers.exporters.runners")
    formats = ["float32", "bfloat16", "onnx", "onnx-int8"]
    results = run(
        checkpoint, formats=formats, validation_file=corpus / "validation.txt", output_dir=tmp_path / "results"
    )
    assert [result["format"] for result in results] == formats
    assert json.loads((tmp_path / "results" / "results.json").read_text())["results"] == results
    single, half, onnx, onnx_int8 = results
    assert onnx["perplexity"] == pytest.approx(single["perplexity"], rel=1e-4)
    assert half["perplexity"] == pytest.approx(single["perplexity"], rel=0.02)
    assert onnx_int8["perplexity"] == pytest.approx(single["perplexity"], rel=0.05)
    assert half["bytes"] < 0.6 * single["bytes"]
    assert all(result["milliseconds"] > 0 for result in results)
    assert "| model, onnx " in capsys.readouterr().out


@pytest.mark.slow
def test_int8_and_openvino(checkpoint, corpus):
    for package in ("torchao", "openvino", "transformers.exporters.runners"):
        pytest.importorskip(package)
    formats = ["float32", "int8", "int8-spatial", "openvino", "openvino-float32"]
    single, *others = run(checkpoint, formats=formats, validation_file=corpus / "validation.txt")
    for result in others:
        assert result["perplexity"] == pytest.approx(single["perplexity"], rel=0.02), result["format"]
    assert others[-1]["perplexity"] == pytest.approx(single["perplexity"], rel=1e-4)


def test_configurations_of_any_family_are_compared(tmp_path):
    AMLPConfig(**SIZES, vocab_size=50).save_pretrained(tmp_path / "amlp")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertConfig(**sizes, vocab_size=50).save_pretrained(tmp_path / "bert")
    results = run(tmp_path / "amlp", tmp_path / "bert", formats=["float32"])
    assert [result["model"] for result in results] == [str(tmp_path / "amlp"), str(tmp_path / "bert")]
    assert len({result["parameters"] for result in results}) == 2


def test_perplexity_by_hand():
    logits = torch.randn(1, 4, 5)
    labels = torch.tensor([[1, -100, 3, -100]])
    row = {"input_ids": torch.zeros(1, 4), "attention_mask": torch.ones(1, 4), "labels": labels}
    loss = -(logits.log_softmax(-1)[0, 0, 1] + logits.log_softmax(-1)[0, 2, 3]) / 2
    assert perplexity_of(lambda inputs: logits, [row]) == pytest.approx(loss.exp().item(), rel=1e-5)


def test_rounding_to_int8():
    weights = torch.randn(3, 50)
    rounded = weights.clone()
    round_to_int8(rounded)
    steps = weights.abs().amax(-1, keepdim=True) / 127
    assert ((rounded - weights).abs() <= 0.5001 * steps).all()
    assert all(len(row.unique()) <= 255 for row in (rounded / steps).round())
    round_to_int8(torch.zeros(2, 2))  # nothing to divide by


def test_mistakes(checkpoint, tmp_path):
    with pytest.raises(UserError, match="no masked language model"):
        run(tmp_path / "nothing", formats=["float32"])
    with pytest.raises(UserError, match="'float8' is unknown"):
        run(checkpoint, formats=["float8"])
    with pytest.raises(UserError, match=r"--models has .*model' twice"):
        run(checkpoint, checkpoint, formats=["float32"])
    with pytest.raises(UserError, match="--formats has 'float32' twice"):
        run(checkpoint, formats=["float32", "float32"])


def test_int8_can_be_saved_and_loaded_again(checkpoint, tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    config = TorchAoConfig(quantization.Int8DynamicActivationInt8WeightConfig())
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, quantization_config=config).eval()
    assert model.model.layers[0].proj_in.weight.qdata.dtype == torch.int8
    assert type(model.model.layers[0].sgu.spatial_proj.weight) is torch.nn.Parameter
    model.save_pretrained(tmp_path / "int8")
    again, ids = AutoModelForMaskedLM.from_pretrained(tmp_path / "int8").eval(), torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = AutoModelForMaskedLM.from_pretrained(checkpoint).eval()(ids).logits
        assert torch.equal(again(ids).logits, model(ids).logits)
        torch.testing.assert_close(again(ids).logits, expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


@pytest.mark.parametrize("component", ["random", "factorized_random", "fixed_random", "dense"])
def test_the_token_mixing_weights_of_a_synthesizer(component, tiny_config):
    sizes = {"num_attention_heads": 2, "head_dim": 4, "attention_components": [component]}
    model = SynthesizerForMaskedLM(tiny_config(SynthesizerConfig, **sizes))
    found = token_mixing_weights(model)
    assert len(found) >= model.config.num_hidden_layers
    assert any(11 in tensor.shape for tensor in found)  # the maximum length
    assert not {id(tensor) for tensor in found} & {id(m.weight) for m in model.modules() if type(m) is torch.nn.Linear}


def test_a_model_without_token_mixing_weights():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(UserError, match="BertForMaskedLM mixes tokens by linear layers alone"):
        token_mixing_weights(BertForMaskedLM(BertConfig(**sizes, vocab_size=50)))
