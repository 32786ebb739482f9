"""aMLP configuration."""

from typing import Any

from .configuration_gmlp import GMLPConfig
from .validation import check_least, check_rates, strict_configuration


#: Fields that only converted Japanese aMLPs have set. Other configurations may contain them as `False`.
REMOVED_FIELDS = ("attention_before_norm", "activate_block_output", "remove_final_norm", "lm_head_projection")


@strict_configuration
class AMLPConfig(GMLPConfig):
    r"""Configuration of an aMLP encoder: gMLP with tiny attention ("Pay Attention to MLPs", section 4.3).

    The defaults give aMLP-base of the paper's Table 5: 36 layers, 108,791,516 parameters. It accepts all arguments of
    `GMLPConfig`, and the following ones, which are new or have another default.

    Args:
        num_hidden_layers (`int`, defaults to 36): Number of aMLP blocks.
        attention_size (`int`, defaults to 64):
            Width of the queries, keys and values of the single attention head; 64 or 128 in the paper.
        attention_probs_dropout_prob (`float`, defaults to 0.0): Dropout on the attention weights.

    Raises:
        ValueError: As in `GMLPConfig`, if `attention_size` is not positive, `attention_probs_dropout_prob` is not in
            [0, 1], or the configuration is of a converted Japanese aMLP.

    Example:
    ```python
    >>> from tokenmixers import AMLPConfig, AMLPModel

    >>> config = AMLPConfig(num_hidden_layers=4)
    >>> model = AMLPModel(config)
    ```
    """

    model_type = "amlp"

    num_hidden_layers: int = 36
    attention_size: int = 64
    attention_probs_dropout_prob: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in (("num_attention_heads", 1), ("head_dim", self.attention_size)):
            if kwargs.pop(name, value) != value:
                raise ValueError(f"`{name}` cannot be set: tiny attention has one head, of width `attention_size`.")
        for name in REMOVED_FIELDS:
            if kwargs.pop(name, False):
                raise ValueError(
                    f"`{name}=True` belongs to a converted Japanese aMLP, which is no longer supported. Load it with "
                    "the last version of tokenmixers that supports it, commit cb4abc5 of the repository."
                )
        super().__post_init__(**kwargs)

    @property
    def num_attention_heads(self) -> int:
        """Always 1, because tiny attention has a single head."""
        return 1

    @property
    def head_dim(self) -> int:
        """Width of the head, under the name that Transformers' attention utilities expect."""
        return self.attention_size

    def validate_architecture(self) -> None:
        """Check the sizes; strict validation calls this at construction and when saving."""
        super().validate_architecture()
        check_least(self, 1, "attention_size")
        check_rates(self, "attention_probs_dropout_prob")


__all__ = ["AMLPConfig"]
