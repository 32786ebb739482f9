import itertools
import json
import math
import random
import re
import time

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForQuestionAnswering,
    BertConfig,
    BertForQuestionAnswering,
    ByT5Tokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

import tokenmixers
from tokenmixers.modeling.pipelines import question_answering
from tokenmixers.modeling.pipelines.question_answering import (
    QuestionAnsweringPipeline,
    Window,
    answer_tokens,
    encode_windows,
    null_odds,
    select_spans,
)


CONTEXT = (
    "The gate   mixes tokens, and nothing else does. Channels are mixed by linear layers; (tiny) attention helps "
    "with pairs of sentences. Its weights are learned: every layer has its own."
)
QUESTION = "What mixes the tokens?"
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def tokenizers():
    """Kinds of tokenizers: with and without special tokens, padding right and left, with and without segments."""
    texts = [CONTEXT, QUESTION] * 9
    built = {
        kind: tokenmixers.train_unigram_tokenizer(texts, 200, None, show_progress=False, kind=kind, num_sentinels=3)
        for kind in ("encoder", "decoder", "encoder-decoder")
    }
    built["segments"] = PreTrainedTokenizerFast(
        tokenizer_object=built["encoder"].backend_tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        cls_token="[CLS]",
    )
    return built


@pytest.fixture(scope="module")
def model(tokenizers, randomise):
    config = tokenmixers.GMLPConfig(vocab_size=len(tokenizers["encoder"]), type_vocab_size=2, **SIZES)
    return randomise(tokenmixers.GMLPForQuestionAnswering(config)).eval()


# --- spans -------------------------------------------------------------------------------------------------------


def random_windows(seed: int) -> list[Window]:
    """Windows with question, context and padding, which overlap in their characters."""
    random = np.random.default_rng(seed)
    windows = []
    for first in range(0, 12, 4):
        context = [[3 * i, 3 * i + 2] for i in range(first, first + 6)]
        offsets = np.array([[0, 0]] * 3 + context + [[0, 0]] * 2)
        windows.append(Window(random.normal(size=11), random.normal(size=11), offsets, null_position=0))
    return windows


@pytest.mark.parametrize(("seed", "n_best", "length"), list(itertools.product(range(4), (1, 5, 500), (1, 3, 50))))
def test_spans_are_those_of_a_search_through_all(seed, n_best, length):
    windows = random_windows(seed)
    spans, null = select_spans(windows, n_best, length)
    scores, total = {}, 0.0
    for starts, ends, offsets, _ in windows:
        possible = [i for i in range(11) if offsets[i][1] > offsets[i][0]]
        total += sum(math.exp(starts[i] + ends[j]) for i in [0, *possible] for j in [0, *possible])
        for i in possible:
            for j in possible:
                if i <= j < i + length:
                    span = (offsets[i][0], offsets[j][1])
                    scores[span] = max(scores.get(span, -math.inf), starts[i] + ends[j])
    expected = sorted(scores.items(), key=lambda item: -item[1])[:n_best]
    assert [(span.start, span.end) for span in spans] == [span for span, _ in expected]
    assert [span.score for span in spans] == pytest.approx([score for _, score in expected])
    assert [span.probability for span in spans] == pytest.approx([math.exp(s) / total for _, s in expected])
    lowest = min(window.start_logits[0] + window.end_logits[0] for window in windows)
    assert (null.score, null.probability) == (pytest.approx(lowest), pytest.approx(math.exp(lowest) / total))
    assert (null.start, null.end) == (0, 0)
    assert null_odds(spans, null) == pytest.approx(lowest - expected[0][1])


def test_scores_are_sums_without_rounding():
    logits = [np.array([2.0**24, 0.0], dtype=np.float32), np.array([1.0, 0.0], dtype=np.float32)]
    _, null = select_spans([Window(*logits, np.array([[0, 0], [0, 3]]), 0)], 1, 1)
    assert null.score == 2**24 + 1  # not a number of 32 bits


def test_nothing_to_choose_from():
    spans, null = select_spans([Window(np.ones(3), np.ones(3), np.zeros((3, 2), dtype=int), 1)], 5, 5)
    assert spans == []
    assert null.score == 2
    assert null.probability == pytest.approx(1)
    assert json.loads(json.dumps(null_odds(spans, null))) > 1e30


