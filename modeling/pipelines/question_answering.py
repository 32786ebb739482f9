"""Extractive question answering: split contexts into windows and select the best spans of all windows.

Transformers no longer has this pipeline. Question answering checkpoints include this module, so it imports no other
module of the package; `pipeline("question-answering", ..., trust_remote_code=True)` loads it. `run_qa.py` uses the
same functions.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline


#: The score of a context in which no token can be an answer: finite, because JSON has no infinity.
LOWEST_SCORE = float(np.finfo(np.float32).min)


#: Characters of scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Japanese and Chinese.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)


class Window(NamedTuple):
    """The model's scores for a part of the context.

    Attributes:
        start_logits: Shape `(length,)`.
        end_logits: Shape `(length,)`.
        offsets: Start and end of each token in the context, in characters, shape `(length, 2)`. Empty where answers
            cannot start or end: in the question, special tokens and padding.
        null_position: Index of the token that represents "no answer".
    """

    start_logits: np.ndarray
    end_logits: np.ndarray
    offsets: np.ndarray
    null_position: int


class Span(NamedTuple):
    """A possible answer, `context[start:end]`.

    Attributes:
        score: Sum of its start and end logits.
        probability: Softmax over all pairs of a start and an end in the same window, for all windows. For a single
            window, it is the product of the softmax probabilities of start and end over context and null token.
        start: First character.
        end: Index after the last character.
    """

    score: float
    probability: float
    start: int
    end: int


# --- windows -----------------------------------------------------------------------------------------------------


def encode_windows(
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[str],
    max_seq_len: int,
    doc_stride: int,
    max_question_len: int,
    align_to_words: bool = True,
) -> dict[str, list]:
    """Tokenize each question with its context, in as many overlapping windows as the context needs.

    The question comes first for both padding sides of the tokenizer.

    Args:
        tokenizer: A fast tokenizer.
        questions: One for each context.
        contexts: The texts to find answers in.
        max_seq_len: Maximum number of tokens of a window: question, part of the context and special tokens.
        doc_stride: Number of tokens that a window shares with the previous one.
        max_question_len: Longer questions are truncated to this number of tokens.
        align_to_words: Whether to replace a token's offsets by those of its word, so that answers are whole words.

    Returns:
        One row for each window: the model's inputs, and
        `offsets`: `[start, end)` of each token in the context, in characters, without surrounding spaces; `[0, 0]`
        where no answer can start or end;
        `null_position`: index of the token that represents "no answer": `[CLS]`, otherwise the first token;
        `example`: index of its question.

    Raises:
        ValueError: If the tokenizer is not fast, or the sizes leave no room for the context.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} has no offsets of its tokens in the text: question answering needs a fast "
            "tokenizer."
        )
    room = max_seq_len - tokenizer.num_special_tokens_to_add(pair=True) - max_question_len
    if max_question_len < 1 or not 0 <= doc_stride < room:
        raise ValueError(
            f"`max_seq_len={max_seq_len}` with `max_question_len={max_question_len}` leaves {room} tokens per window "
            f"for the context. This must be more than `doc_stride={doc_stride}`, which must be at least 0."
        )
    encoded = tokenizer(
        [_shorten(tokenizer, question.strip(), max_question_len) for question in questions],
        list(contexts),
        truncation="only_second",
        max_length=max_seq_len,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    examples = encoded["overflow_to_sample_mapping"]
    rows = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    offsets = [
        _context_offsets(contexts[example], encoded["offset_mapping"][window], encoded.sequence_ids(window))
        for window, example in enumerate(examples)
    ]
    if align_to_words:
        words = [encoded.word_ids(window) for window in range(len(examples))]
        offsets = _extended_to_words(offsets, words, examples, contexts)
    rows["offsets"] = offsets
    cls = tokenizer.cls_token_id
    rows["null_position"] = [ids.index(cls) if cls in ids else 0 for ids in encoded["input_ids"]]
    rows["example"] = list(examples)
    return rows


def _shorten(tokenizer: PreTrainedTokenizerBase, text: str, max_tokens: int) -> str:
    while True:  # a text truncated at the end of a token may give more tokens than before
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
            "offset_mapping"
        ]
        if len(offsets) <= max_tokens:
            return text
        text = text[: min(offsets[max_tokens - 1][1], len(text) - 1)]


