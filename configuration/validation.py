"""Checks of configurations: wrong values raise `ConfigurationError`, a `ValueError` with one sentence."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from .image_inputs import ImageInputs
from .self_contained import SelfContainedConfig


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
