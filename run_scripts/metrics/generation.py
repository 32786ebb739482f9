"""Metrics of texts: BLEU and ROUGE by the packages that define them (extra `seq2seq`), exact match, perplexity."""

import math
import re
import string
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np


ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+")


def _reference_lists(references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """The right texts of each example.

    Raises:
        ValueError: If one has none.
    """
    lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if not all(lists):
        raise ValueError(f"every prediction needs a reference, but example {lists.index([])} has none.")
    return lists


def sacrebleu(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    use_effective_order: bool = False,
    tokenize: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """BLEU of a corpus: n-gram precision with a penalty for brevity, by sacreBLEU.

    Args:
        predictions: Texts.
        references: The right text of each, or a list of right texts; lists may have different lengths.
        use_effective_order: Whether orders of n-grams without a match are left out, for single sentences.
        tokenize: sacreBLEU's name for how texts become words: "13a" (as mteval-v13a) by default, "intl", "char", ...
        options: `smooth_method`, `smooth_value`, `force`, `lowercase` and `max_ngram_order` of `sacrebleu.BLEU`.

    Returns:
        score: From 0 to 100.
        counts, totals, precisions: Matches, n-grams and their ratio in percent, of each order.
        bp: Penalty for brevity.
        sys_len, ref_len: Words of the predictions and of the references of closest length.
        signature: sacreBLEU's, without which no BLEU can be compared with another.
    """
    from sacrebleu import BLEU

    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"`tokenize={tokenize!r}` is unknown. Known: {', '.join(BLEU.TOKENIZERS)}.")
    lists = _reference_lists(references)
    streams = [[texts[i] if i < len(texts) else None for texts in lists] for i in range(max(map(len, lists)))]
    metric = BLEU(tokenize=tokenize, effective_order=use_effective_order, **options)
    score = metric.corpus_score(predictions, streams)
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    return {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}


def rouge(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    rouge_types: Sequence[str] | None = None,
    use_aggregator: bool = True,
    use_stemmer: bool = False,
    tokenizer: Callable[[str], list[str]] | None = None,
    split_sentences: bool = False,
) -> dict[str, float | list[float]]:
    """ROUGE F1 of texts with their references, averaged over the texts, by rouge-score.

    Args:
        predictions: Texts.
        references: The right text of each, or a list of right texts; the best match counts.
        rouge_types: "rouge1" and other n-grams, "rougeL" (longest common subsequence of the texts), "rougeLsum" (of
            their sentences, each a line); by default "rouge1", "rouge2", "rougeL" and "rougeLsum".
        use_aggregator: Whether to return the mean over all texts; otherwise the list.
        use_stemmer: Whether words lose their English endings (Porter's stemmer).
        tokenizer: A function from text to words; by default runs of letters and digits in lower case.
        split_sentences: Whether sentences end with a full stop, question or exclamation mark before white space, too.
            The rougeLsum is then that of papers on CNN/DailyMail.

    Returns:
        rouge1, rouge2, rougeL, rougeLsum: From 0 to 1, for the types asked for.
    """
    from rouge_score.rouge_scorer import RougeScorer

    def prepare(text: str) -> str:
        return _BETWEEN_SENTENCES.sub("\n", text.strip()) if split_sentences else text

    names = tuple(rouge_types or ROUGE_TYPES)
    scorer = RougeScorer(names, use_stemmer, tokenizer=tokenizer and SimpleNamespace(tokenize=tokenizer))
    pairs = zip(predictions, _reference_lists(references), strict=True)
    scores = [scorer.score_multi(list(map(prepare, texts)), prepare(text)) for text, texts in pairs]
    lists = {name: [score[name].fmeasure for score in scores] for name in names}
    return {name: sum(values) / len(values) for name, values in lists.items()} if use_aggregator else lists


def exact_match(
    predictions: Sequence[str],
    references: Sequence[str],
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> dict[str, float]:
    """Share of texts that are equal to their references, after what is asked to be ignored.

    Args:
        predictions: Texts.
        references: The right text of each.
        regexes_to_ignore: Regular expressions; what they match is deleted, before all else.
        ignore_case: Whether case makes no difference.
        ignore_punctuation: Whether ASCII punctuation is deleted.
        ignore_numbers: Whether the digits 0 to 9 are deleted.

    Returns:
        exact_match: From 0 to 1.
    """
    table = str.maketrans("", "", string.punctuation * ignore_punctuation + string.digits * ignore_numbers)

    def normal(text: str) -> str:
        for regex in regexes_to_ignore or ():
            text = re.sub(regex, "", text)
        return (text.lower() if ignore_case else text).translate(table)

    right = [normal(ours) == normal(theirs) for ours, theirs in zip(predictions, references, strict=True)]
    return {"exact_match": float(np.mean(right))}


def token_perplexity(predictions: Sequence[float], references: Sequence[int]) -> dict[str, float]:
    """Perplexity of a corpus: exp of the mean negative log-likelihood of a token.

    Not the `perplexity` of `evaluate`, which runs a causal model, and averages over texts.

    Args:
        predictions: Summed negative log-likelihood of the tokens of every text, in nats.
        references: Number of these tokens.

    Returns:
        perplexity: Infinity where it is more than a float can hold.
    """
    tokens = sum(references)
    if tokens < 1:
        raise ValueError(f"perplexity needs at least one token, got {tokens} in {len(references)} texts.")
    loss = float(np.sum(predictions)) / tokens
    return {"perplexity": math.exp(loss) if loss <= math.log(sys.float_info.max) else math.inf}
