"""The texts of every task, written out by hand after T5's published format (arXiv:1910.10683, appendix D)."""

import json
from pathlib import Path

import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.loading import drawn
from tokenmixers.run_scripts.data.table_files import Table
from tokenmixers.run_scripts.data.text_to_text import (
    GROUPS,
    TEXT_TASKS,
    TextToTextArguments,
    evaluation_pairs,
    find_tasks,
    load_table,
    read_text_examples,
    separate_punctuation,
    training_pairs,
)


SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
SENTENCES = {"sentence1": "A dog ran.", "sentence2": "An animal ran."}
NLI = {"premise": "A dog ran.", "hypothesis": "An animal ran."}
MITCHELL = {"text": "Mitchell asked Tom if he could lend some money.", "span2_text": "he", "span2_index": 4}
PASSAGE = "The first part\n@highlight\nA bird sang.\n@highlight\nIt said 'hi'\n@highlight\nThe end"

#: Task -> row, source, training targets.
TEXTS = {
    "cola": ({"sentence": "He ran.", "label": "1", "star": "*"}, "cola sentence: He ran.", ["acceptable"]),
    "sst2": ({"sentence": "a bad film ", "label": 0}, "sst2 sentence: a bad film", ["negative"]),
    "mrpc": ({**SENTENCES, "label": 1}, "mrpc sentence1: A dog ran. sentence2: An animal ran.", ["equivalent"]),
    "stsb": ({**SENTENCES, "label": "3.25"}, "stsb sentence1: A dog ran. sentence2: An animal ran.", ["3.2"]),
    "qqp": (
        {"question1": "Why?", "question2": "How so?", "label": 0},
        "qqp question1: Why? question2: How so?",
        ["not_duplicate"],
    ),
    "mnli": ({**NLI, "label": "neutral"}, "mnli hypothesis: An animal ran. premise: A dog ran.", ["neutral"]),
    "qnli": (
        {"question": "Who ran?", "sentence": "A dog ran.", "label": "entailment"},
        "qnli question: Who ran? sentence: A dog ran.",
        ["entailment"],
    ),
    "rte": (
        {**SENTENCES, "label": "not_entailment"},
        "rte sentence1: A dog ran. sentence2: An animal ran.",
        ["not_entailment"],
    ),
    "wnli": ({**SENTENCES, "label": "1"}, "wnli sentence1: A dog ran. sentence2: An animal ran.", ["entailment"]),
    "boolq": (
        {"question": "did it run", "passage": "Dogs -- They run.", "label": True},
        "boolq passage: Dogs -- They run. question: did it run",
        ["True"],
    ),
    "cb": ({**NLI, "label": "contradiction"}, "cb hypothesis: An animal ran. premise: A dog ran.", ["contradiction"]),
    "copa": (
        {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "label": 0},
        "copa choice1: Wet. choice2: Dry. premise: It rained. question: effect",
        ["choice1"],
    ),
    "superglue_rte": (
        {**NLI, "label": "entailment"},
        "rte hypothesis: An animal ran. premise: A dog ran.",
        ["entailment"],
    ),
    "wic": (
        {"word": "run", "sentence1": "A run.", "sentence2": "They run.", "label": False, "start1": 2},
        "wic sentence1: A run. sentence2: They run. word: run",
        ["False"],
    ),
    "wsc": (
        {**MITCHELL, "span1_text": "Tom", "span1_index": 2, "label": True},
        "wsc: Mitchell asked Tom if *he* could lend some money.",
        ["Tom"],
    ),
    "multirc": (
        {
            "paragraph": "<b>Sent 1: </b>Joey woke up.<br><b>Sent 2: </b>There was pie.",
            "question": "What was there?",
            "answer": "Pie",
            "label": 1,
            "idx": {"paragraph": 5, "question": 1, "answer": 3},
        },
        "multirc question: What was there? answer: Pie paragraph: Sent 1: Joey woke up. Sent 2: There was pie.",
        ["True"],
    ),
    "record": (
        {"query": "It was @placeholder.", "entities": ["C", "A", "B"], "passage": PASSAGE, "answers": ["C", "A"]},
        "record query: It was @placeholder. entities: A, B, C passage: The first part. A bird sang. It said 'hi' "
        "The end",
        ["A", "C"],
    ),
    "squad": (
        {
            "context": 'The "NFL"  (1920-2020)\nin the U.S.',
            "question": "When's it?",
            "answers": {"text": ["1920-2020", "2020"], "answer_start": [13, 18]},
        },
        'question: When \' s it ? context: The " NFL " ( 1920 - 2020 ) in the U . S .',
        ["1920 - 2020"],
    ),
}


