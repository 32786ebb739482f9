"""lm-evaluation-harness on this package's models, against log-likelihoods of one sequence at a time."""

import functools
import json
import math
import re
import subprocess
import sys

import pytest
import torch

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.base.shipped_files import LM_EVAL_TASKS
from tokenmixers.run_scripts.lm_eval import main


TEXTS = [
    "The gate mixes the tokens of a sentence, and the next gate mixes them again until the last one has them all.",
    "A mixer mixes.",
    "Tokens and gates are mixed",
]
LENGTH = 12  # shorter than the first text
DECODERS = ["GMLPForCausalLM", "AMLPForCausalLM", "SynthesizerForCausalLM"]


@pytest.fixture(autouse=True)
def _harness(monkeypatch):
    """The harness without its own tasks, of which it reads thousands, and without standard errors by resampling."""
    tasks = pytest.importorskip("lm_eval.tasks", reason="needs the extra eval")
    monkeypatch.setattr(tasks, "TaskManager", functools.partial(tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr("lm_eval.api.metrics.bootstrap_stderr", lambda *_, **__: 0.0)


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    """`checkpoint(class_name)`: a model, its tokenizer and the folder that both were saved in."""

    def save(name):
        kind = "encoder-decoder" if "Conditional" in name else "decoder"
        sentinels = {"num_sentinels": 2} if kind == "encoder-decoder" else {}
        tokenizer = train_unigram_tokenizer(TEXTS * 9, 60, 64, show_progress=False, kind=kind, **sentinels)
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": LENGTH}
        model = tiny_model(name, **sizes, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return model, tokenizer, tmp_path / "model"

    return save


@pytest.fixture
def evaluate(tmp_path):
    """`evaluate(folder, task, rows, model_args)`: metrics, and the answers for every document in order."""

    def run(folder, task, rows, model_args=""):
        file = tmp_path / "data.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        arguments = ["--model", "hf", "--model_args", f"pretrained={folder}{model_args}", "--device", "cpu"]
        arguments += ["--tasks", task, "--metadata", json.dumps({"file": str(file)}), "--batch_size", "3"]
        main([*arguments, "--output_path", str(tmp_path / "output"), "--log_samples"])
        [results] = (tmp_path / "output").rglob("results_*.json")
        [samples] = (tmp_path / "output").rglob("samples_*.jsonl")
        lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
        return json.loads(results.read_text())["results"][task], [line["filtered_resps"] for line in lines]

    return run


def log_likelihood(model, inputs, count):
    """The log-probability of the last `count` of these ids, all given those before them."""
    with torch.no_grad():
        predicted = model(torch.tensor([inputs[:-1]])).logits[0].double().log_softmax(-1)
    return sum(
        predicted[position - 1, inputs[position]].item() for position in range(len(inputs) - count, len(inputs))
    )


def rolling(model, tokenizer, text):
    """A text in windows of as many tokens as the model takes, each predicted once, with as much context as fits."""
    ids = [tokenizer.eos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    total = 0.0
    for start in range(1, len(ids), LENGTH):
        end = min(start + LENGTH, len(ids))
        total += log_likelihood(model, ids[max(0, end - LENGTH - 1) : end], end - start)
    return total


@pytest.mark.parametrize("name", DECODERS)
def test_perplexity_of_texts_longer_than_the_model(name, checkpoint, evaluate):
    model, tokenizer, folder = checkpoint(name)
    assert len(tokenizer(TEXTS[0])["input_ids"]) > 2 * LENGTH
    found, answers = evaluate(folder, "local_perplexity", [{"text": text} for text in TEXTS])
    expected = [rolling(model, tokenizer, text) for text in TEXTS]
    assert [float(answer[0]) for answer in answers] == pytest.approx(expected, rel=1e-5)
    words = sum(len(text.split()) for text in TEXTS)
    assert found["word_perplexity,none"] == pytest.approx(math.exp(-sum(expected) / words), rel=1e-4)
    characters = sum(map(len, TEXTS))  # ASCII
    assert found["bits_per_byte,none"] == pytest.approx(-sum(expected) / characters / math.log(2), rel=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_last_words_in_padded_batches(name, checkpoint, evaluate):
    model, tokenizer, folder = checkpoint(name)
    texts = [*TEXTS, TEXTS[0][:30], TEXTS[0][:50]]
    written = [texts[0] + " ", f" {texts[1]}", texts[2].replace(" are mixed", " are\t mixed\n"), *texts[3:]]
    found, answers = evaluate(folder, "local_last_word", [{"text": text} for text in written])
    expected = []
    for text in texts:
        context = tokenizer(text.rpartition(" ")[0])["input_ids"]
        ids = tokenizer(text)["input_ids"]
        expected.append(log_likelihood(model, ids[-LENGTH - 1 :], len(ids) - len(context)))
    assert [float(answer[0][0]) for answer in answers] == pytest.approx(expected, rel=1e-5)
    assert found["perplexity,none"] == pytest.approx(math.exp(-sum(expected) / len(texts)), rel=1e-4)


def test_multiple_choice(checkpoint, evaluate):
    model, tokenizer, folder = checkpoint("GMLPForCausalLM")
    choices = ["the tokens", "a sentence again", "gates"]
    rows = [
        {"question": "The gate mixes", "choices": choices, "answer": 2},
        {"question": "A", "choices": choices, "answer": 0},
    ]
    found, answers = evaluate(folder, "local_choices", rows)
    right = []
    for row, scores in zip(rows, answers, strict=True):
        start = len(tokenizer(row["question"])["input_ids"])
        ids = [tokenizer(f"{row['question']} {choice}")["input_ids"] for choice in choices]
        expected = [log_likelihood(model, one[-LENGTH - 1 :], len(one) - start) for one in ids]
        assert [float(score[0]) for score in scores] == pytest.approx(expected, rel=1e-5)
        right.append(max(range(3), key=expected.__getitem__) == row["answer"])
    assert found["acc,none"] == sum(right) / 2


def test_minimal_pairs(checkpoint, evaluate):
    model, tokenizer, folder = checkpoint("AMLPForCausalLM")
    pairs = [("The gate mixes.", "The gate mix."), ("A mixer", "A mixers")]
    rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
    found, answers = evaluate(folder, "local_minimal_pairs", rows)
    expected = [[rolling(model, tokenizer, text) for text in pair] for pair in pairs]
    assert [[float(score[0]) for score in scores] for scores in answers] == [
        pytest.approx(pair, rel=1e-5) for pair in expected
    ]
    assert found["acc,none"] == sum(good > bad for good, bad in expected) / 2


def test_encoder_decoders(checkpoint, evaluate):
    model, tokenizer, folder = checkpoint("SynthesizerForConditionalGeneration")
    texts = ["The gate mixes tokens", "A mixer", "Tokens and gates"]
    _, answers = evaluate(folder, "local_last_word", [{"text": text} for text in texts], ",backend=seq2seq")
    for text, answer in zip(texts, answers, strict=True):
        context, _, word = text.rpartition(" ")
        labels = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(context)["input_ids"]]), labels=torch.tensor([labels])).logits[0]
        predicted = logits.double().log_softmax(-1)
        expected = sum(predicted[index, label].item() for index, label in enumerate(labels))
        assert float(answer[0][0]) == pytest.approx(expected, rel=1e-5)


def test_texts_begin_after_cls_without_bos_and_eos(checkpoint, evaluate):
    model, tokenizer, folder = checkpoint("GMLPForCausalLM")
    tokenizer = train_unigram_tokenizer(TEXTS * 9, 60, 64, show_progress=False)
    tokenizer.save_pretrained(folder)
    _, answers = evaluate(folder, "local_perplexity", [{"text": TEXTS[1]}], ",add_bos_token=False")
    ids = [tokenizer.cls_token_id, *tokenizer(TEXTS[1], add_special_tokens=False)["input_ids"]]
    assert len(ids) <= LENGTH + 1
    assert float(answers[0][0]) == pytest.approx(log_likelihood(model, ids, len(ids) - 1), rel=1e-5)
    tokenizer.cls_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        SystemExit, match=r"^error: the tokenizer has neither BOS nor EOS nor \[CLS\].* prefix_token_id=ID"
    ):
        evaluate(folder, "local_perplexity", [{"text": TEXTS[1]}])


@pytest.mark.slow
def test_the_program_itself_with_the_code_of_the_checkpoint(checkpoint, tmp_path):
    model, tokenizer, folder = checkpoint("GMLPForCausalLM")
    (tmp_path / "held_out.txt").write_text("\n".join(TEXTS))
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--tasks", "local_perplexity"]
    command += ["--model_args", f"pretrained={folder},trust_remote_code=True", "--include_path", str(LM_EVAL_TASKS)]
    command += ["--metadata", json.dumps({"file": str(tmp_path / "held_out.txt")})]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    [value] = re.findall(r"word_perplexity *\|[^|]*\| *([\d.]+)", process.stdout)
    expected = sum(rolling(model, tokenizer, text) for text in TEXTS)
    words = sum(len(text.split()) for text in TEXTS)
    assert float(value) == pytest.approx(math.exp(-expected / words), rel=1e-3)


FILES = {
    "a.jsonl": '{"b": 1}',
    "a.txt": "\n \n",
    "number.jsonl": '{"text": null}\n{"text": 3}',
    "range.jsonl": '{"question": "A", "choices": ["b", "c"], "answer": 2}',
    "list.csv": "question,choices,answer\nA,b c,0\n",
}


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (None, "name it with --metadata"),
        ("a.jsonl", "has no column 'text'; this task needs text"),
        ("a.txt", "has no rows"),
        ("number.jsonl", "number.jsonl, line 2: text is 3 instead of text"),
        ("range.jsonl", "line 1: answer is 2 instead of the index of one of the 2 choices, counted from 0"),
        ("list.csv", "line 2: choices is 'b c' instead of a list of texts"),
    ],
)
def test_wrong_files(file, sentence, checkpoint, tmp_path):
    _, _, folder = checkpoint("GMLPForCausalLM")
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    task = "local_choices" if "answer" in FILES.get(file, "") else "local_perplexity"
    metadata = {} if file is None else {"file": str(tmp_path / file)}
    with pytest.raises(SystemExit, match=f"^error: .*{sentence}"):
        main([*arguments_for(folder, task), "--metadata", json.dumps(metadata)])


