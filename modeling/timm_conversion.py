"""timm's gMLP weights under our names.

Every tensor is a straight copy: here too the rows of the spatial weights are output tokens, and the first half of the
expanded channels passes the gate. Besides the names, two things matter to get the same outputs: the block and final
norms have an epsilon of 1e-6, the gate norms 1e-5 (our defaults), and pooling is by the mean
(`classifier_pooling="mean"`).
"""

import re
from collections.abc import Mapping

import torch


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


def convert_timm_gmlp_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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
