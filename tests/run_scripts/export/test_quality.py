"""Whether an export answers as the checkpoint does: its values, and the metrics of its task on the user's data."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image

from tokenmixers.run_scripts import export
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.exports.quality import (
    answered_by,
    check_quality,
    check_values,
    compare,
    evaluate,
    quality_loss,
)
from tokenmixers.run_scripts.exports.tasks import find_task
from tokenmixers.run_scripts.training.trial_step import try_arguments


exporting = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra export",
)


@pytest.fixture
def labelled(checkpoint, tokenizer, tmp_path, words):
    """A classifier and rows, labelled as it answers them itself."""
    folder, model = checkpoint("GMLPForSequenceClassification", num_labels=2)
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, draw.integers(2, 9))) for _ in range(40)]
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
def test_quality_on_the_users_file(labelled, tmp_path, run):
    folder, file = labelled
    results = run(folder, tmp_path / "out", "--validation_file", str(file), "--max_quality_loss", "0.2")
    for result in results:
        assert (result["metric"], result["pytorch"]) == ("accuracy", 1.0)
        assert result["quality"] >= 0.8
    assert results[0]["quality"] == 1.0


@pytest.mark.parametrize(("metric", "shown"), [(None, "cosine -1.0000"), ("accuracy", "see the metric")])
def test_int8_has_a_metric_or_a_cosine(metric, shown, tmp_path, capsys):
    """The logits of a text may point in opposite directions near 0, although all answers agree."""
    result = {"format": "onnx-int8", "file": "model_quantized.onnx", "bytes": 1e6, "difference": 2.0, "cosine": -1.0}
    result |= {"milliseconds": 1.0, "pytorch_milliseconds": 2.0}
    if metric is not None:
        result |= {"metric": metric, "pytorch": 0.75, "quality": 0.75}
    export.report([result], tmp_path)
    printed = capsys.readouterr().out
    assert shown in printed and ("cosine" in printed) == (metric is None)


EVALUATED = {
    "GMLPForMaskedLM": ({}, "perplexity"),
    "AMLPForCausalLM": ({}, "perplexity"),
    "GMLPForTokenClassification": ({"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}, "f1"),
    "GMLPForQuestionAnswering": ({}, "f1"),
    "GMLPForImageClassification": ({"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}, "accuracy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_the_command_of_every_task_evaluates_a_program(name, checkpoint, tmp_path, words):
    changes, metric = EVALUATED[name]
    folder, model = checkpoint(name, **changes)
    lines = [" ".join(words[start : start + 6]) for start in range(7)]
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
def test_wrong_data_are_named_with_the_option_of_export(name, checkpoint, tmp_path, run):
    folder, _ = checkpoint(name)
    with pytest.raises(UserError, match=r"^error: (?!error).*missing") as caught:
        run(folder, tmp_path / "out", "--validation_file", str(tmp_path / "missing"))
    assert "--validation_dir" not in str(caught.value)


@exporting
@pytest.mark.slow
def test_a_format_below_the_bound_is_refused_and_nothing_is_written(labelled, tmp_path, monkeypatch, run):
    folder, file = labelled
    write = export.write

    def turn(graph, kind, path):  # a broken format: the signs of the logits are exchanged
        import onnx_ir

        for value in graph.graph.initializers.values():
            if kind == "onnx-int8" and value.shape == (2,) and value.dtype == onnx_ir.DataType.FLOAT:
                value.const_value = onnx_ir.tensor(np.array([-1e3, 1e3], dtype=np.float32))
        write(graph, kind, path)

    monkeypatch.setattr(export, "write", turn)
    with pytest.raises(UserError, match=r"in the format 'onnx-int8' has accuracy 0\.\d+ .* more than"):
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