def _context_offsets(context: str, offsets: list[tuple[int, int]], sequences: list[int | None]) -> list[list[int]]:
    visible = []
    for (start, end), sequence in zip(offsets, sequences, strict=True):
        text = context[start:end] if sequence == 1 else ""
        start += len(text) - len(text.lstrip())
        visible.append([start, start + len(text.strip())] if text.strip() else [0, 0])
    return visible


def _extended_to_words(
    offsets: list[list[list[int]]], words: list[list[int | None]], examples: list[int], contexts: Sequence[str]
) -> list[list[list[int]]]:
    """Replace the offsets of each token by those of its word, parts of which may be in another window."""
    extents: dict[tuple[int, int | None], list[int]] = {}
    for window, window_words, example in zip(offsets, words, examples, strict=True):
        for (start, end), word in zip(window, window_words, strict=True):
            if end > start:
                first, last = extents.setdefault((example, word), [start, end])
                extents[example, word] = [min(start, first), max(end, last)]
    # For tokenizers that do not split at spaces, a whole text is one word.
    borders = {
        key: _borders(extent, contexts[key[0]])
        for key, extent in extents.items()
        if len(contexts[key[0]][slice(*extent)].split()) == 1
    }
    return [
        [
            _extended(own, borders.get((example, word), own)) if own[1] > own[0] else own
            for own, word in zip(window, window_words, strict=True)
        ]
        for window, window_words, example in zip(offsets, words, examples, strict=True)
    ]


def _borders(word: list[int], context: str) -> list[int]:
    """Start and end of a word and of its characters from scripts without spaces, in order."""
    inner = (place for found in WITHOUT_SPACES.finditer(context, *word) for place in found.span())
    return sorted({*word, *inner})


def _extended(own: list[int], borders: list[int]) -> list[int]:
    """The offsets of a token's word, or of its part between characters of scripts without spaces."""
    start, end = own
    return [borders[bisect_right(borders, start) - 1], borders[bisect_left(borders, end)]]


def answer_tokens(offsets: Sequence[Sequence[int]], start: int, end: int) -> tuple[int, int] | None:
    """The tokens of an answer in a window.

    Args:
        offsets: Offsets of one window, from `encode_windows`.
        start: Index of the answer's first character, which is not a space.
        end: Index after its last character, which is not a space.

    Returns:
        Indices of the first and last token; `None` if the answer is not completely in the window.
    """
    touched = [i for i, (first, behind) in enumerate(offsets) if behind > start and first < end]
    if not touched or offsets[touched[0]][0] > start or offsets[touched[-1]][1] < end:
        return None
    return touched[0], touched[-1]


# --- spans -------------------------------------------------------------------------------------------------------


def select_spans(windows: Sequence[Window], n_best: int, max_answer_len: int) -> tuple[list[Span], Span]:
    """Select the best spans from all windows of a question.

    Args:
        windows: At least one.
        n_best: Maximum number of spans to return.
        max_answer_len: Maximum number of tokens of a span.

    Returns:
        Distinct spans with the highest scores, best first (none if no token can be an answer), and "no answer", an
        empty span with the lowest null score of all windows, because a high one only says that its window has no
        answer.
    """
    scores: dict[tuple[int, int], float] = {}
    null_scores, log_totals = [], []
    for window in windows:
        starts = np.asarray(window.start_logits, dtype=np.float64)
        ends = np.asarray(window.end_logits, dtype=np.float64)
        offsets = np.asarray(window.offsets)
        null = window.null_position
        null_scores.append(starts[null] + ends[null])
        possible = offsets[:, 1] > offsets[:, 0]
        counted = possible.copy()
        counted[null] = True
        log_totals.append(np.logaddexp.reduce(starts[counted]) + np.logaddexp.reduce(ends[counted]))
        _add_best(
            scores,
            np.where(possible, starts, -np.inf),
            np.where(possible, ends, -np.inf),
            offsets,
            n_best,
            max_answer_len,
        )
    log_total = np.logaddexp.reduce(log_totals)
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:n_best]
    spans = [Span(scores[span], float(np.exp(scores[span] - log_total)), *span) for span in best]
    null_score = float(min(null_scores))
    return spans, Span(null_score, float(np.exp(null_score - log_total)), 0, 0)


