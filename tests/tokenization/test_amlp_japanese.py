# ruff: noqa: RUF001 -- characters that look like others are what is tested
"""The encoder of aMLP-japanese, written out character by character, is what the tokenizer is compared with.

With a checkout of github.com/tanreinama/aMLP-japanese named by TOKENMIXERS_AMLP_JAPANESE, and a vocabulary of theirs
(ja-swe24k.txt of tanreinama/Japanese-BPEEncoder_V2) by TOKENMIXERS_AMLP_JAPANESE_VOCABULARY, it is compared with their
own encoder as well.
"""

import json
import os
import random
import re
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tokenmixers.tokenization.amlp_japanese import VocabularyError, amlp_japanese_tokenizer


#: In the order of ids: frequent words, then others, then characters. Longer words may have larger ids than beginnings.
WORDS = [
    *(
        "てい",
        "ます",
        "ている",
        "いる",
        "会社,會社",
        "日本,曰本,日夲,曰夲",
        "カメラ",
        "キャ,ｷｬ",
        "ギャ,ｷﾞｬ",
        "メラ",
        "〇〇",
    ),
    *("学会,學会,学會,學會", "いう,いゔ", "永日,永\U000e0101日,永曰,永\U000e0101曰"),
]
CHARACTERS = [
    *(
        "あ",
        "い",
        "う,ゔ",
        "か",
        "て",
        "る",
        "ま",
        "す",
        "カ,ｶ",
        "メ,ﾒ",
        "ラ",
        "キ,ｷ",
        "ャ,ｬ",
        "ー",
        "ガ,ｶﾞ",
        "会,會",
        "社",
    ),
    *(
        "日,曰",
        "本,夲",
        "学,學",
        "島,嶋,嶌",
        "永,永\U000e0101",
        "０,〇",
        "１,①",
        ",",
        "<",
        ">",
        "。",
        "a",
        "b",
        "(",
        "^",
        ")",
    ),
]
CLASSES = ["<BR>", "<SP>", "<TAB>", "<URL>", "<BLOCK>", "<KIGOU>", "<U2000U2BFF>"]
EMOJI_TOKENS = ["<|emoji1|>", "<|emoji2|>", "<|emoji12|>"]
SPECIAL = ["<|startoftext|>", "<|separator|>", "<|nottoken|>", "<|endoftext|>"]
VOCABULARY = [
    *WORDS,
    *CHARACTERS,
    *CLASSES,
    *EMOJI_TOKENS,
    *(f"<|byte{byte}|>" for byte in range(255)),
    *SPECIAL,
]
EMOJI = {
    # Of a farmer, a woman with a smaller id begins; of a heart with a selector, the heart comes later.
    "emoji": {
        "😀": "<|emoji1|>",
        "👩": "<|emoji1|>",
        "👩\u200d🌾": "<|emoji2|>",
        "❤\ufe0f": "<|emoji2|>",
        "❤": "<|emoji2|>",
        "🌾": "<|emoji2|>",
        "(^^)": "<|emoji12|>",
        "(^_^)": "<|emoji12|>",
        "( ^^)": "<|emoji12|>",
        "©": "<|emoji2|>",
    },
    "emoji_inv": {"<|emoji1|>": "😀", "<|emoji2|>": "❤", "<|emoji12|>": "(^^)"},
}
#: What texts are made of: all words and characters, and some that are in no word.
PIECES = [
    *(form for line in (*WORDS, *CHARACTERS) for form in (line.split(",") if line != "," else ",")),
    *EMOJI["emoji"],
    *" \u3000\n\r\t\u2014\u2212\u2010\u200d¡ǀ\u0301\ufe0fﾞéёx\U00020bb7🏻",
    *("\r\n", "<SP>", "<URL>", "<|emoji1|>", "<BR", "|>"),
]


