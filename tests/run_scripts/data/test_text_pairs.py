import gzip
import json

import datasets
import pytest

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.data.text_pairs import (
    Seq2SeqDataArguments,
    iterate_pair_texts,
    load_pairs,
    rows_of_length,
    tokenize_pairs,
)


SOURCES = ["the gate mixes", "a token", "channels split here"]
TARGETS = ["das Tor mischt", "ein Token", "Kanäle teilen hier"]
PAIRS = list(zip(SOURCES, TARGETS, strict=True))

DIALOGUES = """\
1 your persona: i like tea.
2 your persona: i have a cat.
3 hello !\thi , who are you ?
4 a reader .\tgood .\t\tgood .|bad .
1 your persona: i run.
2 partner's persona: i swim.
3 morning .\tlet us go .
"""


def loaded(split="train", **arguments):
    pairs, _ = load_pairs(Seq2SeqDataArguments(**arguments), [split])[split]
    return list(zip(pairs["source"], pairs["target"], strict=True))


def write_lines(folder, name, lines):
    file = folder / name
    content = "".join(f"{line}\n" for line in lines).encode()
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return [str(file)]


def write_dialogues(folder):
    (folder / "dialogues.txt").write_text(DIALOGUES)
    return [str(folder / "dialogues.txt")]


@pytest.mark.parametrize("ending", ["txt", "txt.gz", "de", "de.gz"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_line_parallel_files(tmp_path, ending, split):
    files = {
        f"{split}_source_file": write_lines(tmp_path, f"source.{ending}", SOURCES),
        f"{split}_target_file": write_lines(tmp_path, f"target.{ending}", TARGETS),
    }
    assert loaded(split, **files) == PAIRS


def test_a_data_set_with_nested_columns(tmp_path):
    rows = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "wmt" / "train.parquet")
    datasets.Dataset.from_list(rows[:1]).to_parquet(tmp_path / "wmt" / "test.parquet")
    names = {"dataset_name": str(tmp_path / "wmt"), "source_column": "translation.en"}
    assert loaded(**names, target_column="translation.de") == PAIRS
    assert loaded("test", **names, target_column="translation.de") == PAIRS[:1]
    # The same text on both sides, and a column whose own name has a dot.
    assert loaded(**names, target_column="translation.en")[0] == (SOURCES[0], SOURCES[0])
    dotted = datasets.Dataset.from_list([{"a.b": "x", "target": "y"}])
    dotted.to_parquet(tmp_path / "dotted.parquet")
    assert loaded(train_file=[str(tmp_path / "dotted.parquet")], source_column="a.b") == [("x", "y")]


def test_sentences_are_joined_and_several_targets_are_references(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"source": ["One.", "Two."], "target": ["first", " ", "second"]}) + "\n")
    arguments = Seq2SeqDataArguments(train_file=[str(file)], source_prefix="summarize: ")
    pairs, side = load_pairs(arguments, ["train"])["train"]
    row = {"source": "summarize: One. Two.", "target": "first", "references": ["first", "second"], "index": 0}
    assert pairs[0] == row
    assert side == "right"
    assert list(iterate_pair_texts(pairs)) == ["summarize: One. Two.", "first"]


def test_dialogues(tmp_path):
    files = write_dialogues(tmp_path)
    persona = "your persona: i like tea.\nyour persona: i have a cat."
    assert loaded(train_file=files) == [
        (f"{persona}\nhello !", "hi , who are you ?"),
        (f"{persona}\nhello !\nhi , who are you ?\na reader .", "good ."),
        ("your persona: i run.\npartner's persona: i swim.\nmorning .", "let us go ."),
    ]
    assert loaded(train_file=files, max_history=2)[1] == (f"{persona}\nhi , who are you ?\na reader .", "good .")
    assert load_pairs(Seq2SeqDataArguments(train_file=files), ["train"])["train"][1] == "left"


