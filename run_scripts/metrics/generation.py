"""BLEU and ROUGE of generated texts, by the packages that define them: sacreBLEU and rouge-score.

Not by `evaluate`, which downloads its metrics when they are used. Both packages are in the extra `seq2seq`.
"""

import re
from collections.abc import Sequence

from ..base.errors import UserError
from ..base.optional_packages import import_optional


ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+")


def corpus_bleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]], max_order: int = 4, tokenize: str = "13a"
) -> tuple[float, str]:
    """BLEU of a whole corpus.

    Args:
        predictions: One text per example.
        references: The right texts of each example, at least one; examples may have different numbers.
        max_order: Longest n-grams that count.
        tokenize: sacreBLEU's name for how texts become words: "13a" (as mteval-v13a), "intl", "char", "zh", ...

    Returns:
        The score, from 0 to 100, and sacreBLEU's signature, without which no BLEU can be compared with another.

    Raises:
        UserError: If sacreBLEU is not installed, or does not know `tokenize`.
        ValueError: If there is no example, or one has no reference.
    """
    _check_aligned(predictions, references)
    bleu = import_optional("sacrebleu", "seq2seq", "--metric").BLEU
    if tokenize not in bleu.TOKENIZERS:
        raise UserError(f"--bleu_tokenize {tokenize!r} is unknown. Known: {', '.join(bleu.TOKENIZERS)}.")
    most = max(map(len, references))
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    metric = bleu(tokenize=tokenize, max_ngram_order=max_order)
    score = metric.corpus_score(predictions, streams).score
    return score, str(metric.get_signature())


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """ROUGE F1, averaged over the examples, on words in lower case without their English endings (Porter's stemmer).

    Args:
        predictions: One text per example.
        references: The right texts of each example, at least one; the best of them counts.

    Returns:
        In percent: `rouge1` and `rouge2` (shared words and pairs), `rougeL` (longest common subsequence of the texts)
        and `rougeLsum` (of their sentences, which end with a full stop, question or exclamation mark before white
        space, or with a line). The last is the ROUGE-L of papers on CNN/DailyMail.

    Raises:
        UserError: If rouge-score is not installed.
        ValueError: If there is no example, or one has no reference.
    """
    _check_aligned(predictions, references)
    scorer = import_optional("rouge_score.rouge_scorer", "seq2seq", "--metric").RougeScorer(
        ROUGE_TYPES, use_stemmer=True
    )
    scores = [
        scorer.score_multi([_one_sentence_a_line(text) for text in texts], _one_sentence_a_line(prediction))
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return {name: 100.0 * sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE_TYPES}


def _one_sentence_a_line(text: str) -> str:
    return _BETWEEN_SENTENCES.sub("\n", text.strip())


def _check_aligned(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not predictions or len(predictions) != len(references) or not all(references):
        raise ValueError(
            f"there must be predictions, and references for each: got {len(predictions)} predictions, and references "
            f"for {sum(map(bool, references))} of {len(references)} examples."
        )
