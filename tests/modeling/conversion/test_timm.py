"""Run as a script where timm can be imported, this records the references that the tests compare with elsewhere."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageClassification

from tokenmixers.modeling.conversion.timm import convert_timm_state_dict, timm_config


REFERENCES = Path(__file__).parent / "data" / "timm_references.safetensors"
SHAPES = {  # what timm's models list
    "gmlp_ti16_224": {"width": 128},
    "gmlp_s16_224": {"width": 256},
    "gmlp_b16_224": {"width": 512},
    "mixer_s16_224": {"width": 512, "blocks": 8, "mixing": 256},
    "mixer_b32_224": {"width": 768, "blocks": 12, "mixing": 384, "tokens": 49, "patch": 32},
}


def expected_shapes(
    width: int, blocks: int = 30, tokens: int = 196, classes: int = 1000, patch: int = 16, mixing: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of timm's gMLP or, with a width for token `mixing`, MLP-Mixer."""
    norm = {"weight": (width,), "bias": (width,)}
    if mixing is None:
        expanded, half = 6 * width, 3 * width
        parts = {
            "norm": norm,
            "mlp_channels.fc1": {"weight": (expanded, width), "bias": (expanded,)},
            "mlp_channels.gate.norm": {"weight": (half,), "bias": (half,)},
            "mlp_channels.gate.proj": {"weight": (tokens, tokens), "bias": (tokens,)},
            "mlp_channels.fc2": {"weight": (width, half), "bias": (width,)},
        }
    else:
        parts = {
            "norm1": norm,
            "mlp_tokens.fc1": {"weight": (mixing, tokens), "bias": (mixing,)},
            "mlp_tokens.fc2": {"weight": (tokens, mixing), "bias": (tokens,)},
            "norm2": norm,
            "mlp_channels.fc1": {"weight": (4 * width, width), "bias": (4 * width,)},
            "mlp_channels.fc2": {"weight": (width, 4 * width), "bias": (width,)},
        }
    stem = {"weight": (width, 3, patch, patch), "bias": (width,)}
    modules = {"stem.proj": stem}
    modules |= {f"blocks.{index}.{name}": shapes for index in range(blocks) for name, shapes in parts.items()}
    modules |= {"norm": norm, "head": {"weight": (classes, width), "bias": (classes,)}}
    return {f"{module}.{name}": shape for module, shapes in modules.items() for name, shape in shapes.items()}


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The same uniform numbers on every machine; matrices keep the scale of their inputs, norms are around one."""
    generator, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        scale = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.5
        noise = torch.from_numpy(generator.random(shape, dtype=np.float32) * 2 - 1) * math.sqrt(3) * scale
        tensors[name] = noise + (1.0 if name.endswith("norm.weight") else 0.0)
    return tensors


def random_images() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).random((2, 3, 224, 224), dtype=np.float32) * 2 - 1)


def weighted_sums(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One number for each gradient, which a transposed or permuted one would not give."""
    generator = np.random.default_rng(2)
    return {
        name: (gradient.double() * torch.from_numpy(generator.random(gradient.shape))).sum()
        for name, gradient in sorted(gradients.items())
    }


def outputs(pixels: torch.Tensor, model: torch.nn.Module, features) -> dict[str, torch.Tensor]:
    pooled = features(pixels).detach()
    logits = model(pixels)
    logits = getattr(logits, "logits", logits)
    scale = logits.detach().abs().max()
    (logits / scale).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": logits.detach(), "pooled": pooled, "gradients": gradients}


def timm_outputs(name: str) -> dict:
    import timm

    model = timm.create_model(name).eval()
    model.load_state_dict(random_tensors({n: tuple(t.shape) for n, t in model.state_dict().items()}))
    return outputs(random_images(), model, lambda x: model.forward_head(model.forward_features(x), pre_logits=True))


def our_outputs(name: str) -> dict:
    tensors = random_tensors(expected_shapes(**SHAPES[name]))
    model = AutoModelForImageClassification.from_config(timm_config(tensors)).eval()
    model.load_state_dict(convert_timm_state_dict(tensors))
    return outputs(random_images(), model, lambda x: model.model(pixel_values=x).pooler_output)


