"""The command that exports: every task in every format, run by its runtime alone, and what it refuses."""

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image
from transformers import AutoTokenizer, BertConfig, BertModel, CLIPImageProcessorPil, PreTrainedTokenizerFast, pipeline

import tokenmixers
from tokenmixers.run_scripts import export
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.exports import formats
from tokenmixers.run_scripts.exports.quality import (
    answered_by,
    check_quality,
    check_values,
    compare,
    evaluate,
    quality_loss,
)
from tokenmixers.run_scripts.exports.tasks import Checkpoint, exported_card, find_task
from tokenmixers.run_scripts.push_to_hub import collect_files
from tokenmixers.run_scripts.training.trial_step import try_arguments


WORDS = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm", "a", "the", "if", "or", "and"]
TEXTS = ["the gate splits a token", "norm", "a layer mixes or learns the channel and the token if the gate splits"]


def has(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


exporting = pytest.mark.skipif(not has("onnx", "onnxruntime", "onnxscript"), reason="needs the extra export")
embedding = pytest.mark.skipif(not has("sentence_transformers"), reason="needs the extra embeddings")


@pytest.fixture(scope="module")
def tokenizer():
    """A word a token, with special tokens around a text as BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    table = {word: index for index, word in enumerate([*special, *WORDS, *"abcdefghijklmnopqrst"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=24, model_input_names=inputs, **names)


@pytest.fixture
def checkpoint(tiny_model, tokenizer, tmp_path):
    """`checkpoint(class_name)`: the folder of a model with random weights, and the model."""

    def build(name: str, **changes):
        folder = tmp_path / name
        torch.manual_seed(0)
        if name == "BertModel":
            sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
            model = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, **sizes)).eval()
        else:
            sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 24, "hidden_size": 16, "pad_token_id": 0}
            model = tiny_model(name, **{**sizes, "intermediate_size": 32, **changes})
        model.save_pretrained(folder)
        if "Image" in name:
            size = {"height": 8, "width": 8}
            CLIPImageProcessorPil(size=size, crop_size=size).save_pretrained(folder)
        else:
            tokenizer.save_pretrained(folder)
        return folder, model

    return build


def run(folder: Path, output: Path, *arguments: str, kinds: tuple[str, ...] = ("onnx", "onnx-fp16", "onnx-int8")):
    return export.main(["--model", str(folder), "--output_dir", str(output), "--formats", *kinds, *arguments])


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
def test_images_of_another_size_are_refused_as_in_pytorch(checkpoint, tmp_path):
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    folder, model = checkpoint("GMLPForImageClassification")
    run(folder, tmp_path / "out", kinds=("onnx", "onnx-int8"))
    for file in sorted((tmp_path / "out" / "onnx").iterdir()):
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
def test_every_task_runs_on_onnxruntime_alone(name, checkpoint, tmp_path, tokenizer, capsys):
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
def test_the_example_of_the_card_of_an_export_runs(checkpoint, tmp_path, monkeypatch, capsys):
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
def test_sentence_embeddings_have_their_pooling(name, pooling, sentence_transformer, tmp_path):
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


@exporting
@pytest.mark.slow
def test_images_are_prepared_with_numpy_and_pillow_alone(checkpoint, tmp_path):
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
def test_openvino(checkpoint, tmp_path, tokenizer):
    pytest.importorskip("openvino")
    for name in ("AMLPForTokenClassification", "GMLPForImageClassification"):
        folder, model = checkpoint(name)
        (result,) = run(folder, tmp_path / f"{name}-out", kinds=("openvino",))
        assert result["file"] == "openvino/openvino_model.xml"
        assert result["bytes"] > 4 * model.num_parameters()
        program = formats.Program(tmp_path / f"{name}-out" / result["file"], float32=True)
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        inputs = {"pixel_values": torch.randn(5, 3, 8, 8)} if "Image" in name else {**batch}
        with torch.no_grad():
            expected = model(**{key: value for key, value in inputs.items() if key != "token_type_ids"})
        mask = inputs.get("attention_mask")
        assert largest_difference(program(inputs)["logits"].numpy(), expected.logits, mask) < 1e-4


@exporting
@pytest.mark.slow
@pytest.mark.parametrize("opset", [formats.OLDEST_OPSET, formats.NEWEST_OPSET])
def test_opsets(opset, checkpoint, tmp_path):
    import onnx

    folder, _ = checkpoint("GMLPForSequenceClassification")
    run(folder, tmp_path / "out", "--opset", str(opset), kinds=("onnx", "onnx-int8"))
    (default,) = [part for part in onnx.load(tmp_path / "out/onnx/model.onnx").opset_import if part.domain == ""]
    assert default.version == opset


@exporting
@pytest.mark.slow
def test_int8_has_a_scale_for_every_channel_of_linear_layers_and_embeddings(checkpoint, tmp_path):
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


@pytest.fixture
def labelled(checkpoint, tokenizer, tmp_path):
    """A classifier and rows, labelled as it answers them itself."""
    folder, model = checkpoint("GMLPForSequenceClassification", num_labels=2)
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(2, 9))) for _ in range(40)]
    with torch.no_grad():
        batch = tokenizer(texts, padding=True, return_token_type_ids=False, return_tensors="pt")
        labels = model(**batch).logits.argmax(-1)
    assert 0 < labels.sum() < 40
    rows = [{"text": text, "label": f"LABEL_{label}"} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder, tmp_path / "dev.jsonl"


@pytest.mark.parametrize("name", ["GMLPForSequenceClassification", "GMLPModel"])
def test_a_program_answers_for_checkpoints_alone(name, checkpoint, tmp_path):
    """Before it reads data, a command tries its arguments with a tiny model, of the same class or around one."""
    folder, model = checkpoint(name)
    args = ScriptTrainingArguments(str(tmp_path / "run"), do_eval=True, use_cpu=True)
    with answered_by(lambda inputs: {"logits": torch.full((1, 2), 7.0)}, type(model)):
        try_arguments(args)
        answer = type(model).from_pretrained(folder)(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert answer.logits.tolist() == [[7.0, 7.0]]


@exporting
@pytest.mark.slow
def test_quality_on_the_users_file(labelled, tmp_path):
    folder, file = labelled
    results = run(folder, tmp_path / "out", "--validation_file", str(file), "--max_quality_loss", "0.2")
    for result in results:
        assert (result["metric"], result["pytorch"]) == ("accuracy", 1.0)
        assert result["quality"] >= 0.8
    assert results[0]["quality"] == 1.0


EVALUATED = {
    "GMLPForMaskedLM": ({}, "perplexity"),
    "AMLPForCausalLM": ({}, "perplexity"),
    "GMLPForTokenClassification": ({"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}, "f1"),
    "GMLPForQuestionAnswering": ({}, "f1"),
    "GMLPForImageClassification": ({"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}, "accuracy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_the_command_of_every_task_evaluates_a_program(name, checkpoint, tmp_path):
    changes, metric = EVALUATED[name]
    folder, model = checkpoint(name, **changes)
    lines = [" ".join(WORDS[start : start + 6]) for start in range(7)]
    data, arguments = tmp_path / "dev.txt", []
    if metric == "perplexity":
        data.write_text("\n".join(lines))
        arguments = ["--line_by_line", "true"] if "Masked" in name else []
    elif "Token" in name:
        rows = ["\n".join(f"{word} {'B-X' if word == 'a' else 'O'}" for word in line.split()) for line in lines]
        data.write_text("\n\n".join(rows) + "\n")
    elif "Question" in name:
        found = []
        for number, line in enumerate(lines):
            answer = {"text": line.split()[1], "answer_start": line.index(line.split()[1])}
            found.append({"context": line, "qas": [{"id": str(number), "question": "a", "answers": [answer]}]})
        data = tmp_path / "dev.json"
        data.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": found}]}))
        arguments = ["--max_question_length", "4", "--doc_stride", "2"]
    else:
        data = tmp_path / "images"
        for index, label in enumerate("abab"):
            (data / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng(index).integers(0, 255, (8, 8, 3), np.uint8)).save(
                data / label / f"{index}.png"
            )
    task, original, calls = find_task(str(folder)), type(model).forward, []

    def program(inputs):
        calls.append(inputs)
        accepted = {key: inputs[key] for key in ("input_ids", "attention_mask", "pixel_values") if key in inputs}
        outputs = original(model, **accepted)
        return {key: value for key, value in outputs.items() if isinstance(value, torch.Tensor)}

    expected = evaluate(task, str(folder), [str(data)], arguments)
    with answered_by(program, type(model)):
        assert evaluate(task, str(folder), [str(data)], arguments) == pytest.approx(expected)
    assert calls
    assert expected[0] == metric
    assert np.isfinite(expected[1])


@pytest.mark.parametrize("name", ["GMLPForImageClassification", "GMLPForSequenceClassification"])
def test_wrong_data_are_named_with_the_option_of_export(name, checkpoint, tmp_path):
    folder, _ = checkpoint(name)
    with pytest.raises(UserError, match=r"^error: (?!error).*missing") as caught:
        run(folder, tmp_path / "out", "--validation_file", str(tmp_path / "missing"))
    assert "--validation_dir" not in str(caught.value)


@exporting
@pytest.mark.slow
def test_a_format_below_the_bound_is_refused_and_nothing_is_written(labelled, tmp_path, monkeypatch):
    folder, file = labelled
    write = export.write

    def turn(graph, kind, path):  # a broken format: the signs of the logits are exchanged
        import onnx_ir

        for value in graph.graph.initializers.values():
            if kind == "onnx-int8" and value.shape == (2,) and value.dtype == onnx_ir.DataType.FLOAT:
                value.const_value = onnx_ir.tensor(np.array([-1e3, 1e3], dtype=np.float32))
        write(graph, kind, path)

    monkeypatch.setattr(export, "write", turn)
    with pytest.raises(
        UserError, match=r"in the format 'onnx-int8' has accuracy 0\.\d+ .* more than --max_quality_loss"
    ):
        run(folder, tmp_path / "out", "--validation_file", str(file), "--max_quality_loss", "0.01")
    assert {path.name for path in tmp_path.iterdir()} == {"GMLPForSequenceClassification", "dev.jsonl"}


def test_commands_are_answered_by_the_program(checkpoint):
    folder, model = checkpoint("GMLPForSequenceClassification")
    model = type(model).from_pretrained(folder).eval()
    inputs = {"input_ids": torch.tensor([[2, 6, 3]])}
    seen = {}

    def program(given):
        seen.update(given)
        return {"logits": torch.tensor([[1.0, 2.0]])}

    original = type(model).forward
    with answered_by(program, type(model)):
        output = model(**inputs, labels=torch.tensor([1]))
        assert output.logits.tolist() == [[1.0, 2.0]]
        assert output.loss == 0
        assert seen["attention_mask"].tolist() == [[1, 1, 1]]
    assert type(model).forward is original
    assert model(**inputs).logits.tolist() != [[1.0, 2.0]]


def test_comparison_leaves_padding_out_and_finds_all_else(checkpoint):
    _, model = checkpoint("GMLPForTokenClassification")
    inputs = {
        "input_ids": torch.tensor([[2, 6, 3], [2, 3, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }
    with torch.no_grad():
        logits = model(**inputs).logits
    for place, changed in (((1, 2), False), ((1, 1), True)):
        other = logits.clone()
        other[place] += logits.abs().max()
        found, cosine = compare(lambda _, other=other: {"logits": other}, model, [inputs])
        assert (found > 0.3) is changed
        row = slice(1, 2), slice(0, 2)  # without padding
        expected = torch.cosine_similarity(logits[row], other[row], dim=-1).min()
        assert cosine == pytest.approx(float(expected), abs=1e-6)
    nan = logits.clone()
    nan[0, 0] = torch.nan
    assert compare(lambda _: {"logits": nan}, model, [inputs])[0] == torch.inf


def test_values_and_quality_have_bounds():
    check_values("onnx", "m", 9e-4)
    check_values("onnx-int8", "m", 0.5)
    for kind, difference in (("onnx", 2e-3), ("onnx-fp16", float("inf")), ("onnx-int8", float("nan"))):
        with pytest.raises(
            UserError, match=f"'m' in the format '{kind}' differs from PyTorch by .*Nothing was written"
        ):
            check_values(kind, "m", difference)
    assert quality_loss("accuracy", 0.8, 0.76) == pytest.approx(0.05)
    assert quality_loss("perplexity", 20.0, 21.0) == pytest.approx(0.05)
    check_quality("onnx-int8", "m", "perplexity", 20.0, 21.0, 0.051)
    check_quality("onnx-int8", "m", "accuracy", 0.8, 0.1, None)
    for metric, reference, value in (("perplexity", 20, 21), ("f1", 80, 76), ("f1", 80, float("nan"))):
        with pytest.raises(UserError, match=r"more than --max_quality_loss 0\.049"):
            check_quality("onnx-int8", "m", metric, reference, value, 0.049)


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
    for packages in formats.PACKAGES.values():
        assert packages.items() <= wanted.items()
