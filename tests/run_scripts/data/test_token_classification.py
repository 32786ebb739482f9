import shutil

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.token_classification import (
    TokenClassificationArguments,
    load_sentences,
    tag_names,
    tokenize,
    write_conll,
)


@pytest.fixture(scope="module")
def data(tagged_sentences):
    return tagged_sentences


@pytest.fixture
def rows(data):
    """`rows(max_seq_length, ...)`: one sentence with words of several tokens, as sequences."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
    sentence = {"tokens": [["Ada", "zqzq", "\u200b", "went", "Rome"]], "tags": [["B-PER", "I-PER", "O", "O", "B-LOC"]]}
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    sentences = datasets.Dataset.from_dict(sentence)
    return lambda length, **options: (sentences, tokenize(sentences, tokenizer, length, names, **options), tokenizer)


def test_first_tokens_have_the_labels(rows):
    _, (row,), tokenizer = rows(32)
    words = tokenizer([["Ada", "zqzq", "\u200b", "went", "Rome"]], is_split_into_words=True).word_ids(0)
    assert len(row["labels"]) == len(row["input_ids"]) == len(words)
    for position, word in enumerate(words):
        first = word is not None and words.index(word) == position
        assert row["labels"][position] == ({0: 3, 1: 4, 2: 0, 3: 0, 4: 1}[word] if first else -100)
    _, (all_labelled,), _ = rows(32, label_all_tokens=True)
    assert [label != -100 for label in all_labelled["labels"]] == [word is not None for word in words]
    inside = {0: 4, 1: 4, 4: 2}  # further tokens of a word that begins an entity are inside it
    assert all(
        label == inside.get(word, 0)
        for label, first, word in zip(all_labelled["labels"], row["labels"], words, strict=True)
        if word is not None and first == -100
    )


@pytest.mark.parametrize("length", [3, 4, 6, 32])
def test_no_word_is_lost_when_a_sentence_is_cut(length, rows, tmp_path):
    sentences, cut, _ = rows(length)
    assert max(map(len, cut["input_ids"])) <= length
    assert (len(cut) > 1) == (length < 32)
    labels = np.full((len(cut), length), -100)
    for index, row in enumerate(cut["labels"]):
        labels[index, : len(row)] = row
    write_conll(tmp_path / "out.conll", sentences, cut, labels, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"])
    lines = (tmp_path / "out.conll").read_text().split("\n")
    assert [line.split(" ")[1:] for line in lines[:5]] == [[tag, tag] for tag in sentences[0]["tags"]]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B-PER"], ["O", "B-PER", "I-PER"]),
        (["S-PER", "B-LOC", "E-LOC"], ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC", "B-PER", "I-PER", "E-PER", "S-PER"]),
        (["EX", "B-PER", "S-PER"], ["B-PER", "EX", "S-PER"]),
    ],
    ids=["IOB", "IOBES", "parts of speech"],
)
def test_entities_have_the_tags_of_their_scheme(tags, expected):
    assert tag_names(datasets.Dataset.from_dict({"tags": [tags]})) == expected


def test_endings_in_capitals_are_known(data, tmp_path):
    shutil.copy(data / "test.jsonl", tmp_path / "TEST.JSONL")
    loaded = [
        load_sentences(TokenClassificationArguments(test_file=str(file)), ["test"])["test"]
        for file in (data / "test.jsonl", tmp_path / "TEST.JSONL")
    ]
    assert loaded[0].to_list() == loaded[1].to_list()
