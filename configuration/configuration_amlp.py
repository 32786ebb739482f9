"""aMLP configuration."""

from typing import Any

from .configuration_gmlp import GMLPConfig
from .validation import check_least, check_rates, strict_configuration


#: Fields that change the paper's model.
DEPARTURES = ("attention_before_norm", "activate_block_output", "remove_final_norm", "lm_head_projection")


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
        attention_before_norm (`bool`, defaults to `False`):
            Whether tiny attention reads a block's input before the norm.
        activate_block_output (`bool`, defaults to `False`):
            Whether `hidden_act` is also applied to a block's output, before the residual connection.
        remove_final_norm (`bool`, defaults to `False`): Whether to omit the norm after the last block.
        lm_head_projection (`bool`, defaults to `False`):
            Whether a linear layer of width `hidden_size` precedes the language modelling head. This field and the
            three above are for weights converted from aMLP-japanese; the paper does not have them.

    Raises:
        ValueError: As in `GMLPConfig`, or if `attention_size` is not positive or `attention_probs_dropout_prob` is not
            in [0, 1].

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
    attention_before_norm: bool = False
    activate_block_output: bool = False
    remove_final_norm: bool = False
    lm_head_projection: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in (("num_attention_heads", 1), ("head_dim", self.attention_size)):
            if kwargs.pop(name, value) != value:
                raise ValueError(f"`{name}` cannot be set: tiny attention has one head, of width `attention_size`.")
        super().__post_init__(**kwargs)

    @property
    def num_attention_heads(self) -> int:
        """Always 1, because tiny attention has a single head."""
        return 1

    @property
    def head_dim(self) -> int:
        """Width of the head, under the name that Transformers' attention utilities expect."""
        return self.attention_size

    def to_diff_dict(self) -> dict[str, Any]:
        """The fields written to `config.json`, without departures from the paper that are off."""
        return {name: value for name, value in super().to_diff_dict().items() if name not in DEPARTURES or value}

    def validate_architecture(self) -> None:
        """Check the sizes; strict validation calls this at construction and when saving."""
        super().validate_architecture()
        check_least(self, 1, "attention_size")
        check_rates(self, "attention_probs_dropout_prob")


__all__ = ["AMLPConfig"]
