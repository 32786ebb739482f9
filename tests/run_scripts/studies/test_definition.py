import copy

import pytest
import yaml

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies.definition import (
    STUDIES,
    build_study,
    merge,
    names_of_studies,
    read_study,
    size_of,
    variant_of,
)


SETTINGS = [
    (name, setting)
    for name in names_of_studies()
    for setting in ("default", *yaml.safe_load((STUDIES / f"{name}.yaml").read_text())["settings"])
]


@pytest.fixture
def content():
    return {
        "title": "Gates",
        "seeds": [1, 2],
        "command": "run_mlm",
        "arguments": {"max_steps": 4, "eval_steps": 2, "config_overrides": {"hidden_size": 8, "vocab_size": 60}},
        "data": {"files": {"train_file": ["train.txt"]}},
        "example": {"input_ids": [8]},
        "variants": {
            "plain": {"config_name": "gmlp-base", "config_overrides": {"num_hidden_layers": 1}},
            "wide": {"config_name": "gmlp-base", "config_overrides": {"hidden_size": 16}},
        },
        "learning_rates": [0.1, "1e-2"],
        "metric": "perplexity",
        "better": "lower",
        "budgets": [2],
        "claims": [{"claim": "Wide is better.", "source": "none", "better": "wide", "than": "plain"}],
    }


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_shipped_studies_can_be_read(name, setting):
    study = read_study(name, setting)
    assert len(study.seeds) >= (2 if setting == "quick" else 3)
    assert study.claims and all(claim.source for claim in study.claims)
    for task in study.tasks.values():
        if name in ("embeddings", "inheritance"):  # of equal shape or cost; their texts are not on the Hub
            assert task.baseline is None and task.prepared == "teacher"
        else:
            assert task.baseline in map(variant_of, task.models)
            assert setting == "quick" or task.data.get("hub") or task.data.get("made_by")
        assert all(step % task.arguments["eval_steps"] == 0 for step in (task.steps, *task.budgets))
        if setting == "quick":
            assert "{data_dir}" not in str(task.data)


def test_every_study_has_a_quick_setting():
    assert {name for name, setting in SETTINGS if setting == "quick"} == set(names_of_studies())


def test_overrides_of_task_and_variant_are_merged(content):
    study = build_study("gates", "default", content)
    assert list(study.tasks) == ["gates"]
    recipe = study.tasks["gates"].recipe("wide")
    assert recipe["config_overrides"] == {"hidden_size": 16, "vocab_size": 60}
    assert recipe["max_steps"] == 4
    assert study.tasks["gates"].learning_rates == [0.1, 0.01]
    (claim,) = study.claims
    assert (claim.task, claim.kind, claim.pairs) == ("gates", "better", [("wide", "plain")])


def test_sizes_become_models_of_their_own(content):
    for variant in content["variants"].values():
        variant["sizes"] = {"s": {"max_steps": 4}, "l": {"config_overrides": {"num_hidden_layers": 3}}}
    task = build_study("gates", "default", content).tasks["gates"]
    assert list(task.models) == ["plain/s", "plain/l", "wide/s", "wide/l"]
    assert task.recipe("plain/s")["config_overrides"]["num_hidden_layers"] == 1
    assert task.recipe("wide/l")["config_overrides"]["num_hidden_layers"] == 3
    assert task.members("wide") == ["wide/s", "wide/l"] and task.members("wide/l") == ["wide/l"]
    assert [size_of(name) for name in task.models] == ["s", "l", "s", "l"]
    (claim,) = build_study("gates", "default", content).claims
    assert claim.pairs == [("wide/s", "plain/s"), ("wide/l", "plain/l")]
    content["claims"][0] |= {"of": "slope"}
    (claim,) = build_study("gates", "default", content).claims
    assert claim.pairs == [("wide", "plain")]


def test_variants_and_sizes_that_are_null_are_left_out(content):
    content["variants"]["wide"]["sizes"] = {"s": {}, "l": {}}
    content["settings"] = {"variants": {"plain": None, "wide": {"sizes": {"s": None}}}}
    smaller = merge(content, content.pop("settings"))
    smaller["claims"][0]["than"] = "wide"
    assert list(build_study("gates", "default", smaller).tasks["gates"].models) == ["wide/l"]


