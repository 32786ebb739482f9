"""Every task from a small file as its benchmark offers it, and the files that its server takes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.glue import CLASSIFIED, TASKS, find_task


SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"

#: Task -> (file below the data folder, content, texts of the first row, labels).
OFFICIAL = {
    "cola": ("CoLA/train.tsv", "gj04\t1\t\tHe ran.\ngj04\t0\t*\tRan he.\n", ("He ran.",), [1, 0]),
    "sst2": ("SST-2/train.tsv", "sentence\tlabel\na good film \t1\nbad \t0\n", ("a good film ",), [1, 0]),
    "mrpc": (
        "MRPC/train.tsv",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said " no .\tNo , he said .\n0\t7\t9\tA\tB\n',
        ('He said " no .', "No , he said ."),
        [1, 0],
    ),
    "stsb": (
        "STS-B/train.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        '0\tnews\tf\t2012\t1\tnone\tnone\tA "plane.\tA jet.\t4.250\n1\tnews\tf\t2012\t1\tn\tn\tC\tD\t0.000\n',
        ('A "plane.', "A jet."),
        [4.25, 0.0],
    ),
    "qqp": (
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tWhy?\tHow so?\t1\n6\tbroken\n7\t1\t2\tA?\t\t0\n",
        ("Why?", "How so?"),
        [1, 0],
    ),
    "mnli": (
        "MNLI/train.tsv",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tA dog.\tA pet.\tneutral\tentailment\n"
        "1\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tA dog.\tA cat.\tneutral\tcontradiction\n",
        ("A dog.", "A pet."),
        [0, 2],
    ),
    "qnli": (
        "QNLI/train.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n1\tWhen?\tHe did.\tnot_entailment\n",
        ("Who?", "He did."),
        [0, 1],
    ),
    "rte": (
        "RTE/train.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA dog.\tA pet.\tentailment\n1\tA dog.\tA cat.\tnot_entailment\n",
        ("A dog.", "A pet."),
        [0, 1],
    ),
    "wnli": (
        "WNLI/train.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tIt fell.\tThe cup fell.\t1\n1\tIt fell.\tI fell.\t0\n",
        ("It fell.", "The cup fell."),
        [1, 0],
    ),
    "boolq": (
        "BoolQ/train.jsonl",
        '{"question": "is it", "passage": "It is.", "idx": 0, "label": true}\n'
        '{"question": "is it", "passage": "No.", "idx": 1, "label": false}\n',
        ("is it", "It is."),
        [1, 0],
    ),
    "cb": (
        "CB/train.jsonl",
        '{"premise": "A", "hypothesis": "B", "label": "contradiction", "idx": 0}\n'
        '{"premise": "A", "hypothesis": "B", "label": "neutral", "idx": 1}\n',
        ("A", "B"),
        [1, 2],
    ),
    "copa": (
        "COPA/train.jsonl",
        '{"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "label": 0, "idx": 0}\n'
        '{"premise": "It rained.", "choice1": "Sun.", "choice2": "Clouds.", "question": "cause", "label": 1}\n',
        ("It rained. What happened as a result?", "Wet.", "Dry."),
        [0, 1],
    ),
    "superglue_rte": (
        "RTE/train.jsonl",
        '{"premise": "A", "hypothesis": "B", "label": "not_entailment", "idx": 0}\n'
        '{"premise": "A", "hypothesis": "B", "label": "entailment", "idx": 1}\n',
        ("A", "B"),
        [1, 0],
    ),
    "wic": (
        "WiC/train.jsonl",
        '{"word": "bank", "sentence1": "The bank.", "sentence2": "A bank.", "idx": 0, "label": true, "start1": 4}\n'
        '{"word": "bank", "sentence1": "The bank.", "sentence2": "I bank.", "idx": 1, "label": false, "start1": 4}\n',
        ("bank: The bank.", "A bank."),
        [1, 0],
    ),
    "wsc": (
        "WSC/train.jsonl",
        '{"text": "Mr Fox ran , he won", "idx": 0, "label": true, "target": {"span1_index": 0, "span1_text": "Mr Fox",'
        ' "span2_index": 4, "span2_text": "he"}}\n'
        '{"text": "I saw it", "idx": 1, "label": false, "target": {"span1_index": 0, "span1_text": "I",'
        ' "span2_index": 2, "span2_text": "it"}}\n',
        ("* Mr Fox * ran , # he # won",),
        [1, 0],
    ),
    "multirc": (
        "MultiRC/train.jsonl",
        '{"idx": 4, "passage": {"text": "<b>It</b> ran.", "questions": [{"question": "Did it?", "idx": 7, "answers": '
        '[{"text": "Yes", "idx": 9, "label": 1}, {"text": "No", "idx": 10, "label": 0}]}]}}\n',
        ("It ran.", "Did it? Yes"),
        [1, 0],
    ),
}
RECORD = (
    '{"idx": 4, "source": "x", "passage": {"text": "Bo met Al and Bo.", "entities": [{"start": 0, "end": 1}, '
    '{"start": 7, "end": 8}, {"start": 14, "end": 15}]}, "qas": [{"query": "@placeholder met him", "idx": 7, '
    '"answers": [{"start": 14, "end": 15, "text": "Bo"}, {"start": 0, "end": 1, "text": "Bo"}]}, '
    '{"query": "he met @placeholder", "idx": 8}]}\n'
)


def test_every_task_is_covered():
    assert OFFICIAL.keys() == {*CLASSIFIED}
    assert {*TASKS} - {*CLASSIFIED} == {"record"}


def test_record_has_a_row_for_each_question(tmp_path):
    (tmp_path / "train.jsonl").write_text(RECORD)
    shared = {"passage": "Bo met Al and Bo.", "entities": ["Al", "Bo"]}
    assert TASKS["record"].read("train", "", str(tmp_path)).rows == [
        {**shared, "query": "@placeholder met him", "answers": ["Bo"], "idx": {"passage": 4, "query": 7}},
        {**shared, "query": "he met @placeholder", "answers": [], "idx": {"passage": 4, "query": 8}},
    ]


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("wsc", '{"text": "I saw it"}', "line 2: there is no column 'target', which WSC's lines have"),
        ("multirc", '{"idx": 1, "passage": {"text": "A"}}', "line 2: there is no column 'questions', which MultiRC's"),
        ("multirc", '{"idx": 1, "passage": "A"}', "line 2: it has not the form of MultiRC's lines"),
        ("record", '{"idx": 1, "passage": {"text": "A", "entities": []}}', "line 2: there is no column 'qas', which"),
        ("record", '{"idx": 1, "passage": {"text": "A", "entities": 3}}', "line 2: it has not the form of ReCoRD's"),
    ],
)
def test_lines_without_a_tasks_columns_are_named(task, line, message, tmp_path):
    first = RECORD if task == "record" else OFFICIAL[task][1].splitlines()[0] + "\n"
    (tmp_path / "train.jsonl").write_text(first + line)
    with pytest.raises(UserError) as caught:
        TASKS[task].read("train", "", str(tmp_path)).convert(lambda row: row)
    assert f"train.jsonl, {message}" in str(caught.value)


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("folder_of", ["all tasks", "one task"])
def test_official_files(name, folder_of, tmp_path):
    file, content, texts, labels = OFFICIAL[name]
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    task = find_task(name.upper())
    table = task.read("train", "", str(tmp_path if folder_of == "all tasks" else path.parent))
    assert task.texts(table.rows[0]) == texts
    assert [task.read_label(row["label"]) for row in table.rows] == labels


@pytest.mark.parametrize(
    ("name", "predictions", "files"),
    [
        ("cola", [1, 0], {"": ("CoLA.tsv", "index\tprediction\n0\t1\n3\t0\n")}),
        ("stsb", [4.56789, -0.1], {"": ("STS-B.tsv", "index\tprediction\n0\t4.5679\n3\t-0.1000\n")}),
        ("qnli", [1, 0], {"": ("QNLI.tsv", "index\tprediction\n0\tnot_entailment\n3\tentailment\n")}),
        (
            "mnli",
            [2, 1],
            {
                "matched": ("MNLI-m.tsv", "index\tprediction\n0\tcontradiction\n3\tneutral\n"),
                "mismatched": ("MNLI-mm.tsv", "index\tprediction\n0\tcontradiction\n3\tneutral\n"),
            },
        ),
        ("boolq", [1, 0], {"": ("BoolQ.jsonl", '{"idx": 0, "label": "true"}\n{"idx": 3, "label": "false"}\n')}),
        ("wsc", [1, 0], {"": ("WSC.jsonl", '{"idx": 0, "label": "True"}\n{"idx": 3, "label": "False"}\n')}),
        ("copa", [1, 0], {"": ("COPA.jsonl", '{"idx": 0, "label": 1}\n{"idx": 3, "label": 0}\n')}),
        ("cb", [1, 2], {"": ("CB.jsonl", '{"idx": 0, "label": "contradiction"}\n{"idx": 3, "label": "neutral"}\n')}),
    ],
)
def test_submissions(name, predictions, files, tmp_path):
    task = find_task(name)
    assert set(files) == set(task.sets)
    for part, (file, content) in files.items():
        assert task.submission(part) == file
        task.write_submission(np.array(predictions), [0, 3], tmp_path / file)
        assert (tmp_path / file).read_text() == content


def test_submissions_of_nested_data(tmp_path):
    indices = [{"paragraph": 4, "question": 7, "answer": 9}, {"paragraph": 4, "question": 7, "answer": 10}]
    indices.append({"paragraph": 5, "question": 8, "answer": 11})
    TASKS["multirc"].write_submission(np.array([1, 0, 1]), indices, tmp_path / "MultiRC.jsonl")
    assert (tmp_path / "MultiRC.jsonl").read_text() == (
        '{"idx": 4, "passage": {"questions": [{"idx": 7, "answers": [{"idx": 9, "label": 1}, '
        '{"idx": 10, "label": 0}]}]}}\n'
        '{"idx": 5, "passage": {"questions": [{"idx": 8, "answers": [{"idx": 11, "label": 1}]}]}}\n'
    )
    TASKS["record"].write_submission(["Bo", ""], [{"passage": 4, "query": n} for n in (7, 8)], tmp_path / "R.jsonl")
    assert (tmp_path / "R.jsonl").read_text() == '{"idx": 7, "label": "Bo"}\n{"idx": 8, "label": ""}\n'


@pytest.mark.parametrize(
    ("name", "value", "label"),
    [("rte", "entailment", 0), ("rte", 1, 1), ("cola", "1", 1), ("boolq", True, 1), ("boolq", "False", 0)],
)
def test_labels_by_name_and_number(name, value, label):
    assert find_task(name).read_label(value) == label


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rte", "yes", "'yes' is not one of 'entailment', 'not_entailment'"),
        ("cola", 2, "2 is not one of"),
        ("cola", "-1", "'-1' is not one of"),
        ("cola", None, "None is not one of"),
        ("stsb", "5.1", "'5.1' is not a number from 0 to 5"),
        ("stsb", "nan", "'nan' is not a number from 0 to 5"),
        ("stsb", None, "None is not a number"),
    ],
)
def test_impossible_labels(name, value, message):
    with pytest.raises(ValueError, match=message):
        find_task(name).read_label(value)


def test_mistakes():
    with pytest.raises(UserError, match=r"'sst' is not a task. Tasks: cola, sst2"):
        find_task("sst")
    row = json.loads(OFFICIAL["wsc"][1].splitlines()[0])
    with pytest.raises(ValueError, match="span2_index 9 lies outside the 6 words"):
        TASKS["wsc"].texts({**row, **row["target"], "span2_index": 9})
    with pytest.raises(ValueError, match="neither 'cause' nor 'effect'"):
        TASKS["copa"].texts({"question": "why"})


def test_hub_data_are_asked_for_as_they_are_stored(monkeypatch):
    monkeypatch.setattr("tokenmixers.run_scripts.data.loading._builder", lambda *_: None)
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **options: asked.append((args, options)) or 1 / 0)
    for name, part in (("mnli", "mismatched"), ("copa", "")):
        with pytest.raises(ZeroDivisionError):
            TASKS[name].read("validation", part, None)
    common = {"streaming": False, "token": None}
    converted = {"data_dir": "copa", "revision": "refs/convert/parquet"}
    assert asked == [
        (("nyu-mll/glue", "mnli"), {"split": "validation_mismatched", **common}),
        (("aps/super_glue", None), {"split": "validation", **common, **converted}),
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="real data are not here")
@pytest.mark.parametrize(
    ("name", "sizes", "positive"),
    [
        ("cola", (8551, 1043, 1063), 721),
        ("mrpc", (3668, 408, 1725), 279),
        ("stsb", (5749, 1500, 1379), None),
        ("rte", (2490, 277, 3000), 131),
    ],
)
def test_real_files(name, sizes, positive):
    task = TASKS[name]
    tables = [task.read(split, "", str(SHARED / "glue")) for split in ("train", "validation", "test")]
    assert tuple(len(table.rows) for table in tables) == sizes
    labels = [task.read_label(row["label"]) for row in tables[1].rows]
    assert positive in (None, sum(labels))
    assert not task.has_label(tables[2].rows[0])