def reference(text: str, vocabulary: list[str], emoji: dict[str, str]) -> list[int]:
    """Ids of a text."""
    ids = {}
    for index, line in enumerate(vocabulary):
        for form in [line] if line == "," else line.split(","):
            ids[form] = index
    classes = {" ": "<SP>", "\u3000": "<SP>", "\r\n": "<BR>", "\n": "<BR>", "\r": "<BR>", "\t": "<TAB>"}
    classes |= {"\u2014": "ー", "\u2212": "ー", **emoji}
    result, start = [], 0
    while start < len(text):
        found = [(ids[token], len(key)) for key, token in classes.items() if text.startswith(key, start)]
        if not found:
            longest = max(map(len, ids)) if text[start] == "<" else 3
            ends = range(min(len(text), start + longest), start, -1)
            found = [(ids[text[start:end]], end - start) for end in ends if text[start:end] in ids]
            if text[start] == "<":
                found = [entry for entry in found if entry[1] > 2][:1] or found
        if found:
            index, length = min(found, key=lambda entry: entry[0])
            result.append(index)
            start += length
            continue
        code = ord(text[start])
        if 0xA1 <= code <= 0xBF or 0x1C0 <= code <= 0x1C3 or 0x2B9 <= code <= 0x362:
            result.append(ids["<KIGOU>"])
        elif 0x2000 <= code <= 0x2BFF:
            result.append(ids["<U2000U2BFF>"])
        else:
            result += [ids[f"<|byte{byte}|>"] for byte in text[start].encode()]
        start += 1
    return result


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Saved and loaded, as it will be used."""
    folder = tmp_path_factory.mktemp("tokenizer")
    amlp_japanese_tokenizer(VOCABULARY, EMOJI, 16).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


@given(text=st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_texts_have_the_ids_of_the_encoder(tokenizer, text):
    assert encode(tokenizer, text) == reference(text, VOCABULARY, EMOJI["emoji"])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ている", ["てい", "る"]),  # not the word of three characters, whose id is larger
        ("カメラ", ["カメラ"]),
        ("ｶメラ", ["カ", "メラ"]),  # half-width kana are in no word
        ("ｷｬｷﾞｬｶﾞ", ["キャ", "ギャ", "カ", "<0xEF>", "<0xBE>", "<0x9E>"]),
        ("曰夲會社學会", ["日本", "会社", "学会"]),
        ("永\U000e0101曰永永\U000e0101", ["永日", "永", "永"]),
        ("嶋", ["島"]),
        ("〇〇〇〇〇０", ["〇〇", "〇〇", "〇", "〇"]),
        ("いゔう", ["いう", "う"]),
        ("a\r\nb", ["a", "<BR>", "b"]),
        ("👩\u200d🌾(^_^)( ^^)", ["<|emoji1|>", "<U2000U2BFF>", "<|emoji2|>", "<|emoji12|>", "<|emoji12|>"]),
        ("é€", ["<0xC3>", "<0xA9>", "<U2000U2BFF>"]),
    ],
)
def test_tokens(tokenizer, text, tokens):
    assert tokenizer.tokenize(text) == tokens
    assert encode(tokenizer, text) == reference(text, VOCABULARY, EMOJI["emoji"])


def test_every_token_is_decoded_as_its_first_text(tokenizer):
    special = {"<SP>": " ", "<BR>": "\n", "<TAB>": "\t", "<BLOCK>": "▀", "<KIGOU>": "\u01c0", "<U2000U2BFF>": "\u2016"}
    for index, line in enumerate(VOCABULARY):
        if not line.startswith("<|byte"):
            first = line if line == "," else line.split(",")[0]
            assert tokenizer.decode([index]) == {**special, **EMOJI["emoji_inv"]}.get(first, first)
    assert tokenizer.decode(encode(tokenizer, "あ𠮷é い")) == "あ𠮷é い"


def test_special_tokens(tokenizer):
    start, separator, mask, end = (VOCABULARY.index(token) for token in SPECIAL)
    a, b = VOCABULARY.index("a"), VOCABULARY.index("b")
    assert tokenizer("a").input_ids == [start, a, end]
    assert tokenizer("a", "b").input_ids == [start, a, separator, start, b, end]
    assert tokenizer("a<|nottoken|>b").input_ids == [start, a, mask, b, end]
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.eos_token_id)
    assert ids == (start, separator, mask, end) and tokenizer.pad_token_id == separator
    assert len(tokenizer) == len(VOCABULARY) and tokenizer.model_max_length == 16


def test_offsets_are_those_of_the_text(tokenizer):
    text = "會社\u3000ｶ日(^_^)あ"
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    assert [text[start:end] for start, end in offsets] == ["會社", "\u3000", "ｶ", "日", ")", "あ"]  # ends, at least


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["a", "b"], "lacks .* tokens, e.g. '<BR>'"),
        ([line for line in VOCABULARY if line != "<|byte227|>"], r"lacks 1 tokens, e.g. '<\|byte227\|>'"),
        ([*VOCABULARY[:2], "会,", *VOCABULARY[3:]], r"Line 3 of the vocabulary has an empty text: '会,'\."),
        ([*VOCABULARY, ""], rf"Line {len(VOCABULARY) + 1} of the vocabulary has an empty text: ''\."),
        ([*VOCABULARY, "##en"], "words with '##', as for languages with spaces"),
    ],
)
def test_other_vocabularies(vocabulary, message):
    with pytest.raises(VocabularyError, match=message):
        amlp_japanese_tokenizer(vocabulary, EMOJI, 16)


@pytest.mark.slow  # their encoder takes milliseconds for a line, and their vocabulary seconds
@pytest.mark.skipif(
    not {"TOKENMIXERS_AMLP_JAPANESE", "TOKENMIXERS_AMLP_JAPANESE_VOCABULARY"} <= os.environ.keys(),
    reason="needs a checkout of aMLP-japanese and a vocabulary, see the top of this file",
)
def test_their_own_encoder(monkeypatch):
    checkout = Path(os.environ["TOKENMIXERS_AMLP_JAPANESE"])
    file = Path(os.environ["TOKENMIXERS_AMLP_JAPANESE_VOCABULARY"])
    monkeypatch.chdir(checkout)  # where their encoder looks for emoji.json
    theirs = runpy.run_path(str(checkout / "encoder.py"))["get_encoder"](str(file), "emoji.json")
    vocabulary = file.read_text(encoding="utf-8").split("\n")
    emoji = json.loads((checkout / "emoji.json").read_text(encoding="utf-8"))
    tokenizer = amlp_japanese_tokenizer(vocabulary, emoji, 640)
    lines = [line for path in checkout.glob("*.md") for line in path.read_text(encoding="utf-8").splitlines() if line]
    assert len(lines) > 200
    # Apart from the two differences that the module names.
    forms = [form for form in theirs.swe if not re.search(r".[\u309b\u309c].|<\|byte", form)]
    forms += [*emoji["emoji"], " ", "\r\n", "\u0301", "é", "\u200d"]
    generator = random.Random(0)
    lines += ["".join(generator.choices(forms, k=generator.randint(1, 20))) for _ in range(1000)]
    for line in lines:
        ids = encode(tokenizer, line)
        assert ids == theirs.encode(line), line
        assert tokenizer.decode(ids) == theirs.decode(ids)