# --- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder", "segments"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_cover_the_context_and_overlap(tokenizers, kind, side):
    tokenizer = tokenizers[kind]
    tokenizer.padding_side = side
    rows = encode_windows(tokenizer, [QUESTION, "Why?"], [CONTEXT, "Short."], 48, 7, 24, align_to_words=False)
    assert rows["example"].count(1) == 1
    assert rows["example"] == sorted(rows["example"])
    assert set(tokenizer.model_input_names) == rows.keys() - {"offsets", "null_position", "example"}
    covered, previous = set(), None
    for ids, offsets, null, example in zip(
        rows["input_ids"], rows["offsets"], rows["null_position"], rows["example"], strict=True
    ):
        assert len(ids) == len(offsets) <= 48
        assert ids[null] == tokenizer.cls_token_id if tokenizer.cls_token_id is not None else null == 0
        if example == 0:
            question = tokenizer(QUESTION, add_special_tokens=False)["input_ids"]
            first = 1 if kind in ("encoder", "segments") else 0
            assert ids[first : first + len(question)] == question
            visible = [tuple(pair) for pair in offsets if pair[1] > pair[0]]
            assert previous is None or 1 <= len(set(visible) & set(previous)) <= 7
            covered.update(i for start, end in visible for i in range(start, end))
            previous = visible
    assert covered == {i for i, character in enumerate(CONTEXT) if not character.isspace()}


def test_tokens_stand_for_their_text_or_their_word(tokenizers):
    tokenizer = tokenizers["encoder"]
    for align in (False, True):
        rows = encode_windows(tokenizer, [QUESTION], [CONTEXT], 24, 4, 8, align_to_words=align)
        texts = [CONTEXT[start:end] for window in rows["offsets"] for start, end in window if end > start]
        pieces = [
            piece.replace("▁", "")
            for ids, window in zip(rows["input_ids"], rows["offsets"], strict=True)
            for piece, (start, end) in zip(tokenizer.convert_ids_to_tokens(ids), window, strict=True)
            if end > start
        ]
        # The space that is put before a text is given the text's first character.
        assert pieces.count("") <= 1
        if align:
            assert set(texts) <= set("".join(f" {c} " if c in ".,;:()" else c for c in CONTEXT).split())
            assert all(piece in text for piece, text in zip(pieces, texts, strict=True))
        else:
            assert [text for text, piece in zip(texts, pieces, strict=True) if piece] == list(filter(None, pieces))


def test_words_end_where_a_script_without_spaces_begins():
    context = "富士山は日本にある高さ3776メートルの山 gates ประเทศไทย"
    tokenizer = tokenmixers.train_unigram_tokenizer([context, "37 76 gate s"] * 9, 90, None, show_progress=False)
    words = [(i, i + len(word)) for word in ("3776", "gates") for i in [context.index(word)]]
    aligned, alone = (
        encode_windows(tokenizer, ["a"], [context], 128, 4, 8, align)["offsets"][0] for align in (True, False)
    )
    assert sum(start <= first < end for first, _ in alone for start, end in words) > len(words)  # of several tokens
    for found, (first, behind) in zip(aligned, alone, strict=True):
        assert tuple(found) == next((w for w in words if w[0] <= first and behind <= w[1]), (first, behind))


def test_a_word_of_any_length_takes_linear_time():
    """Each character of a word was compared with the whole word: ten seconds for 20,000 of them."""
    draw = random.Random(0)
    for script in ("abcdefgh", "日本にある", "ab日c"):
        word = "".join(draw.choices(script, k=20_000))
        context = f"{word} end"
        characters = [[[i, i + 1] for i in range(len(word))]]
        start = time.process_time()
        (found,) = question_answering._extended_to_words(characters, [[0] * len(word)], [0], [context])
        assert time.process_time() - start < 1
        spaced = re.sub("([日本にある])", r" \1 ", word).split()
        parts = [[end - len(part), end] for part, end in zip(spaced, np.cumsum([*map(len, spaced)]), strict=True)]
        assert found == [part for part in parts for _ in range(*part)]


def test_a_tokenizer_without_words_is_not_aligned(tokenizers):
    backend = type(tokenizers["encoder"].backend_tokenizer).from_str(tokenizers["encoder"].backend_tokenizer.to_str())
    backend.pre_tokenizer = None
    whole = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    aligned, not_aligned = (encode_windows(whole, ["a"], [CONTEXT], 64, 4, 8, align) for align in (True, False))
    assert aligned["offsets"] == not_aligned["offsets"]


