"""Metrics of texts: BLEU and ROUGE by the packages that define them (extra `seq2seq`), and perplexity."""

import math
import re
import sys
from collections.abc import Sequence
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
    tokenize: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """BLEU of a corpus: n-gram precision with a penalty for brevity, by sacreBLEU.

    Args:
        predictions: Texts.
        references: The right text of each, or a list of right texts; lists may have different lengths.
        tokenize: sacreBLEU's name for how texts become words: "13a" (as mteval-v13a) by default, "intl", "char", ...
        options: Further arguments of `sacrebleu.BLEU`, such as `max_ngram_order`.

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
    metric = BLEU(tokenize=tokenize, **options)
    score = metric.corpus_score(predictions, streams)
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    return {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}


def rouge(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    use_aggregator: bool = True,
    use_stemmer: bool = False,
    split_sentences: bool = False,
) -> dict[str, float | list[float]]:
    """ROUGE F1 of texts with their references, averaged over the texts, by rouge-score.

    Args:
        predictions: Texts.
        references: The right text of each, or a list of right texts; the best match counts.
        use_aggregator: Whether to return the mean over all texts; otherwise the list.
        use_stemmer: Whether words lose their English endings (Porter's stemmer).
        split_sentences: Whether sentences end with a full stop, question or exclamation mark before white space, too.
            The rougeLsum is then that of papers on CNN/DailyMail.

    Returns:
        rouge1, rouge2, rougeL, rougeLsum: From 0 to 1; of words, pairs of words, the longest common subsequence of the
            texts, and that of their sentences, each a line.
    """
    from rouge_score.rouge_scorer import RougeScorer

    def prepare(text: str) -> str:
        return _BETWEEN_SENTENCES.sub("\n", text.strip()) if split_sentences else text

    scorer = RougeScorer(ROUGE_TYPES, use_stemmer)
    pairs = zip(predictions, _reference_lists(references), strict=True)
    scores = [scorer.score_multi(list(map(prepare, texts)), prepare(text)) for text, texts in pairs]
    lists = {name: [score[name].fmeasure for score in scores] for name in ROUGE_TYPES}
    return {name: sum(values) / len(values) for name, values in lists.items()} if use_aggregator else lists


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
