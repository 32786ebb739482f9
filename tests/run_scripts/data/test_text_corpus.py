import copy
import gzip

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorForLanguageModeling

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.data.text_corpus import (
    TextDataArguments,
    first_fit,
    labelled_once,
    load_documents,
    pad_rows,
    row_encoder,
    tokenize,
)
from tokenmixers.run_scripts.run_mlm import MaskingCollator


DOCUMENTS = [f"document number {i} has some words, and unbelievably long ones too" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(DOCUMENTS, vocab_size=90, model_max_length=16, show_progress=False)


def write(folder, kind, rows=DOCUMENTS, column="text"):
    data = datasets.Dataset.from_dict({column: rows, "extra": list(range(len(rows)))})
    file = folder / f"data.{kind}"
    if kind == "txt":
        file.write_text("\n\n".join(rows))
    elif kind == "txt.gz":
        file.write_bytes(gzip.compress("\n".join(rows).encode()))
    elif kind == "jsonl":
        data.to_json(file)
    elif kind == "csv":
        data.to_csv(file)
    elif kind == "parquet":
        data.to_parquet(file)
    return str(file)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "csv", "parquet"])
def test_reads_every_kind_of_file(tmp_path, kind, streaming):
    file = write(tmp_path, kind)
    arguments = TextDataArguments(train_file=[file], streaming=streaming, max_eval_samples=4)
    splits = load_documents(arguments, seed=0)
    rows = {name: [row["text"] for row in split] for name, split in splits.items()}
    assert set(rows["train"]) | set(rows["validation"]) <= set(DOCUMENTS)
    assert not set(rows["train"]) & set(rows["validation"])
    assert len(rows["train"]) >= 36
    assert 1 <= len(rows["validation"]) <= 4
    assert list(rows["train"][0]) == list(rows["train"][0])


def test_reads_a_data_set_by_name(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    datasets.Dataset.from_dict({"text": DOCUMENTS[:30]}).to_parquet(folder / "train.parquet")
    datasets.Dataset.from_dict({"text": DOCUMENTS[30:]}).to_parquet(folder / "validation.parquet")
    splits = load_documents(TextDataArguments(dataset_name=str(folder)), seed=0)
    assert splits["train"]["text"] == DOCUMENTS[:30]
    assert splits["validation"]["text"] == DOCUMENTS[30:]


def test_other_column_and_globs_and_limits(tmp_path):
    write(tmp_path, "jsonl", column="body")
    arguments = TextDataArguments(
        train_file=[str(tmp_path / "*.jsonl")], text_column="body", max_train_samples=5, max_eval_samples=1
    )
    splits = load_documents(arguments, seed=0)
    assert (len(splits["train"]), len(splits["validation"])) == (5, 1)


def refusal(**arguments):
    with pytest.raises(SystemExit) as caught:
        load_documents(TextDataArguments(**arguments), seed=0)
    message = str(caught.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def test_mistakes_are_named(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n\n")
    unknown = tmp_path / "data.docx"
    unknown.write_text("text")
    file = write(tmp_path, "jsonl")
    assert "no file 'missing.txt'" in refusal(train_file=["missing.txt"])
    assert "data.docx" in refusal(train_file=[str(unknown)])
    assert "no column 'body'; it has 'text', 'extra'" in refusal(train_file=[file], text_column="body")
    assert "holds no text" in refusal(train_file=[str(empty)], validation_file=[file])
    assert "--dataset_name or --train_file" in refusal()
    assert "different kinds" in refusal(train_file=[file, str(empty)])
    assert "--max_eval_samples" in refusal(train_file=[file], streaming=True)
    assert "percentage" in refusal(train_file=[file], validation_split_percentage=0.1)
    assert "nowhere" in refusal(dataset_name=str(tmp_path / "nowhere"))


def test_packing_by_hand(tokenizer):
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in DOCUMENTS[:2]]
    stream = [*ids[0], 3, *ids[1]]
    rows = tokenize(datasets.Dataset.from_dict({"text": DOCUMENTS[:2]}), row_encoder(tokenizer, 10, pack=True))
    expected = [[2, *stream[start : start + 8], 3] for start in range(0, len(stream), 8)]
    assert list(rows["input_ids"]) == expected
    specials = [[int(token in (2, 3)) for token in row] for row in expected]
    assert list(rows["special_tokens_mask"]) == specials


def test_line_by_line_truncates(tokenizer):
    rows = tokenize(datasets.Dataset.from_dict({"text": DOCUMENTS[:3]}), row_encoder(tokenizer, 10, pack=False))
    for text, row in zip(DOCUMENTS, rows["input_ids"], strict=False):
        assert row == tokenizer(text, truncation=True, max_length=10)["input_ids"]


@given(
    texts=st.lists(st.text(min_size=1, max_size=30).filter(str.strip), min_size=1, max_size=5),
    length=st.integers(3, 12),
)
def test_packing_loses_nothing(tokenizer, texts, length):
    rows = row_encoder(tokenizer, length, pack=True)({"text": texts})
    content = [token for row in rows["input_ids"] for token in row[1:-1]]
    documents = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected: list[int] = []
    for document in documents:
        expected += ([3] if expected else []) + document
    assert content == expected
    assert all(len(row) <= length for row in rows["input_ids"])


@pytest.mark.parametrize("pack", [False, True])
def test_whole_words_are_masked_whole(tokenizer, pack):
    data = datasets.Dataset.from_dict({"text": DOCUMENTS[:8]})
    rows = tokenize(data, row_encoder(tokenizer, 64, pack=pack, word_offsets=True))
    collator = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0, seed=0
    )
    partly, masked = 0, 0
    for row in rows:
        batch = collator([row])
        hidden = (batch["labels"][0] != -100).tolist()
        pieces = tokenizer.convert_ids_to_tokens(row["input_ids"])
        words: list[list[bool]] = []
        for piece, special, is_hidden in zip(pieces, row["special_tokens_mask"], hidden, strict=True):
            if special:
                assert not is_hidden
                words.append([])
            elif piece.startswith("▁") or piece == "," or not words:  # punctuation is a word of its own
                words.append([is_hidden])
            else:
                words[-1].append(is_hidden)
        partly += sum(any(word) and not all(word) for word in words)
        masked += sum(any(word) for word in words)
    assert masked > 5
    assert partly == 0


def test_evaluation_is_labelled_once(tokenizer):
    rows = tokenize(datasets.Dataset.from_dict({"text": DOCUMENTS}), row_encoder(tokenizer, 16, pack=True))
    first, second = (labelled_once(rows, DataCollatorForLanguageModeling(tokenizer, seed=5)) for _ in range(2))
    assert list(first["labels"]) == list(second["labels"])
    asked = [label != -100 for row in first["labels"] for label in row]
    assert 0.05 < sum(asked) / len(asked) < 0.3
    for ids, masked, labels in zip(rows["input_ids"], first["input_ids"], first["labels"], strict=True):
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
        assert all(a == b for a, b, label in zip(masked, ids, labels, strict=True) if label == -100)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(6, 16))