@pytest.mark.parametrize("align", [True, False])
def test_answers_are_found_in_every_window_that_holds_them(tokenizers, align):
    rows = encode_windows(tokenizers["encoder"], [QUESTION], [CONTEXT], 32, 8, 8, align)
    words = [(i, i + len(word)) for word in ("gate", "tokens", "tiny", "own") for i in [CONTEXT.index(word)]]
    for start, end in [*words, (4, CONTEXT.index("tokens") + 6)]:
        held = 0
        for offsets in rows["offsets"]:
            place = answer_tokens(offsets, start, end)
            edges = [pair for pair in offsets if pair[1] > pair[0]]
            assert (place is not None) == (edges[0][0] <= start and end <= edges[-1][1])
            if place is not None:
                held += 1
                assert (offsets[place[0]][0], offsets[place[1]][1]) == (start, end)
        assert held >= 1


def test_long_questions_are_cut(tokenizers):
    rows = encode_windows(tokenizers["encoder"], [QUESTION * 20], ["The gate."], 24, 2, 9)
    start = next(i for i, (first, end) in enumerate(rows["offsets"][0]) if end > first)
    assert 3 < start <= 1 + 9 + 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((20, 4, 13), "`max_seq_len=20` .* leaves 4 tokens"),
        ((20, -1, 4), "at least 0"),
        ((20, 1, 0), "max_question_len=0"),
    ],
)
def test_impossible_sizes(tokenizers, sizes, message):
    with pytest.raises(ValueError, match=message):
        encode_windows(tokenizers["encoder"], [QUESTION], [CONTEXT], *sizes)


def test_python_tokenizers_are_refused(model):
    with pytest.raises(ValueError, match=r"ByT5Tokenizer .* needs a fast tokenizer"):
        encode_windows(ByT5Tokenizer(), [QUESTION], [CONTEXT], 32, 4, 8)
    for tokenizer in (ByT5Tokenizer(), None):
        with pytest.raises(ValueError, match=f"fast tokenizer, got {type(tokenizer).__name__}"):
            QuestionAnsweringPipeline(model, tokenizer=tokenizer)


# --- the pipeline ------------------------------------------------------------------------------------------------


