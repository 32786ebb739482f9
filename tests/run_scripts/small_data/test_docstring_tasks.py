import json

import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.table_files import read_conll, read_table
from tokenmixers.run_scripts.data.text_to_text import (
    TEXT_TASKS,
    TextToTextArguments,
    load_table,
    read_text_examples,
)
from tokenmixers.run_scripts.small_data import docstring_tasks


def test_rules_of_the_tags():
    tagged = docstring_tasks.tag("See RFC 2822: raises ValueError, or returns None (PEP).")
    assert [pair for pair in tagged if pair[1] != "O"] == [
        ("RFC", "B-STANDARD"),
        ("2822", "I-STANDARD"),
        ("ValueError", "B-ERROR"),
        ("None", "B-CONSTANT"),
    ]
    assert [word for word, _ in tagged][-4:] == ["(", "PEP", ")", "."]


def test_sentences_in_another_order_are_not_acceptable():
    first, second = docstring_tasks.acceptability("Return the name of a file.")
    assert first == "doc\t1\t\tReturn the name of a file."
    assert second.startswith("doc\t0\t*\t") and sorted(second.split("\t")[-1].split()) == sorted(first.split()[2:])
    assert docstring_tasks.acceptability("the the the the") == []


def test_the_mixture_has_the_benchmarks_own_formats(tmp_path):
    docstring_tasks.main(["--output_dir", str(tmp_path / "data")])
    arguments = TextToTextArguments(data_dir=str(tmp_path / "data" / "mixture"))
    for name, least in (("cola", 400), ("squad", 200)):
        for split in ("train", "validation"):
            table = load_table(TEXT_TASKS[name], split, "", arguments)
            examples = read_text_examples(TEXT_TASKS[name], table, labelled=True)
            assert len(examples) > least
            answers = {example.targets for example in examples}
            expected = {"unacceptable", "acceptable"} if name == "cola" else {*docstring_tasks.PACKAGES}
            assert answers == {(answer,) for answer in expected}


def test_writes_both_data_sets_without_overlap(tmp_path):
    docstring_tasks.main(["--output_dir", str(tmp_path / "data")])
    texts = {}
    for split in ("train", "validation"):
        rows = [row for _, row in read_table(tmp_path / "data" / "packages" / f"{split}.jsonl").rows]
        assert {row["label"] for row in rows} == set(docstring_tasks.PACKAGES)
        texts[split] = {json.dumps(row) for row in rows}
        tags = {
            tag
            for _, row in read_conll(tmp_path / "data" / "mentions" / f"{split}.conll").rows
            for tag in row["ner_tags"]
        }
        assert tags == {"O", "B-ERROR", "B-CONSTANT", "B-STANDARD", "I-STANDARD"}
    assert 0.1 < len(texts["validation"]) / len(texts["train"]) < 0.25
    assert len(texts["train"] & texts["validation"]) < 0.1 * len(texts["validation"])
    with pytest.raises(UserError, match="not empty"):
        docstring_tasks.main(["--output_dir", str(tmp_path / "data")])