def test_every_task_is_covered():
    assert TEXTS.keys() == TEXT_TASKS.keys()


def converted(name, row, labelled=True):
    (example,) = read_text_examples(TEXT_TASKS[name], Table("file.jsonl", [("file.jsonl", "line 7", row)]), labelled)
    return example


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_t5s(name):
    row, source, targets = TEXTS[name]
    example = converted(name, row)
    assert example.source == source
    pairs = training_pairs(TEXT_TASKS[name], [example])
    assert pairs["target"][:] == targets
    assert pairs["source"][:] == [source] * len(targets)
    assert evaluation_pairs([example])["target"][:] == targets[:1]


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in ("record", "squad", "wsc")])
def test_right_texts_are_parsed_to_the_label_and_others_to_nothing(name):
    task, example = TEXT_TASKS[name], converted(name, TEXTS[name][0])
    assert task.parse(example.targets[0], example) == pytest.approx(example.label, abs=0.101)
    for text in ("", "maybe", example.targets[0] + " x", "nan", "inf"):
        assert task.parse(text, example) is None


def test_scores_are_rounded_to_fifths():
    texts = {"0": "0.0", "0.1": "0.0", "0.3": "0.4", "1.66": "1.6", "2.8": "2.8", "4.25": "4.2", "5.000": "5.0"}
    assert {score: converted("stsb", {**SENTENCES, "label": score}).targets[0] for score in texts} == texts


def test_numbers_are_parsed_as_they_are():
    example = converted("stsb", {**SENTENCES, "label": "3"})
    assert [TEXT_TASKS["stsb"].parse(text, example) for text in ("3.4", "7", "-2")] == [3.4, 7.0, -2.0]


def test_spaces_around_punctuation():
    texts = {'"A  string with "punctuation (1845-1986) ".': '" A string with " punctuation ( 1845 - 1986 ) " .'}
    texts |= {"vídeo\t[é]|~^_`@": "vídeo [ é ] | ~ ^ _ ` @", "“quoted” … end": "“quoted” … end"}  # not ASCII
    assert {text: separate_punctuation(text) for text in texts} == texts


class TestWSC:
    def noun(self, noun, label=True, **changes):
        return converted("wsc", {**MITCHELL, "span1_text": noun, "span1_index": 2, "label": label, **changes})

    def test_training_takes_the_true_rows_alone(self):
        task = TEXT_TASKS["wsc"]
        rows = [self.noun("Tom"), self.noun("Mitchell", label=False)]
        assert training_pairs(task, rows)["target"][:] == ["Tom"]
        assert evaluation_pairs(rows)["target"][:] == ["Tom", "Mitchell"]
        with pytest.raises(UserError, match="the task wsc has no example to train on"):
            training_pairs(task, rows[1:])

    def test_predictions_say_true_if_they_are_the_noun(self):
        answers = {("the fuzzy bunny", "bunny"): 1, ("bunny", "A Fuzzy Bunny"): 1, ("Tom", "Mitchell"): 0}
        answers |= {("Bob's hat", "Bob"): 0, ("Bob's hat", "Jim's hat"): 0, ("Bob's hat", "Bob's"): 1}
        answers |= {("Tom", "the"): None, ("Tom", ""): None}
        found = {(noun, text): TEXT_TASKS["wsc"].parse(text, self.noun(noun)) for noun, text in answers}
        assert found == answers

    def test_rows_that_are_one_word_off_or_spelled_otherwise(self):
        text = 'The boy fell . "Good for him," he said. '
        example = self.noun("the boy.", text=text, span1_index=0, span2_text="him", span2_index=5)
        assert example.source == 'wsc: The boy fell . "Good for *him* ," he said.'
        assert example.targets == ("The boy",)
        assert self.noun("Tom", span2_text="He.").source == self.noun("Tom").source

    def test_a_pronoun_that_is_not_there(self):
        with pytest.raises(UserError, match=r"file.jsonl, line 7: the pronoun 'she' is not a word of the text"):
            self.noun("Tom", span2_text="she")