def test_skipping_counts_for_its_split_and_rows_keep_their_index(tmp_path):
    sources = write_lines(tmp_path, "source", ["one", "", "three", "four"])
    targets = write_lines(tmp_path, "target", ["1", "2", "3", " "])
    kinds = {"source": sources, "target": targets}
    files = {f"{split}_{kind}_file": names for split in ("train", "test") for kind, names in kinds.items()}
    assert loaded(**files, skip_empty_examples=True) == [("one", "1"), ("three", "3")]
    arguments = Seq2SeqDataArguments(**files, skip_empty_examples=True, max_train_samples=1)
    kept, _ = load_pairs(arguments, ["train"])["train"]
    assert [(row["source"], row["index"]) for row in kept] in ([("one", 0)], [("three", 2)])
    with pytest.raises(SystemExit, match=r"2 bad rows\. line 2: 'source' is empty; line 4: 'target' is empty\.$"):
        loaded("test", **files, skip_empty_examples=True)
    with pytest.raises(SystemExit, match=r"2 bad rows\. .* line 4: 'target' .* --skip_empty_examples"):
        loaded(**files)


def refusal(split="train", **arguments):
    with pytest.raises(SystemExit) as caught:
        loaded(split, **arguments)
    message = str(caught.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def test_mistakes_are_named(tmp_path):
    three, two = write_lines(tmp_path, "three", SOURCES), write_lines(tmp_path, "two", TARGETS[:2])
    file = tmp_path / "data.jsonl"
    file.write_text('{"source": "a", "target": "b", "year": 1999}\n')
    latin = tmp_path / "latin"
    latin.write_bytes("Kanäle\n".encode("latin-1"))
    empty = write_lines(tmp_path, "empty", ["", ""])
    columns = {"train_file": [str(file)]}
    assert "three'] have 3 lines, but" in refusal(train_source_file=three, train_target_file=two)
    assert "belong together" in refusal(train_source_file=three)
    assert "there is no file 'nowhere'" in refusal(train_source_file=["nowhere"], train_target_file=two)
    assert "latin, line 1: not valid UTF-8 (byte 0xe4)" in refusal(
        train_source_file=[str(latin)], train_target_file=two
    )
    assert "give the train data as one of --dataset_name, --train_file" in refusal()
    assert "give the test data" in refusal("test", **columns)
    assert "give the train data" in refusal(**columns, train_source_file=three, train_target_file=three)
    missing = refusal(**columns, source_column="text")
    assert "has no column 'text': where 'text' should be, there is 'source', 'target', 'year'" in missing
    assert "where 'en' should be, there is 'b'" in refusal(**columns, target_column="target.en")
    assert "data.jsonl, line 1: the column 'year' must hold a text or a list of texts, got 1999" in refusal(
        **columns, target_column="year"
    )
    assert "has no row with both texts" in refusal(
        train_source_file=empty, train_target_file=empty, skip_empty_examples=True
    )
    nothing = write_lines(tmp_path, "nothing", [])
    assert "the train data has no rows" in refusal(train_source_file=nothing, train_target_file=nothing)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\thi\n", "line 1: a dialogue's lines begin with a number"),
        ("1 your persona: x\n2 hello\n", "line 2: there is no tab"),
    ],
)
def test_text_that_is_no_dialogue(tmp_path, text, message):
    (tmp_path / "dialogues.txt").write_text(text)
    assert message in refusal(train_file=[str(tmp_path / "dialogues.txt")])


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut_and_keep_their_end_token(side):
    tokenizer = train_unigram_tokenizer(SOURCES + TARGETS, 140, 16, show_progress=False, kind="encoder-decoder")
    pairs = datasets.Dataset.from_dict({"source": SOURCES, "target": TARGETS, "references": [[t] for t in TARGETS]})
    rows = tokenize_pairs(pairs, tokenizer, 5, 4, side)
    for row, (source, target) in zip(rows, PAIRS, strict=True):
        ids = tokenizer(source, add_special_tokens=False).input_ids
        assert row["input_ids"] == [*(ids[-4:] if side == "left" else ids[:4]), tokenizer.eos_token_id]
        assert row["labels"] == [*tokenizer(target, add_special_tokens=False).input_ids[:3], tokenizer.eos_token_id]
    assert tokenizer.truncation_side == "right"
    assert set(rows.column_names) == {"input_ids", "labels"}
    assert rows_of_length(rows, "labels", 4) == 3
    assert rows_of_length(rows, "labels", 5) == 0
