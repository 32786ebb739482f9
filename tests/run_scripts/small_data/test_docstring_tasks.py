import json

import pytest

from tokenmixers.run_scripts import make_data
from tokenmixers.run_scripts.data.conll import read_conll
from tokenmixers.run_scripts.data.table_files import read_table
from tokenmixers.run_scripts.data.text_to_text import TEXT_TASKS, TextToTextArguments, load_table, read_text_examples
from tokenmixers.run_scripts.small_data import docstring_tasks


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docstrings") / "data"
    make_data.main(["docstring_tasks", "--output_dir", str(folder)])
    return folder


def test_rules_of_the_tags():
    tagged = docstring_tasks.tag("See RFC 2822: raises ValueError, or returns None (PEP).")
    assert [pair for pair in tagged if pair[1] != "O"] == [
        ("RFC", "B-STANDARD"),
        ("2822", "I-STANDARD"),
        ("ValueError", "B-ERROR"),
        ("None", "B-CONSTANT"),
    ]
    assert [word for word, _ in tagged][-4:] == ["(", "PEP", ")", "."]


def test_sentences_in_the_opposite_order_are_not_acceptable():
    assert docstring_tasks.acceptability("Return the name of a file.") == [
        "doc\t1\t\tReturn the name of a file.",
        "doc\t0\t*\tfile. a of name the Return",
    ]
    assert docstring_tasks.acceptability("the the the the") == []


def test_the_mixture_has_the_benchmarks_own_formats(made):
    arguments = TextToTextArguments(data_dir=str(made / "mixture"))
    for name, least in (("cola", 400), ("squad", 200)):
        for split in ("train", "validation"):
            table = load_table(TEXT_TASKS[name], split, "", arguments)
            examples = read_text_examples(TEXT_TASKS[name], table, labelled=True)
            assert len(examples) > least
            answers = {example.targets for example in examples}
            expected = {"unacceptable", "acceptable"} if name == "cola" else {*docstring_tasks.PACKAGES}
            assert answers == {(answer,) for answer in expected}


def test_writes_both_data_sets_without_overlap(made):
    texts = {}
    for split in ("train", "validation"):
        rows = read_table(made / "packages" / f"{split}.jsonl").rows
        assert {row["label"] for row in rows} == set(docstring_tasks.PACKAGES)
        texts[split] = {json.dumps(row) for row in rows}
        tags = {tag for row in read_conll(made / "mentions" / f"{split}.conll").rows for tag in row["ner_tags"]}
        assert tags == {"O", "B-ERROR", "B-CONSTANT", "B-STANDARD", "I-STANDARD"}
    assert 0.1 < len(texts["validation"]) / len(texts["train"]) < 0.25
    assert len(texts["train"] & texts["validation"]) < 0.1 * len(texts["validation"])
