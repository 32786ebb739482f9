"""Bad rows: all are reported at once, and those that lack a text or a label can be left out."""

import json
import shutil
from pathlib import Path

import datasets
import pytest
from PIL import Image

from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.images import ImageDataArguments, load_images
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments, load_sentence_pairs
from tokenmixers.run_scripts.data.squad import QuestionDataArguments, load_questions
from tokenmixers.run_scripts.data.table_files import read_table
from tokenmixers.run_scripts.data.text_classification import (
    TextClassificationArguments,
    load_sets,
    own_task,
    read_examples,
)
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments, load_documents, load_texts
from tokenmixers.run_scripts.data.text_pairs import Seq2SeqDataArguments, load_pairs
from tokenmixers.run_scripts.data.text_to_text import TEXT_TASKS, TextToTextArguments, load_table, read_text_examples
from tokenmixers.run_scripts.data.token_classification import TokenClassificationArguments, load_sentences


def write(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)))
    return [str(path)]


def texts(file, split="train", **options):
    arguments = TextClassificationArguments(**{f"{split}_file": file}, **options)
    table = load_sets(arguments, [split])[split][""]
    task = own_task(arguments, table, GMLPConfig())
    return read_examples(table, task, split != "test", arguments.skip_empty_examples)["index"][:]


def tags(file, split="train", **options):
    return load_sentences(TokenClassificationArguments(**{f"{split}_file": file}, **options), [split])[split]["tokens"]


def pairs(file, split="train", **options):
    return load_pairs(Seq2SeqDataArguments(**{f"{split}_file": file}, **options), [split])[split][0]["source"]


def sentences(file, split="train", **options):
    files = {f"{split}_file": file if split == "train" else file[0]}
    return load_sentence_pairs(SentencePairArguments(**files, **options), [split])[split]["anchor"]


def questions(file, split="train", **options):
    arguments = QuestionDataArguments(**{f"{split}_file": file}, **options)
    return load_questions(arguments, [split])[split]["id"]


def text_to_text(file, split="train", **options):
    (tmp_path := Path(file[0]).parent / "squad").mkdir(exist_ok=True)
    shutil.copy(file[0], tmp_path / f"{'train' if split == 'train' else 'dev'}_rows.jsonl")
    arguments = TextToTextArguments(data_dir=str(tmp_path.parent), **options)
    table = load_table(TEXT_TASKS["squad"], split, "", arguments)
    return read_text_examples(TEXT_TASKS["squad"], table, True, arguments.skip_empty_examples)


QUESTION = {"context": "It ran.", "question": "What?", "answers": {"text": ["It"], "answer_start": [0]}}
QUESTIONS = [
    {**QUESTION, "id": "1"},
    {**QUESTION, "id": "2", "question": " "},
    {**QUESTION, "id": "3", "context": None},
    {**QUESTION, "id": "4", "answers": None},
    {**QUESTION, "id": "5"},
]
#: Reader -> rows, of which the second to the fourth lack something.
READERS = {
    texts: [
        {"text": "a", "label": "x"},
        {"text": "", "label": "x"},
        {"text": None, "label": "y"},
        {"text": "d"},
        {"text": "e", "label": "y"},
    ],
    tags: [
        {"tokens": ["a"], "ner_tags": ["O"]},
        {"tokens": [], "ner_tags": []},
        {"tokens": ["c"], "ner_tags": [None]},
        {"ner_tags": ["O"]},
        {"tokens": ["e"], "ner_tags": ["O"]},
    ],
    pairs: [
        {"source": "a", "target": "A"},
        {"source": [" "], "target": "B"},
        {"target": "C"},
        {"source": "d", "target": None},
        {"source": "e", "target": "E"},
    ],
    sentences: [
        {"anchor": "a", "positive": "A"},
        {"anchor": "\t", "positive": "B"},
        {"positive": "C"},
        {"anchor": "d", "positive": None},
        {"anchor": "e", "positive": "E"},
    ],
    questions: QUESTIONS,
    text_to_text: QUESTIONS,
}


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("read", READERS)
def test_rows_that_lack_something_are_reported_together_or_left_out(read, split, tmp_path, capsys):
    file = write(tmp_path, READERS[read])
    with pytest.raises(UserError, match=r"rows.jsonl: 3 bad rows\. line 2: .*; line 3: .*; line 4: .*--skip_empty_ex"):
        read(file, split)
    assert len(read(file, split, skip_empty_examples=True)) == 2
    assert "3 of 5 rows left out" in capsys.readouterr().out
    if read is pairs:  # read from the disk this time
        assert len(read(file, split, skip_empty_examples=True)) == 2
        assert "3 of 5 rows left out" in capsys.readouterr().out
    assert len(read(write(tmp_path, READERS[read][::4]), split)) == 2


