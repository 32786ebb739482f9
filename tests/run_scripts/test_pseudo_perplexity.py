import json
import math

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import tokenmixers
from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.pseudo_perplexity import main


TEXTS = ["The gate mixes tokens.", "Tokens", "A mixer mixes mixed tokens, and the gate is open."]
CLASSES = ["GMLPForMaskedLM", "AMLPForMaskedLM", "MLPMixerForMaskedLM", "SynthesizerForMaskedLM", "BertForMaskedLM"]


@pytest.fixture(scope="module")
def tokenizer():
    """Of so few pieces that words have several."""
    return train_unigram_tokenizer(TEXTS * 9, 34, model_max_length=64, show_progress=False)


@pytest.fixture
def checkpoint(tokenizer, tiny_model, randomise, tmp_path):
    """`checkpoint(class_name)`: a masked language model with random weights, and its folder."""

    def save(name="GMLPForMaskedLM", **changes):
        sizes = {"max_position_embeddings": 64, "vocab_size": len(tokenizer), **changes}
        if name == "BertForMaskedLM":
            small = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
            model = randomise(BertForMaskedLM(BertConfig(**sizes, **small))).eval()
        else:
            model = tiny_model(name, **sizes)
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return model, str(tmp_path / "model")

    return save


def slow_scores(model, tokenizer, text, whole_rest=False):
    """One forward pass for every token, by the definition."""
    ids = tokenizer(text)["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    scores = []
    for index in range(1, len(ids) - 1):  # between [CLS] and [SEP]
        masked = list(ids)
        masked[index] = tokenizer.mask_token_id
        following = index + 1
        # A word ends where the next one begins, with a space or a punctuation mark.
        while whole_rest and following < len(ids) - 1 and pieces[following][0] not in "▁.,":
            if pieces[following - 1] in ".,":
                break
            masked[following] = tokenizer.mask_token_id
            following += 1
        with torch.no_grad():
            logits = model(torch.tensor([masked])).logits[0, index].double()
        scores.append((logits[ids[index]] - logits.logsumexp(0)).item())
    return scores


@pytest.mark.fast_cases
@pytest.mark.parametrize("whole_rest", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_scores_of_a_slow_loop(name, whole_rest, checkpoint, tokenizer, tmp_path):
    model, folder = checkpoint(name)
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, "", " "]) + "\n")
    output = tmp_path / "results"
    arguments = ["--within_word_l2r", "true"] if whole_rest else []
    arguments += ["--sentence_scores", "true", "--output_dir", str(output), "--batch_size", "7"]
    found = main(["--model", folder, "--file", str(tmp_path / "texts.txt"), *arguments])

    expected = [slow_scores(model, tokenizer, text, whole_rest) for text in TEXTS]
    assert max(map(len, expected)) > len(TEXTS[2].split()) + 2  # words of several tokens
    total, count = sum(map(sum, expected)), sum(map(len, expected))
    assert found["tokens"] == count and found["words"] == 4 + 1 + 10 and found["texts"] == 3
    assert found["pseudo_log_likelihood"] == pytest.approx(total, rel=1e-5)
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(-total / count), rel=1e-5)
    assert found["word_pseudo_perplexity"] == pytest.approx(math.exp(-total / 15), rel=1e-4)
    written = json.loads((output / "results.json").read_text())
    assert {key: written[key] for key in found} == found
    for row, text, scores in zip(written["scores"], TEXTS, expected, strict=True):
        assert (row["text"], row["tokens"]) == (text, len(scores))
        assert row["pseudo_log_likelihood"] == pytest.approx(sum(scores), rel=1e-5)


def test_minimal_pairs(checkpoint, tokenizer, tmp_path, capsys):
    model, folder = checkpoint()
    pairs = [
        (TEXTS[0], "The gates mixes tokens.", "agreement"),
        ("Tokens", TEXTS[2], "length"),
        (*TEXTS[1:], "length"),
    ]
    rows = [{"sentence_good": good, "sentence_bad": bad, "UID": group} for good, bad, group in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--model", folder, "--pairs", str(tmp_path / "pairs.jsonl"), "--group_column", "UID"]
    found = main([*arguments, "--sentence_scores", "true"])
    right = [
        sum(slow_scores(model, tokenizer, good)) > sum(slow_scores(model, tokenizer, bad)) for good, bad, _ in pairs
    ]
    assert found["pairs"] == 3 and found["accuracy"] == pytest.approx(sum(right) / 3)
    assert found["accuracies"] == {"agreement": float(right[0]), "length": sum(right[1:]) / 2}
    assert "The gates mixes tokens." in capsys.readouterr().out


def test_groups_are_apart_from_the_overall_accuracy(checkpoint, tmp_path, capsys):
    _, folder = checkpoint()
    pairs = [("Tokens", TEXTS[2]), (TEXTS[2], "Tokens"), ("Tokens", TEXTS[0])]
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": group}
        for (good, bad), group in zip(pairs, ["accuracy", "pairs", "a_b"], strict=True)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--pairs", str(tmp_path / "pairs.jsonl"), "--group_column", "UID"]
    found = main(["--model", folder, *arguments, "--output_dir", str(tmp_path / "results")])
    assert found["accuracies"] == {"accuracy": 1.0, "pairs": 0.0, "a_b": 1.0}
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line and not line[0].startswith("-")]
    assert rows == [
        *(["", "value"], ["accuracy", "0.666667"], ["pairs", "3"]),
        *(["UID", "accuracy"], ["accuracy", "1"], ["pairs", "0"], ["a_b", "1"]),
    ]
    written = json.loads((tmp_path / "results" / "results.json").read_text())
    assert {key: written[key] for key in found} == found


