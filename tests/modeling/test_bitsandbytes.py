"""Which modules bitsandbytes would quantise; `tests/gpu` runs quantised models."""

import pytest
from torch import nn
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from tokenmixers.configuration.auto_classes import FAMILIES


HEADS = {family.models["AutoModelForMaskedLM"]: family for family in FAMILIES.values()}
DECODER = "AutoModelForCausalLM"
HEADS |= {family.models[DECODER]: family for family in FAMILIES.values() if DECODER in family.models}


def chosen(model: nn.Module) -> set[str]:
    """Names of the modules that Transformers would give to bitsandbytes."""
    kept = get_keys_to_not_convert(model)
    return {
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and should_convert_module(name, kept)
    }


CLASSIFIERS = [
    family.models[head]
    for family in FAMILIES.values()
    for head in ("AutoModelForSequenceClassification", "AutoModelForImageClassification")
    if head in family.models
]


@pytest.mark.parametrize("name", [*HEADS, *CLASSIFIERS])
def test_the_channel_projections_are_chosen_and_nothing_else(name, tiny_model):
    model = tiny_model(name)
    linear = {key for key, module in model.named_modules() if type(module) is nn.Linear}
    output = {key for key, module in model.named_modules() if module is model.get_output_embeddings()}
    if name in HEADS:
        assert len(output) == 1
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert chosen(model) == linear - output
    assert any(".layers." in key for key in linear)
    # The weights that mix tokens are parameters and cannot be among them.
    owners = {key.rpartition(".")[0] for key, _ in model.named_parameters() if "spatial_proj" in key}
    assert not owners & chosen(model)
