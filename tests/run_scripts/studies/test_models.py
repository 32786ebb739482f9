import pytest
import yaml

from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies.definition import (
    STUDIES,
    build_study,
    merge,
    names_of_studies,
    read_study,
)
from tokenmixers.run_scripts.studies.models import AUTO_CLASSES, describe_models


@pytest.mark.parametrize("name", names_of_studies())
def test_the_models_of_shipped_studies_have_as_many_parameters(name):
    for setting in ("default", *yaml.safe_load((STUDIES / f"{name}.yaml").read_text())["settings"]):
        study = read_study(name, setting)
        models = describe_models(study)
        assert {task: set(found) for task, found in models.items()} == {
            task.name: set(task.models) for task in study.tasks.values()
        }
        assert all(facts["flops"] > 0 for found in models.values() for facts in found.values())


def test_parameters_are_those_of_the_model():
    model = GMLPForMaskedLM(
        GMLPConfig(
            vocab_size=4096, hidden_size=128, intermediate_size=512, num_hidden_layers=6, max_position_embeddings=128
        )
    )
    facts = describe_models(read_study("gates"))["gates"]["split"]
    assert facts == {
        "parameters": model.num_parameters(),
        "bytes": 4 * model.num_parameters(),
        "flops": model.forward_flops(1, 128),
    }


def test_unequal_models_are_refused():
    study = read_study("gates")
    wide = merge(study.definition, {"variants": {"mixer": {"config_overrides": {"intermediate_size": 360}}}})
    with pytest.raises(UserError) as raised:
        describe_models(build_study("gates", "default", wide))
    assert "gates: mixer has 1,187,056 parameters, the baseline split has 1,129,210: +5.1% is beyond the " in str(
        raised.value
    )
    tolerant = merge(wide, {"parameter_tolerance": 0.06})
    assert describe_models(build_study("gates", "default", tolerant))


def test_a_wrong_override_names_the_model():
    study = read_study("gates")
    wrong = merge(study.definition, {"variants": {"linear": {"config_overrides": {"gate_type": "round"}}}})
    with pytest.raises(UserError, match=r"linear: --config_overrides .*gate_type"):
        describe_models(build_study("gates", "default", wrong))


def test_the_model_of_every_command_is_known():
    assert AUTO_CLASSES.keys() == set(TRAINING_COMMANDS)
