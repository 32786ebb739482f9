"""Sets that sentence embeddings are evaluated on: what they must have."""

import json

import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.embeddings import tasks as sets
from tokenmixers.run_scripts.training import classification


def table(*rows: str) -> str:
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def test_qrels_may_lie_in_a_folder_as_in_beir(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = ({"_id": "1", "title": "", "text": "b"}, {"_id": "2", "title": "c", "text": ""}, {"_id": 3, "text": "d"})
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, (*rows, {"_id": "4", "text": "e"}))))
    (folder / "queries.jsonl").write_text("\n".join(f'{{"_id": "q{number}", "text": "a"}}' for number in range(3)))
    (folder / "qrels" / "test.tsv").write_text(
        table("query-id|corpus-id|score", "q0|2|1", "q1|4|2", "q1|3|1", "q2|1|0")
    )
    (folder / "qrels" / "dev.tsv").write_text(table("query-id|corpus-id|score", "q2|1|1"))
    (test,) = sets.load_tasks([str(folder)])
    assert test.data["relevant"] == {"q0": {"2"}, "q1": {"3", "4"}} and test.data["corpus"]["2"] == "c"
    (dev,) = sets.load_tasks([str(folder)], split="dev")
    assert dev.data["relevant"] == {"q2": {"1"}} and dev.title == "beir (dev)"


BAD_SETS = [
    ({"a/test.tsv": table("x|y", "1|2")}, "has neither corpus, queries and qrels nor a file test"),
    ({"README.md": "x"}, "has neither tables nor folders with tables"),
    ({"a/test.tsv": "", "b/x": ""}, r"a/test.tsv' has no rows"),
    ({"a/test.tsv": "x", "a/test.tsv.gz": ""}, "has both test.tsv and test.tsv.gz: keep one of them"),
    ({"a/test.tsv": table("score|sentence1|sentence2", "1|x|y", "high|x|y")}, "line 3: the similarity 'high' is not"),
    ({"a/test.tsv": table("score|sentence1|sentence2", "1|x|y", "1|x|z")}, "has 2 pairs without two different scores"),
    ({"a/test.tsv": table("label|sentence1|sentence2", "2|x|y")}, "line 2: the label must be 0 or 1, got '2'"),
    ({"a/test.tsv": table("label|sentence1|sentence2", "1|x|y")}, "has no label but 1: nothing to tell apart"),
    ({"a/test.tsv": table("label|sentence1|sentence2", "1|x|", "3|x|y")}, "2 bad rows. line 2: the text is empty;"),
    ({"a/test.tsv": table("label|query|document", "1|x|y")}, "has no query with both a relevant document"),
    (
        {"a/test.tsv": table("query_id|label|query|document", "1|1|x|y", "1|0|z|y")},
        "line 3: the query '1' has another text than in an earlier row",
    ),
    ({"a/test.jsonl": '{"label": ["b"], "text": "x"}'}, r"line 1: the label is \['b'\]: a row has one label"),
    ({"a/test.tsv": table("label|text", "['b' 'c']|x")}, r"line 2: the label is \['b', 'c'\]: a row has one label"),
    (
        {"a/train.tsv": table("label|text", "1|x", "0|y"), "a/test.tsv": table("label|text", "1.0|x", "true|y")},
        r"none of the labels of the a test data \('1.0', 'true'\) is one of the training data's \('0', '1'\)",
    ),
    ({"a/all.tsv": table("label|text", *["1|x"] * 12, "0|y")}, "has 1 rows of the label '0', and 10 folds need 10 of"),
    ({"cluster_a/all.tsv": table("label|texts", "1|x")}, "lacks the columns label and text of a set to cluster"),
    ({"cluster_a/all.tsv": "x", "cluster_a/b.tsv": ""}, "must have one table of texts to cluster, and has all.tsv,"),
]
RETRIEVAL = {"a/corpus.jsonl": '{"_id": "1", "text": "x"}', "a/queries.jsonl": '{"_id": "q", "text": "x"}'}
QRELS = "query-id|corpus-id|score"
BAD_SETS += [
    (RETRIEVAL, "has a corpus and queries, but no qrels"),
    (RETRIEVAL | {"a/qrels.tsv": table(QRELS, "q|2|1")}, "line 2: '2' is not an _id of corpus.jsonl"),
    (RETRIEVAL | {"a/qrels.tsv": table(QRELS, "q|1|yes")}, "line 2: the score 'yes' is not a whole number"),
    (RETRIEVAL | {"a/qrels.tsv": table(QRELS, "q|1|0.5")}, "line 2: the score '0.5' is not a whole number"),
    (RETRIEVAL | {"a/qrels.tsv": table(QRELS, "q|1|1", "q|1|1.0", "q|1|0")}, "line 4: 'q' and '1' have another"),
    (RETRIEVAL | {"a/qrels.tsv": table(QRELS, "q|1|0")}, "has no score above 0: no text is relevant"),
    (
        RETRIEVAL | {"a/corpus.jsonl": '{"_id": 1, "text": ""}\n{"_id": "1", "text": ""}', "a/qrels.tsv": "x"},
        "line 2: the _id '1' is that of",
    ),
]


@pytest.mark.parametrize(("files", "sentence"), BAD_SETS)
def test_sets_that_do_not_fit(files, sentence, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence) as raised:
        sets.load_tasks([str(tmp_path)])
    assert "\n" not in str(raised.value)


def test_labels_that_training_lacks_give_one_warning(tmp_path, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(classification.logger, "warning", warnings.append)
    (tmp_path / "train.tsv").write_text(table("label|text", "yes|x", "no |y"))
    (tmp_path / "test.tsv").write_text(table("label|text", "yes |x", "yess|y", "no|z", "nno|z"))
    (task,) = sets.load_tasks([str(tmp_path)])
    assert task.data["train_labels"] == ["yes", "no"] and task.data["labels"] == ["yes", "yess", "no", "nno"]
    (warning,) = warnings
    assert "2 labels of the " in warning and "are not among the training data's: 'nno', 'yess'. They" in warning