def test_a_single_window_scores_as_its_softmax_probabilities(model, tokenizers):
    tokenizer, context = tokenizers["encoder"], "The gate mixes tokens."
    encoded = tokenizer(QUESTION, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        outputs = model(**encoded)
    of_context = [i for i, sequence in enumerate(encoded.sequence_ids(0)) if sequence == 1]
    of_context = [i for i in of_context if context[slice(*offsets[i])].strip()]
    counted = [0, *of_context]
    starts, ends = (
        dict(zip(counted, logits[0][counted].softmax(-1).tolist(), strict=True))
        for logits in (outputs.start_logits, outputs.end_logits)
    )
    expected = {}
    for i in of_context:
        for j in of_context:
            if i <= j < i + 15:
                text = context[offsets[i][0] : offsets[j][1]].lstrip()
                span = (offsets[j][1] - len(text), offsets[j][1])
                expected[span] = max(expected.get(span, 0), starts[i] * ends[j])
    answers = QuestionAnsweringPipeline(model, tokenizer=tokenizer)(
        question=QUESTION, context=context, top_k=500, align_to_words=False, handle_impossible_answer=True
    )
    found = {(answer["start"], answer["end"]): answer["score"] for answer in answers}
    assert found.pop((0, 0)) == pytest.approx(starts[0] * ends[0], rel=1e-4)
    assert found == pytest.approx(expected, rel=1e-4)
    assert [answer["score"] for answer in answers] == sorted((answer["score"] for answer in answers), reverse=True)
    assert all(context[answer["start"] : answer["end"]] == answer["answer"] for answer in answers)


def test_every_form_of_input(model, tokenizers):
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"], max_seq_len=48)
    one = answer(question=QUESTION, context=CONTEXT)
    other = answer({"question": "Which layers?", "context": CONTEXT})
    assert set(one) == {"score", "start", "end", "answer"}
    assert CONTEXT[one["start"] : one["end"]] == one["answer"]
    assert one != other
    examples = [{"question": QUESTION, "context": CONTEXT}, {"question": "Which layers?", "context": CONTEXT}]
    assert answer(examples) == [one, other]
    assert answer(examples[:1]) == [one]
    assert answer([]) == []
    assert list(answer(example for example in examples)) == [one, other]
    assert answer(question=[QUESTION, "Which layers?"], context=CONTEXT) == [one, other]
    assert answer(question=[QUESTION, "Which layers?"], context=[CONTEXT] * 2) == [one, other]
    assert [answers[0] for answers in answer(examples, top_k=3)] == [one, other]
    assert len(answer(examples[0], top_k=3)) == 3


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder", "segments"])
def test_batches_and_padding_change_nothing(model, tokenizers, kind):
    tokenizer = tokenizers[kind]
    examples = [{"question": QUESTION, "context": CONTEXT[: 30 * i]} for i in range(1, 6)]
    answers = {}
    for side in ("left", "right"):
        tokenizer.padding_side = side
        answer = QuestionAnsweringPipeline(model, tokenizer=tokenizer, max_seq_len=40, top_k=4)
        for batch_size in (1, 3, 16):
            answers[side, batch_size] = answer(examples, batch_size=batch_size, handle_impossible_answer=True)
    expected = answers["right", 1]
    for found in answers.values():
        for ours, theirs in zip(found, expected, strict=True):
            assert [(a["start"], a["end"]) for a in ours] == [(a["start"], a["end"]) for a in theirs]
            assert [a["score"] for a in ours] == pytest.approx([a["score"] for a in theirs], rel=1e-3)


def test_windows_share_half_of_their_room_at_most(model, tokenizers):
    """By default 128 tokens, in small windows half of what the question leaves."""
    tokenizer, length = tokenizers["encoder"], 30
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizer)
    example = {"question": QUESTION, "context": CONTEXT}
    windows = list(answer.preprocess(example, max_seq_len=length))
    room = length - tokenizer.num_special_tokens_to_add(pair=True) - length // 2
    rows = encode_windows(tokenizer, [QUESTION], [CONTEXT], length, room // 2, length // 2)
    assert [window["input_ids"][0].tolist() for window in windows] == rows["input_ids"]
    assert len(windows) > 3


def test_segments_reach_the_model(model, tokenizers):
    with_segments, without = (
        QuestionAnsweringPipeline(model, tokenizer=tokenizers[kind])(question=QUESTION, context=CONTEXT)
        for kind in ("segments", "encoder")
    )
    assert with_segments["score"] != pytest.approx(without["score"], rel=1e-3)


def test_no_answer(model, tokenizers):
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"], handle_impossible_answer=True)
    inputs = {"question": QUESTION, "context": CONTEXT}
    empty = {"start": 0, "end": 0, "answer": ""}
    surely, never = answer(inputs, null_threshold=-1000.0), answer(inputs, null_threshold=1000.0)
    assert {key: surely[key] for key in empty} == empty
    assert never["answer"]
    assert answer(inputs, handle_impossible_answer=False) == never
    assert QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"])(question="?", context="\u200b\u00ad")


def test_a_question_that_ends_in_several_tokens_of_one_character_is_shortened():
    """Tokens of bytes have the offsets of their character: the last one kept can end where the text ends."""
    bytewise = Tokenizer(
        models.BPE({"[CLS]": 0, **{byte: 1 + i for i, byte in enumerate(bytes_to_unicode().values())}}, [])
    )
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, cls_token="[CLS]")
    rows = encode_windows(tokenizer, ["ab\u20ac"], ["cd"], 9, 0, max_question_len=4)
    assert tokenizer.convert_ids_to_tokens(rows["input_ids"][0]) == ["a", "b", "c", "d"]
    rows = encode_windows(tokenizer, ["abxyz"], ["cd"], 9, 0, max_question_len=4)
    assert tokenizer.convert_ids_to_tokens(rows["input_ids"][0]) == ["a", "b", "x", "y", "c", "d"]