def test_hidden_labels():
    for name, (row, source, _) in TEXTS.items():
        if name != "squad":
            hidden = {key: value for key, value in row.items() if key not in ("label", "answers")}
            example = converted(name, hidden, labelled=False)
            assert example.source == source and example.label is None
            assert example.targets == (("Tom",) if name == "wsc" else ())


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("rte", {**SENTENCES, "label": "maybe"}, "line 7: the label 'maybe' is not one of 'entailment', 'not_entailm"),
        ("stsb", {**SENTENCES, "label": "6"}, "line 7: the label '6' is not a number from 0 to 5"),
        ("cb", {"premise": "A", "label": "neutral"}, "line 7: there is no column 'hypothesis'; the columns are 'pre"),
        ("cb", NLI, "line 7: there is no column 'label'"),
        ("cola", {"sentence": " ", "label": 1}, "line 7: the text is empty"),
        ("cola", {"sentence": 3, "label": 1}, "line 7: the text must be a string, got 3"),
        ("record", {**TEXTS["record"][0], "answers": []}, "line 7: there is no answer"),
        ("record", {**TEXTS["record"][0], "entities": None}, "line 7: 'NoneType' object is not iterable"),
        ("record", {**TEXTS["record"][0], "answers": [5]}, "line 7: an answer is 5 instead of text"),
        ("wsc", {**TEXTS["wsc"][0], "span1_index": None}, "line 7: span1_index is None instead of a whole number"),
        ("wsc", {**TEXTS["wsc"][0], "span2_index": None}, "line 7: span2_index is None instead of a whole number"),
    ],
)
def test_bad_rows_are_named(name, row, message):
    with pytest.raises(UserError) as caught:
        converted(name, row)
    assert f"error: file.jsonl, {message}" in str(caught.value)


def test_groups_and_names():
    assert [task.name for task in find_tasks(["RTE", "squad", "rte"])] == ["rte", "squad"]
    assert GROUPS["glue"] == ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    assert set(GROUPS["super_glue"]) == {"boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic", "wsc"}
    assert len(find_tasks(["glue", "rte", "super_glue", "squad"])) == 17


class TestFolders:
    def test_benchmarks_in_folders_of_their_own(self, tmp_path):
        files = {
            "glue/RTE/train.tsv": "sentence1\tsentence2\tlabel\na\tb\tentailment\n",
            "super_glue/RTE/train.jsonl": '{"premise": "c", "hypothesis": "d", "label": "x"}\n',
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).write_text(content)
        arguments = TextToTextArguments(data_dir=str(tmp_path))
        assert load_table(TEXT_TASKS["rte"], "train", "", arguments).rows[0]["sentence1"] == "a"
        table = load_table(TEXT_TASKS["superglue_rte"], "train", "", arguments)
        with pytest.raises(UserError, match=r"RTE/train.jsonl, line 1: the label 'x' is not one of"):
            read_text_examples(TEXT_TASKS["superglue_rte"], table, True)

    @pytest.mark.parametrize("names", [("train-v1.1", "dev-v1.1"), ("train", "validation")])
    def test_questions(self, tmp_path, names):
        (tmp_path / "squad").mkdir()
        for name, context in zip(names, ("It ran.", "He sat."), strict=True):
            question = {"id": "1", "question": "What?", "answers": [{"text": context[:2], "answer_start": 0}]}
            content = {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}
            (tmp_path / "squad" / f"{name}.json").write_text(json.dumps(content))
        for split, answer in (("train", "It"), ("validation", "He")):
            table = load_table(TEXT_TASKS["squad"], split, "", TextToTextArguments(data_dir=str(tmp_path)))
            (example,) = read_text_examples(TEXT_TASKS["squad"], table, True)
            assert example.targets == (answer,)
        with pytest.raises(UserError, match=r"there is no file .*squad/train"):
            load_table(TEXT_TASKS["squad"], "train", "", TextToTextArguments(data_dir=str(tmp_path / "other")))

    @pytest.mark.parametrize(
        ("answers", "message"),
        [
            ([], "/train.json, question 1: the question with id '1' has no answer: remove it."),
            ([{"text": "He", "answer_start": 0}], "/train.json, question 1: the question with id '1': its answer"),
        ],
    )
    def test_wrong_questions_are_named_with_their_file(self, tmp_path, answers, message):
        question = {"id": "1", "question": "What?", "answers": answers}
        (tmp_path / "squad").mkdir()
        (tmp_path / "squad" / "train.json").write_text(
            json.dumps({"data": [{"paragraphs": [{"context": "It ran.", "qas": [question]}]}]})
        )
        arguments = TextToTextArguments(data_dir=str(tmp_path))
        with pytest.raises(UserError) as caught:
            read_text_examples(TEXT_TASKS["squad"], load_table(TEXT_TASKS["squad"], "train", "", arguments), True)
        assert message in str(caught.value) and "--version_2" not in str(caught.value)

    def test_the_hubs_data_by_default(self, monkeypatch):
        monkeypatch.setattr("tokenmixers.run_scripts.data.loading._builder", lambda *_: None)
        asked = []
        monkeypatch.setattr("datasets.load_dataset", lambda *args, **options: asked.append(args) or 1 / 0)
        for name in ("squad", "multirc", "rte"):
            with pytest.raises(ZeroDivisionError):
                load_table(TEXT_TASKS[name], "train", "", TextToTextArguments())
        assert asked == [("rajpurkar/squad", None), ("aps/super_glue", None), ("nyu-mll/glue", "rte")]


