import pytest
import torch

import tokenmixers


def randomize(module, seed=0):
    """Fill every parameter with distinct random numbers: fresh weights (W near 0, b = 1) hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + 0.1)
    return module.eval()


@pytest.fixture(name="randomize")
def randomize_fixture():
    return randomize


@pytest.fixture
def tiny_model(tiny_config, randomise):
    """`tiny_model(class_name, **changes)`: a model of any class with random weights, and what its class needs set."""

    def build(name: str, **changes) -> torch.nn.Module:
        model_class = getattr(tokenmixers, name)
        needed = {}
        if "Synthesizer" in name:
            needed |= {"num_attention_heads": 2, "head_dim": 4}
        if "Image" in name:
            needed |= {"image_size": 8, "patch_size": 4}
        if "CausalLM" in name:
            needed |= {"is_decoder": True}
        if "ConditionalGeneration" in name:
            needed |= {"is_encoder_decoder": True, "num_decoder_layers": 2, "decoder_start_token_id": 0}
        return randomise(model_class(tiny_config(model_class.config_class, **{**needed, **changes}))).eval()

    return build
