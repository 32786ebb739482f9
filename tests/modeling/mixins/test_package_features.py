import inspect

import pytest

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.checkpoint_code import checkpoint_code
from tokenmixers.modeling.kernels import KERNELS
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


@pytest.mark.parametrize("name", ["GMLPForMaskedLM", "SynthesizerForMaskedLM", "GMLPForImageClassification"])
def test_models_that_are_resized_too(name, tiny_model, monkeypatch):
    model, called = tiny_model(name), []
    monkeypatch.setattr("tokenmixers.modeling.mixins.package_features.AFTER_INIT", [called.append])
    images = model.config.image_size is not None
    model.resize_position_embeddings(2 * model.config.image_size if images else 40)
    assert called == [model]
    if not images:
        assert model.resize_token_embeddings(41) is model.get_input_embeddings() and called == [model] * 2
    if "GMLP" in name:
        model.to_full_spatial_weights()
        assert called == [model] * (2 if images else 3)
    assert "new_num_position_embeddings" in inspect.signature(model.resize_position_embeddings).parameters


def test_a_new_output_layer_has_its_kernel(tiny_model, monkeypatch):
    monkeypatch.setenv("TOKENMIXERS_KERNELS", "1")
    kernel = KERNELS["Linear"]
    monkeypatch.setitem(KERNELS, "Linear", kernel._replace(applies=lambda module: module.out_features > 40))
    model = tiny_model("GMLPForMaskedLM")
    assert "forward" not in vars(model.get_output_embeddings())
    model.resize_token_embeddings(41)
    assert vars(model.get_output_embeddings())["forward"].__func__ is kernel.function


def test_checkpoints_have_no_such_list():
    for family in FAMILIES.values():
        assert "AFTER_INIT" not in "".join(checkpoint_code(getattr(tokenmixers, family.config)()).values())
