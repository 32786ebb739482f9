"""What bitsandbytes would quantise: the choice of modules anywhere, the real thing where there is a GPU."""

import importlib.util

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from tokenmixers.configuration.auto_classes import FAMILIES


HEADS = {family.models["AutoModelForMaskedLM"]: family for family in FAMILIES.values()}
HEADS |= {f"{name.split('For')[0]}ForCausalLM": family for name, family in HEADS.items() if "Mixer" not in name}


def chosen(model: nn.Module) -> set[str]:
    """Names of the modules that Transformers would give to bitsandbytes."""
    kept = get_keys_to_not_convert(model)
    return {
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and should_convert_module(name, kept)
    }


@pytest.mark.parametrize("name", HEADS)
def test_the_channel_projections_are_chosen_and_nothing_else(name, tiny_model):
    model = tiny_model(name)
    linear = {key for key, module in model.named_modules() if type(module) is nn.Linear}
    output = next(key for key, module in model.named_modules() if module is model.get_output_embeddings())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert chosen(model) and output not in chosen(model)
    # Every layer's projections are among them; the weights that mix tokens are parameters and cannot be.
    assert {key for key in linear if ".layers." in key} <= chosen(model)
    owners = {key.rpartition(".")[0] for key, _ in model.named_parameters() if "spatial_proj" in key}
    assert not owners & chosen(model)


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("bitsandbytes") is None,
    reason="needs CUDA and bitsandbytes",
)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", HEADS)
def test_logits_in_few_bits(name, bits, tiny_model, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128}  # bitsandbytes works on blocks of 64
    model = tiny_model(name, **sizes, **({"num_attention_heads": 2, "head_dim": 32} if "Synthesizer" in name else {}))
    model.save_pretrained(tmp_path)
    config = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    small = type(model).from_pretrained(tmp_path, quantization_config=config, device_map=0).eval()
    assert small.get_memory_footprint() < model.get_memory_footprint()
    ids = torch.randint(1, 37, (2, 9))
    with torch.no_grad():
        expected, found = model(input_ids=ids).logits, small(input_ids=ids.cuda()).logits.float().cpu()
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > (
        0.98 if bits == 8 else 0.9
    )
