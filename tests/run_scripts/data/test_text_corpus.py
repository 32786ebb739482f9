import gzip

import datasets
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments, load_documents, text_only


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


def test_a_file_to_evaluate_on_is_enough(tmp_path):
    splits = load_documents(TextDataArguments(validation_file=[write(tmp_path, "jsonl")]), seed=0)
    assert list(splits) == ["validation"]
    assert splits["validation"]["text"] == DOCUMENTS


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
    assert "either --dataset_name or --train_file." in refusal(train_file=[file], dataset_name="corpus")
    assert "--max_eval_samples" in refusal(train_file=[file], streaming=True)
    assert "percentage" in refusal(train_file=[file], validation_split_percentage=0.1)
    assert "nowhere" in refusal(dataset_name=str(tmp_path / "nowhere"))


def test_a_column_of_mixed_values_names_the_one_that_is_no_text():
    rows = datasets.Dataset.from_list(
        [{"text": "a"}, {"text": None}, {"text": 3}], features=datasets.Features({"text": datasets.Json()})
    )
    with pytest.raises(UserError, match="must hold strings, got 3"):
        text_only(rows, "text", "train")
