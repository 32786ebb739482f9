"""Conversion of T5, T5 v1.1, Flan-T5 and mT5 weights to Synthesizers.

With `attention_components=["vanilla"]` the result gives the same outputs as the original. With more components, it
does so before training: the logits of the new components are zero, and the query weights are divided by the mixture
weight of `vanilla`. Without `vanilla`, self-attention is initialized at random, and everything else is T5's.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from ...configuration.configuration_synthesizer import SynthesizerConfig
from ..modeling_synthesizer import SynthesizerForConditionalGeneration


# `feed_forward_proj` -> (feed_forward_type, gelu_approximate). T5's "gated-gelu" is the tanh approximation.
_FEED_FORWARD = {
    "relu": ("relu", "none"),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "silu": ("swish", "none"),
    "swish": ("swish", "none"),
    "gated-relu": ("reglu", "none"),
    "gated-gelu": ("geglu", "tanh"),
    "gated-gelu_new": ("geglu", "tanh"),
    "gated-silu": ("swiglu", "none"),
    "gated-swish": ("swiglu", "none"),
    "gated-sigmoid": ("glu", "none"),
    "gated-linear": ("bilinear", "none"),
}
_ATTENTION = {name: f"{name}_proj" for name in ("q", "k", "v", "o")}
# Weights set to zero to make a component's logits zero; its other weights stay, so that gradients are not zero.
_ZERO_AT_START = {
    "random": ("weight",),
    "relative": ("weight",),
    "factorized_random": ("query_factor",),
    "mesh_factorized": ("first_factor",),
    "dense": ("second.weight", "second.bias"),
    "factorized_dense": ("tiled.weight", "tiled.bias"),
}


def convert_t5_config(t5_config: PreTrainedConfig, tied_head: bool = True, **overrides: Any) -> SynthesizerConfig:
    """The configuration of the Synthesizer that computes the same outputs as a T5 model.

    Args:
        t5_config: Configuration of the T5 or mT5 model.
        tied_head: Whether its head shares the embedding matrix (T5) or not (v1.1, Flan); only the weights show this.
        overrides: Fields to change, such as `attention_components`.

    Raises:
        ValueError: If the model has another type, or an activation without a feed-forward type.
    """
    if t5_config.model_type not in ("t5", "mt5"):
        raise ValueError(f"Only 't5' and 'mt5' models can be converted, got one of type {t5_config.model_type!r}.")
    if t5_config.feed_forward_proj not in _FEED_FORWARD:
        raise ValueError(
            f"There is no feed-forward type for `feed_forward_proj={t5_config.feed_forward_proj!r}`; known: "
            f"{', '.join(_FEED_FORWARD)}."
        )
    feed_forward_type, gelu_approximate = _FEED_FORWARD[t5_config.feed_forward_proj]
    same = (
        "vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets "
        "relative_attention_max_distance dropout_rate layer_norm_epsilon initializer_factor use_cache pad_token_id "
        "eos_token_id decoder_start_token_id"
    )
    fields = {SynthesizerConfig.attribute_map.get(name, name): getattr(t5_config, name, None) for name in same.split()}
    if fields["decoder_start_token_id"] is None:
        fields["decoder_start_token_id"] = fields["pad_token_id"]
    return SynthesizerConfig(
        **{
            **fields,
            "attention_components": ["vanilla"],
            "attention_dropout": t5_config.dropout_rate,
            "feed_forward_type": feed_forward_type,
            "gelu_approximate": gelu_approximate,
            "is_encoder_decoder": True,
            "tie_word_embeddings": tied_head,
            "scale_decoder_outputs": getattr(t5_config, "scale_decoder_outputs", False),
            **overrides,
        }
    )


def convert_t5_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename T5's weights for `SynthesizerForConditionalGeneration` (with `vanilla` attention).

    Args:
        state_dict: Weights of `T5ForConditionalGeneration`, with or without the copies of tied weights.

    Raises:
        ValueError: If a name is not one of T5's.
    """
    return {_synthesizer_name(name): tensor for name, tensor in state_dict.items()}


def _synthesizer_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "lm_head":
        return name
    if parts[0] == "shared" or parts[1:2] == ["embed_tokens"]:
        return f"model.{name}"
    side, rest = parts[0], parts[1:]
    if side in ("encoder", "decoder") and rest[0] == "final_layer_norm":
        return f"model.{side}.norm.weight"
    if side not in ("encoder", "decoder") or rest[0] != "block" or len(rest) < 6:
        raise ValueError(f"{name!r} is not the name of a T5 weight.")
    _, layer, _, sublayer, module, *last = rest
    prefix = f"model.{side}.layers.{layer}"
    sublayers = ("self_attn", "mlp") if side == "encoder" else ("self_attn", "cross_attn", "mlp")
    target = sublayers[int(sublayer)]
    if module == "layer_norm":
        return f"{prefix}.{target}_norm.weight"
    if last[0] == "relative_attention_bias":  # stored in the first layer, used by all
        return f"model.{side}.relative_attention_bias.weight"
    if module == "DenseReluDense":
        projection = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}[last[0]]
        return f"{prefix}.{target}.{projection}.weight"
    return f"{prefix}.{target}.{_ATTENTION[last[0]]}.weight"


