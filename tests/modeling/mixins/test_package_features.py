import pytest

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.modeling.mixins.checkpoint_code import checkpoint_code
from tokenmixers.modeling.mixins.package_features import PackageFeatures


@pytest.mark.parametrize(
    "name", sorted({name for family in FAMILIES.values() for name in family.models.values()}), ids=str
)
def test_functions_are_called_with_every_new_model(name, tiny_model, monkeypatch):
    """Inner models come before the model that contains them."""
    called = []
    monkeypatch.setattr("tokenmixers.modeling.mixins.package_features.AFTER_INIT", [called.append])
    model = tiny_model(name)
    assert called[-1] is model
    ours = [module for module in model.modules() if isinstance(module, PackageFeatures)]
    assert {id(module) for module in called} == {id(module) for module in ours}


def test_models_that_are_loaded_too(tiny_model, tmp_path, monkeypatch):
    tiny_model("GMLPForMaskedLM").save_pretrained(tmp_path)
    called = []
    monkeypatch.setattr("tokenmixers.modeling.mixins.package_features.AFTER_INIT", [called.append])
    loaded = tokenmixers.GMLPForMaskedLM.from_pretrained(tmp_path)
    assert called[-1] is loaded


def test_checkpoints_have_no_such_list():
    for family in FAMILIES.values():
        assert "AFTER_INIT" not in "".join(checkpoint_code(getattr(tokenmixers, family.config)()).values())