def test_a_variant_may_have_learning_rates_of_its_own(content):
    content["variants"]["wide"]["learning_rates"] = ["1e-3"]
    task = build_study("gates", "default", content).tasks["gates"]
    assert (task.rates("plain"), task.rates("wide")) == ([0.1, 0.01], [0.001])
    assert "learning_rates" not in task.recipe("wide")


def test_a_student_that_keeps_layers_has_its_teachers_configuration(content):
    content["arguments"]["config_overrides"]["hidden_dropout_prob"] = 0.0
    content["variants"]["wide"] = {"model_type": "bert", "keep_layers": []}
    task = build_study("gates", "default", content).tasks["gates"]
    assert task.recipe("wide") == {
        **{"max_steps": 4, "eval_steps": 2, "keep_layers": []},
        "config_overrides": {"hidden_dropout_prob": 0.0},
    }
    assert task.description("wide")["config_overrides"]["hidden_size"] == 8
    widths = {"intermediate_size": 12, "num_mean_queries": 2}
    content["variants"]["wide"] |= {"keep_layers": [0, 1], "config_overrides": {**widths, "num_attention_heads": 2}}
    task = build_study("gates", "default", content).tasks["gates"]
    assert task.recipe("wide")["config_overrides"] == {"hidden_dropout_prob": 0.0, **widths}


def test_tasks_that_start_from_others_change_dropout_and_pooling_alone(content):
    changes = {"hidden_dropout_prob": 0.1, "classifier_pooling": "mean"}
    content["tasks"] = {"first": {}, "second": {"starts_from": "first", "arguments": {"config_overrides": changes}}}
    content["claims"][0]["task"] = "second"
    task = build_study("gates", "default", content).tasks["second"]
    assert task.recipe("wide")["config_overrides"] == changes
    assert "config_name" not in task.recipe("wide")


def test_merging_replaces_data_as_a_whole():
    merged = merge({"data": {"a": 1}, "arguments": {"a": 1, "b": 2}}, {"data": {"c": 3}, "arguments": {"b": 3}})
    assert merged == {"data": {"c": 3}, "arguments": {"a": 1, "b": 3}}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("colour",), 1, "unknown key 'colour'"),
        (("seeds",), [1], "needs at least two different seeds, got [1] and []"),
        (("seeds",), 3, "has a value of another kind than studies/definition.py says: 'int' object is not iterable"),
        (("learning_rates",), ["high"], "could not convert string to float: 'high'"),
        (("budgets",), [3], "nothing is evaluated at the budget 3, only every 2 steps"),
        (("command",), "run_all", "'run_all' is unknown; there are run_mlm, "),
        (("better",), "faster", "`better` is lower or higher"),
        (("baseline",), "deep", "'deep' is not a variant; there are plain, wide"),
        (("variants", "wide", "seed"), 3, "wide: seed is set by the study itself"),
        (("arguments", "config_overrides"), "hidden_size=8", "must be a mapping, got 'hidden_size=8'"),
        (("tasks",), {"first": {"starts_from": "zeroth"}}, "first starts from 'zeroth', which is not a task before"),
        (("claims", 0, "than"), "deep", "names 'deep', which is not a variant; there are plain, wide"),
        (("claims", 0, "task"), "other", "needs `task`, one of gates"),
        (("claims", 0, "worse"), "plain", "unknown key 'worse'"),
        (("claims", 0, "of"), "slope", "wide has no sizes, over which a slope could be"),
    ],
)
def test_mistakes(content, path, value, message):
    wrong = copy.deepcopy(content)
    place = wrong
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UserError) as raised:
        build_study("gates", "default", wrong)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_ones_own(tmp_path, content):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content | {"settings": {"quick": {"seeds": [7, 8]}}}))
    assert read_study(str(tmp_path / "mine.yaml")).name == "mine"
    assert read_study(str(tmp_path / "mine.yaml"), "quick").seeds == [7, 8]
    for text, message in (("a: [", "mine.yaml cannot be read"), ("settings: [quick]", "be a mapping, and its set")):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(UserError, match=message):
            read_study(str(tmp_path / "mine.yaml"))
