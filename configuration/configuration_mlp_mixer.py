"""MLP-Mixer configuration."""

from huggingface_hub.dataclasses import strict

from .configuration_gmlp import GMLPConfig


@strict
class MLPMixerConfig(GMLPConfig):
    r"""Configuration of an MLP-Mixer encoder for text or images (arXiv 2105.01601).

    The defaults give the baseline of Table 3 in "Pay Attention to MLPs": 24 layers of width 768 for up to 128 tokens,
    140,361,216 parameters. It takes the arguments of `GMLPConfig`, except for those of its gate, with these in
    addition or with another default.

    Args:
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        intermediate_size (`int`, defaults to 3072): Width inside the channel-mixing MLP; need not be even.
        token_mixing_size (`int`, defaults to 384): Width inside the token-mixing MLP.
        num_hidden_layers (`int`, defaults to 24): Number of blocks.
        max_position_embeddings (`int`, defaults to 128):
            Longest sequence, in tokens: the inputs and outputs of the token-mixing MLP. For images it follows from
            `image_size`.

    Raises:
        StrictDataclassError: As `GMLPConfig`, or if `token_mixing_size` is not positive, or if `gate_type` or
            `spatial_weight_type` are set: there is no gate, and the token-mixing weights are full matrices.

    Example:
    ```python
    >>> from tokenmixers import MLPMixerConfig, MLPMixerModel

    >>> config = MLPMixerConfig(num_hidden_layers=4)
    >>> model = MLPMixerModel(config)
    ```
    """

    model_type = "mlp_mixer"

    hidden_size: int = 768
    num_hidden_layers: int = 24
    max_position_embeddings: int = 128
    token_mixing_size: int = 384
    gate_type: None = None
    spatial_weight_type: str | None = "full"

    def validate_architecture(self):
        """Check the sizes; called by strict validation at construction and when saving."""
        super().validate_architecture()
        if self.token_mixing_size < 1:
            raise ValueError(f"`token_mixing_size` must be at least 1, got {self.token_mixing_size}.")
        if self.is_decoder:
            raise ValueError("`is_decoder=True` is not possible: the token-mixing MLP is not causal.")
        if self.spatial_weight_type != "full":
            raise ValueError(f"`spatial_weight_type` can only be 'full' here, got {self.spatial_weight_type!r}.")


__all__ = ["MLPMixerConfig"]
