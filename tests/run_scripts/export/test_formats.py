"""The command that exports: every task in every format, run by its runtime alone, and what it refuses."""

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, PreTrainedTokenizerFast, pipeline

import tokenmixers
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.exports import formats, tasks
from tokenmixers.run_scripts.exports.tasks import Checkpoint, exported_card, find_task
from tokenmixers.run_scripts.push_to_hub import collect_files


TEXTS = ["the gate splits a token", "norm", "a layer mixes or learns the channel and the token if the gate splits"]


def has(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


exporting = pytest.mark.skipif(not has("onnx", "onnxruntime", "onnxscript"), reason="needs the extra export")
embedding = pytest.mark.skipif(not has("sentence_transformers"), reason="needs the extra embeddings")


def onnxruntime_alone(file: Path, inputs: dict) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = {port.name: np.asarray(inputs[port.name]) for port in session.get_inputs()}
    return dict(zip(names, session.run(names, feed), strict=True))


def ports(file: Path) -> dict[str, list[int | str]]:
    """Name of each input and output -> its axes, names for those that may have any size."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return {port.name: port.shape for port in (*session.get_inputs(), *session.get_outputs())}


@exporting
def test_images_of_another_size_are_refused_as_in_pytorch(checkpoint, tmp_path, run):
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    folder, model = checkpoint("GMLPForImageClassification")
    run(folder, tmp_path / "out", kinds=("onnx",))
    (file,) = (tmp_path / "out" / "onnx").iterdir()
    axes = ports(file)
    assert axes["pixel_values"][1:] == [3, 8, 8] and axes["logits"][1:] == [model.config.num_labels]
    assert isinstance(axes["pixel_values"][0], str)  # the batch
    for shape in ((1, 3, 16, 16), (1, 3, 9, 9), (1, 3, 4, 4), (1, 1, 8, 8)):
        with pytest.raises(ValueError):
            model(pixel_values=torch.zeros(shape))
        with pytest.raises(InvalidArgument, match="Got invalid dimensions for input: pixel_values"):
            onnxruntime_alone(file, {"pixel_values": np.zeros(shape, np.float32)})


def largest_difference(found: np.ndarray, expected: torch.Tensor, mask: torch.Tensor | None) -> float:
    real = mask.bool().numpy() if mask is not None and expected.shape[: mask.dim()] == mask.shape else ...
    expected = expected.detach().numpy()
    return np.abs(found[real] - expected[real]).max() / np.abs(expected[real]).max()


TASKS = {
    "GMLPForSequenceClassification": "text-classification",
    "GMLPForMaskedLM": "fill-mask",
    "AMLPForTokenClassification": "token-classification",
    "MLPMixerForQuestionAnswering": "question-answering",
    "SynthesizerForMultipleChoice": "multiple-choice",
    "GMLPForImageClassification": "image-classification",
    "AMLPForCausalLM": "text-generation",
    "SynthesizerModel": "feature-extraction",
    "BertModel": "feature-extraction",
}


@exporting
@pytest.mark.fast_cases(name="GMLPForSequenceClassification")  # one, as an export takes seconds
@pytest.mark.parametrize("name", TASKS)
def test_every_task_runs_on_onnxruntime_alone(name, checkpoint, tmp_path, tokenizer, capsys, run):
    folder, model = checkpoint(name)
    assert find_task(str(folder)) == TASKS[name]
    results = run(folder, tmp_path / "out")
    assert [result["file"] for result in results] == [
        "onnx/model.onnx",
        "onnx/model_fp16.onnx",
        "onnx/model_quantized.onnx",
    ]
    printed = capsys.readouterr().out
    assert (
        re.search(r"\| onnx/model_quantized.onnx \| .* \| +cosine -?[01]\.\d{4} \|", printed)
        and "int8 rounds, so its values differ" in printed
    )
    assert all(result["milliseconds"] > 0 for result in results)
    assert results[0]["pytorch_milliseconds"] > 0
    assert {path.name for path in (tmp_path / "out" / "onnx").iterdir()} == {Path(r["file"]).name for r in results}
    # Inputs of other sizes than those that the command has looked at.
    if TASKS[name] == "image-classification":
        inputs, mask = {"pixel_values": torch.randn(5, 3, 8, 8)}, None
        assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    else:
        saved = AutoTokenizer.from_pretrained(tmp_path / "out")
        inputs = dict(saved(TEXTS, padding=True, return_tensors="pt"))
        assert "token_type_ids" in inputs
        if "MultipleChoice" in name:
            inputs = {key: value[:, None].repeat(1, 3, 1) for key, value in inputs.items()}
        mask = inputs["attention_mask"]
    accepted = inputs if name == "BertModel" else {k: v for k, v in inputs.items() if k != "token_type_ids"}
    with torch.no_grad():
        expected = model(**accepted)
    for result, tolerance in zip(results, (1e-4, 1e-2, 0.5), strict=True):
        found = onnxruntime_alone(tmp_path / "out" / result["file"], inputs)
        assert found and set(found) <= {*expected}
        axes = [axis for port in ports(tmp_path / "out" / result["file"]).values() for axis in port]
        assert not any(isinstance(axis, str) and axis.isdigit() for axis in axes)
        for key, value in found.items():
            assert value.dtype == np.float32
            assert largest_difference(value, expected[key], mask) < tolerance


@pytest.fixture
def sentence_transformer(checkpoint, tokenizer):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    def build(name: str, *pooling: str):
        folder, _ = checkpoint(name)
        modules = [
            Transformer(str(folder)),
            Pooling(16, pooling_mode=pooling),
            Dense(16 * len(pooling), 8),
            Normalize(),
        ]
        model = SentenceTransformer(modules=modules, device="cpu")
        model.max_seq_length = 12
        model.save_pretrained(str(folder.with_name("sentences")))
        return folder.with_name("sentences"), model

    return build


def test_the_card_of_an_export_has_no_code_for_weights_that_are_not_there():
    card = "---\nlicense: mit\n---\n# Mine\n\n```python\nload('mine')\n```\n\n## Limits\n"
    files = ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    for task in ("question-answering", "image-classification"):
        found = exported_card(card, "out", files, task)
        assert found == card.replace(
            "```python\nload('mine')\n```\n",
            "An export to `onnx/model.onnx`, `onnx/model_quantized.onnx`, without weights for PyTorch.\n",
        )
    assert exported_card("# Mine\n", "out", files[:1], "question-answering") == (
        "# Mine\n\nAn export to `onnx/model.onnx`, without weights for PyTorch.\n"
    )


@exporting
@pytest.mark.slow
def test_the_example_of_the_card_of_an_export_runs(checkpoint, tmp_path, monkeypatch, capsys, run):
    folder, model = checkpoint("GMLPForSequenceClassification")
    (folder / "README.md").write_text("# Mine\n\n```python\nload('mine')\n```\n")
    monkeypatch.chdir(tmp_path)
    run(folder, Path("out"), kinds=("onnx",))
    card = (tmp_path / "out" / "README.md").read_text()
    capsys.readouterr()
    exec(compile(re.search(r"```python\n(.+?)```", card, re.DOTALL)[1], "card", "exec"), {})
    inputs = AutoTokenizer.from_pretrained(folder)(["This is a text."], return_tensors="pt")
    with torch.no_grad():
        expected = model(input_ids=inputs["input_ids"]).logits.numpy()
    assert str(expected[0])[1:6] in capsys.readouterr().out
    pushed = collect_files("out", "me/mine")["README.md"].decode()
    assert 'model = "me/mine"' in pushed


@exporting
@embedding
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, pooling", [("GMLPModel", ("mean",)), ("AMLPModel", ("cls", "max")), ("BertModel", ("cls",))]
)
def test_sentence_embeddings_have_their_pooling(name, pooling, sentence_transformer, tmp_path, run):
    from sentence_transformers import SentenceTransformer

    folder, model = sentence_transformer(name, *pooling)
    run(folder, tmp_path / "out", kinds=("onnx",))
    long = [*TEXTS, " ".join(TEXTS)]  # the last one is cut
    alone = from_guide("embed", "tokenizers", tmp_path / "out")(long)
    expected = model.encode(long)
    assert np.abs(alone - expected).max() < 1e-4
    assert expected.shape[1] == 8
    assert not list((tmp_path / "out").glob("*.safetensors"))
    # What text-embeddings-inference reads.
    fields = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert fields["pooling_mode_cls_token"] is ("cls" in pooling)
    assert fields["pooling_mode_mean_tokens"] is ("mean" in pooling)
    assert json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    # With the weights beside, the folder is a checkpoint of Sentence Transformers still.
    (tmp_path / "out" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert np.abs(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(long) - expected).max() < 1e-6


@embedding
def test_a_graph_gives_what_encode_of_the_folder_does(sentence_transformer):
    """Prompt and number of dimensions are settings of the folder, outside of the modules."""
    folder, model = sentence_transformer("GMLPModel", "mean")
    model.prompts, model.default_prompt_name, model.truncate_dim = {"query": "the token "}, "query", 4
    model.save_pretrained(str(folder))
    checkpoint = Checkpoint(str(folder), "sentence-similarity")
    assert checkpoint.prompt == "the token "
    for inputs, texts in zip(checkpoint.batches(), tasks.BATCHES, strict=True):
        with torch.no_grad():
            found = checkpoint.model(**inputs)["sentence_embedding"]
        torch.testing.assert_close(found, torch.tensor(model.encode(texts)), atol=1e-6, rtol=0)
    assert found.shape[1] == 4
    model[1].include_prompt = False
    model.save_pretrained(str(folder))
    with pytest.raises(UserError, match="include_prompt=false of its pooling: a graph does not hold this"):
        Checkpoint(str(folder), "sentence-similarity")


@exporting
@embedding
@pytest.mark.slow
def test_a_prompt_is_said_and_stands_on_the_card(sentence_transformer, tmp_path, capsys, run):
    folder, model = sentence_transformer("GMLPModel", "mean")
    model.prompts, model.default_prompt_name, model.truncate_dim = {"query": 'the "token" '}, "query", 4
    model.save_pretrained(str(folder))
    (folder / "README.md").write_text("# Mine\n\n```python\nload('mine')\n```\n")
    run(folder, tmp_path / "out", kinds=("onnx",))
    assert "put 'the \"token\" ' before every text" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Put the prompt `'the \"token\" '` before every text" in card
    exec(compile(re.search(r"```python\n(.+?)```", card, re.DOTALL)[1], "card", "exec"), {})
    expected = model.encode(["This is a text.", "This is another one."])
    assert expected.shape == (2, 4)
    found = re.findall(r"-?\d\.\d+(?:e-\d+)?", capsys.readouterr().out)
    assert [float(value) for value in found] == pytest.approx(expected.flatten().tolist(), abs=1e-4)


@exporting
@pytest.mark.slow
def test_images_are_prepared_with_numpy_and_pillow_alone(checkpoint, tmp_path, run):
    folder, _ = checkpoint("GMLPForImageClassification", id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1})
    size, mean = {"height": 8, "width": 8}, [0.1, 0.4, 0.7]
    processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=size, image_mean=mean)
    processor.save_pretrained(folder)
    run(folder, tmp_path / "out", kinds=("onnx",))
    classify, random = from_guide("classify", "PIL", tmp_path / "out"), np.random.default_rng(0)
    session, fed = classify.__globals__["session"], []
    classify.__globals__["session"] = SimpleNamespace(
        run=lambda outputs, inputs: fed.append(inputs["pixel_values"]) or session.run(outputs, inputs)
    )
    pipe = pipeline("image-classification", model=str(folder), top_k=1)
    for shape in ((8, 8, 3), (9, 31, 3), (64, 37, 3), (40, 20, 4)):
        image = Image.fromarray(random.integers(0, 255, shape, np.uint8))
        image.save(tmp_path / "image.png")
        assert classify(tmp_path / "image.png") == pipe(str(tmp_path / "image.png"))[0]["label"]
        expected = processor(image.convert("RGB"), return_tensors="np")["pixel_values"]
        assert np.abs(fed.pop() - expected).max() < 1e-5


def from_guide(name: str, package: str, folder: Path):
    """A function of the guide, which has only a package, numpy and onnxruntime."""
    page = (Path(tokenmixers.__file__).parent / "run_scripts" / "guides" / "serving.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.+?)```", page, flags=re.DOTALL) if f"def {name}" in code)
    assert set(re.findall(r"^(?:import|from) (\w+)", code, flags=re.MULTILINE)) == {
        "json",
        "numpy",
        "onnxruntime",
        package,
    }
    names: dict = {}
    code = code.replace("model_quantized.onnx", "model.onnx")
    definitions, use = re.split(r"\nembeddings = |\nprint\(", code, maxsplit=1)
    exec(re.sub(r'"outputs/[\w-]+"', repr(str(folder)), definitions), names)
    assert use
    return names[name]


@exporting
@pytest.mark.slow
def test_int8_has_a_scale_for_every_channel_of_linear_layers_and_embeddings(checkpoint, tmp_path, run):
    import onnx

    folder, model = checkpoint("GMLPForMaskedLM", hidden_size=32, intermediate_size=64)
    run(folder, tmp_path / "out", kinds=("onnx-int8",))
    graph = onnx.load(tmp_path / "out/onnx/model_quantized.onnx").graph
    kinds = [node.op_type for node in graph.node]
    layers = model.config.num_hidden_layers
    assert kinds.count("MatMulInteger") == 2 * layers + 1  # two a layer, and the vocabulary's
    assert kinds.count("MatMul") == layers  # the spatial projections
    scales = {part.name: part.dims for part in graph.initializer if part.name.endswith("_scale")}
    assert [32] in [list(dims) for dims in scales.values()]
    weights = [
        onnx.numpy_helper.to_array(part) for part in graph.initializer if part.data_type == onnx.TensorProto.INT8
    ]
    assert max(np.abs(values.astype(int)).max() for values in weights) <= 64  # 7 bits


@exporting
@pytest.mark.slow
def test_graphs_of_aft_have_exp_of_offsets_as_constants_and_no_softmax(checkpoint, tmp_path, run):
    import onnx
    import onnxruntime

    folder, _ = checkpoint("HybridBertModel", token_mixers=["aft", "aft"], num_hidden_layers=2)
    run(folder, tmp_path / "out", kinds=("onnx",))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "out/onnx/model.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("Exp") == 2 and "Softmax" not in kinds  # an exp of scores in each layer


def test_what_no_graph_holds_is_refused(checkpoint, tmp_path):
    encoder_decoder, _ = checkpoint("SynthesizerForConditionalGeneration")
    with pytest.raises(UserError, match="is an encoder-decoder"):
        find_task(str(encoder_decoder))
    backbone, _ = checkpoint("GMLPBackbone")
    with pytest.raises(UserError, match="is a GMLPBackbone: give --task"):
        find_task(str(backbone))
    masked, _ = checkpoint("GMLPForMaskedLM")
    with pytest.raises(UserError, match="it was not trained for this task"):
        Checkpoint(str(masked), "text-classification")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(masked)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(masked)
    with pytest.raises(UserError, match="has 38 ids, its model 37 embeddings: resize them"):
        Checkpoint(str(masked), "fill-mask")


@exporting
def test_old_packages_are_refused(monkeypatch):
    formats.check_packages(["onnx", "onnx-int8"])
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.20" if name == "onnx" else real(name))
    with pytest.raises(UserError, match=r"'onnx' needs onnx 1\.21 or newer, and this is 1\.20\."):
        formats.check_packages(["onnx"])


def test_the_oldest_versions_are_those_of_the_extras():
    text = (Path(tokenmixers.__file__).parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = dict(re.findall(r"^(export|edge) = \[(.*)\]", text, flags=re.MULTILINE))
    wanted = dict(re.findall(r'"(\w+)>=([\d.]+)"', extras["export"] + extras["edge"]))
    assert formats.OPENVINO_PACKAGES.items() <= wanted.items()