@pytest.mark.parametrize("read", [texts, tags, pairs, sentences])
def test_rows_to_predict_are_never_left_out(read, tmp_path):
    file = write(tmp_path, [READERS[read][row] for row in (0, 1, 4)])
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: .* empty"):
        read(file, "test", skip_empty_examples=True)


def test_examples_keep_the_index_of_their_row(tmp_path):
    assert texts(write(tmp_path, READERS[texts]), skip_empty_examples=True) == [0, 4]


def test_ten_are_named_and_all_counted_over_several_files(tmp_path):
    rows = [{"text": "", "label": "x"}] * 12
    first, second = write(tmp_path, rows, "1.jsonl"), write(tmp_path, [{"text": 3, "label": "y"}], "2.jsonl")
    with pytest.raises(UserError) as caught:
        texts([*first, *second])
    assert "13 bad rows." in str(caught.value) and "; and 3 more." in str(caught.value)
    assert str(caught.value).count("the text is empty") == 10
    with pytest.raises(UserError, match=r"2\.jsonl, line 1: the text must be a string, got 3\.$"):
        texts([*first, *second], skip_empty_examples=True)


@pytest.mark.parametrize(
    ("name", "content", "problems"),
    [
        ("a.csv", "text,label\n,x\na\nb,y\n", ["line 2: the text is empty", "line 3: 1 columns, not the 2"]),
        ("a.tsv", "text\tlabel\na\n\tx\nb\ty\n", ["line 2: 1 columns instead of 2", "line 3: the text is empty"]),
        ("a.jsonl", '{"text": \n{"text": ""}\n{"text": "\\ud83d"}\n{"text": 1, "text": 2}\n[1]\n{"label": 1}',
         ["line 1: not valid JSON", "line 2: the text is empty", r"line 3: a text has the lone surrogate \ud83d",
          "line 4: an object has two values for 'text'", "line 5: a row must be an object",
          "line 6: 'text' is missing"]),
        ("a.json", '[{"text": "\\ude00"}, {"text": ""}, {"label": 1}]', ["row 1: a text has the lone", "row 2: the"]),
    ],
)  # fmt: skip
def test_unreadable_and_empty_rows_are_reported_together(name, content, problems, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        texts([str(tmp_path / name)])
    for problem in problems:
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "name"), [("text,label,text\na,b,c\n", "a.csv"), ("text\tlabel\ttext\na\tb\tc\n", "a.tsv")]
)
def test_columns_of_the_same_name_are_refused(content, name, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name}, line 1: two columns are called 'text'"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": 1}, {"text": 2}], "2 bad rows. line 1: the column 'text' must be a string, got 1; line 2: "),
        ([{"text": "a"}, {"text": ["b"]}], "line 2: the column 'text' must be a string, got ['b']."),
        ([{"text": {"a": 1}}, {"text": "a"}], "line 1: the column 'text' must be a string, got {'a': 1}."),
        ([{"text": None}, {"text": True}], "line 2: the column 'text' must be a string, got True."),
        ([{"text": "a"}, {"text": "\ud83d"}], "line 2: a text has the lone surrogate \\ud83d"),
    ],
)
def test_what_is_no_text_in_a_corpus_is_named(rows, message, tmp_path):
    file = write(tmp_path, rows)
    with pytest.raises(UserError) as caught:
        load_texts(file, "text", "train")
    assert message in str(caught.value)
    one = message.partition("bad rows. ")[2].partition(";")[0] or message
    with pytest.raises(BaseException) as caught:  # a stream names the first
        list(load_texts(file, "text", "train", streaming=True))
    assert one in str(caught.value)


