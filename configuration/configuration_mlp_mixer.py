"""MLP-Mixer configuration."""

from typing import Any, Literal

from .configuration_gmlp import GMLPConfig
from .validation import check_least, strict_configuration


@strict_configuration
class MLPMixerConfig(GMLPConfig):
    r"""Configuration of an MLP-Mixer encoder for text or images (arXiv 2105.01601).

    The defaults give the baseline of Table 3 in "Pay Attention to MLPs" as its caption describes it: 24 layers of
    width 768 for up to 128 tokens, 140,361,216 parameters. It accepts the arguments of `GMLPConfig`, except those of
    the gate, and the following ones, which are new or have another default.

    Args:
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        intermediate_size (`int`, defaults to 3072): Width inside the channel-mixing MLP; may be odd.
        token_mixing_size (`int`, defaults to 384): Width inside the token-mixing MLP.
        num_hidden_layers (`int`, defaults to 24): Number of blocks.
        max_position_embeddings (`int`, defaults to 128):
            Maximum sequence length, which is the number of inputs and outputs of the token-mixing MLP. For images, it
            is computed from `image_size`.
        hidden_act (`str`, defaults to `"gelu"`): Activation inside both MLPs.
        classifier_pooling (`"cls"`, `"mean"` or `"normalized_mean"`, *optional*):
            As in `GMLPConfig`; `None` becomes `"cls"` for text, and `"mean"` for images as in the Mixer paper, which
            has no class token.
        spatial_weight_type (`"full"`): The token-mixing weights are full matrices.
        spatial_initializer_range (`float`, defaults to 0.02):
            Standard deviation for initializing the token-mixing weights.
        gate_type, gate_layer_norm_eps (`None`): There is no gate.

    Raises:
        ValueError: As in `GMLPConfig`, or if `token_mixing_size` is not positive, or if a field of the gate or
            `is_decoder` is set: the token-mixing MLP is not causal.

    Example:
    ```python
    >>> from tokenmixers import MLPMixerConfig, MLPMixerModel

    >>> config = MLPMixerConfig(num_hidden_layers=4)
    >>> model = MLPMixerModel(config)
    ```
    """

    model_type = "mlp_mixer"
    # Only channel mixing is split, because token mixing sums over tokens.
    base_model_tp_plan = {
        "layers.*.proj_in": "colwise",
        "layers.*.proj_out": "rowwise",
    }

    hidden_size: int = 768
    num_hidden_layers: int = 24
    max_position_embeddings: int = 128
    token_mixing_size: int = 384
    classifier_pooling: Literal["cls", "mean", "normalized_mean"] | None = None  # type: ignore[assignment]  # `__post_init__` chooses
    spatial_weight_type: Literal["full"] = "full"
    spatial_initializer_range: float | int = 0.02
    gate_type: None = None  # type: ignore[assignment]  # there is no gate
    gate_layer_norm_eps: None = None  # type: ignore[assignment]

    def __post_init__(self, **kwargs: Any) -> None:
        if self.classifier_pooling is None:
            self.classifier_pooling = "cls" if self.image_size is None else "mean"
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Check the sizes; strict validation calls this at construction and when saving."""
        super().validate_architecture()
        check_least(self, 1, "token_mixing_size")
        if self.is_decoder:
            raise ValueError("`is_decoder=True` is not possible: the token-mixing MLP is not causal.")


__all__ = ["MLPMixerConfig"]
