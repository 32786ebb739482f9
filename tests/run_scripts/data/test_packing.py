import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.data.packing import first_fit, row_encoder, tokenize


DOCUMENTS = [f"document number {i} has some words, and unbelievably long ones too" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(DOCUMENTS, vocab_size=90, model_max_length=16, show_progress=False)


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


def test_pieces_that_fill_a_row_are_not_searched():
    """A book has many: with a search among all earlier rows this would take minutes."""
    packed = first_fit([512] * 50_000 + [500, 12, 1], 512)
    assert packed[:50_000] == [[piece] for piece in range(50_000)]
    assert packed[50_000:] == [[50_000, 50_001], [50_002]]


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
