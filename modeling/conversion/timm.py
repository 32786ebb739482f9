"""Conversion of timm's gMLP and MLP-Mixer weights.

Only names change: timm also has output tokens as rows of the token-mixing weights, and multiplies the first half of
gMLP's expanded channels by the gate. Equal outputs also need an epsilon of 1e-6 in block and final norms and of 1e-5
in gMLP's gate norms (our defaults), and `classifier_pooling="mean"`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from ...configuration.configuration_gmlp import GMLPConfig
from ...configuration.configuration_mlp_mixer import MLPMixerConfig


_SHARED_NAMES = {
    r"stem\.proj\.(weight|bias)": r"model.embed_patches.projection.\1",
    r"blocks\.(\d+)\.mlp_channels\.fc1\.(weight|bias)": r"model.layers.\1.proj_in.\2",
    r"blocks\.(\d+)\.mlp_channels\.fc2\.(weight|bias)": r"model.layers.\1.proj_out.\2",
    r"norm\.(weight|bias)": r"model.norm.\1",
    r"head\.(weight|bias)": r"classifier.\1",
}
_GMLP_NAMES = {
    **_SHARED_NAMES,
    r"blocks\.(\d+)\.norm\.(weight|bias)": r"model.layers.\1.norm.\2",
    r"blocks\.(\d+)\.mlp_channels\.gate\.norm\.(weight|bias)": r"model.layers.\1.sgu.norm.\2",
    r"blocks\.(\d+)\.mlp_channels\.gate\.proj\.(weight|bias)": r"model.layers.\1.sgu.spatial_proj.\2",
}
_MIXER_NAMES = {
    **_SHARED_NAMES,
    r"blocks\.(\d+)\.norm1\.(weight|bias)": r"model.layers.\1.token_norm.\2",
    r"blocks\.(\d+)\.mlp_tokens\.fc1\.(weight|bias)": r"model.layers.\1.token_mixing.\2_in",
    r"blocks\.(\d+)\.mlp_tokens\.fc2\.(weight|bias)": r"model.layers.\1.token_mixing.\2_out",
    r"blocks\.(\d+)\.norm2\.(weight|bias)": r"model.layers.\1.channel_norm.\2",
}


def convert_timm_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename the tensors of a timm model for `GMLPForImageClassification` or `MLPMixerForImageClassification`.

    Args:
        state_dict: Weights of a `gmlp_*` or `mixer_*` model of timm, with or without its classifier; names may have
            the prefix `timm_model.` of Transformers' wrapper.

    Returns:
        The same tensors with our names.

    Raises:
        ValueError: If a name is not one of timm's for these models.
    """
    is_mixer = any(".mlp_tokens." in name for name in state_dict)
    names = _MIXER_NAMES if is_mixer else _GMLP_NAMES
    converted = {}
    for name, tensor in state_dict.items():
        short = name.removeprefix("timm_model.")
        pattern = next((pattern for pattern in names if re.fullmatch(pattern, short)), None)
        if pattern is None:
            raise ValueError(
                f"{name!r} is not a tensor of a timm {'MLP-Mixer' if is_mixer else 'gMLP'}. Give the state dict of "
                "one of timm's gmlp_* or mixer_* models, with names like 'blocks.0.mlp_channels.fc1.weight'; gmixer_* "
                "and resmlp_* are other architectures."
            )
        converted[re.sub(pattern, names[pattern], short)] = tensor
    return converted


def timm_config(
    state_dict: Mapping[str, torch.Tensor], image_size: tuple[int, int] | None = None
) -> GMLPConfig | MLPMixerConfig:
    """Infer the configuration of a timm model from the shapes of its tensors.

    Args:
        state_dict: As in `convert_timm_state_dict`.
        image_size: Height and width of the images, in pixels, because the shapes do not show them; `None` for square
            images.

    Raises:
        ValueError: If a name is not one of timm's gMLP or MLP-Mixer, a tensor is missing, the MLPs have gates (timm's
            `gmixer_*`), or neither `image_size` nor any square has as many patches as the model has tokens.
    """
    tensors = convert_timm_state_dict(state_dict)
    is_mixer = any(".token_mixing." in name for name in tensors)
    first = ["embed_patches.projection.weight", "layers.0.proj_in.weight", "layers.0.proj_out.weight"]
    first.append("layers.0.token_mixing.weight_out" if is_mixer else "layers.0.sgu.spatial_proj.bias")
    if missing := [f"model.{name}" for name in first if f"model.{name}" not in tensors]:
        raise ValueError(f"There is no tensor for {', '.join(missing)}: the model is not complete.")
    patches, expanded, narrowed = (tensors[f"model.{name}"] for name in first[:3])
    config_class: type[GMLPConfig] = GMLPConfig
    fields: dict[str, Any] = {}
    token_mixing = tensors.get("model.layers.0.token_mixing.weight_out")
    if token_mixing is not None:
        if narrowed.shape[1] != expanded.shape[0]:
            raise ValueError(
                f"The channel MLPs have gates: they expand to {expanded.shape[0]} channels and read "
                f"{narrowed.shape[1]}, as in timm's gmixer_* models, which are not supported. mixer_* models are."
            )
        tokens = len(token_mixing)
        config_class, fields["token_mixing_size"] = MLPMixerConfig, token_mixing.shape[1]
    else:
        tokens = len(tensors["model.layers.0.sgu.spatial_proj.bias"])
    side = patches.shape[-1]
    height, width = image_size or [math.isqrt(tokens) * side] * 2
    if (height // side) * (width // side) != tokens:
        raise ValueError(
            f"The model mixes {tokens} tokens, but images of {height} x {width} pixels have {height // side} x "
            f"{width // side} patches of {side} pixels. Give its `image_size=(height, width)`."
        )
    fields.update(
        hidden_size=expanded.shape[1],
        intermediate_size=expanded.shape[0],
        num_hidden_layers=1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")),
        image_size=height if height == width else [height, width],
        patch_size=side,
        num_channels=patches.shape[1],
        classifier_pooling="mean",
        num_labels=len(tensors["classifier.bias"]) if "classifier.bias" in tensors else 2,
    )
    return config_class(**fields)
