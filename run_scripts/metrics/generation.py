"""Metrics of generated texts: BLEU and ROUGE by the packages that define them (extra `seq2seq`), and exact match."""

import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from .local_metric import LocalMetric


ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+")


def _texts(several_references: bool) -> datasets.Features:
    text = datasets.Value("string")
    references = datasets.Sequence(text) if several_references else text
    return datasets.Features({"predictions": text, "references": references})


def _reference_lists(references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """The right texts of each example.

    Raises:
        ValueError: If one has none.
    """
    lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if not all(lists):
        raise ValueError(f"every prediction needs a reference, but example {lists.index([])} has none.")
    return lists


class Sacrebleu(LocalMetric):
    """BLEU of a whole corpus, by sacreBLEU."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="BLEU of a corpus: n-gram precision with a penalty for brevity, by sacreBLEU.",
            citation="""@inproceedings{post-2018-call,
  title={A Call for Clarity in Reporting {BLEU} Scores},
  author={Post, Matt},
  booktitle={Proceedings of the Third Conference on Machine Translation: Research Papers},
  year={2018}
}
""",
            inputs_description="""
Args:
    predictions: Texts.
    references: The right text of each, or a list of right texts; lists may have different lengths.
    smooth_method: "exp", "floor", "add-k" or "none".
    smooth_value: For "floor" and "add-k"; sacreBLEU's default by default.
    force: Whether to be silent about texts that look tokenized.
    lowercase: Whether case makes no difference.
    tokenize: sacreBLEU's name for how texts become words: "13a" (as mteval-v13a) by default, "intl", "char", "zh", ...
    use_effective_order: Whether orders of n-grams without a match are left out, for single sentences.
    max_ngram_order: Longest n-grams that count, 4 by default.

Returns:
    score: From 0 to 100.
    counts, totals, precisions: Matches, n-grams and their ratio in percent, of each order.
    bp: Penalty for brevity.
    sys_len, ref_len: Words of the predictions and of the references of closest length.
    signature: sacreBLEU's, without which no BLEU can be compared with another.
""",
            features=[_texts(True), _texts(False)],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]],
        use_effective_order: bool = False,
        tokenize: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        from sacrebleu import BLEU

        if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
            raise ValueError(f"`tokenize={tokenize!r}` is unknown. Known: {', '.join(BLEU.TOKENIZERS)}.")
        lists = _reference_lists(references)
        streams = [[texts[i] if i < len(texts) else None for texts in lists] for i in range(max(map(len, lists)))]
        metric = BLEU(tokenize=tokenize, effective_order=use_effective_order, **options)
        score = metric.corpus_score(predictions, streams)
        names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
        return {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}


class Rouge(LocalMetric):
    """ROUGE F1, by rouge-score."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="ROUGE F1 of texts with their references, averaged over the texts, by rouge-score.",
            citation="""@inproceedings{lin-2004-rouge,
  title={{ROUGE}: A Package for Automatic Evaluation of Summaries},
  author={Lin, Chin-Yew},
  booktitle={Text Summarization Branches Out},
  year={2004}
}
""",
            inputs_description="""
Args:
    predictions: Texts.
    references: The right text of each, or a list of right texts, of which the best counts.
    rouge_types: "rouge1" and other n-grams, "rougeL" (longest common subsequence of the texts), "rougeLsum" (of their
        sentences, each a line); by default "rouge1", "rouge2", "rougeL" and "rougeLsum".
    use_aggregator: Whether to return the mean over all texts; otherwise the list.
    use_stemmer: Whether words lose their English endings (Porter's stemmer).
    tokenizer: A function from text to words; by default runs of letters and digits in lower case.
    split_sentences: Whether sentences end with a full stop, question or exclamation mark before white space, too. The
        rougeLsum is then that of papers on CNN/DailyMail.

Returns:
    rouge1, rouge2, rougeL, rougeLsum: From 0 to 1, for the types asked for.
""",
            features=[_texts(True), _texts(False)],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]],
        rouge_types: Sequence[str] | None = None,
        use_aggregator: bool = True,
        use_stemmer: bool = False,
        tokenizer: Callable[[str], list[str]] | None = None,
        split_sentences: bool = False,
    ) -> dict[str, float | list[float]]:
        from rouge_score.rouge_scorer import RougeScorer

        names = tuple(rouge_types or ROUGE_TYPES)
        scorer = RougeScorer(names, use_stemmer, tokenizer=tokenizer and _Tokenizer(tokenizer))
        prepare = _one_sentence_a_line if split_sentences else str
        pairs = zip(predictions, _reference_lists(references), strict=True)
        scores = [scorer.score_multi(list(map(prepare, texts)), prepare(text)) for text, texts in pairs]
        lists = {name: [score[name].fmeasure for score in scores] for name in names}
        return {name: sum(values) / len(values) for name, values in lists.items()} if use_aggregator else lists


class _Tokenizer:
    """What rouge-score takes for a tokenizer."""

    def __init__(self, function: Callable[[str], list[str]]):
        self.tokenize = function


def _one_sentence_a_line(text: str) -> str:
    return _BETWEEN_SENTENCES.sub("\n", text.strip())


class ExactMatch(LocalMetric):
    """Share of texts that are equal to their references."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Share of texts that are equal to their references, after what is asked to be ignored.",
            citation="",
            inputs_description="""
Args:
    predictions: Texts.
    references: The right text of each.
    regexes_to_ignore: Regular expressions; what they match is deleted, before all else.
    ignore_case: Whether case makes no difference.
    ignore_punctuation: Whether ASCII punctuation is deleted.
    ignore_numbers: Whether the digits 0 to 9 are deleted.

Returns:
    exact_match: From 0 to 1.
""",
            features=_texts(False),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        regexes_to_ignore: Sequence[str] | None = None,
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
        ignore_numbers: bool = False,
    ) -> dict[str, float]:
        deleted = string.punctuation * ignore_punctuation + string.digits * ignore_numbers
        table = str.maketrans("", "", deleted)

        def normal(text: str) -> str:
            for regex in regexes_to_ignore or ():
                text = re.sub(regex, "", text)
            return (text.lower() if ignore_case else text).translate(table)

        right = [normal(ours) == normal(theirs) for ours, theirs in zip(predictions, references, strict=True)]
        return {"exact_match": float(np.mean(right))}
