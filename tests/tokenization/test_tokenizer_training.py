import itertools
import json

import pytest
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer

from tokenmixers import train_unigram_tokenizer
from tokenmixers.tokenization import tokenizer_training


TEXTS = ["The gate splits the channels.", "A gate mixes the tokens of a sequence.", "Tokens and channels differ."] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(TEXTS, vocab_size=80, model_max_length=32, show_progress=False)


def test_special_tokens_come_first_and_padding_is_zero(tokenizer):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token, tokenizer.unk_token, tokenizer.mask_token) == ("[PAD]", "[UNK]", "[MASK]")
    assert len(tokenizer) <= 80


def test_pairs_have_berts_format(tokenizer):
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("The gate", "Tokens"))
    pair = tokenizer("The gate", "Tokens")
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    single = tokenizer("The gate", "Tokens", return_token_type_ids=True)["token_type_ids"]
    assert single == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_keeps_case_and_restores_text(tokenizer):
    text = "The tokens of A gate differ."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer.tokenize("The") != tokenizer.tokenize("the")


def test_folds_white_space_and_unicode_forms(tokenizer):
    assert tokenizer.tokenize("the \n  gate") == tokenizer.tokenize("the gate")
    assert tokenizer.tokenize("ﬁ") == tokenizer.tokenize("fi")  # a ligature, by NFKC


def test_mask_token_keeps_its_neighbours(tokenizer):
    ids = tokenizer("the [MASK] gate")["input_ids"]
    assert ids.count(tokenizer.mask_token_id) == 1
    assert tokenizer.unk_token_id not in ids


MASKED = [
    "If the [MASK], an error of [MASK].",
    "[MASK]'s tokens and [MASK]; then ([MASK]) differ",
    "[MASK] [MASK], and [MASK] [MASK] differ: [MASK]",
    " [MASK]  ,  a [MASK] ! ",
    "[MASK]",
    "a\n[MASK]\n\tof the tokens",
]


@pytest.mark.parametrize("text", MASKED)
def test_text_around_masks_is_split_as_around_words(tokenizer, text, tmp_path):
    """Also by a checkpoint's tokenizer, which plain Transformers loads."""
    tokenizer.save_pretrained(tmp_path)
    backend = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
    with_words = backend.normalizer.normalize_str(text.replace("[MASK]", "gate"))
    expected = [split for split, _ in backend.pre_tokenizer.pre_tokenize_str(with_words)]
    encoded = backend.encode(text, add_special_tokens=False)
    words = itertools.groupby(zip(encoded.word_ids, encoded.tokens, strict=True), key=lambda item: item[0])
    found = ["".join(token for _, token in tokens) for _, tokens in words]
    assert found == ["[MASK]" if split in ("▁gate", "gate") else split for split in expected]


def test_masks_inside_words_part_no_words(tokenizer):
    assert tokenizer.tokenize("[MASK]gate") == ["[MASK]", *tokenizer.tokenize("xgate")[2:]]
    assert tokenizer.tokenize("g[MASK]s.") == [*tokenizer.tokenize("g"), "[MASK]", "s", "."]


def test_spaces_at_the_ends_of_texts_are_no_pieces(tokenizer):
    """The ids are those of a tokenizer that strips both ends and puts a mark of a space in front."""
    always = tokenizer.backend_tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    always.normalizer = normalizers.Sequence([tokenizer.backend_tokenizer.normalizer, normalizers.Strip()])
    splits = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    always.pre_tokenizer = pre_tokenizers.Sequence(splits)
    inner = ["the gate", ", the gate.", "", "é", "¨", "a\n\n b"]
    for text in [before + text + after for text in inner for before in ("", " ", "\n\t") for after in ("", "  ")]:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == always.encode(text, None, False, False).ids
    words = ["A", "gate,", ".", "tokens"]
    split = tokenizer([words], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert split == [always.encode(words, None, True, False).ids]


def test_the_same_texts_give_the_same_tokenizer(monkeypatch):
    """And one that cuts texts as the trainer's own does, whose ids differ from run to run."""
    texts = [*TEXTS, "jumps over quartz: Ω, Ψ, Ж, ß, ŧ, ø", "Zebras kick _ | ~ ^ ` # @ {}"]

    def train():
        return train_unigram_tokenizer(
            texts, vocab_size=150, model_max_length=32, show_progress=False
        ).backend_tokenizer

    first, *others = (train() for _ in range(4))
    assert {other.to_str() for other in others} == {first.to_str()}
    monkeypatch.setattr(tokenizer_training, "_put_in_order", lambda *_: None)
    found = [train() for _ in range(4)]
    assert len({other.to_str() for other in found}) > 1
    scores, expected = (json.loads(each.to_str())["model"]["vocab"] for each in (first, found[0]))
    assert [score for _, score in scores] == pytest.approx([score for _, score in expected], abs=1e-8)
    pieces = {name: score for name, score in expected if len(name) > 1}
    assert pieces == pytest.approx({name: score for name, score in scores if len(name) > 1}, abs=1e-8)
    for text in texts:
        assert first.encode(text).tokens == found[0].encode(text).tokens


def test_plain_transformers_loads_it(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__module__.startswith("transformers.")
    assert loaded("A gate mixes")["input_ids"] == tokenizer("A gate mixes")["input_ids"]
    assert loaded.model_max_length == 32


def test_refuses_what_cannot_be_trained():
    with pytest.raises(ValueError, match=r"larger than the 5 special tokens and the different characters .* got 20"):
        train_unigram_tokenizer(["abcdefghijklmnopqrstuvwxyz"], 20, None, show_progress=False)
    with pytest.raises(ValueError, match="larger than the 5 special tokens, got 5"):
        train_unigram_tokenizer(TEXTS, vocab_size=5, model_max_length=8, show_progress=False)
    with pytest.raises(ValueError, match="empty"):
        train_unigram_tokenizer([], vocab_size=50, model_max_length=8, show_progress=False)


@pytest.mark.parametrize(("kind", "ending"), [("decoder", []), ("encoder-decoder", [1])])
def test_tokenizers_for_other_kinds_of_models(kind, ending, tmp_path):
    trained = train_unigram_tokenizer(TEXTS, 120, 32, show_progress=False, kind=kind, num_sentinels=7)
    trained.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id) == (0, 1, 2)
    inner = loaded("The gate", add_special_tokens=False)["input_ids"]
    assert loaded("The gate")["input_ids"] == inner + ending
    assert loaded.padding_side == ("left" if kind == "decoder" else "right")
    sentinels = [f"<extra_id_{i}>" for i in range(7)] if kind == "encoder-decoder" else []
    assert loaded.convert_tokens_to_ids(sentinels) == list(range(3, 3 + len(sentinels)))
    assert loaded.decode(loaded("The gate")["input_ids"], skip_special_tokens=True) == "The gate"


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="must be one of 'encoder', 'decoder', 'encoder-decoder', got 'both'"):
        train_unigram_tokenizer(TEXTS, 120, 32, kind="both")
