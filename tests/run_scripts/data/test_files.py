import bz2
import gzip
import lzma

import datasets
import pyarrow as pa
import pytest

from tokenmixers.run_scripts.base.errors import BadDataError, UserError
from tokenmixers.run_scripts.data import files
from tokenmixers.run_scripts.data.conll import read_conll
from tokenmixers.run_scripts.data.files import ending, find_files, iterate_lines, read_text
from tokenmixers.run_scripts.data.loading import load_named
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments, load_sentence_pairs
from tokenmixers.run_scripts.data.squad import load_squad_files
from tokenmixers.run_scripts.data.table_files import read_table
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments, load_sets
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments, load_texts, text_only
from tokenmixers.run_scripts.data.text_pairs import Seq2SeqDataArguments, load_pairs


def with_arrow(codec: str):
    def compress(content: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(content)
        return sink.getvalue().to_pybytes()

    return compress


COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": with_arrow("zstd"),
    ".lz4": with_arrow("lz4"),
}
ODD = "one\rstill one\u2028\x0b\x0c\x1c\x85end"


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("compression", COMPRESS)
def test_lines_of_every_compression_end_with_line_feeds_alone(compression, block, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", block)
    path = tmp_path / f"A.TXT{compression.upper()}"
    path.write_bytes(COMPRESS[compression](f"\ufeff{ODD}\r\n\ntwo\rhalves\nend\r".encode()))
    assert list(iterate_lines(path)) == [ODD, "", "two\rhalves", "end\r"]
    assert read_text(path) == f"{ODD}\r\n\ntwo\rhalves\nend\r"
    assert ending(path) == ".txt"


@pytest.mark.parametrize("compression", list(COMPRESS)[1:])
def test_damaged_files_are_named(compression, tmp_path):
    whole = COMPRESS[compression](b"line\n" * 1000)
    path = tmp_path / f"a.txt{compression}"
    for content in (whole[:-9], b"no compressed file"):
        path.write_bytes(content)
        with pytest.raises(BadDataError, match=r"a\.txt.* cannot be read: "):
            list(iterate_lines(path))


def test_a_folder_stands_for_its_files(tmp_path):
    folder = tmp_path / "texts [2024]"
    for name in ("b.txt", "a.txt.gz", "deeper/c.csv", "notes.docx", ".hidden.txt", ".git/d.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    kinds = (".txt", ".csv")
    assert find_files(str(folder), kinds) == [str(folder / name) for name in ("a.txt.gz", "b.txt", "deeper/c.csv")]
    assert find_files([str(tmp_path / "*" / "b.txt")], kinds) == [str(folder / "b.txt")]
    assert find_files([str(folder / "*.txt")], kinds) == [str(folder / "b.txt")]
    assert find_files([str(folder / "**" / "*.csv")], kinds) == [str(folder / "deeper" / "c.csv")]
    with pytest.raises(UserError, match=r"texts \[2024\]' cannot be read by `datasets`.*: rename it"):
        load_named(str(folder), None, "train")
    with pytest.raises(UserError, match=r"the folder .* has no file to read\. Known endings: \.tsv"):
        find_files([str(folder)], (".tsv",))


def rows_of_every_reader(tmp_path, compression):
    """Reader -> what it makes of a text with a carriage return, after a byte order mark, in a compressed file."""

    def write(name, content):
        path = tmp_path / f"{name}{compression}"
        path.write_bytes(COMPRESS[compression](f"\ufeff{content}".encode()))
        return str(path)

    csv_file, tsv_file = (
        write("a.csv", "text,label\na\rb,x\nc,y\n"),
        write("a.tsv", "text\tlabel\r\na\rb\tx\r\nc\ty\r\n"),
    )
    jsonl = write("a.jsonl", '{"text": "a\\rb",\r "label": "x"}\n{"text": "c", "label": "y"}\n')
    for file in (csv_file, tsv_file, jsonl):
        yield f"table {file}", [row["text"] for row in read_table(file).rows]
        yield f"corpus {file}", load_texts([file], "text", "train")["text"][:]
        yield f"stream {file}", [row["text"] for row in load_texts([file], "text", "train", streaming=True)]
        columns = SentencePairArguments(train_file=[file], anchor_column="text", positive_column="label")
        yield f"sentence pairs {file}", load_sentence_pairs(columns, ["train"])["train"]["anchor"][:]
        arguments = Seq2SeqDataArguments(train_file=[file], source_column="text", target_column="label")
        yield f"seq2seq {file}", load_pairs(arguments, ["train"])["train"][0]["source"][:]
        tables = load_sets(TextClassificationArguments(train_file=[file]), ["train"])
        yield f"glue {file}", [row["text"] for row in tables["train"][""].rows]
    txt, other = write("a.txt", "a\rb\nc\n"), write("a.de", "x\ny\n")
    yield "txt", load_texts([txt], "text", "train")["text"][:]
    yield "txt stream", [row["text"] for row in load_texts([txt], "text", "train", streaming=True)]
    lines = Seq2SeqDataArguments(train_source_file=[txt], train_target_file=[other])
    yield "parallel lines", load_pairs(lines, ["train"])["train"][0]["source"][:]
    dialogue = write("dialogue.txt", "1 a\rb\tx\n1 c\ty\n")
    yield "dialogue", load_pairs(Seq2SeqDataArguments(test_file=[dialogue]), ["test"])["test"][0]["source"][:]
    (tagged,) = read_conll(write("a.conll", "a\rb\tO\nc\tO\n")).rows
    yield "conll", tagged["tokens"]
    question = '{"id": "%s", "question": "a\\rb", "answers": []}'
    content = f'{{"data": [{{"paragraphs": [{{"context": "c", "qas": [{question % 1}]}}]}}]}}'
    (row,) = load_squad_files([write("squad.json", content)]).rows
    yield "squad", [row["question"], row["context"]]


@pytest.mark.parametrize("compression", ["", ".zst"])
def test_every_reader_keeps_carriage_returns_and_drops_byte_order_marks(compression, tmp_path):
    found = dict(rows_of_every_reader(tmp_path, compression))
    assert {name: texts for name, texts in found.items() if texts != ["a\rb", "c"]} == {}
    assert len(found) == 24


@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """`on_the_hub(name, folder)`: `datasets` finds a folder under this name, as if it were on the Hub."""
    places: dict[str, str] = {}

    def through(function):
        return lambda path, *args, **kwargs: function(places.get(path, path), *args, **kwargs)

    for name in ("load_dataset", "load_dataset_builder"):
        monkeypatch.setattr(datasets, name, through(getattr(datasets, name)))
    monkeypatch.chdir(tmp_path)
    return lambda name, folder: places.update({name: str(folder)})


def test_words_that_mean_nothing_to_pandas_are_texts_on_the_hub_too(on_the_hub, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.csv").write_text(
        "text,number\n" + "".join(f"{word},1\n" for word in WORDS[:7]) + ",2\n"
    )
    on_the_hub("me/words", tmp_path / "here")
    for streaming in (False, True):
        rows = list(load_named("me/words", None, "train", streaming))
        assert [row["text"] for row in rows] == [*WORDS[:7], None] and rows[-1]["number"] == 2


def test_a_data_set_that_the_cache_has_as_csv_is_read_without_a_network(monkeypatch, tmp_path):
    """The name in the cache depends on how csv was read."""
    monkeypatch.chdir(tmp_path)

    def load(path, config_name, split=None, **options):
        if not options.get("na_values"):
            raise ValueError("Couldn't find cache for me/words for config 'default'")
        return datasets.Dataset.from_dict({"text": ["NA"]})

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_named("me/words", None, "train")["text"][:] == ["NA"]


WORDS = ["NA", "null", "None", "nan", "N/A", "NULL", "#N/A", "-", "1.0", "007"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_words_for_nothing_are_texts_in_every_reader(ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    lines = [f'{{"text": "{word}", "label": "{word}"}}' for word in WORDS]
    if ending != "jsonl":
        comma = "," if ending == "csv" else "\t"
        lines = [f"text{comma}label", *(f"{word}{comma}{word}" for word in WORDS)]
    path.write_text("\n".join(lines))
    file = [str(path)]
    assert load_texts(file, "text", "train")["text"][:] == WORDS
    assert [row["text"] for row in load_texts(file, "text", "train", streaming=True)] == WORDS
    columns = Seq2SeqDataArguments(train_file=file, source_column="text", target_column="label")
    pairs, _ = load_pairs(columns, ["train"])["train"]
    assert pairs["source"][:] == pairs["target"][:] == WORDS
    columns = SentencePairArguments(train_file=file, anchor_column="text", positive_column="label")
    assert load_sentence_pairs(columns, ["train"])["train"]["positive"][:] == WORDS
    tables = load_sets(TextClassificationArguments(train_file=file), ["train"])
    assert [row["label"] for row in tables["train"][""].rows] == WORDS


@pytest.mark.parametrize("streaming", [False, True])
def test_local_data_sets_have_the_same_texts_as_their_files(streaming, tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("text,number\nNA,1\nnull,\n,3\n")
    (tmp_path / "txt").mkdir()
    (tmp_path / "txt" / "train.txt").write_text("\ufeffa\rb\nc\r\n")
    for folder, expected in (("csv", ["NA", "null"]), ("txt", ["a\rb", "c"])):
        arguments = TextDataArguments(dataset_name=str(tmp_path / folder), streaming=streaming, max_eval_samples=1)
        split = text_only(arguments.load("train", None, streaming), "text", "train")
        assert [row["text"] for row in split] == expected
