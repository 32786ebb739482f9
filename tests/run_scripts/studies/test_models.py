import functools

import pytest
import torch
import yaml
from transformers import BertConfig, BertModel

from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.modeling.conversion.bert import hybrid_from_bert
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks.timing import count_flops
from tokenmixers.run_scripts.studies.definition import (
    STUDIES,
    build_study,
    merge,
    names_of_studies,
    read_study,
    size_of,
)
from tokenmixers.run_scripts.studies.models import AUTO_CLASSES, describe_models
from tokenmixers.run_scripts.training.kept_layers import keep_layers


@functools.cache
def described(name, setting="default"):
    return describe_models(read_study(name, setting))


@pytest.mark.parametrize("name", names_of_studies())
def test_the_models_of_shipped_studies_have_as_many_parameters(name):
    for setting in ("default", *yaml.safe_load((STUDIES / f"{name}.yaml").read_text())["settings"]):
        study, models = read_study(name, setting), described(name, setting)
        assert {task: set(found) for task, found in models.items()} == {
            task.name: set(task.models) for task in study.tasks.values()
        }
        counted = {model: facts["flops"] for found in models.values() for model, facts in found.items()}
        assert all(flops > 0 for model, flops in counted.items() if model != "static")


def test_parameters_are_those_of_the_model():
    model = GMLPForMaskedLM(
        GMLPConfig(
            vocab_size=4096, hidden_size=128, intermediate_size=512, num_hidden_layers=6, max_position_embeddings=128
        )
    )
    facts = described("gates")["gates"]["split"]
    assert facts == {
        "parameters": model.num_parameters(),
        "bytes": 4 * model.num_parameters(),
        "flops": model.forward_flops(1, 128),
    }


def test_students_that_inherit_are_counted_as_the_command_makes_them():
    found = described("inheritance")["inheritance"]
    sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "num_hidden_layers": 6}
    teacher = BertModel(BertConfig(**sizes))
    types = ["dense_synthesizer", "full_attention"]
    students = {
        "layers/3x": keep_layers(teacher, [0, 5]),
        "dense below attention/3x": hybrid_from_bert(teacher, [0, 5], types),
    }
    inputs = [{"input_ids": torch.zeros(1, 128, dtype=torch.long)}]
    for name, student in students.items():
        assert found[name]["parameters"] == student.num_parameters()
        assert found[name]["flops"] == count_flops(student, inputs)
    assert found["static"] == {"parameters": 30522 * 384, "flops": 0, "bytes": 4 * 30522 * 384}


def test_students_from_scratch_cost_what_the_teachers_layers_cost():
    found = described("inheritance")["inheritance"]
    names = [*(f"gmlp/{speed}" for speed in ("2x", "3x", "5x")), "amlp/2x", "random/2x", "random vanilla/2x"]
    for name in names:
        assert abs(found[name]["flops"] / found[f"layers/{size_of(name)}"]["flops"] - 1) < 0.01


def test_a_wrong_override_names_the_model():
    study = read_study("gates")
    wrong = merge(study.definition, {"variants": {"linear": {"config_overrides": {"gate_type": "round"}}}})
    with pytest.raises(UserError, match=r"linear: --config_overrides .*gate_type"):
        describe_models(build_study("gates", "default", wrong))


def test_the_model_of_every_command_is_known():
    assert AUTO_CLASSES.keys() == set(TRAINING_COMMANDS)
