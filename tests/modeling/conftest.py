import pytest
import torch

import tokenmixers


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


@pytest.fixture
def tiny_inputs():
    """`tiny_inputs(model, batch, length, masked=True)`: what any model of `tiny_model` reads, padded on a side."""

    def build(model: torch.nn.Module, batch: int, length: int, masked: bool = True) -> dict[str, torch.Tensor]:
        name = type(model).__name__
        if "Image" in name:
            return {"pixel_values": torch.randn(batch, 3, 8, 8)}
        shape = (batch, 3, length) if "MultipleChoice" in name else (batch, length)
        inputs = {"input_ids": torch.randint(37, shape)}
        if masked:  # padding on the right in even rows, on the left in odd ones
            keep = torch.randint(1, length + 1, (batch, 1))
            left, index = torch.arange(batch)[:, None] % 2 == 1, torch.arange(length)
            mask = torch.where(left, index >= length - keep, index < keep).long()
            inputs["attention_mask"] = mask[:, None].expand(shape) if len(shape) == 3 else mask
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(37, shape)
        return inputs

    return build