def test_examples_have_the_place_of_their_row():
    rows = [{"sentence": f"Sentence {line}." if line != 4 else "", "label": 1} for line in range(1, 9)]
    table = Table("f", [("f", "", row) for row in rows])
    examples = read_text_examples(TEXT_TASKS["cola"], table, True, skip_empty=True)
    assert [(example.index, example.source) for example in examples[2:4]] == [
        (2, "cola sentence: Sentence 3."),
        (4, "cola sentence: Sentence 5."),
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="real data are not here")
class TestRealFiles:
    @pytest.mark.parametrize(
        ("name", "folder", "count", "source", "target"),
        [
            ("cola", "glue", 8551, "cola sentence: Our friends won't buy this analysis, let alone", "acceptable"),
            ("stsb", "glue", 5749, "stsb sentence1: A plane is taking off. sentence2: An air plane", "5.0"),
            ("mrpc", "glue", 3668, 'mrpc sentence1: Amrozi accused his brother , whom he called "', "equivalent"),
            ("rte", "glue", 2490, "rte sentence1: No Weapons of Mass Destruction Found in Iraq", "not_entailment"),
            ("copa", "superglue", 368, "copa choice1: The sun was rising. choice2: The grass was cut.", "choice1"),
            ("boolq", "superglue/fewglue_32", 32, "boolq passage: Ghost in the Shell -- Animation studio", ""),
            ("wsc", "superglue/fewglue_32", 32, "wsc: The actress used to be named Terpsichore , but", "Tina"),
            ("record", "superglue/fewglue_32", 32, "record query: Speaking after the game, Mourinho said: 'The", ""),
        ],
    )
    def test_training_files(self, name, folder, count, source, target):
        table = load_table(TEXT_TASKS[name], "train", "", TextToTextArguments(data_dir=str(SHARED / folder)))
        examples = read_text_examples(TEXT_TASKS[name], table, True)
        assert len(examples) == count
        assert examples[0].source.startswith(source)
        assert examples[0].targets[0].startswith(target)

    def test_answers_to_a_question_belong_together(self):
        arguments = TextToTextArguments(data_dir=str(SHARED / "superglue" / "fewglue_32"))
        examples = read_text_examples(
            TEXT_TASKS["multirc"], load_table(TEXT_TASKS["multirc"], "train", "", arguments), 1
        )
        sizes = [sum(example.group == group for example in examples) for group in {e.group for e in examples}]
        assert max(sizes) > 1 and "<" not in "".join(example.source for example in examples)

    @pytest.mark.slow
    def test_every_answer_of_squad_is_in_its_context(self, tmp_path):
        (tmp_path / "squad").symlink_to(SHARED / "squad_v1.1")
        table = load_table(TEXT_TASKS["squad"], "validation", "", TextToTextArguments(data_dir=str(tmp_path)))
        examples = drawn(read_text_examples(TEXT_TASKS["squad"], table, True), 2000)
        found = sum(text in example.source for example in examples for text in example.targets)
        assert found / sum(len(example.targets) for example in examples) > 0.99