@pytest.mark.parametrize("values", [[1, 2], [["a"], ["b"]], [1.5, None]])
def test_what_is_no_text_in_a_data_set_is_named(values, tmp_path):
    datasets.Dataset.from_dict({"text": values}).to_parquet(tmp_path / "train.parquet")
    for streaming in (False, True):
        arguments = TextDataArguments(dataset_name=str(tmp_path), streaming=streaming, max_eval_samples=1)
        with pytest.raises(UserError, match="the column 'text' of the train data must hold strings, got "):
            load_documents(arguments)


def test_rows_without_text_are_counted(tmp_path, capsys):
    file = write(tmp_path, [{"text": "a"}, {"text": None}, {"text": ""}, {"other": 1}])
    for _ in range(2):  # also when they are read from the disk
        assert load_texts(file, "text", "train")["text"][:] == ["a"]
        assert "train data: 3 of 4 rows left out, which hold no text" in capsys.readouterr().out


def test_nested_columns_may_be_null_or_absent(tmp_path):
    rows = [{"translation": row} for row in ({"en": "a", "de": "b"}, {"en": None, "de": "d"}, {"de": "f"}, None)]
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    file = write(tmp_path, rows)
    with pytest.raises(UserError, match=r"3 bad rows\. line 2: 'translation.en' is empty; line 3: .*; line 4: "):
        pairs(file, **columns)
    assert pairs(file, **columns, skip_empty_examples=True)[:] == ["a"]
    wrong = write(tmp_path, [*rows, {"translation": "foo"}, {"translation": [1]}])
    message = (
        r"2 bad rows\. line 5: the column 'translation.en' must hold a text: where 'en' should be, there is 'foo'; "
        r"line 6: the column .* there is \[1\]\."
    )
    with pytest.raises(UserError, match=message):
        pairs(wrong, **columns, skip_empty_examples=True)
    with pytest.raises(UserError, match=r"no column 'translation.en': where 'en' should be, there is 'foo'"):
        pairs(write(tmp_path, [{"translation": "foo"}]), **columns)
    file = write(tmp_path, rows)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "hub" / "train.parquet")
    for skip in (False, True):
        arguments = Seq2SeqDataArguments(dataset_name=str(tmp_path / "hub"), skip_empty_examples=skip, **columns)
        if skip:
            assert load_pairs(arguments, ["train"])["train"][0]["source"][:] == ["a"]
        else:
            for _ in range(2):  # not kept on the disk
                with pytest.raises(UserError, match=r"train data: 3 bad rows\. row 2: .*; row 3: .*; row 4: "):
                    load_pairs(arguments, ["train"])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": "It", "answer_start": 0}, "its answers must have the lists 'text' and 'answer_start'"),
        ({"text": ["It"], "answer_start": [True]}, "an answer needs a text that is not empty and a start"),
        (["It"], "its answers must have the lists 'text' and 'answer_start'"),
        (3, "its answers must have the lists 'text' and 'answer_start'"),
        ({"text": ["\ud83d"], "answer_start": [0]}, "a text has the lone surrogate"),
    ],
)
def test_answers_of_another_form(answers, message, tmp_path):
    with pytest.raises(UserError) as caught:
        questions(write(tmp_path, [{**QUESTION, "id": "1", "answers": answers}]))
    assert message in str(caught.value) and "line 1" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "line 1: not valid JSON"),
        ('{"data": []}', "has no questions"),
        ('{"data": {}}', "data must be a list, got {}"),
        ('{"data": [3, {"paragraphs": [{"qas": [{"id": "1"}], "context": "c"}]}]}', "2 bad rows. question 1: not S"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "1", "question": "q", "answers": 3}], "context": "c"}]}]}',
         "question 1: not SQuAD's JSON"),
    ],
)  # fmt: skip
def test_squads_json_of_another_form(content, message, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError) as caught:
        questions([str(tmp_path / "a.json")])
    assert message in str(caught.value)


