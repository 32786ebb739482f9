"""aMLP configuration."""

from huggingface_hub.dataclasses import strict

from .configuration_gmlp import GMLPConfig


@strict
class AMLPConfig(GMLPConfig):
    r"""Configuration of an aMLP encoder: gMLP with tiny attention ("Pay Attention to MLPs", section 4.3).

    The defaults give aMLP-base of the paper's Table 5: 36 layers, 108,791,516 parameters. It takes all arguments of
    `GMLPConfig`, with these in addition or with another default.

    Args:
        num_hidden_layers (`int`, defaults to 36): Number of aMLP blocks.
        attention_size (`int`, defaults to 64):
            Width of the queries, keys and values of the single attention head; 64 or 128 in the paper.
        attention_probs_dropout_prob (`float`, defaults to 0.0): Dropout on the attention weights.

    Raises:
        ValueError: As `GMLPConfig`, or if `attention_size` is not positive.

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

    @property
    def num_attention_heads(self) -> int:
        """Always one: tiny attention has a single head."""
        return 1

    @property
    def head_dim(self) -> int:
        """Width of that head, under the name Transformers' attention utilities look for."""
        return self.attention_size

    def validate_architecture(self) -> None:
        """Check the sizes; called by strict validation at construction and when saving."""
        super().validate_architecture()
        if self.attention_size < 1:
            raise ValueError(f"`attention_size` must be at least 1, got {self.attention_size}.")


__all__ = ["AMLPConfig"]
