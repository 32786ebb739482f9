import pytest
import torch

from tokenmixers import GMLPConfig, GMLPForImageClassification
from tokenmixers.modeling.timm_conversion import convert_timm_gmlp_state_dict


def expected_shapes(blocks: int, width: int, expanded: int, tokens: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of timm's tensors, as its models list them."""
    half = expanded // 2
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


def our_model(width: int, blocks: int = 30) -> GMLPForImageClassification:
    return GMLPForImageClassification(
        GMLPConfig(
            hidden_size=width,
            intermediate_size=6 * width,
            num_hidden_layers=blocks,
            image_size=224,
            classifier_pooling="mean",
            num_labels=1000,
        )
    )


@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("prefix", ["", "timm_model."])
def test_every_tensor_finds_its_place(width, prefix):
    shapes = expected_shapes(30, width, 6 * width, 196, 1000)
    assert len(shapes) == 306
    with torch.device("meta"):
        tensors = {prefix + name: torch.empty(shape) for name, shape in shapes.items()}
        ours = our_model(width).state_dict()
    converted = convert_timm_gmlp_state_dict(tensors)
    assert {name: tensor.shape for name, tensor in converted.items()} == {n: t.shape for n, t in ours.items()}


def test_foreign_weights_are_refused():
    with pytest.raises(ValueError, match=r"'blocks.0.mlp_tokens.fc1.weight' is no tensor of a timm gMLP"):
        convert_timm_gmlp_state_dict({"blocks.0.mlp_tokens.fc1.weight": torch.zeros(1)})


@pytest.mark.parametrize("name", ["gmlp_ti16_224", "gmlp_s16_224", "gmlp_b16_224"])
def test_outputs_and_gradients_are_timms(name, randomise):
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
    theirs = randomise(timm.create_model(name)).eval()
    ours = our_model(theirs.num_features).eval()
    ours.load_state_dict(convert_timm_gmlp_state_dict(theirs.state_dict()))
    pixels = torch.randn(2, 3, 224, 224)
    logits = theirs(pixels)
    found = ours(pixels)
    scale = logits.detach().abs().max()
    torch.testing.assert_close(found.logits / scale, logits / scale, rtol=0, atol=1e-5)
    pooled = theirs.forward_head(theirs.forward_features(pixels), pre_logits=True)
    torch.testing.assert_close(ours.model(pixel_values=pixels).pooler_output, pooled, rtol=1e-4, atol=1e-5)
    (logits / scale).square().mean().backward()
    (found.logits / scale).square().mean().backward()
    gradients = convert_timm_gmlp_state_dict({n: p.grad for n, p in theirs.named_parameters()})
    for parameter_name, parameter in ours.named_parameters():
        largest = gradients[parameter_name].abs().max().clamp(min=1e-12)
        torch.testing.assert_close(parameter.grad / largest, gradients[parameter_name] / largest, rtol=0, atol=1e-3)