def test_special_tokens_of_the_text_are_seen_but_not_scored(checkpoint, tokenizer):
    model, folder = checkpoint()
    text = "The [SEP] gate ☃"
    ids = tokenizer(text)["input_ids"]
    scored = [index for index in range(1, len(ids) - 1) if ids[index] != tokenizer.sep_token_id]
    assert len(scored) == len(ids) - 3 and tokenizer.unk_token_id in [ids[index] for index in scored]
    scores = slow_scores(model, tokenizer, text)  # of the tokens between the first and the last
    found = main(["--model", folder, "--text", text])
    assert found["tokens"] == len(scored)
    assert found["pseudo_log_likelihood"] == pytest.approx(sum(scores[index - 1] for index in scored), rel=1e-5)


BAD = [
    (["--text", "a", "--file", "b.txt"], "give either --text, --file or --pairs"),
    (["--text", "The gate " * 40], r"--text, number 1: the text has \d+ tokens, and the model takes 64: split it"),
    (["--text", "a", "   "], r"--text, number 2: the text '   ' has no words"),
    (["--text", "[SEP]"], r"--text, number 1: the text '\[SEP\]' has no tokens to score"),
    (["--file", "{folder}/empty.txt"], r"empty.txt'\] hold no text"),
    (["--file", "{folder}/blank.txt", "{folder}/number.jsonl"], r"number.jsonl, line 2: the column 'text' must be a"),
    (["--file", "{folder}/binary.txt"], r"binary.txt, line 2: not valid UTF-8 \(byte 0xff\)"),
    (["--file", "{folder}/rows.jsonl"], r"has no column 'text' \(--text_column_names\); it has 'sentence'"),
    (["--pairs", "{folder}/rows.jsonl"], r"line 1: there is no column 'sentence_good';"),
    (["--pairs", "{folder}/blank.jsonl"], r"line 1: the text is empty"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD)
def test_wrong_calls(arguments, sentence, checkpoint, tmp_path):
    _, model = checkpoint()
    files = {"empty.txt": "", "blank.txt": "\n \n", "rows.jsonl": '{"sentence": "a"}'}
    files |= {"number.jsonl": '{"text": null}\n{"text": 3}\n'}
    files["blank.jsonl"] = '{"sentence_good": "", "sentence_bad": "a"}'
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "binary.txt").write_bytes(b"a\n\xff")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match=sentence):
        main(["--model", model, *(argument.format(folder=tmp_path) for argument in arguments)])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("source", ["text", "pairs"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite(value, source, checkpoint, tmp_path):
    model, folder = checkpoint("BertForMaskedLM")
    with torch.no_grad():
        model.cls.predictions.bias[7] = value
    model.save_pretrained(folder)
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "The gate", "sentence_bad": "a"}')
    given = {"text": "The gate", "pairs": str(tmp_path / "pairs.jsonl")}[source]
    with pytest.raises(SystemExit, match=r"(number 1|line 1): .* a log-probability that is not finite"):
        main(["--model", folder, f"--{source}", given, "--output_dir", str(tmp_path / "results")])
    assert not (tmp_path / "results").exists()


def test_models_that_predict_no_masked_tokens(tiny_model, tokenizer, tmp_path):
    with pytest.raises(SystemExit, match=r"there is no folder"):
        main(["--model", str(tmp_path / "nothing"), "--text", "a"])
    decoder = train_unigram_tokenizer(TEXTS * 9, 40, 64, show_progress=False, kind="decoder")
    tiny_model("GMLPForImageClassification").save_pretrained(tmp_path / "images")
    with pytest.raises(SystemExit, match=r"images' (cannot be loaded|has no weights for)(?!.*sentencepiece)"):
        main(["--model", str(tmp_path / "images"), "--text", "a"])
    tiny_model("GMLPForMaskedLM", vocab_size=40).save_pretrained(tmp_path)
    decoder.save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match=r"has no mask token: give a masked language model"):
        main(["--model", str(tmp_path), "--text", "a"])
    tiny_model("GMLPForSequenceClassification", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match=r"has no weights for lm_head\..*: it was not trained for this task"):
        main(["--model", str(tmp_path), "--text", "a"])
    assert tokenmixers.GMLPForMaskedLM.from_pretrained(tmp_path)  # which would have a random head
