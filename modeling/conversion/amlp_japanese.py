"""Conversion of the weights of aMLP-japanese (github.com/tanreinama/aMLP-japanese).

These models differ from the paper: tiny attention reads the block's input before the norm, an activation (SiLU) is
applied to the block's output, and no norm follows the last block. Language models have a linear layer before the tied
head. The spatial weights are full, and all norms have an epsilon of 1e-5. Padding does not change real tokens.
"""

import re
from collections.abc import Mapping

import torch

from ...configuration.configuration_amlp import AMLPConfig
from ..modeling_amlp import (
    AMLPForMaskedLM,
    AMLPForQuestionAnswering,
    AMLPForSequenceClassification,
    AMLPPreTrainedModel,
)


# Their PyTorch names have dots where their TensorFlow names have underscores. "g" and "w" are weights, "b" is a bias.
_MODULES = {
    r"layer[._](\d+)[._]b[._]norm": r"model.layers.\1.norm",
    r"layer[._](\d+)[._]b[._]proj": r"model.layers.\1.proj_in",
    r"layer[._](\d+)[._]b[._]sgu_norm": r"model.layers.\1.sgu.norm",
    r"layer[._](\d+)[._]b[._]sgu": r"model.layers.\1.sgu.spatial_proj",
    r"layer[._](\d+)[._]b[._]proj_c": r"model.layers.\1.proj_out",
    r"layer[._](\d+)[._]s[._]c": r"model.layers.\1.attention.qkv_proj",
    r"layer[._](\d+)[._]s[._]p": r"model.layers.\1.attention.out_proj",
    "last_proj": "lm_projection",
    "squad_output": "qa_outputs",
    "output": "classifier",
}
_EMBEDDINGS = "model.embed_tokens.weight"

DROPOUT = 0.02  #: in all published models


def convert_amlp_japanese_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert the tensors of aMLP-japanese to the names and shapes of our models.

    Args:
        state_dict: Tensors by their names in PyTorch (`layer.0.b.proj.w`) or TensorFlow (`layer_0_b_proj_w`).

    Returns:
        All tensors. Matrices are transposed, because the originals have one row per input.

    Raises:
        ValueError: If a name is not from aMLP-japanese, or a tensor is not dense or not floating-point.
    """
    return dict(_converted(name, tensor) for name, tensor in state_dict.items())


def _converted(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise ValueError(
            f"{name!r} is a tensor of {tensor.dtype} ({tensor.layout}): weights are dense floating-point tensors."
        )
    if re.fullmatch("embed[._]w", name):
        return _EMBEDDINGS, tensor
    if name == "vocabrary_embed":
        return "lm_head.bias", tensor
    module, _, kind = re.sub(r"[._](?=[gwb]$)", " ", name).partition(" ")
    pattern = next((pattern for pattern in _MODULES if re.fullmatch(pattern, module)), None)
    if pattern is None or not kind:
        raise ValueError(
            f"{name!r} is not a tensor of an aMLP-japanese model, which have names like 'layer.0.b.proj.w'."
        )
    if tensor.ndim == 3 and len(tensor) == 1:  # the spatial weights
        tensor = tensor[0]
    converted = f"{re.sub(pattern, _MODULES[pattern], module)}.{'bias' if kind == 'b' else 'weight'}"
    return converted, tensor.mT.contiguous() if tensor.ndim == 2 else tensor


def amlp_from_japanese(state_dict: Mapping[str, torch.Tensor], dropout: float = DROPOUT) -> AMLPPreTrainedModel:
    """Build the model of an aMLP-japanese checkpoint.

    Args:
        state_dict: As in `convert_amlp_japanese_state_dict`.
        dropout: Dropout rate for the blocks' output in further training. The original dropout also acts on the spatial
            weights, ours on the embeddings.

    Returns:
        A masked language model. If the checkpoint has a head for spans (SQuAD and summaries) or classes, a model for
        question answering or sequence classification, which drops the language modelling head.

    Raises:
        ValueError: If a tensor is missing, unknown, not dense or not floating-point, or its shape does not fit the
            others.
    """
    tensors = convert_amlp_japanese_state_dict(state_dict)
    model_class: type[AMLPPreTrainedModel] = AMLPForMaskedLM
    if "qa_outputs.weight" in tensors:
        model_class = AMLPForQuestionAnswering
    elif "classifier.weight" in tensors:
        model_class = AMLPForSequenceClassification
    is_language_model = model_class is AMLPForMaskedLM
    config = _config(tensors, dropout, is_language_model)
    if is_language_model and _EMBEDDINGS in tensors:
        tensors["lm_head.weight"] = tensors[_EMBEDDINGS]
        tensors.setdefault("lm_head.bias", torch.zeros(config.vocab_size))  # some checkpoints have none
    elif not is_language_model:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_")}
    with torch.device("meta"):
        model = model_class(config)
    _check_shapes(tensors, {name: tensor.shape for name, tensor in model.state_dict().items()})
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    return model.eval()


def _config(tensors: Mapping[str, torch.Tensor], dropout: float, is_language_model: bool) -> AMLPConfig:
    shapes = {}
    for name in ("proj_in", "sgu.spatial_proj", "attention.qkv_proj"):
        tensor = tensors.get(f"model.layers.0.{name}.weight")
        if tensor is None or tensor.ndim != 2:
            raise ValueError(f"The first block has no matrix for `{name}`: the aMLP-japanese model is not complete.")
        shapes[name] = tensor.shape
    embeddings = tensors.get(_EMBEDDINGS)
    if embeddings is None or embeddings.ndim != 2 or len(embeddings) < 5:
        raise ValueError("The embeddings, 'embed.w', are missing: the aMLP-japanese model is not complete.")
    blocks = {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
    if blocks != set(range(len(blocks))):
        raise ValueError(f"There are tensors of {len(blocks)} blocks, the last of which has the number {max(blocks)}.")
    labels = tensors.get("classifier.bias")
    return AMLPConfig(
        vocab_size=len(embeddings),
        hidden_size=embeddings.shape[1],
        intermediate_size=shapes["proj_in"][0],
        num_hidden_layers=len(blocks),
        max_position_embeddings=shapes["sgu.spatial_proj"][0],
        attention_size=shapes["attention.qkv_proj"][0] // 3,
        hidden_act="silu",
        hidden_dropout_prob=dropout,
        classifier_dropout=0.0,
        spatial_weight_type="full",
        spatial_initializer_range=1e-5,
        layer_norm_eps=1e-5,
        gate_layer_norm_eps=1e-5,
        attention_before_norm=True,
        activate_block_output=True,
        remove_final_norm=True,
        lm_head_projection=is_language_model,
        pad_token_id=len(embeddings) - 3,
        eos_token_id=len(embeddings) - 1,
        num_labels=2 if labels is None else len(labels),
    )


def _check_shapes(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]) -> None:
    """Raise `ValueError` for missing or unknown tensors and wrong shapes."""
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise ValueError(f"There is no tensor for `{name}`: the aMLP-japanese model is not complete.")
        if name not in expected:
            raise ValueError(f"`{name}` is not a weight of the model that the other tensors belong to.")
        if tensors[name].shape != expected[name]:
            raise ValueError(
                f"The tensor for `{name}` has shape {tuple(tensors[name].shape)}, where those of the others need "
                f"{tuple(expected[name])}."
            )