@pytest.mark.parametrize(("threshold", "expected"), [(2.0, "two"), (1.75, ""), (2.25, "two")])
def test_at_the_threshold_the_answer_is_given(model, tokenizers, threshold, expected):
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"])
    window = {
        "start_logits": torch.tensor([[1.5, 0.0, 1.0]]),  # no answer has 2.5, "two" has 0.5: numbers without rounding
        "end_logits": torch.tensor([[1.0, -1.0, -0.5]]),
        "offsets": torch.tensor([[[0, 0], [0, 3], [4, 7]]]),
        "is_null": torch.tensor([[1, 0, 0]]),
        "context": "one two",
    }
    found = answer.postprocess([window], handle_impossible_answer=True, null_threshold=threshold)
    assert found["answer"] == expected


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"question": "", "context": "text"}, "the question must be a string that is not empty, got ''"),
        ({"question": "Who?", "context": " \n"}, "the context must be a string that is not empty"),
        ({"question": "Who?"}, "must be a dict with 'question' and 'context'"),
        (["Who?"], "must be a dict"),
    ],
)
def test_wrong_inputs(model, tokenizers, inputs, message):
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"])
    with pytest.raises(ValueError, match=message):
        answer(inputs)


def test_wrong_arguments(model, tokenizers):
    answer = QuestionAnsweringPipeline(model, tokenizer=tokenizers["encoder"])
    inputs = {"question": QUESTION, "context": CONTEXT}
    for arguments, message in (
        ({"top_k": 0}, "`top_k` must be at least 1, got 0"),
        ({"max_answer_len": -1}, "`max_answer_len` must be at least 1"),
        ({"max_seq_len": 65}, "`max_seq_len=65` is more than the 64 tokens"),
        ({"max_seq_len": 32, "doc_stride": 30}, "must be more than `doc_stride=30`"),
    ):
        with pytest.raises(ValueError, match=message):
            answer(inputs, **arguments)
    for question, context, message in (
        (QUESTION, None, "got str and NoneType"),
        ([QUESTION], [CONTEXT] * 2, "1 questions but 2 contexts"),
    ):
        with pytest.raises(ValueError, match=message):
            answer(question=question, context=context)
    with pytest.raises(ValueError, match="either `inputs` or"):
        answer(inputs, question=QUESTION)


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(model, tokenizers, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    tokenizers["encoder"].save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_checkpoint_under_every_name(checkpoint, monkeypatch, tmp_path):
    inputs = {"question": QUESTION, "context": CONTEXT}
    ours = pipeline("extractive-question-answering", model=str(checkpoint))
    assert type(ours) is tokenmixers.QuestionAnsweringPipeline
    theirs = pipeline("question-answering", model=str(checkpoint), trust_remote_code=True)
    assert type(theirs) is not type(ours)
    assert theirs(inputs) == ours(inputs)
    # Transformers decides before it looks whether this package is there.
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("question-answering", model=str(checkpoint))
    given = pipeline("question-answering", model=str(checkpoint), pipeline_class=tokenmixers.QuestionAnsweringPipeline)
    assert given(inputs) == ours(inputs)


def test_only_question_answering_names_the_pipeline(checkpoint, tmp_path):
    def named(folder):
        return json.loads((folder / "config.json").read_text()).get("custom_pipelines")

    assert named(checkpoint)["question-answering"]["impl"] == "question_answering.QuestionAnsweringPipeline"
    other = tokenmixers.GMLPForMaskedLM.from_pretrained(checkpoint)
    other.save_pretrained(tmp_path / "other")
    assert named(tmp_path / "other") is None
    other.config.custom_pipelines = {"mine": {"impl": "mine.Pipeline"}}
    other.save_pretrained(tmp_path / "other")
    tokenmixers.GMLPForQuestionAnswering.from_pretrained(tmp_path / "other").save_pretrained(tmp_path / "again")
    assert set(named(tmp_path / "again")) == {"mine", "question-answering"}


def test_a_model_of_transformers_is_saved_with_its_pipeline(tokenizers, tmp_path):
    tokenizer = tokenizers["segments"]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForQuestionAnswering(BertConfig(vocab_size=len(tokenizer), **sizes)).eval()
    answer = pipeline("extractive-question-answering", model=bert, tokenizer=tokenizer)
    answer.save_pretrained(tmp_path)
    assert type(AutoModelForQuestionAnswering.from_pretrained(tmp_path)) is BertForQuestionAnswering
    again = pipeline("question-answering", model=str(tmp_path), trust_remote_code=True)
    inputs = {"question": QUESTION, "context": CONTEXT}
    assert again(inputs)["score"] == pytest.approx(answer(inputs)["score"], rel=1e-4)
