"""timm's gMLP weights under our names.

Every tensor is a straight copy: here too the rows of the spatial weights are output tokens, and the first half of the
expanded channels passes the gate. Besides the names, two things matter to get the same outputs: the block and final
norms have an epsilon of 1e-6, the gate norms 1e-5 (our defaults), and pooling is by the mean
(`classifier_pooling="mean"`).
"""

import math
import re
from collections.abc import Mapping

import torch

from ..configuration.configuration_gmlp import GMLPConfig


_NAMES = {
    r"stem\.proj\.(weight|bias)": r"model.embed_patches.projection.\1",
    r"blocks\.(\d+)\.norm\.(weight|bias)": r"model.layers.\1.norm.\2",
    r"blocks\.(\d+)\.mlp_channels\.fc1\.(weight|bias)": r"model.layers.\1.proj_in.\2",
    r"blocks\.(\d+)\.mlp_channels\.gate\.norm\.(weight|bias)": r"model.layers.\1.sgu.norm.\2",
    r"blocks\.(\d+)\.mlp_channels\.gate\.proj\.(weight|bias)": r"model.layers.\1.sgu.spatial_proj.\2",
    r"blocks\.(\d+)\.mlp_channels\.fc2\.(weight|bias)": r"model.layers.\1.proj_out.\2",
    r"norm\.(weight|bias)": r"model.norm.\1",
    r"head\.(weight|bias)": r"classifier.\1",
}


def convert_timm_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename the tensors of a timm gMLP for `GMLPForImageClassification`.

    Args:
        state_dict: Of timm's `gmlp_ti16_224`, `gmlp_s16_224`, `gmlp_b16_224` or a variant of them, with or without
            its classifier; names may carry the prefix `timm_model.` of Transformers' wrapper.

    Returns:
        The same tensors under our names.

    Raises:
        ValueError: If a name is none of a timm gMLP's.
    """
    converted = {}
    for name, tensor in state_dict.items():
        short = name.removeprefix("timm_model.")
        pattern = next((pattern for pattern in _NAMES if re.fullmatch(pattern, short)), None)
        if pattern is None:
            raise ValueError(
                f"{name!r} is no tensor of a timm gMLP. Expected the state dict of one of timm's gmlp_* models, with "
                "names like 'blocks.0.mlp_channels.fc1.weight'."
            )
        converted[re.sub(pattern, _NAMES[pattern], short)] = tensor
    return converted


def timm_config(state_dict: Mapping[str, torch.Tensor]) -> GMLPConfig:
    """The configuration that fits a timm model, read off the shapes of its tensors.

    Args:
        state_dict: As for `convert_timm_state_dict`. Images are taken to be square.

    Raises:
        ValueError: If a name is none of a timm gMLP's.
    """
    tensors = convert_timm_state_dict(state_dict)
    patches = tensors["model.embed_patches.projection.weight"]
    tokens = len(tensors["model.layers.0.sgu.spatial_proj.bias"])
    expanded = tensors["model.layers.0.proj_in.weight"]
    return GMLPConfig(
        hidden_size=expanded.shape[1],
        intermediate_size=expanded.shape[0],
        num_hidden_layers=1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")),
        image_size=math.isqrt(tokens) * patches.shape[-1],
        patch_size=patches.shape[-1],
        num_channels=patches.shape[1],
        classifier_pooling="mean",
        num_labels=len(tensors["classifier.bias"]) if "classifier.bias" in tensors else 2,
    )