@settings(max_examples=20)
def test_isolated_documents_are_packed_whole(tokenizer, sentences, max_seq_length):
    texts = [" ".join(DOCUMENTS[index] for _ in range(count)) for index, count in enumerate(sentences)]
    columns = row_encoder(tokenizer, max_seq_length, pack=True, isolate=True)({"text": texts})
    found = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        assert len(row["input_ids"]) <= max_seq_length
        assert row["seq_idx"] == sorted(row["seq_idx"])
        for number in sorted(set(row["seq_idx"])):
            piece = [index for index, other in enumerate(row["seq_idx"]) if other == number]
            found.append([row["input_ids"][index] for index in piece])
            assert [row["special_tokens_mask"][index] for index in piece] == [1, *[0] * (len(piece) - 2), 1]
    room, expected = max_seq_length - 2, []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
        expected += [[tokenizer.cls_token_id, *piece, tokenizer.sep_token_id] for piece in pieces]
    assert sorted(found) == sorted(expected)


def test_isolated_rows_are_as_full_as_first_fit_makes_them():
    rows = first_fit([5, 3, 9, 2, 7, 10], 10)
    assert sorted(map(sorted, rows)) == [[0, 3], [1, 4], [2], [5]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_as_the_tokenizer_pads_them(tokenizer, side):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = side
    ids = tokenizer(DOCUMENTS[:4], truncation=True, max_length=9)["input_ids"]
    rows = [{"input_ids": row[:length]} for row, length in zip(ids, (9, 4, 7, 9), strict=True)]
    batch, expected = pad_rows(rows, tokenizer), tokenizer.pad(rows, return_tensors="pt")
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
    assert all(torch.equal(pad_rows(rows[:1], tokenizer)[name], expected[name][:1]) for name in batch)


def test_other_columns_are_padded_with_what_is_nothing_there(tokenizer):
    rows = [
        {"input_ids": [5, 6], "labels": [1], "seq_idx": [0, 1], "offset_mapping": [(0, 1), (2, 3)]},
        {"input_ids": [5], "labels": [1, 2, 3], "seq_idx": [0], "offset_mapping": [(0, 1)]},
    ]
    batch = {name: column.tolist() for name, column in pad_rows(rows, tokenizer).items()}
    assert batch == {
        "input_ids": [[5, 6], [5, tokenizer.pad_token_id]],
        "attention_mask": [[1, 1], [1, 0]],
        "labels": [[1, -100, -100], [1, 2, 3]],
        "seq_idx": [[0, 1], [0, -1]],
        "offset_mapping": [[[0, 1], [2, 3]], [[0, 1], [0, 0]]],
    }


@pytest.mark.parametrize("whole_words", [False, True])
def test_masking_is_that_of_transformers(tokenizer, whole_words):
    data = datasets.Dataset.from_dict({"text": DOCUMENTS})
    rows = list(tokenize(data, row_encoder(tokenizer, 16, pack=True, word_offsets=whole_words)))
    full = [row for row in rows if len(row["input_ids"]) == 16]
    options = {"whole_word_mask": whole_words, "seed": 3}
    if whole_words:
        options |= {"mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    ours, theirs = (kind(tokenizer, **options) for kind in (MaskingCollator, DataCollatorForLanguageModeling))
    ours.create_rng()
    batch = ours(full)
    expected = theirs(full)
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