def arguments_for(folder, task):
    return ["--model", "hf", "--model_args", f"pretrained={folder}", "--device", "cpu", "--tasks", task]


def test_wrong_models_and_tasks(checkpoint, tiny_model, tmp_path):
    _, tokenizer, folder = checkpoint("GMLPForCausalLM")
    (tmp_path / "a.txt").write_text("a b")
    metadata = ["--metadata", json.dumps({"file": str(tmp_path / "a.txt")})]
    with pytest.raises(SystemExit, match=r"^error: Tasks not found: none"):
        main([*arguments_for(folder, "none"), *metadata])
    tiny_model("GMLPForMaskedLM", vocab_size=len(tokenizer)).save_pretrained(folder)
    with pytest.raises(SystemExit, match=r"^error: GMLPForCausalLM needs .* a decoder"):
        main([*arguments_for(folder, "local_perplexity"), *metadata])
    with pytest.raises(SystemExit, match=r"^error: .*nothing"):
        main([*arguments_for(tmp_path / "nothing", "local_perplexity"), *metadata])


def test_models_without_a_head_are_refused(checkpoint, evaluate):
    model, _, folder = checkpoint("GMLPForCausalLM")
    model.config.tie_word_embeddings = False
    model.base_model.save_pretrained(folder)
    with pytest.raises(SystemExit, match=r"model' has no weights for .*: it was not trained for this task"):
        evaluate(folder, "local_perplexity", [{"text": "a"}])


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit, match=r"^error: this command needs lm_eval, which cannot be imported.*eval"):
        main(["ls", "tasks"])