def add_components(
    state_dict: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor], config: SynthesizerConfig
) -> dict[str, torch.Tensor]:
    """Convert the weights of a `vanilla` model for a model with other components.

    Args:
        state_dict: Weights of the model with `vanilla` alone.
        fresh: Initial weights of the model with the other components.
        config: Its configuration.

    Returns:
        The weights of `state_dict` that the new model has, and the remaining weights from `fresh`. If `vanilla` is
        mixed with other components, the query weights of self-attention are divided by its initial mixture weight, and
        weights of `fresh` are set so that the logits of the new components are zero: the outputs do not change.

    Raises:
        ValueError: If `fixed_random` is mixed with `vanilla`: it is not trained and would stay zero.
    """
    result = {name: state_dict.get(name, tensor) for name, tensor in fresh.items()}
    for side in ("encoder", "decoder"):
        names = config.get_text_config(**{side: True}).attention_components
        if "vanilla" not in names:
            continue
        if "fixed_random" in names:
            raise ValueError(
                f"The {side} cannot start as the same function with the components {names}: 'vanilla' can be mixed "
                f"with {', '.join(_ZERO_AT_START)}."
            )
        share = 1.0 if config.mixture == "sum" else 1 / len(names)
        for name, tensor in result.items():
            layer, _, own = name.partition(".self_attn.")
            kind, _, weight = own.removeprefix("components.").partition(".")
            if layer.startswith(f"model.{side}.") and own == "q_proj.weight":
                result[name] = tensor / share
            elif layer.startswith(f"model.{side}.") and weight in _ZERO_AT_START.get(kind, ()):
                result[name] = torch.zeros_like(tensor)
    return result


def to_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert the weights. Those that T5 keeps in float32 do not become float16, because products overflow."""
    names = (model._keep_in_fp32_modules or ()) if dtype == torch.float16 else ()
    kept = [module for name, module in model.named_modules() if name.rpartition(".")[2] in names]
    weights = [module.float().state_dict() for module in kept]
    model.to(dtype)  # type: ignore[arg-type]  # taken for a function, because it is wrapped
    for module, before in zip(kept, weights, strict=True):
        module.float().load_state_dict(before)


def synthesizer_from_t5(
    source: str | os.PathLike | PreTrainedModel, *, dtype: torch.dtype | None = None, **overrides: Any
) -> SynthesizerForConditionalGeneration:
    """Load a T5 model as a Synthesizer.

    Args:
        source: Hub id or folder of a T5 model, or a `T5ForConditionalGeneration`.
        dtype: Dtype of the weights; `None` keeps the saved dtype.
        overrides: Fields of the new configuration, e.g. `attention_components=["random", "vanilla"]`,
            `max_position_embeddings=512`. Shapes are T5's. An encoder or decoder without `vanilla` loses T5's queries
            and keys; its components are initialized at random, so it has to be trained.

    Returns:
        The model, in evaluation mode, with T5's generation settings.

    Raises:
        ValueError: If the model is not a T5 model, weights are missing (e.g. those of a decoder) or do not fit the
            overridden fields, or `vanilla` cannot be mixed with these components.

    Example:
    ```python
    >>> model = synthesizer_from_t5("google/flan-t5-small", attention_components=["random", "vanilla"])
    ```
    """
    if isinstance(source, PreTrainedModel):
        t5 = source
    else:
        convert_t5_config(AutoConfig.from_pretrained(source))  # raises for other models before loading weights
        t5, report = AutoModelForSeq2SeqLM.from_pretrained(
            source, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True
        )
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"The checkpoint has no weights for {', '.join(map(repr, missing[:3]))}"
                f"{f' and {len(missing) - 3} others' if len(missing) > 3 else ''}, which would be random: a T5 with "
                "encoder and decoder is needed."
            )
    state_dict = convert_t5_state_dict(t5.state_dict())
    tied = "lm_head.weight" not in state_dict or torch.equal(
        state_dict["lm_head.weight"], state_dict["model.shared.weight"]
    )
    config = convert_t5_config(t5.config, tied_head=tied, **overrides)
    model = SynthesizerForConditionalGeneration(config)
    own = model.state_dict()
    for name, tensor in own.items():
        if name in state_dict and state_dict[name].shape != tensor.shape:
            raise ValueError(
                f"{name!r} has shape {tuple(state_dict[name].shape)} in T5 and would have {tuple(tensor.shape)}: the "
                "shapes of T5's weights cannot be overridden."
            )
    others = sorted(name for name in state_dict.keys() ^ own.keys() if ".self_attn." not in name)
    if others:
        raise ValueError(
            f"{others[0]!r} is {'not' if others[0] in own else 'only'} in T5: fields that add or remove "
            "weights outside of self-attention cannot be overridden."
        )
    to_dtype(model, dtype or t5.dtype)
    model.load_state_dict(add_components(state_dict, own, config))
    model.generation_config = t5.generation_config
    return model.eval()
