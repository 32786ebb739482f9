"""Run as a script where timm can be imported, this records the references that the tests compare with elsewhere."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tokenmixers import GMLPForImageClassification
from tokenmixers.modeling.timm_conversion import convert_timm_state_dict, timm_config


REFERENCES = Path(__file__).parent / "data" / "timm_references.safetensors"
WIDTHS = {"gmlp_ti16_224": 128, "gmlp_s16_224": 256, "gmlp_b16_224": 512}


def expected_shapes(
    width: int, blocks: int = 30, tokens: int = 196, classes: int = 1000
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of timm's tensors, as its models list them."""
    expanded, half = 6 * width, 3 * width
    shapes = {"stem.proj.weight": (width, 3, 16, 16), "stem.proj.bias": (width,)}
    for index in range(blocks):
        shapes |= {
            f"blocks.{index}.{name}": shape
            for name, shape in {
                "norm.weight": (width,),
                "norm.bias": (width,),
                "mlp_channels.fc1.weight": (expanded, width),
                "mlp_channels.fc1.bias": (expanded,),
                "mlp_channels.gate.norm.weight": (half,),
                "mlp_channels.gate.norm.bias": (half,),
                "mlp_channels.gate.proj.weight": (tokens, tokens),
                "mlp_channels.gate.proj.bias": (tokens,),
                "mlp_channels.fc2.weight": (width, half),
                "mlp_channels.fc2.bias": (width,),
            }.items()
        }
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    return shapes | {"head.weight": (classes, width), "head.bias": (classes,)}


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
    """Logits, pooled features, and gradients by parameter name, of a classifier."""
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
    tensors = random_tensors(expected_shapes(WIDTHS[name]))
    model = GMLPForImageClassification(timm_config(tensors)).eval()
    model.load_state_dict(convert_timm_state_dict(tensors))
    return outputs(random_images(), model, lambda x: model.model(pixel_values=x).pooler_output)


def assert_close(found: dict, expected: dict) -> None:
    """Outputs to 1e-5 of their scale, and gradients to what 30 layers leave of that."""
    for key in ("logits", "pooled"):
        scale = expected[key].abs().max()
        torch.testing.assert_close(found[key] / scale, expected[key] / scale, rtol=0, atol=1e-5)
    assert set(found["gradients"]) == set(expected["gradients"])
    for name, gradient in expected["gradients"].items():
        largest = gradient.abs().max().clamp(min=1e-12)
        torch.testing.assert_close(found["gradients"][name] / largest, gradient / largest, rtol=0, atol=1e-3, msg=name)


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("prefix", ["", "timm_model."])
def test_every_tensor_finds_its_place(width, prefix):
    shapes = expected_shapes(width)
    assert len(shapes) == 306
    with torch.device("meta"):
        tensors = {prefix + name: torch.empty(shape) for name, shape in shapes.items()}
        ours = GMLPForImageClassification(timm_config(tensors)).state_dict()
    converted = convert_timm_state_dict(tensors)
    assert {name: tensor.shape for name, tensor in converted.items()} == {n: t.shape for n, t in ours.items()}


def test_configuration_from_shapes():
    shapes = expected_shapes(width=6, blocks=3, tokens=9, classes=4)
    config = timm_config({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (6, 36, 3)
    assert (config.image_size, config.patch_size, config.num_labels) == (48, 16, 4)
    assert config.spatial_weight_type == "full" and config.classifier_pooling == "mean"


def test_foreign_weights_are_refused():
    with pytest.raises(ValueError, match=r"'conv1.weight' is no tensor of a timm gMLP"):
        convert_timm_state_dict({"conv1.weight": torch.zeros(1)})


@pytest.mark.parametrize("name", WIDTHS)
def test_outputs_and_gradients_are_those_recorded_of_timm(name):
    found = our_outputs(name)
    names = convert_timm_state_dict({n: n for n in expected_shapes(WIDTHS[name])})
    found["gradients"] = weighted_sums({theirs: found["gradients"][ours] for ours, theirs in names.items()})
    recorded = load_file(REFERENCES)
    prefix = f"{name}/gradients/"
    sums = {key.removeprefix(prefix): value for key, value in recorded.items() if key.startswith(prefix)}
    assert len(sums) == 306
    assert_close(found, {key: recorded[f"{name}/{key}"] for key in ("logits", "pooled")} | {"gradients": sums})


@pytest.mark.parametrize("name", WIDTHS)
def test_outputs_and_gradients_are_timms(name):
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
    expected = timm_outputs(name)
    assert_close(our_outputs(name), expected | {"gradients": convert_timm_state_dict(expected["gradients"])})


def main() -> None:
    """Record timm's outputs, and a number for each gradient."""
    recorded = {}
    for name in WIDTHS:
        result = timm_outputs(name)
        recorded |= {f"{name}/{key}": result[key].contiguous() for key in ("logits", "pooled")}
        for parameter, value in weighted_sums(result["gradients"]).items():
            recorded[f"{name}/gradients/{parameter}"] = value
    REFERENCES.parent.mkdir(exist_ok=True)
    save_file(recorded, REFERENCES)


if __name__ == "__main__":
    main()
