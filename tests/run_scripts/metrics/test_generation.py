"""BLEU and ROUGE against their definitions, written out."""

import math
import random
from collections import Counter

import pytest

from tokenmixers.run_scripts.metrics import load_metric
from tokenmixers.run_scripts.run_seq2seq import MetricArguments, score_texts


sacrebleu = pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

WORDS = ["gate", "token", "channel", "cat", "dog", "sun"]  # whole words to Porter's stemmer


def corpus_bleu(predictions, references, max_order: int = 4, tokenize: str = "13a") -> tuple[float, str]:
    options = {"max_ngram_order": max_order, "tokenize": tokenize}
    found = load_metric("sacrebleu").compute(predictions=predictions, references=references, **options)
    return found["score"], found["signature"]


def rouge(predictions, references) -> dict[str, float]:
    """As `run_seq2seq.py` reports it."""
    return score_texts(predictions, references, MetricArguments(metric=["rouge"]))[0]


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
        theirs = sacrebleu.corpus_bleu(predictions, streams)
        ours = load_metric("sacrebleu").compute(predictions=predictions, references=references)
        for name in ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len"):
            assert ours[name] == getattr(theirs, name)


def test_bleu_with_numbers_of_references_that_differ():
    predictions, first, second = (sentences(60, seed) for seed in (1, 2, 3))
    references = [[a, b] if i % 2 else [b] for i, (a, b) in enumerate(zip(first, second, strict=True))]
    assert corpus_bleu(predictions, references)[0] == pytest.approx(bleu_written_out(predictions, references, 4))


def test_bleu_of_characters():
    score, signature = corpus_bleu(["abcde fgh"], [["abcde fgx"]], tokenize="char")
    spaced = corpus_bleu(["a b c d e f g h"], [["a b c d e f g x"]], tokenize="none")[0]
    assert score == pytest.approx(spaced)
    assert "tok:char" in signature
    with pytest.raises(ValueError, match=r"`tokenize='words'` is unknown\. Known: none, zh, 13a"):
        corpus_bleu(["a"], [["a"]], tokenize="words")
    with pytest.raises(SystemExit, match=r"--bleu_tokenize 'words' is unknown\. Known: none, zh, 13a"):
        score_texts(["a"], [["a"]], MetricArguments(bleu_tokenize="words"))


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


def test_rouge_is_a_mean_of_fractions_without_stemmer():
    predictions, references = ["the gates", "a cat saw"], [["the gate"], ["a cat", "the dog"]]
    metric = load_metric("rouge")
    each = {"rouge1": [1 / 2, 4 / 5], "rouge2": [0.0, 2 / 3], "rougeL": [1 / 2, 4 / 5], "rougeLsum": [1 / 2, 4 / 5]}
    found = metric.compute(predictions=predictions, references=references, use_aggregator=False)
    assert found == {name: pytest.approx(values) for name, values in each.items()}
    found = metric.compute(predictions=predictions, references=references)
    assert found == {name: pytest.approx(sum(values) / 2) for name, values in each.items()}


@pytest.mark.parametrize("name", ["sacrebleu", "rouge"])
def test_every_prediction_needs_a_reference(name):
    with pytest.raises(ValueError, match="every prediction needs a reference, but example 1 has none"):
        load_metric(name).compute(predictions=["a", "b"], references=[["a"], []])


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities():
    probabilities = [[0.5, 0.1, 0.25], [0.125], [0.9, 0.3]]
    losses = [sum(-math.log(p) for p in row) for row in probabilities]
    product = math.prod(p for row in probabilities for p in row)
    scores = load_metric("token_perplexity").compute(predictions=losses, references=[3, 1, 2])
    assert scores == {"perplexity": pytest.approx(product ** (-1 / 6))}


def test_what_no_float_holds_is_infinite():
    metric = load_metric("token_perplexity")
    assert metric.compute(predictions=[1e5], references=[2]) == {"perplexity": math.inf}
    for loss in (699.0, 709.7):  # the largest number is e^709.78
        assert metric.compute(predictions=[loss], references=[1]) == {"perplexity": pytest.approx(math.exp(loss))}
    assert metric.compute(predictions=[709.8], references=[1]) == {"perplexity": math.inf}
    with pytest.raises(ValueError, match="needs at least one token, got 0 in 2 texts"):
        metric.compute(predictions=[0.0, 0.0], references=[0, 0])
