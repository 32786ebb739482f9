# Part of tokenmixers 0.1.0, generated from configuration/configuration_hybrid_bert.py; not used where that package is imported.
# Licensed under the Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).

from collections.abc import Callable, Iterable
import functools
import math
from typing import Any, Literal, TYPE_CHECKING, TypeVar, get_args

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin


# --- configuration/image_inputs.py
class ImageInputs(BackboneConfigMixin):
    """Mixin for configurations with `image_size`, `patch_size`, `num_channels`, `classifier_pooling`."""

    image_size: int | list[int] | tuple[int, int] | None
    patch_size: int
    num_channels: int
    classifier_pooling: Literal["cls", "mean", "normalized_mean"]
    max_position_embeddings: int
    num_hidden_layers: int
    apply_layernorm: bool = True
    reshape_hidden_states: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As in any configuration, but without backbone stages that have their defaults."""
        stages = self.stage_names
        defaults = {"stage_names": stages, "out_features": stages[-1:], "out_indices": [len(stages) - 1]}
        fields = super().to_dict().items()
        return {key: value for key, value in fields if key not in defaults or value != defaults[key]}

    def set_stages(self, out_features: list[str] | None, out_indices: list[int] | None = None) -> None:
        """Set the stage names of a backbone, and the stages that it returns (by default the last)."""
        self.stage_names = ["stem", *(f"stage{index + 1}" for index in range(self.num_hidden_layers))]
        self.set_output_features_output_indices(out_features, out_indices)

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches; raises `ValueError` if `image_size` is `None`."""
        if self.image_size is None:
            raise ValueError("A configuration for text has no grid of patches: `image_size` is `None`.")
        height, width = (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def use_class_token(self) -> bool:
        """Whether there is a class token before the patches, and ViT's pre-logits layer after it."""
        return self.image_size is not None and self.classifier_pooling == "cls"

    def set_image_size(self, image_size: int | list[int] | tuple[int, int]) -> None:
        """Set the side of square images, or height and width, in pixels, and the resulting number of tokens."""
        sides = [image_size] if isinstance(image_size, int) else list(image_size)
        if self.patch_size < 1:
            raise ValueError(f"`patch_size` must be at least 1, got {self.patch_size}.")
        if len(sides) not in (1, 2) or any(side < 1 or side % self.patch_size for side in sides):
            raise ValueError(
                f"`image_size` must be one multiple of `patch_size={self.patch_size}`, or two (height, width), got "
                f"{image_size}."
            )
        self.image_size = sides[0] if len(sides) == 1 else sides
        rows, columns = self.patch_grid
        self.max_position_embeddings = rows * columns + self.use_class_token


# --- configuration/self_contained_in_checkpoints.py
class SelfContainedConfig(PreTrainedConfig):
    """A plain `PreTrainedConfig`."""


# --- configuration/validation.py
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
Config = TypeVar("Config", bound=PreTrainedConfig)


class ConfigurationError(StrictDataclassError, ValueError):
    """A field of a configuration has a wrong type or value."""


def strict_configuration(config_class: type[Config]) -> type[Config]:
    """Validate types when a field is set, and the whole configuration when it is created or saved.

    This is `strict` of huggingface_hub with `ConfigurationError`, because its own errors are not `ValueError`s.
    """
    config_class = strict(config_class)
    for name in ("__init__", "__setattr__", "validate"):
        setattr(config_class, name, _with_value_errors(getattr(config_class, name)))
    return config_class


def _with_value_errors(method: Callable) -> Callable:
    @functools.wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except ConfigurationError:
            raise
        except StrictDataclassError as error:  # its message begins with the validator's name
            raise ConfigurationError(str(error.__cause__ or error)) from error

    return checked


def check_least(config: PreTrainedConfig, least: int, *names: str) -> None:
    """Raise `ValueError` for a field below `least`; `None` is skipped."""
    _check(config, names, lambda value: value >= least, f"must be at least {least}")


def check_rates(config: PreTrainedConfig, *names: str) -> None:
    """Raise `ValueError` for a probability outside [0, 1]; `None` is skipped."""
    _check(config, names, lambda value: 0 <= value <= 1, "must be a probability from 0 to 1")


def check_not_negative(config: PreTrainedConfig, *names: str) -> None:
    """Raise `ValueError` for a number that is negative, infinite or NaN; `None` is skipped."""
    _check(config, names, lambda value: 0 <= value < math.inf, "must be finite and must not be negative")


def _check(config: PreTrainedConfig, names: Iterable[str], allows: Callable[[Any], bool], rule: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not allows(value):  # no comparison with NaN is true
            raise ValueError(f"`{name}` {rule}, got {value}.")


def check_token_ids(config: PreTrainedConfig, *names: str) -> None:
    """Raise `ValueError` for a special token outside the vocabulary; `None` is skipped."""
    for name in names:
        value = getattr(config, name)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < config.vocab_size:
                raise ValueError(
                    f"`{name}` must be an id from 0 to {config.vocab_size - 1}, below `vocab_size`, or `None`; got "
                    f"{value}."
                )


def check_activation(name: str) -> None:
    """Raise `ValueError` if Transformers has no activation of that name."""
    from transformers.activations import ACT2FN  # imports PyTorch

    if name not in ACT2FN:
        raise ValueError(f"`hidden_act` must be one of {', '.join(ACT2FN)}; got {name!r}.")


def _check_common_fields(config: PreTrainedConfig, num_labels: Any) -> None:
    """Check the common fields before `PreTrainedConfig.__post_init__` reads them."""
    if config.dtype is not None:
        _check_dtype(config.dtype)
    if num_labels is not None and not (hasattr(num_labels, "__index__") and num_labels >= 1):  # also one of NumPy
        raise ValueError(f"`num_labels` must be an integer of at least 1, got {num_labels!r}.")
    names = config.id2label
    if names is not None and not (isinstance(names, dict) and names and all(map(_is_index, names))):
        raise ValueError(f"`id2label` must be a dictionary from the index of every class to its name, got {names!r}.")
    if config.problem_type not in (None, *PROBLEM_TYPES):
        raise ValueError(f"`problem_type` must be one of {', '.join(PROBLEM_TYPES)}; got {config.problem_type!r}.")


def _is_index(key: Any) -> bool:
    return str(key).isdecimal()  # JSON has texts for keys


def _check_dtype(dtype: Any) -> None:
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"`dtype` must be a floating point type of PyTorch such as 'bfloat16', got {dtype!r}.")


class ValidatedConfig(ImageInputs, SelfContainedConfig):
    """Base class of all configurations, which checks the common fields."""

    def __post_init__(self, **kwargs: Any) -> None:
        _check_common_fields(self, kwargs.get("num_labels"))
        self.set_stages(kwargs.pop("out_features", None), kwargs.pop("out_indices", None))
        if self.image_size is not None:
            self.set_image_size(self.image_size)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Check the sizes; called by strict validation at construction and when saving."""
        super().validate_architecture()
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
        check_least(self, 1, *sizes, "patch_size", "num_channels")
        check_least(self, 0, "type_vocab_size")
        check_rates(self, "hidden_dropout_prob", "classifier_dropout")
        check_not_negative(self, "layer_norm_eps")
        if self.image_size is None:
            check_token_ids(self, "pad_token_id", "bos_token_id", "eos_token_id")


# --- configuration/configuration_hybrid_bert.py
TokenMixer = Literal["full_attention", "aft", "random_synthesizer", "dense_synthesizer", "gmlp", "amlp"]


@strict_configuration
class HybridBertConfig(ValidatedConfig):
    r"""Configuration of a text encoder with BERT's embeddings and layers, whose token mixing can differ by layer.

    The defaults give BERT-base. With `full_attention` alone, the model computes what `transformers.BertModel` does,
    and `modeling/conversion/bert.py` copies any of its layers.
    """

    model_type = "hybrid_bert"
    # As in gMLP; attention is not split.
    base_model_tp_plan = {
        "layers.*.proj_in": "colwise_gather_output",
        "layers.*.proj_out": "rowwise_split_input",
    }
    # What the layers of gMLP, aMLP and the Synthesizer read besides the fields, which is fixed here.
    gate_type = "split"
    drop_path_rate = 0.0
    dense_first_layer = "own"
    dense_bias = True
    dense_shared_across_heads = False

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int | None = None  # type: ignore[assignment]  # `__post_init__` sets it
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    token_mixers: list[str] | tuple[str, ...] | None = None
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["cls", "mean", "normalized_mean"] = "cls"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    num_mean_queries: int = 1
    aft_gate: bool = False
    attention_size: int = 64
    spatial_weight_type: Literal["toeplitz", "full"] = "toeplitz"
    spatial_initializer_range: float | int = 1e-6
    layer_norm_eps: float = 1e-12
    final_norm: bool | None = None
    gate_layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    sparse_prediction: bool = False
    is_decoder: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    image_size: None = None
    patch_size: None = None  # type: ignore[assignment]  # there are no patches
    num_channels: None = None  # type: ignore[assignment]
    if TYPE_CHECKING:  # a property, which type checkers do not take for an argument
        num_labels: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        older = kwargs.pop("layer_types", None)  # the name that belongs to Transformers, in older checkpoints
        if self.token_mixers is None:
            self.token_mixers = older
        if self.num_hidden_layers is None:
            self.num_hidden_layers = 12 if self.token_mixers is None else len(self.token_mixers)
        if self.token_mixers is None:
            self.token_mixers = ["full_attention"] * self.num_hidden_layers
        self.token_mixers = list(self.token_mixers)
        super().__post_init__(**kwargs)

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def gate_size(self) -> int:
        """Number of channels of the gates in gMLP and aMLP blocks."""
        return self.intermediate_size // 2

    def validate_token_mixers(self) -> None:
        """Check the names and the number of `token_mixers`."""
        allowed, types = get_args(TokenMixer), self.token_mixers or []
        if unknown := [name for name in types if name not in allowed]:
            raise ValueError(f"`token_mixers` must be names among {', '.join(allowed)}; got {unknown[0]!r}.")
        if len(types) != self.num_hidden_layers:
            raise ValueError(
                f"`token_mixers` must have one name for each of `num_hidden_layers={self.num_hidden_layers}`, got "
                f"{len(types)}: {', '.join(types)}."
            )

    def validate_architecture(self) -> None:
        """Check the sizes; strict validation calls this at construction and when saving."""
        # First, because `head_dim` divides by the number of heads.
        check_least(self, 1, "num_attention_heads", "attention_size", "num_mean_queries")
        super().validate_architecture()
        check_rates(self, "attention_probs_dropout_prob")
        check_not_negative(self, "gate_layer_norm_eps", "initializer_range", "spatial_initializer_range")
        check_activation(self.hidden_act)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size={self.hidden_size}` must be a multiple of `num_attention_heads="
                f"{self.num_attention_heads}`."
            )
        if {"gmlp", "amlp"}.intersection(self.token_mixers or ()) and self.intermediate_size % 2:
            raise ValueError(
                f"`intermediate_size` must be even, got {self.intermediate_size}: the spatial gating unit of gMLP and "
                "aMLP blocks splits it into two halves."
            )
        if self.is_decoder or self.is_encoder_decoder:
            raise ValueError("`is_decoder` and `is_encoder_decoder` are not possible: the model is an encoder.")


if TYPE_CHECKING:  # not executed: it makes Transformers copy that file as well, which config.json names
    from .modeling_hybrid_bert import HybridBertModel
