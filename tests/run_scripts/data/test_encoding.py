"""Tokens of many texts, compared with those that the tokenizer gives for each."""

import random

import pyarrow as pa
import pytest
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer

from tokenmixers.run_scripts.data import encoding
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


PIECES = [
    *"aáA\u0301 \u00a0\t\n\u200b\x00\u3000,.!-'ßΣσéñ中文😀",
    "  ",
    "[MASK]",
    "##b",
    "ab",
    "naïve",
    "x" * 120,
    "İ",
    "ﬁ",
    " the ",
]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "##a",
    "##b",
    "ab",
    "the",
    "n",
    "##ai",
    "##ve",
    "i",
    ",",
    "-",
]


@pytest.fixture(params=["uncased", "cased", "unigram"])
def tokenizer(request, tmp_path):
    if request.param == "unigram":
        return train_unigram_tokenizer(["the ab naive a, - the"] * 9, 40, model_max_length=64, show_progress=False)
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "中", "é"]))
    return BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=request.param == "uncased")


def test_tokens_are_those_of_each_text(tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "_TOKENS", 50)  # some are forgotten
    draw = random.Random(0)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(0, 12))) for _ in range(400)]
    for start in range(0, 400, 100):
        if start == 200:
            tokenizer.add_tokens(["ab", "xa"])
        if start == 300:
            tokenizer.add_tokens([AddedToken("a\u00a0b", normalized=True)])  # a token across two words
        part = texts[start : start + 100]
        for options in ({"truncation": "longest_first", "max_length": 7}, {"truncation": False}):
            found = encoding.encode(tokenizer, zip(part), **options)
            for place, text in enumerate(part):
                expected = tokenizer(text, **options)
                assert {name: column[place].as_py() for name, column in found.items()} == {**expected}, repr(text)


@pytest.mark.parametrize("length", [4, 7, 64])
def test_tokens_are_those_of_each_list_of_words(length, tokenizer):
    draw = random.Random(0)
    lists = [
        ["".join(draw.choices(PIECES, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 9))] for _ in range(50)
    ]
    rows = pa.array([["left out"], *lists])[1:]  # whose offsets do not begin at 0
    columns, samples, words = encoding.encode_words(tokenizer, rows, length)
    options = {"truncation": True, "max_length": length, "return_overflowing_tokens": True}
    expected = tokenizer(lists, is_split_into_words=True, **options)
    assert samples.tolist() == expected.pop("overflow_to_sample_mapping")
    assert {name: column.to_pylist() for name, column in columns.items()} == {**expected}
    numbers = [number for piece in range(len(samples)) for number in expected.word_ids(piece)]
    assert [None if word < 0 else word for word in words] == numbers


def test_a_tokenizer_of_words_reads_each_once(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer, read = BertTokenizer(str(tmp_path / "vocab.txt")), []
    whole = encoding._Words._read
    monkeypatch.setattr(
        encoding._Words, "_read", lambda self, words: read.append(len(self.tokens)) or whole(self, words)
    )
    for text in ("the ab the", "ab the a", "a ab"):
        columns = encoding.encode(tokenizer, [(text,)], truncation=True, max_length=9)
    assert read == [0, 2, 3]
    assert columns["input_ids"][0].as_py() == [2, 5, 8, 3]


def test_token_types_of_a_template_are_kept(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("[CLS]:2 $A:0 [SEP]:0", None, special)
    columns = encoding.encode(tokenizer, [("the ab",)], truncation=True, max_length=9)
    assert columns["token_type_ids"][0].as_py() == tokenizer("the ab")["token_type_ids"] == [2, 0, 0, 0]