def test_long_cells_of_csv(tmp_path):
    (tmp_path / "a.csv").write_text(f"text,label\n{'x' * 200_000},1\nb,2\n")
    assert texts([str(tmp_path / "a.csv")]) == [0, 1]
    assert len(load_texts([str(tmp_path / "a.csv")], "text", "train")["text"][0]) == 200_000


@pytest.fixture
def pictures(tmp_path):
    """`pictures(split, name=..., ...)` writes pictures of classes, and returns the folder."""

    def build(split="train [2024]", **classes):
        for name, files in classes.items():
            for file in files:
                path = tmp_path / split / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix in (".png", ".jpg"):
                    Image.new("RGB", (2, 2)).save(path)
                else:
                    path.write_bytes(b"")
        return tmp_path / split

    return build


def test_folders_with_brackets_and_single_classes(pictures):
    folder = pictures(cat=["a[1].png", "b.jpg"])
    split = load_images(ImageDataArguments(train_dir=str(folder)), ["train"])["train"]
    assert split["label"][:] == [0, 0] and split.features["label"].names == ["cat"]
    (folder / "metadata.csv").write_text("file_name,label\ncat/a[1].png,tiger\n")
    split = load_images(ImageDataArguments(train_dir=str(folder)), ["train"])["train"]
    assert split.features["label"].names == ["tiger"]


@pytest.mark.parametrize(
    ("files", "message"),
    [(["a.heic", "b.heic"], "dog' has no image, but files with .heic: put"), ([], "dog' has no image: put")],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_folders_of_classes_without_images_are_refused(split, files, message, pictures):
    folder = pictures(cat=["a.png"], dog=files)
    (folder / "dog").mkdir(exist_ok=True)
    with pytest.raises(UserError) as caught:
        load_images(ImageDataArguments(**{f"{split}_dir": str(folder)}), [split])
    assert f"--{split}_dir: the folder " in str(caught.value) and message in str(caught.value)


def test_other_files_are_counted(pictures, capsys):
    folder = pictures(cat=["a.png", "b.heic", "c.heic", "notes.txt", ".DS_Store"], dog=["a.png"])
    assert len(load_images(ImageDataArguments(train_dir=str(folder)), ["train"])["train"]) == 2
    assert "files that are not images are left out: 2 with .heic, 1 with .txt" in capsys.readouterr().out


def test_validation_images_may_lack_classes(pictures):
    folders = {
        "train_dir": str(pictures("train", ant=["a.png"], bee=["a.png"], cat=["a.png"])),
        "validation_dir": str(pictures("validation", cat=["a.png", "b.png"], ant=["a.png"])),
    }
    splits = load_images(ImageDataArguments(**folders), ["train", "validation"])
    assert splits["validation"].features["label"].names == ["ant", "bee", "cat"]
    assert sorted(splits["validation"]["label"]) == [0, 2, 2]
    alone = ImageDataArguments(validation_dir=folders["validation_dir"])
    split = load_images(alone, ["validation"], model_classes=["cat", "bee", "ant"])["validation"]
    assert sorted(split["label"]) == [0, 0, 2]
    pictures("validation", dog=["a.png"])
    with pytest.raises(UserError, match="different classes: 'dog' are among the validation images alone"):
        load_images(ImageDataArguments(**folders), ["train", "validation"])


def test_empty_images_are_reported_together(pictures, capsys):
    folder = pictures(cat=["a.png", "b.gif", "c.gif"])
    arguments = ImageDataArguments(train_dir=str(folder))
    with pytest.raises(UserError, match=r"the train images: 2 bad rows\. .*b.gif: the image is empty; .*c.gif: "):
        load_images(arguments, ["train"])
    arguments.skip_empty_examples = True
    assert len(load_images(arguments, ["train"])["train"]) == 1
    assert "2 of 3 rows left out" in capsys.readouterr().out