def assert_close(found: dict, expected: dict) -> None:
    """Outputs to 1e-5 of their scale, and gradients to what the layers leave of that."""
    for key in ("logits", "pooled"):
        scale = expected[key].abs().max()
        torch.testing.assert_close(found[key] / scale, expected[key] / scale, rtol=0, atol=1e-5)
    assert set(found["gradients"]) == set(expected["gradients"])
    # Some are zero but for rounding: MLP-Mixer's `mlp_tokens.fc2.bias` shifts all channels alike, which norms undo.
    floor = 1e-3 * max(gradient.abs().max() for gradient in expected["gradients"].values())
    for name, gradient in expected["gradients"].items():
        largest = gradient.abs().max().clamp(min=floor)
        torch.testing.assert_close(found["gradients"][name] / largest, gradient / largest, rtol=0, atol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        ("gmlp_ti16_224", {}, 5_867_328),
        ("gmlp_s16_224", {}, 19_422_656),
        ("gmlp_b16_224", {}, 73_075_392),
        ("mixer_s16_224", {}, 18_528_264),
        ("mixer_s32_224", {"width": 512, "blocks": 8, "mixing": 256, "tokens": 49, "patch": 32}, 19_104_624),
        ("mixer_b16_224", {"width": 768, "blocks": 12, "mixing": 384}, 59_880_472),
        ("mixer_b32_224", {}, 60_293_428),
        ("mixer_l16_224", {"width": 1024, "blocks": 24, "mixing": 512}, 208_196_168),
        ("mixer_l32_224", {"width": 1024, "blocks": 24, "mixing": 512, "tokens": 49, "patch": 32}, 206_939_264),
    ],
)
@pytest.mark.parametrize("prefix", ["", "timm_model."])
def test_every_tensor_finds_its_place(name, sizes, count, prefix):
    with torch.device("meta"):
        shapes = expected_shapes(**(sizes or SHAPES[name]))
        tensors = {prefix + name: torch.empty(shape) for name, shape in shapes.items()}
        ours = AutoModelForImageClassification.from_config(timm_config(tensors))
    assert ours.num_parameters() == count  # timm's
    converted = convert_timm_state_dict(tensors)
    assert {n: t.shape for n, t in converted.items()} == {n: t.shape for n, t in ours.state_dict().items()}


def test_configuration_from_shapes():
    shapes = expected_shapes(width=6, blocks=3, tokens=9, classes=4)
    config = timm_config({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (6, 36, 3)
    assert (config.image_size, config.patch_size, config.num_labels) == (48, 16, 4)
    assert config.spatial_weight_type == "full" and config.classifier_pooling == "mean"


def test_images_that_are_not_square():
    shapes = expected_shapes(width=6, blocks=1, tokens=6, classes=4, mixing=3)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    config = timm_config(tensors, (32, 48))
    assert (config.image_size, config.max_position_embeddings, config.token_mixing_size) == ([32, 48], 6, 3)
    with pytest.raises(ValueError, match=r"mixes 6 tokens, but images of 32 x 32 .* 2 x 2 patches of 16"):
        timm_config(tensors)
    with pytest.raises(ValueError, match=r"images of 32 x 64 pixels have 2 x 4 patches"):
        timm_config(tensors, (32, 64))


def test_foreign_weights_are_refused():
    with pytest.raises(ValueError, match=r"'conv1.weight' is not a tensor of a timm gMLP"):
        convert_timm_state_dict({"conv1.weight": torch.zeros(1)})
    shapes = expected_shapes(width=6, blocks=1, tokens=9, classes=4, mixing=3)
    with pytest.raises(ValueError, match=r"'blocks.0.ls1' is not a tensor of a timm MLP-Mixer"):  # ResMLP
        convert_timm_state_dict({name: torch.zeros(shape) for name, shape in {**shapes, "blocks.0.ls1": (6,)}.items()})
    gated = {**shapes, "blocks.0.mlp_channels.fc2.weight": (6, 12)}
    with pytest.raises(ValueError, match=r"expand to 24 channels and read 12, as in timm's gmixer"):
        timm_config({name: torch.zeros(shape) for name, shape in gated.items()})


@pytest.mark.fast_cases(name=["gmlp_ti16_224", "mixer_s16_224"])
@pytest.mark.parametrize("name", SHAPES)
def test_outputs_and_gradients_are_those_recorded_of_timm(name):
    found = our_outputs(name)
    names = convert_timm_state_dict({n: n for n in expected_shapes(**SHAPES[name])})
    found["gradients"] = weighted_sums({theirs: found["gradients"][ours] for ours, theirs in names.items()})
    recorded = load_file(REFERENCES)
    prefix = f"{name}/gradients/"
    sums = {key.removeprefix(prefix): value for key, value in recorded.items() if key.startswith(prefix)}
    assert set(sums) == set(expected_shapes(**SHAPES[name]))
    assert_close(found, {key: recorded[f"{name}/{key}"] for key in ("logits", "pooled")} | {"gradients": sums})


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_outputs_and_gradients_are_timms(name):
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
    expected = timm_outputs(name)
    assert_close(our_outputs(name), expected | {"gradients": convert_timm_state_dict(expected["gradients"])})


def main() -> None:
    recorded = {}
    for name in SHAPES:
        result = timm_outputs(name)
        recorded |= {f"{name}/{key}": result[key].contiguous() for key in ("logits", "pooled")}
        for parameter, value in weighted_sums(result["gradients"]).items():
            recorded[f"{name}/gradients/{parameter}"] = value
    REFERENCES.parent.mkdir(exist_ok=True)
    save_file(recorded, REFERENCES)


if __name__ == "__main__":
    main()
