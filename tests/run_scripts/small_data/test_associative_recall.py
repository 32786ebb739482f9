import pytest
from transformers import AutoTokenizer

from tokenmixers.run_scripts import make_data
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.conll import read_conll


def write(folder, *arguments):
    make_data.main(["associative_recall", "--output_dir", str(folder), "--train_count", "30", *arguments])
    tables = {split: read_conll(str(folder / f"{split}.conll"), "tokens", "tags") for split in ("train", "validation")}
    return {split: table.rows for split, table in tables.items()}


def test_repeated_keys_are_tagged_with_their_values(tmp_path):
    splits = write(tmp_path / "recall", "--pairs", "5", "--keys", "9", "--values", "4")
    assert [len(rows) for rows in splits.values()] == [30, 500]
    mappings, orders = set(), set()
    for row in splits["train"] + splits["validation"]:
        words, tags = row["tokens"], row["tags"]
        keys, values, asked = words[:10:2], words[1:10:2], words[10:]
        assert len(set(keys)) == 5 and sorted(asked) == sorted(keys)
        known = dict(zip(keys, values, strict=True))
        assert tags == ["O"] * 10 + [f"B-{known[key]}" for key in asked]
        mappings |= set(known.items())
        orders.add(tuple(keys.index(key) for key in asked))
    assert len(mappings) == 9 * 4  # every key has every value somewhere
    assert len(orders) > 20


def test_training_sentences_may_be_shorter(tmp_path):
    splits = write(tmp_path / "recall", "--pairs", "5", "--least_pairs", "2")
    assert {len(row["tokens"]) for row in splits["train"]} == {6, 9, 12, 15}
    assert {len(row["tokens"]) for row in splits["validation"]} == {15}


def test_every_word_is_a_token(tmp_path):
    row = write(tmp_path / "recall", "--pairs", "5", "--keys", "9", "--values", "4")["train"][0]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "recall" / "tokenizer")
    assert (len(tokenizer), tokenizer.model_max_length, tokenizer.pad_token_id) == (5 + 9 + 4, 17, 0)
    encoded = tokenizer(row["tokens"], is_split_into_words=True)
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == ["[CLS]", *row["tokens"], "[SEP]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pairs", "70"), "--pairs 70 needs as many different --keys, there are 64"),
        (("--pairs", "3", "--least_pairs", "4"), "--least_pairs 4 is more than --pairs 3"),
        (("--values", "84"), "--values 84 is too many: there are names for 83"),
    ],
)
def test_mistakes(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        write(tmp_path / "recall", *arguments)
    assert not (tmp_path / "recall").exists()
