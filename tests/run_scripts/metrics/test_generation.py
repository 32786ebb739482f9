"""BLEU and ROUGE against their definitions, written out."""

import importlib
import math
import random
from collections import Counter

import pytest

from tokenmixers.run_scripts.metrics import generation
from tokenmixers.run_scripts.metrics.generation import corpus_bleu, rouge


sacrebleu = pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

WORDS = ["gate", "token", "channel", "cat", "dog", "sun"]  # whole words to Porter's stemmer


def sentences(count: int, seed: int, least: int = 6) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(least, 14))) for _ in range(count)]


def ngrams(text: str, order: int) -> Counter:
    words = text.split()
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def bleu_written_out(predictions: list[str], references: list[list[str]], max_order: int) -> float:
    """Papineni et al. (2002): clipped n-gram precisions, geometric mean, brevity penalty of the closest references."""
    logs = []
    for order in range(1, max_order + 1):
        hits = total = 0
        for prediction, texts in zip(predictions, references, strict=True):
            counts, most = ngrams(prediction, order), Counter()
            for text in texts:
                most |= ngrams(text, order)
            hits += sum((counts & most).values())
            total += sum(counts.values())
        logs.append(math.log(hits / total))
    length = sum(len(text.split()) for text in predictions)
    closest = 0
    for prediction, texts in zip(predictions, references, strict=True):
        own = len(prediction.split())
        closest += min((abs(len(text.split()) - own), len(text.split())) for text in texts)[1]
    return 100 * min(1.0, math.exp(1 - closest / length)) * math.exp(sum(logs) / max_order)


def longest_common_subsequence(first: list[str], second: list[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        previous = 0
        for j, other in enumerate(second, start=1):
            previous, lengths[j] = lengths[j], previous + 1 if word == other else max(lengths[j], lengths[j - 1])
    return lengths[-1]


def f1(shared: int, predicted: int, expected: int) -> float:
    return 2 * shared / (predicted + expected)


@pytest.mark.parametrize("max_order", [1, 4])
@pytest.mark.parametrize("references_each", [1, 3])
def test_bleu_is_its_formula_and_sacrebleu_s_own(max_order, references_each):
    predictions = sentences(40, seed=1)
    streams = [sentences(40, seed=2 + stream) for stream in range(references_each)]
    references = [list(texts) for texts in zip(*streams, strict=True)]
    score, signature = corpus_bleu(predictions, references, max_order)
    assert score == pytest.approx(bleu_written_out(predictions, references, max_order))
    assert f"nrefs:{references_each}|" in signature
    assert "tok:13a" in signature
    if max_order == 4:
        assert score == sacrebleu.corpus_bleu(predictions, streams).score


def test_bleu_penalises_brevity_and_knows_perfection():
    texts = sentences(10, seed=1)
    assert corpus_bleu(texts, [[text] for text in texts])[0] == pytest.approx(100.0)
    halves = [text.rsplit(" ", 2)[0] for text in sentences(10, seed=1, least=8)]
    wholes = [[text] for text in sentences(10, seed=1, least=8)]
    assert corpus_bleu(halves, wholes)[0] == pytest.approx(bleu_written_out(halves, wholes, 4))
    assert corpus_bleu(halves, wholes)[0] < 90


def test_bleu_with_numbers_of_references_that_differ():
    predictions, first, second = (sentences(60, seed) for seed in (1, 2, 3))
    references = [[a, b] if i % 2 else [b] for i, (a, b) in enumerate(zip(first, second, strict=True))]
    assert corpus_bleu(predictions, references)[0] == pytest.approx(bleu_written_out(predictions, references, 4))


def test_bleu_of_characters():
    score, signature = corpus_bleu(["abcde fgh"], [["abcde fgx"]], tokenize="char")
    spaced = corpus_bleu(["a b c d e f g h"], [["a b c d e f g x"]], tokenize="none")[0]
    assert score == pytest.approx(spaced)
    assert "tok:char" in signature
    with pytest.raises(SystemExit, match=r"--bleu_tokenize 'words' is unknown\. Known: none, zh, 13a"):
        corpus_bleu(["a"], [["a"]], tokenize="words")


def test_rouge_is_its_definition():
    predictions, references = sentences(30, seed=1), sentences(30, seed=2)
    scores = rouge(predictions, [[text] for text in references])
    expected = Counter()
    for prediction, reference in zip(predictions, references, strict=True):
        for order in (1, 2):
            a, b = ngrams(prediction, order), ngrams(reference, order)
            expected[f"rouge{order}"] += f1(sum((a & b).values()), sum(a.values()), sum(b.values()))
        a, b = prediction.split(), reference.split()
        expected["rougeL"] += f1(longest_common_subsequence(a, b), len(a), len(b))
    for name, total in expected.items():
        assert scores[name] == pytest.approx(100 * total / 30)
    assert scores["rougeLsum"] == pytest.approx(scores["rougeL"])  # of texts that are one sentence


def test_rouge_stems_ignores_case_and_takes_the_best_reference():
    assert rouge(["The gates mixed"], [["a dog", "the gate mixes"]])["rouge1"] == pytest.approx(100.0)


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_rouge_lsum_compares_sentences_in_any_order(separator):
    first, second = "The gate mixes tokens.", "A cat saw the sun!"
    scores = rouge([f"{first} {second}"], [[f"{second}{separator}{first}"]])
    assert scores["rougeLsum"] == pytest.approx(100.0)
    assert scores["rougeL"] == pytest.approx(100 * 5 / 9)  # of nine words the five of one sentence


@pytest.mark.parametrize(("predictions", "references"), [([], []), (["a"], []), (["a"], [[]])])
def test_examples_must_belong_together(predictions, references):
    for metric in (corpus_bleu, rouge):
        with pytest.raises(ValueError, match="there must be predictions, and references for each"):
            metric(predictions, references)


@pytest.mark.parametrize(("metric", "package"), [(corpus_bleu, "sacrebleu"), (rouge, "rouge_score")])
def test_a_missing_package_is_named(monkeypatch, metric, package):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SystemExit, match=rf"'{package}'.*pip install '\.\[seq2seq\]'"):
        metric(["a"], [["a"]])


def test_nothing_is_imported_before_it_is_needed():
    assert not hasattr(generation, "sacrebleu")
