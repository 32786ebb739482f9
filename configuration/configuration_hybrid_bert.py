"""Configuration of BERT with other token mixing in some of its layers."""

from typing import TYPE_CHECKING, Any, Literal, get_args

from .validation import (
    ValidatedConfig,
    check_activation,
    check_least,
    check_not_negative,
    check_rates,
    strict_configuration,
)


TokenMixer = Literal["full_attention", "aft", "random_synthesizer", "dense_synthesizer", "gmlp", "amlp"]


@strict_configuration
class HybridBertConfig(ValidatedConfig):
    r"""Configuration of a text encoder with BERT's embeddings and layers, whose token mixing can differ by layer.

    The defaults give BERT-base. With `full_attention` alone, the model computes what `transformers.BertModel` does,
    and `modeling/conversion/bert.py` copies any of its layers.

    Args:
        token_mixers (`list` of `str`, *optional*):
            The token mixing of each layer; `None` means `"full_attention"` in all layers. Blocks of BERT, a mixing and
            a feed-forward layer, each followed by the sum with its input and a norm:

            - `"full_attention"`: BERT's self-attention;
            - `"aft"`: in its place an Attention Free Transformer (arXiv 2105.14103, equation 2) with learned logits
              for each head and distance of two tokens, and a score of each token for each head, which all others see;
            - `"random_synthesizer"`: in its place `softmax(B) V` with learned logits B for each head and distance of
              two tokens, and for each head and the first token as key;
            - `"dense_synthesizer"`: the same with logits that two layers compute from the query token (arXiv
              2005.00743, section 3.1).

            Other blocks, which normalise their input, in the place of a whole layer:

            - `"gmlp"`: the block of `GMLPModel`, about half of a layer's operations;
            - `"amlp"`: the block of `AMLPModel`. If one of these two is the last layer, a norm follows, see
              `final_norm`.
        num_hidden_layers (`int`, *optional*): Number of layers; `None` means that of `token_mixers`, or 12.
        vocab_size (`int`, defaults to 30522): Number of token ids.
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        num_attention_heads (`int`, defaults to 12): Number of heads, of which `hidden_size` is a multiple.
        intermediate_size (`int`, defaults to 3072):
            Width inside feed-forward layers, and after the channel expansion of gMLP and aMLP blocks, where it must be
            even.
        hidden_act (`str`, defaults to `"gelu"`): Activation after the projection to `intermediate_size`.
        hidden_dropout_prob (`float`, defaults to 0.1): Dropout rate for embeddings, sublayers and blocks.
        attention_probs_dropout_prob (`float`, defaults to 0.1): Dropout rate for attention weights.
        classifier_dropout (`float`, *optional*):
            Dropout before a classification head; `None` means `hidden_dropout_prob`.
        classifier_pooling (`"cls"`, `"mean"` or `"normalized_mean"`, defaults to `"cls"`):
            Input of sequence-level heads, as in `GMLPConfig`.
        max_position_embeddings (`int`, defaults to 512): Maximum sequence length.
        type_vocab_size (`int`, defaults to 2): Number of segment embeddings; with 0 `token_type_ids` have no effect.
        num_mean_queries (`int`, defaults to 1):
            Number of scores of a token for each head in `"aft"` layers. With more than one, each token mixes the
            results for these scores with shares that depend on its own state.
        aft_gate (`bool`, defaults to `False`):
            Whether the result of each head in `"aft"` layers is multiplied by a gate that depends on the token.
        attention_size (`int`, defaults to 64): Width of the tiny attention in aMLP blocks.
        spatial_weight_type (`"toeplitz"` or `"full"`, defaults to `"toeplitz"`): As in `GMLPConfig`.
        spatial_initializer_range (`float`, defaults to 1e-6): As in `GMLPConfig`.
        layer_norm_eps (`float`, defaults to 1e-12): Epsilon of all norms except those of gates.
        final_norm (`bool`, *optional*):
            Whether a norm follows the last layer; `None` means after a `"gmlp"` or `"amlp"` block. Saving sets it for
            a model whose last layers were removed: for a new model with other layers set it to `None`.
        gate_layer_norm_eps (`float`, defaults to 1e-5): Epsilon of the norm inside spatial gating units.
        initializer_range (`float`, defaults to 0.02): Standard deviation for initializing all other weights.
        tie_word_embeddings (`bool`, defaults to `True`):
            Whether the masked language modelling head shares the embedding matrix.
        sparse_prediction (`bool`, defaults to `False`): As in `GMLPConfig`.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): Special token ids; padding defaults to 0.
        image_size, patch_size, num_channels (`None`): The model reads texts.

    Raises:
        ValueError: If a value has the wrong type or is not an allowed choice, the number of `token_mixers` is not
            `num_hidden_layers`, a size is not positive, `hidden_size` is not a multiple of `num_attention_heads`,
            `intermediate_size` is odd with a gMLP or aMLP block, an epsilon or deviation is negative, a rate is not in
            [0, 1], `is_decoder` is set, or a special token is outside the vocabulary.

    Example:
    ```python
    >>> from tokenmixers import HybridBertConfig, HybridBertModel

    >>> config = HybridBertConfig(token_mixers=["random_synthesizer", "gmlp", "full_attention"])
    >>> model = HybridBertModel(config)
    ```
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


__all__ = ["HybridBertConfig"]
