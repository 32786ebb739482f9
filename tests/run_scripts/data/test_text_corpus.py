import gzip

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.text_corpus import (
    TextDataArguments,
    load_documents,
    load_texts,
    read_texts,
)


DOCUMENTS = [f"document number {i} has some words, and unbelievably long ones too" for i in range(40)]


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
    splits = load_documents(arguments)
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
    splits = load_documents(TextDataArguments(dataset_name=str(folder)))
    assert splits["train"]["text"] == DOCUMENTS[:30]
    assert splits["validation"]["text"] == DOCUMENTS[30:]


@pytest.mark.parametrize(("share", "count"), [(None, 2), (0.25, 10)])
def test_documents_are_held_out_of_training_files_and_data_sets(tmp_path, share, count):
    """Always the same ones, in their order. A share that is given counts also if there is a validation split."""
    (tmp_path / "hub").mkdir()
    for name in ("train", "validation") if share else ("train",):
        datasets.Dataset.from_dict({"text": DOCUMENTS}).to_parquet(tmp_path / "hub" / f"{name}.parquet")
    expected = sorted(np.random.default_rng(0).permutation(40)[:count])
    for source in ({"train_file": [write(tmp_path, "jsonl")]}, {"dataset_name": str(tmp_path / "hub")}):
        splits = load_documents(TextDataArguments(**source, train_val_split=share))
        assert splits["validation"]["text"][:] == [DOCUMENTS[place] for place in expected]
        assert splits["train"]["text"][:] == [text for place, text in enumerate(DOCUMENTS) if place not in expected]


def test_other_column_and_globs_and_limits(tmp_path):
    write(tmp_path, "jsonl", column="body")
    arguments = TextDataArguments(
        train_file=[str(tmp_path / "*.jsonl")], text_column_names=["body"], max_train_samples=5, max_eval_samples=1
    )
    splits = load_documents(arguments)
    assert (len(splits["train"]), len(splits["validation"])) == (5, 1)


def test_a_file_to_evaluate_on_is_enough(tmp_path):
    splits = load_documents(TextDataArguments(validation_file=[write(tmp_path, "jsonl")]))
    assert list(splits) == ["validation"]
    assert splits["validation"]["text"] == DOCUMENTS


def refusal(**arguments):
    with pytest.raises(SystemExit) as caught:
        load_documents(TextDataArguments(**arguments))
    message = str(caught.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def test_mistakes_are_named(tmp_path):
    empty = tmp_path / "empty.txt"
    unknown = tmp_path / "data.docx"
    unknown.write_text("text")
    file = write(tmp_path, "jsonl")
    assert "no file 'missing.txt'" in refusal(train_file=["missing.txt"])
    assert "data.docx" in refusal(train_file=[str(unknown)])
    assert "'body' (--text_column_names); it has 'text', 'extra'" in refusal(
        train_file=[file], text_column_names=["body"]
    )
    for content in ("\n \n\n", ""):
        empty.write_text(content)
        assert "holds no text" in refusal(train_file=[str(empty)], validation_file=[file])
    assert "--dataset_name or --train_file" in refusal()
    assert "either --dataset_name or --train_file." in refusal(train_file=[file], dataset_name="corpus")
    assert "--max_eval_samples" in refusal(train_file=[file], streaming=True)
    assert "--train_val_split 0.001 of 40 examples leaves nothing" in refusal(train_file=[file], train_val_split=0.001)
    both = {"train_file": [file], "train_val_split": 0.1}
    assert "--validation_file names others" in refusal(**both, validation_file=[file])
    assert "--train_val_split is not for --streaming" in refusal(**both, streaming=True, max_eval_samples=1)
    assert "nowhere" in refusal(dataset_name=str(tmp_path / "nowhere"))


WRAPPED = "\ufeffIt was the best\r\nof times,\r\n  it was the worst. \r\n \t\r\n\r\nA second\rparagraph\n\n\n\n"
WRAPPED += "東京は\n日本の\nTokyo\n\n"
PARAGRAPHS = ["It was the best of times, it was the worst.", "A second\rparagraph", "東京は日本の Tokyo"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_paragraphs_and_documents_of_a_folder(ending, streaming, tmp_path):
    """Wrapped lines are joined, blank ones separate; a folder's files are documents of their own."""
    for name, content in (("a", WRAPPED), ("b", "Alone\nhere"), ("sub/c", "\n \n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        content = content.encode()
        (tmp_path / f"{name}{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    found = {
        unit: [row["text"] for row in load_texts([str(tmp_path)], "text", "train", streaming, unit=unit)]
        for unit in ("line", "paragraph", "document")
    }
    assert found["line"][1:3] == ["of times,", "  it was the worst. "]
    assert found["paragraph"] == [*PARAGRAPHS, "Alone here"]
    assert found["document"] == ["\n\n".join(PARAGRAPHS), "Alone here"]
    places = [place.rpartition(" ")[2] for place, _ in read_texts([str(tmp_path / f"a{ending}")], unit="paragraph")]
    assert places == ["1", "6", "10"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_unit": "page"}, "--text_unit page is unknown; there are line, paragraph, document"),
        ({"text_unit": "document", "dataset_name": "x", "train_file": None}, "is for txt files: a row of a data set"),
        ({"text_unit": "paragraph", "train_file": ["data.jsonl"]}, "the train data are tables: a row is a document"),
    ],
)
def test_wrong_units_of_text(changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "jsonl")
    with pytest.raises(SystemExit) as caught:
        load_documents(TextDataArguments(**{"train_file": ["data.txt"], **changes}))
    assert message in str(caught.value)