def _add_best(
    scores: dict[tuple[int, int], float],
    starts: np.ndarray,
    ends: np.ndarray,
    offsets: np.ndarray,
    n_best: int,
    max_answer_len: int,
) -> None:
    """Add a window's best spans to `scores`; several pairs of tokens may cover the same characters."""
    padded = np.concatenate([ends, np.full(max_answer_len - 1, -np.inf)])
    # Row i, column d: from token i to token i + d.
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, max_answer_len)
    found: set[tuple[int, int]] = set()
    for index in np.argsort(-sums, axis=None, kind="stable"):
        first, more = divmod(int(index), max_answer_len)
        if len(found) == n_best or sums[first, more] == -np.inf:
            return
        span = int(offsets[first, 0]), int(offsets[first + more, 1])
        found.add(span)
        scores[span] = max(float(sums[first, more]), scores.get(span, -np.inf))


def null_odds(spans: list[Span], null: Span) -> float:
    """Score of "no answer" minus that of the best span; above a threshold, no answer is given."""
    return null.score - (spans[0].score if spans else LOWEST_SCORE)


# --- the pipeline ------------------------------------------------------------------------------------------------


class QuestionAnsweringPipeline(ChunkPipeline):
    """Find the answer to a question in a text.

    ```python
    answer = pipeline("question-answering", model=folder, trust_remote_code=True)
    answer(question="What mixes tokens?", context="The gate mixes tokens.")
    # {"score": 0.93, "start": 0, "end": 8, "answer": "The gate"}
    ```

    The pipeline works for every `AutoModelForQuestionAnswering` model with a fast tokenizer that was trained with the
    question before the context. Parameters can be given to the pipeline or to a call:

    Args:
        top_k (`int`, defaults to 1): Number of answers.
        max_answer_len (`int`, defaults to 15): Maximum number of tokens of an answer.
        max_seq_len (`int`, defaults to 384): Maximum number of tokens of a window, with the question; by default at
            most what model and tokenizer support.
        doc_stride (`int`, defaults to 128): Number of tokens that two windows of a longer text share; smaller by
            default for small windows.
        max_question_len (`int`, defaults to 64): Longer questions are truncated to this number of tokens; by default
            at most half of `max_seq_len`.
        handle_impossible_answer (`bool`, defaults to `False`): Whether "no answer", an empty string, is one of the
            answers.
        null_threshold (`float`, defaults to 0.0): "No answer" precedes an answer if its score, a sum of logits, is
            higher by more than this value. `run_qa.py` reports the best threshold as `best_f1_thresh`.
        align_to_words (`bool`, defaults to `True`): Whether answers start and end with whole words.
        batch_size (`int`, defaults to 1): Number of windows in a batch.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.tokenizer is None or not self.tokenizer.is_fast:
            raise ValueError(
                f"question answering needs a fast tokenizer, got {type(self.tokenizer).__name__}: give one as "
                "`tokenizer`."
            )

    def _sanitize_parameters(
        self,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        align_to_words: bool | None = None,
        top_k: int | None = None,
        max_answer_len: int | None = None,
        handle_impossible_answer: bool | None = None,
        null_threshold: float | None = None,
    ) -> tuple[dict, dict, dict]:
        for name, value in (("top_k", top_k), ("max_answer_len", max_answer_len)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        windows = {
            "max_seq_len": max_seq_len,
            "doc_stride": doc_stride,
            "max_question_len": max_question_len,
            "align_to_words": align_to_words,
        }
        answers = {
            "top_k": top_k,
            "max_answer_len": max_answer_len,
            "handle_impossible_answer": handle_impossible_answer,
            "null_threshold": null_threshold,
        }
        given = [{name: value for name, value in group.items() if value is not None} for group in (windows, answers)]
        return given[0], {}, given[1]

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **kwargs: Any) -> Any:
        """Answer questions.

        Args:
            inputs: `{"question": ..., "context": ...}`, or a list, generator or data set of such dictionaries;
                alternatively pass `question` and `context`.
            question: A question, or a list of them.
            context: The context, or a list with one for each question.
            **kwargs: Parameters for this call, see the class.

        Returns:
            `{"score", "start", "end", "answer"}`: a probability (see `Span`), indices of characters in the context,
            and the text between them. With `top_k` above 1, a list of such dictionaries, best first. For a list of
            questions, a list with one result each.

        Raises:
            ValueError: If a question or context is missing or empty, or a size is impossible.
        """
        if inputs is None:
            inputs = _examples(question, context)
        elif question is not None or context is not None:
            raise ValueError("give either `inputs` or `question` and `context`.")
        if isinstance(inputs, list | tuple):
            inputs = [_checked(example) for example in inputs]
            return super().__call__(inputs, **kwargs) if inputs else []
        return super().__call__(inputs, **kwargs)

    def preprocess(
        self,
        example: dict[str, str],
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        align_to_words: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield the windows as tensors with a batch dimension of 1."""
        example = _checked(example)
        positions = getattr(self.model.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        if max_seq_len is None:
            max_seq_len = min(384, positions, self.tokenizer.model_max_length)
        elif max_seq_len > positions:
            raise ValueError(
                f"`max_seq_len={max_seq_len}` is more than the {positions} tokens that the model supports."
            )
        if max_question_len is None:
            max_question_len = min(64, max_seq_len // 2)
        if doc_stride is None:
            room = max_seq_len - self.tokenizer.num_special_tokens_to_add(pair=True) - max_question_len
            doc_stride = min(128, max(room, 0) // 2)
        rows = encode_windows(
            self.tokenizer,
            [example["question"]],
            [example["context"]],
            max_seq_len,
            doc_stride,
            max_question_len,
            align_to_words,
        )
        names, count = self._input_names(rows), len(rows["example"])
        for index in range(count):
            window = {name: torch.tensor([rows[name][index]]) for name in names}
            # A mask instead of an index, because it is padded on the same side as the inputs.
            is_null = torch.zeros_like(window["input_ids"])
            is_null[0, rows["null_position"][index]] = 1
            yield {
                **window,
                "offsets": torch.tensor([rows["offsets"][index]]),
                "is_null": is_null,
                "context": example["context"],
                "is_last": index == count - 1,
            }

    def _input_names(self, window: dict[str, Any]) -> list[str]:
        return [name for name in self.tokenizer.model_input_names if name in window]

    def _forward(self, window: dict[str, Any]) -> dict[str, Any]:
        inputs = {name: window.pop(name) for name in self._input_names(window)}
        outputs = self.model(**inputs)
        return {"start_logits": outputs.start_logits.float(), "end_logits": outputs.end_logits.float(), **window}

    def postprocess(
        self,
        windows: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = 15,
        handle_impossible_answer: bool = False,
        null_threshold: float = 0.0,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Select the best answers from all windows of a question."""
        scored = [
            Window(
                window["start_logits"][0].numpy(),
                window["end_logits"][0].numpy(),
                window["offsets"][0].numpy(),
                int(window["is_null"][0].argmax()),
            )
            for window in windows
        ]
        spans, null = select_spans(scored, top_k, max_answer_len)
        if handle_impossible_answer:
            better = sum(null.score - span.score <= null_threshold for span in spans)
            spans.insert(better, null)
        elif not spans:
            spans = [null]  # the tokenizer returns no tokens for this context
        context = windows[0]["context"]
        answers = [
            {"score": span.probability, "start": span.start, "end": span.end, "answer": context[span.start : span.end]}
            for span in spans[:top_k]
        ]
        return answers[0] if top_k == 1 else answers


def _examples(question: Any, context: Any) -> Any:
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    if isinstance(question, list | tuple):
        contexts = [context] * len(question) if isinstance(context, str) else context
        if isinstance(contexts, list | tuple) and len(contexts) == len(question):
            return [{"question": one, "context": its} for one, its in zip(question, contexts, strict=True)]
        if isinstance(contexts, list | tuple):
            raise ValueError(
                f"there are {len(question)} questions but {len(contexts)} contexts: give as many contexts."
            )
    raise ValueError(
        "give `question` and `context` as strings, or a list of questions with one context or a list of them; got "
        f"{type(question).__name__} and {type(context).__name__}."
    )


def _checked(example: Any) -> dict[str, str]:
    if not isinstance(example, dict) or not {"question", "context"} <= example.keys():
        raise ValueError(f"an input must be a dict with 'question' and 'context', got {example!r}.")
    for name in ("question", "context"):
        if not isinstance(example[name], str) or not example[name].strip():
            raise ValueError(f"the {name} must be a string that is not empty, got {example[name]!r}.")
    return example
