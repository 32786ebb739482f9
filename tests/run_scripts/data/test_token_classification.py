import json

import datasets
import numpy as np
import pytest
from transformers import HfArgumentParser

from tokenmixers.run_scripts.data.token_classification import (
    TokenClassificationArguments,
    load_sentences,
    predicted_tags,
    tag_names,
    tokenize,
)


@pytest.fixture
def rows(tagged_sentences):
    """`rows(max_seq_length, ...)`: one sentence with words of several tokens, as sequences."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tagged_sentences / "tokenizer")
    sentence = {"tokens": [["Ada", "zqzq", "\u200b", "went", "Rome"]], "tags": [["B-PER", "I-PER", "O", "O", "B-LOC"]]}
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    sentences = datasets.Dataset.from_dict(sentence)
    return lambda length, **options: (sentences, tokenize(sentences, tokenizer, length, names, **options), tokenizer)


def test_first_tokens_have_the_labels(rows):
    _, found, tokenizer = rows(32)
    (row,) = found
    assert found.cache_files  # on the disk, not in memory
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
def test_no_word_is_lost_when_a_sentence_is_cut(length, rows):
    sentences, cut, _ = rows(length)
    assert max(map(len, cut["input_ids"])) <= length
    assert (len(cut) > 1) == (length < 32)
    labels = np.full((len(cut), length), -100)
    for index, row in enumerate(cut["labels"]):
        labels[index, : len(row)] = row
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert predicted_tags(sentences, cut, labels, names) == sentences["tags"][:]


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


WORDS, TAGS = [["EU", "rejects", "a,b"], ["x"]], [["B-ORG", "O", "O"], ["O"]]
FORMS = {
    "lists.csv": ('id,words,tags\n0,"{0}","{1}"\n1,"{2}","{3}"', "json"),
    "python.csv": ('id,words,tags\n0,"{0}","{1}"\n1,"{2}","{3}"', "python"),
    "numpy.csv": ('id,words,tags\n0,"{0}","{1}"\n1,"{2}","{3}"', "numpy"),
    "spaces.csv": ('id,words,tags\n0,"EU  rejects a,b",B-ORG O O\n1,x,O', ""),
    "rows.csv": ('n,words,tags\n1,EU,B-ORG\n1,rejects,O\n1,"a,b",O\n2,x,O', "n"),
    "kaggle.csv": ('n,words,tags\nSentence: 1,EU,B-ORG\n,rejects,O\n,"a,b",O\nSentence: 2,x,O', "n"),
    "rows.tsv": ("tags\twords\tn\nB-ORG\tEU\t7\nO\trejects\t7\nO\ta,b\t7\nO\tx\t3", "n"),
    "rows.jsonl": ('{{"n":1,"words":"EU","tags":"B-ORG"}}\n{{"n":1,"words":"rejects","tags":"O"}}\n'
                   '{{"n":1,"words":"a,b","tags":"O"}}\n{{"n":2,"words":"x","tags":"O"}}', "n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_tables_of_sentences_and_of_words(name, tmp_path):
    content, kind = FORMS[name]
    kinds = {"python": str, "numpy": lambda values: str(np.array(values))}
    written = kinds.get(kind, lambda values: json.dumps(values).replace('"', '""'))
    cells = [written(values) for pair in zip(WORDS, TAGS, strict=True) for values in pair]
    (tmp_path / name).write_text(content.format(*cells))
    given = ["--train_file", str(tmp_path / name), "--text_column_name", "words", "--label_column_name", "tags"]
    (arguments,) = HfArgumentParser([TokenClassificationArguments]).parse_args_into_dataclasses(
        [*given, *(["--sentence_column", "n"] if kind == "n" else [])]
    )
    rows = load_sentences(arguments, ["train"])["train"]
    assert (list(rows["tokens"]), list(rows["tags"])) == (WORDS, TAGS)


@pytest.mark.parametrize(
    ("content", "sentence", "message"),
    [
        ("n,words,tags\n1,a,O\n2,b,O\n1,c,O", "n", "line 4: the rows of the sentence '1' are apart: sort them"),
        ("n,words,tags\n,a,O\n2,b,O", "n", "line 2: the first row has an empty 'n'"),
        ("n,words,tags\n1,a,O\n1,,O", "n", "line 2: a word is empty: ['a', '']"),
        ("n,words,tags\n1,a,O\n1,b,", "n", "line 2: a tag is missing"),
        ("words,tags\na,O", "n", "there is no column 'n' (--sentence_column); the columns are 'words', 'tags'"),
        ("n,words\n1,a", "n", "there is no column 'tags' (--label_column_name); the columns are 'words'"),
        ('words,tags\na b,"[true, false]"', None, "line 2: the tag True is neither a name nor a whole number"),
        ("words,tags\na b,O", None, "line 2: 'tags' must be a list of 2 tags, not ['O']"),
    ],
)
def test_wrong_tables_of_words(content, sentence, message, tmp_path):
    (tmp_path / "train.csv").write_text(content)
    arguments = TokenClassificationArguments(
        train_file=[str(tmp_path / "train.csv")],
        text_column_names=["words"],
        label_column_name="tags",
        sentence_column=sentence,
    )
    with pytest.raises(SystemExit) as caught:
        load_sentences(arguments, ["train"])
    assert message in str(caught.value)


def test_spaces_around_tags_do_not_count(tmp_path):
    (tmp_path / "train.json").write_text('[{"tokens": ["a", "b"], "ner_tags": ["B-X ", " O"]}]')
    arguments = TokenClassificationArguments(train_file=[str(tmp_path / "train.json")])
    assert load_sentences(arguments, ["train"])["train"]["tags"][:] == [["B-X", "O"]]


@pytest.mark.parametrize("source", ["folder of parquet", "folder of saved splits", "file"])
def test_lists_of_class_labels_have_the_names_of_the_classes(source, tmp_path):
    """As CoNLL 2003 and WNUT have them on the Hub, where tags are numbers."""
    classes = datasets.Sequence(datasets.ClassLabel(names=["O", "B-ORG", "I-ORG"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": classes})
    numbers = {"train": [[1, 0, 0], [0]], "validation": [[2, 0, 1], [1]]}
    splits = datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({"tokens": WORDS, "ner_tags": tags}, features=features)
            for split, tags in numbers.items()
        }
    )
    folder = tmp_path / "data"
    if source == "folder of saved splits":
        splits.save_to_disk(folder)
    else:
        for split, rows in splits.items():
            rows.to_parquet(folder / f"{split}.parquet")
    files = {"train_file": [str(folder / "train.parquet")], "validation_file": [str(folder / "validation.parquet")]}
    arguments = TokenClassificationArguments(**files if source == "file" else {"dataset_name": str(folder)})
    found = load_sentences(arguments, list(splits))
    assert found["train"]["tokens"][:] == WORDS and found["train"]["tags"][:] == TAGS
    assert found["validation"]["tags"][:] == [["I-ORG", "O", "B-ORG"], ["B-ORG"]]
    assert tag_names(found["train"]) == ["O", "B-ORG", "I-ORG"]


def test_words_without_tags_are_a_test_set(tmp_path):
    (tmp_path / "test.csv").write_text("n,words\n1,a\n1,b\n2,c")
    arguments = TokenClassificationArguments(
        test_file=[str(tmp_path / "test.csv")], text_column_names=["words"], sentence_column="n"
    )
    assert load_sentences(arguments, ["test"])["test"].to_dict() == {"index": [0, 1], "tokens": [["a", "b"], ["c"]]}
