"""gMLP configuration."""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class GMLPConfig(PreTrainedConfig):
    r"""Configuration of a gMLP encoder ("Pay Attention to MLPs", arXiv 2105.08050).

    The defaults give gMLP-base of the paper's Table 5: 48 layers, 130,073,552 parameters.

    Args:
        vocab_size (`int`, defaults to 32000): Number of token ids.
        hidden_size (`int`, defaults to 512): Width of the residual stream (the paper's `d_model`).
        intermediate_size (`int`, defaults to 3072):
            Width after the channel expansion (the paper's `d_ffn`). Must be even: the gate splits it in two halves.
        num_hidden_layers (`int`, defaults to 48): Number of gMLP blocks.
        max_position_embeddings (`int`, defaults to 512):
            Longest sequence, in tokens: the side `n` of the spatial weights. Shorter inputs use their leading block.
        hidden_act (`str`, defaults to `"gelu"`): Activation after the channel expansion (`"gelu"` is the exact one).
        hidden_dropout_prob (`float`, defaults to 0.0): Dropout on the embeddings and on each block's output.
        classifier_dropout (`float`, *optional*):
            Dropout before a classification head; `None` means `hidden_dropout_prob`.
        classifier_pooling (`"cls"` or `"mean"`, defaults to `"cls"`):
            What sequence-level heads read: the first real token (the paper's choice), or the mean of the real tokens.
        spatial_weight_type (`"toeplitz"` or `"full"`, defaults to `"toeplitz"`):
            `"toeplitz"` stores the 2n - 1 diagonals of each spatial weight (Appendix C, the paper's choice for text),
            `"full"` all n * n entries.
        spatial_initializer_range (`float`, defaults to 1e-6):
            Standard deviation of the spatial weights at the start. The paper says "near zero"; with the biases at one
            every block then starts as a plain feed-forward layer.
        mask_padding (`bool`, defaults to `True`):
            Whether `attention_mask` is honoured: padding then has no influence on real tokens, on either side.
            `False` is the paper's protocol, in which the model sees the padding and learns to ignore it.
        layer_norm_eps (`float`, defaults to 1e-6): Epsilon of the block norms and of the final norm.
        gate_layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the norm inside the spatial gating unit.
        initializer_range (`float`, defaults to 0.02): Standard deviation of all other weight matrices at the start.
        type_vocab_size (`int`, defaults to 0):
            Number of segment embeddings. With 0, as in the paper, `token_type_ids` are accepted and have no effect.
        tie_word_embeddings (`bool`, defaults to `True`):
            Whether the masked-language-modelling head shares the embedding matrix.
        sparse_prediction (`bool`, defaults to `False`):
            Whether masked-language-modelling training steps skip the logits of tokens that are not to be predicted:
            the same loss, several times less work in the head, and no `logits` in the output of such a step.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): Special token ids; padding defaults to 0.

    Raises:
        StrictDataclassError: If a value has the wrong type or is no allowed choice, a size is not positive,
            `intermediate_size` is odd, or an epsilon or deviation is negative (`huggingface_hub.errors`).

    Example:
    ```python
    >>> from tokenmixers import GMLPConfig, GMLPModel

    >>> config = GMLPConfig(num_hidden_layers=4)
    >>> model = GMLPModel(config)
    ```
    """

    model_type = "gmlp"

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int = 3072
    num_hidden_layers: int = 48
    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["cls", "mean"] = "cls"
    spatial_weight_type: Literal["toeplitz", "full"] = "toeplitz"
    spatial_initializer_range: float | int = 1e-6
    mask_padding: bool = True
    layer_norm_eps: float = 1e-6
    gate_layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    type_vocab_size: int = 0
    tie_word_embeddings: bool = True
    sparse_prediction: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def validate_architecture(self):
        """Check the sizes; called by strict validation at construction and when saving."""
        super().validate_architecture()
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.intermediate_size % 2:
            raise ValueError(
                f"`intermediate_size` must be even, got {self.intermediate_size}: the spatial gating unit splits it "
                "into two halves."
            )
        if self.type_vocab_size < 0:
            raise ValueError(
                f"`type_vocab_size` must be 0 (no segment embeddings) or more, got {self.type_vocab_size}."
            )
        for name in ("layer_norm_eps", "gate_layer_norm_eps", "initializer_range", "spatial_initializer_range"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must not be negative, got {getattr(self, name)}.")


__all__ = ["GMLPConfig"]
