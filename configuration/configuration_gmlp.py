"""gMLP configuration."""

from typing import TYPE_CHECKING, Any, Literal

from .validation import ValidatedConfig, check_activation, check_not_negative, strict_configuration


@strict_configuration
class GMLPConfig(ValidatedConfig):
    r"""Configuration of a gMLP encoder for text or images ("Pay Attention to MLPs", arXiv 2105.08050).

    The defaults give gMLP-base of the paper's Table 5: 48 layers, 130,073,552 parameters. With `image_size`, the model
    reads images as ViT does, in square patches; `vocab_size`, `type_vocab_size` and the token ids are then unused.

    Args:
        vocab_size (`int`, defaults to 32000): Number of token ids.
        hidden_size (`int`, defaults to 512): Width of the residual stream (the paper's `d_model`).
        intermediate_size (`int`, defaults to 3072):
            Width after the channel expansion (the paper's `d_ffn`). Must be even for `gate_type="split"`.
        num_hidden_layers (`int`, defaults to 48): Number of gMLP blocks.
        max_position_embeddings (`int`, defaults to 512):
            Maximum sequence length `n`; the spatial weights are `n` by `n`. Shorter inputs use their leading block.
            For images, it is computed from `image_size` and a given value is ignored.
        hidden_act (`str`, defaults to `"gelu"`): Activation after the channel expansion (`"gelu"` is the exact GELU).
        hidden_dropout_prob (`float`, defaults to 0.0): Dropout rate for the embeddings and each block's output.
        classifier_dropout (`float`, *optional*):
            Dropout before a classification head; `None` means `hidden_dropout_prob`.
        classifier_pooling (`"cls"`, `"mean"` or `"normalized_mean"`, defaults to `"cls"`):
            Input of sequence-level heads: the first real token (as in the paper), the mean of the real tokens, or that
            mean divided by its root mean square, for encoders whose means are longer for shorter texts. For images,
            `"cls"` uses ViT's class token and pre-logits layer (a dense layer and tanh), which gives the parameter
            counts of the paper's Table 1; the others use neither, as in timm.
        gate_type (`"split"`, `"linear"`, `"additive"` or `"multiplicative"`, defaults to `"split"`):
            The gate s(Z) of Table 3, with f the spatial projection of the normalised input: `"split"` Z1 * f(Z2), the
            spatial gating unit; `"linear"` f(Z); `"additive"` Z + f(Z); `"multiplicative"` Z * f(Z). Only `"split"`
            halves the channels.
        spatial_weight_type (`"toeplitz"` or `"full"`, *optional*):
            `"toeplitz"` stores the 2n - 1 diagonals of each spatial weight (Appendix C, the paper's choice for text),
            `"full"` all n * n entries. `None` becomes `"toeplitz"` for text and `"full"` for images.
        spatial_initializer_range (`float`, defaults to 1e-6):
            Standard deviation for initializing the spatial weights. The paper says "near zero"; together with biases
            of one, every block then starts as a feed-forward layer.
        mask_padding (`bool`, defaults to `True`):
            Whether the model applies `attention_mask`, so that padding on either side does not change real tokens.
            `False` follows the paper, where the model sees the padding and learns to ignore it. A mask of four
            dimensions is applied in either case.
        layer_norm_eps (`float`, defaults to 1e-6): Epsilon of the block norms and of the final norm.
        gate_layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the norm inside the spatial gating unit.
        initializer_range (`float`, defaults to 0.02): Standard deviation for initializing all other weight matrices.
        type_vocab_size (`int`, defaults to 0):
            Number of segment embeddings. With 0, as in the paper, `token_type_ids` have no effect.
        tie_word_embeddings (`bool`, defaults to `True`):
            Whether the masked language modelling head shares the embedding matrix.
        sparse_prediction (`bool`, defaults to `False`):
            Whether training steps of masked language modelling compute logits only for the tokens to predict. The loss
            is the same, the head does several times less work, and the output of such a step has no `logits`. Counting
            these tokens synchronizes with the GPU once per step.
        is_decoder (`bool`, defaults to `False`):
            Whether tokens see only themselves and the tokens before them, as `GMLPForCausalLM` needs. The model then
            uses the lower triangle of the spatial weights. For text only.
        use_cache (`bool`, defaults to `True`):
            Whether a decoder returns a cache for generation.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): Special token ids; padding defaults to 0.
        image_size (`int` or pair of `int`, *optional*):
            Height and width of the images, in pixels; `None` for text.
        patch_size (`int`, defaults to 16): Side of the square patches; `image_size` is a multiple of it.
        num_channels (`int`, defaults to 3): Number of image channels.
        out_features, out_indices, apply_layernorm, reshape_hidden_states (*optional*):
            As in `Dinov2Config`, for backbones; `stage_names` are `"stem"`, `"stage1"`, ... (see `ImageBackbone`).
        drop_path_rate (`float`, defaults to 0.0):
            Stochastic depth: the probability of skipping a block for an example during training, equal for all blocks.
            Table 1 of the paper gives the survival probability, one minus this value.

    Raises:
        ValueError: If a value has the wrong type or is not an allowed choice, a size is not positive,
            `intermediate_size` is odd for a split gate, `image_size` is not a multiple of `patch_size`, an epsilon or
            deviation is negative, a rate is not in [0, 1], `drop_path_rate` is not in [0, 1), or a special token is
            outside the vocabulary.

    Example:
    ```python
    >>> from tokenmixers import GMLPConfig, GMLPModel

    >>> config = GMLPConfig(num_hidden_layers=4)
    >>> model = GMLPModel(config)
    ```
    """

    model_type = "gmlp"
    # Only the projections are split, because the gate needs all channels of a token at once (norm, halves).
    base_model_tp_plan = {
        "layers.*.proj_in": "colwise_gather_output",
        "layers.*.proj_out": "rowwise_split_input",
    }
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int = 3072
    num_hidden_layers: int = 48
    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["cls", "mean", "normalized_mean"] = "cls"
    gate_type: Literal["split", "linear", "additive", "multiplicative"] = "split"
    spatial_weight_type: Literal["toeplitz", "full"] | None = None
    spatial_initializer_range: float | int = 1e-6
    mask_padding: bool = True
    layer_norm_eps: float = 1e-6
    gate_layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    type_vocab_size: int = 0
    tie_word_embeddings: bool = True
    sparse_prediction: bool = False
    is_decoder: bool = False
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    image_size: int | list[int] | tuple[int, int] | None = None
    patch_size: int = 16
    num_channels: int = 3
    drop_path_rate: float | int = 0.0
    if TYPE_CHECKING:  # a property, which type checkers do not take for an argument
        num_labels: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        if self.spatial_weight_type is None:
            self.spatial_weight_type = "toeplitz" if self.image_size is None else "full"
        super().__post_init__(**kwargs)

    @property
    def gate_size(self) -> int:
        """Number of channels of the gate and of the gating unit's output."""
        return self.intermediate_size // 2 if self.gate_type == "split" else self.intermediate_size

    def validate_architecture(self) -> None:
        """Check the sizes; strict validation calls this at construction and when saving."""
        super().validate_architecture()
        check_not_negative(self, "gate_layer_norm_eps", "initializer_range", "spatial_initializer_range")
        check_activation(self.hidden_act)
        if self.gate_type == "split" and self.intermediate_size % 2:
            raise ValueError(
                f"`intermediate_size` must be even, got {self.intermediate_size}: the spatial gating unit splits it "
                'into two halves. Values of `gate_type` other than "split" allow odd sizes.'
            )
        if self.is_encoder_decoder:
            raise ValueError("`is_encoder_decoder=True` is not supported: a model is an encoder or a decoder.")
        if self.is_decoder and self.image_size is not None:
            raise ValueError("`is_decoder=True` is for text: leave `image_size` out.")
        if not 0 <= self.drop_path_rate < 1:
            raise ValueError(f"`drop_path_rate` must be in [0, 1), got {self.drop_path_rate}.")


__all__ = ["GMLPConfig"]
