"""Synthesizer configuration, and the models of its papers as named presets."""

import copy
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

from .validation import (
    ValidatedConfig,
    check_least,
    check_not_negative,
    check_rates,
    check_token_ids,
    strict_configuration,
)


AttentionComponent = Literal[
    "vanilla",
    "dense",
    "random",
    "fixed_random",
    "factorized_dense",
    "factorized_random",
    "relative",
    "mesh_factorized",
]
# Fields that the decoder's self-attention can set separately, as `decoder_<name>`.
_DECODER_OVERRIDES = (
    "attention_components",
    "num_attention_heads",
    "head_dim",
    "max_position_embeddings",
    "position_embedding_type",
)

# "Transformer base" of the translation experiments. N = 256 and one R per head explain the published counts
# (256 * 256 * 8 heads * 12 layers = 6.29M); the vocabulary is T5's.
_TRANSLATION = {
    "is_encoder_decoder": True,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 256,
}
# T5-base with the shapes of Mesh TensorFlow's Synthesizer: 8 heads of 128 in self-attention, and no dropout there.
_C4 = {
    "is_encoder_decoder": True,
    "cross_attention_num_heads": 12,
    "cross_attention_head_dim": 64,
    "num_attention_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 512,
    "attention_dropout": 0.0,
}
# These shapes with the layers of Mesh TensorFlow.
_MESH = {
    **_C4,
    "random_initializer_range": 0.00274,  # Glorot uniform of a 512 x 8 x 512 tensor: limit 0.00475 / sqrt(3)
    "dense_first_layer": "query",
    "dense_shared_across_heads": True,
    "dense_bias": False,
    "factorized_random_rank": 16,
}
# T5-base, with which "GLU Variants Improve Transformer" compares feed-forward layers. Gated ones have three matrices
# instead of two, so two thirds of the width gives them the same number of weights.
_T5_BASE = {
    "is_encoder_decoder": True,
    "attention_components": ["vanilla"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "head_dim": 64,
}
_GATED = {**_T5_BASE, "intermediate_size": 2048}

PRESETS: dict[str, dict[str, Any]] = {
    "vanilla": {**_TRANSLATION, "attention_components": ["vanilla"]},
    "vanilla_wide": {**_TRANSLATION, "attention_components": ["vanilla"], "intermediate_size": 2560},
    "fixed_random": {**_TRANSLATION, "attention_components": ["fixed_random"]},
    "random": {**_TRANSLATION, "attention_components": ["random"]},
    "factorized_random": {**_TRANSLATION, "attention_components": ["factorized_random"]},
    "dense": {**_TRANSLATION, "attention_components": ["dense"]},
    "factorized_dense": {**_TRANSLATION, "attention_components": ["factorized_dense"]},
    "random_dense": {**_TRANSLATION, "attention_components": ["random", "dense"]},
    "dense_vanilla": {**_TRANSLATION, "attention_components": ["dense", "vanilla"]},
    "random_vanilla": {**_TRANSLATION, "attention_components": ["random", "vanilla"]},
    "factorized_random_vanilla": {**_TRANSLATION, "attention_components": ["factorized_random", "vanilla"]},
    "mesh_random": {**_MESH, "attention_components": ["random"]},
    "mesh_factorized": {**_MESH, "attention_components": ["mesh_factorized"], "random_initializer_range": 0.0155},
    "mesh_dense": {**_MESH, "attention_components": ["dense"]},
    "mesh_random_plus": {**_MESH, "attention_components": ["random", "vanilla"], "mixture": "sum"},
    "mesh_random_plus_alpha": {**_MESH, "attention_components": ["random", "vanilla"], "mixture": "sigmoid"},
    "mesh_dense_plus": {**_MESH, "attention_components": ["dense", "vanilla"], "mixture": "sum"},
    "mesh_dense_plus_alpha": {**_MESH, "attention_components": ["dense", "vanilla"], "mixture": "sigmoid"},
    "t5_base_factorized_dense": {**_C4, "attention_components": ["factorized_dense"]},
    "t5_base_factorized_random": {**_C4, "attention_components": ["factorized_random"]},
    "t5_base_relu": {**_T5_BASE, "feed_forward_type": "relu"},
    "t5_base_gelu": {**_T5_BASE, "feed_forward_type": "gelu"},
    "t5_base_swish": {**_T5_BASE, "feed_forward_type": "swish"},
    "t5_base_glu": {**_GATED, "feed_forward_type": "glu"},
    "t5_base_bilinear": {**_GATED, "feed_forward_type": "bilinear"},
    "t5_base_reglu": {**_GATED, "feed_forward_type": "reglu"},
    "t5_base_geglu": {**_GATED, "feed_forward_type": "geglu"},
    "t5_base_swiglu": {**_GATED, "feed_forward_type": "swiglu"},
}
"""Settings of the named models, for `SynthesizerConfig.from_preset`.

The first eleven are the rows of the Synthesizer paper's translation and language modelling table (its two unwidened
Transformer rows are one model, `vanilla`; `vanilla_wide` is the control with as many parameters as `random_vanilla`),
and Factorized Random + Vanilla of the encoder-only experiments. The `mesh_` presets compute what the authors' code in
Mesh TensorFlow computes, at T5-base size. `t5_base_factorized_dense` and `t5_base_factorized_random` have the shapes
of the `mesh_` presets and the paper's formulas, which that code lacks. The other eight `t5_base_` presets are the
models of "GLU Variants Improve Transformer" (arXiv 2002.05202): T5-base with each of its feed-forward layers.
"""


@strict_configuration
class SynthesizerConfig(ValidatedConfig):
    r"""Configuration of a Synthesizer ("Rethinking Self-Attention in Transformer Models", arXiv 2005.00743).

    The backbone is T5's: RMS norms before each sublayer, no biases, relative position biases. With
    `attention_components=["vanilla"]` the model *is* T5. It is an encoder by default, a decoder with
    `is_decoder=True`, and an encoder-decoder with `is_encoder_decoder=True`. T5's names of the sizes (`d_model`,
    `d_kv`, `d_ff`, `num_layers`, `num_heads`, `dropout_rate`, `layer_norm_epsilon`) are accepted too.

    Args:
        vocab_size (`int`, defaults to 32128): Number of token ids.
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        intermediate_size (`int`, defaults to 3072): Width of the feed-forward layers.
        num_hidden_layers (`int`, defaults to 12): Number of layers (of the encoder, in an encoder-decoder).
        num_decoder_layers (`int`, *optional*): Number of decoder layers of an encoder-decoder; `None` means
            `num_hidden_layers`.
        num_attention_heads (`int`, defaults to 12): Number of heads of self-attention.
        head_dim (`int`, defaults to 64): Width of each head's keys and values.
        attention_components (`list[str]`, defaults to `["random", "vanilla"]`):
            Components of the attention logits in each head and layer (section 3 of the paper):

            - `"vanilla"`: query times key, without scaling, as in T5.
            - `"dense"`: computed from the query's token alone by two layers, `W2 ReLU(W1 x + b1) + b2`.
            - `"factorized_dense"`: as `"dense"`, with two outputs of sizes `a` and `b`, `a * b >= N`. The logit of key
              j is the product of entry `j mod a` of the first and entry `j div a` of the second.
            - `"random"`: a trainable N x N matrix; `"fixed_random"`: an N x N matrix that is never trained.
            - `"factorized_random"`: the product of an N x k and a k x N matrix.
            - `"relative"`: a T5 relative position bias that belongs to the layer.
            - `"mesh_factorized"`: factorized random as in the authors' code. Its matrix product sums over the query,
              which leaves one learned number per head and key, shared by all queries.
        mixture (`"softmax"`, `"sigmoid"` or `"sum"`, defaults to `"softmax"`):
            How several components are added before the softmax over keys. `"softmax"`: learned weights per head and
            layer that sum to one (the paper); `"sigmoid"`: one learned number `s` per layer, `s` times the first
            component plus `1 - s` times the second (the `alpha` modes of the authors' code, two components only);
            `"sum"`: the sum (its `plus` modes). Weights are equal at initialization.
        max_position_embeddings (`int`, defaults to 512):
            Maximum sequence length, the paper's N. It limits every component except `"vanilla"` and `"relative"`, and
            learned positions; a model without these accepts any length.
        position_embedding_type (`"relative"`, `"learned"` or `"none"`, defaults to `"relative"`):
            `"relative"`: T5's bias, shared by the layers and added to the mixed logits; `"learned"`: embeddings added
            to the token embeddings.
        relative_attention_num_buckets (`int`, defaults to 32): Number of buckets of relative positions.
        relative_attention_max_distance (`int`, defaults to 128): Distance from which on all positions share the last
            bucket.
        dense_first_layer (`"own"` or `"query"`, defaults to `"own"`):
            First layer of `"dense"`: its own layer from `hidden_size` to `num_attention_heads * head_dim` (both d in
            the paper), or the query projection, as in the authors' code.
        dense_shared_across_heads (`bool`, defaults to `False`):
            Whether all heads share the second layer, as in the authors' code. With `False`, each head has its own,
            applied to its `head_dim` part of the first layer's output, which gives the paper's `d * d + d * N`
            weights.
        dense_bias (`bool`, defaults to `True`): Whether the layers of the dense components have biases.
        factorized_dense_factors (`list[int]`, *optional*):
            The paper's `[a, b]`, with `a * b` at least the maximum length; `None` chooses nearly equal factors. The
            paper does not state its values.
        factorized_random_rank (`int`, defaults to 8): The paper's k.
        random_initializer_range (`float`, defaults to 1.0):
            Standard deviation for initializing random logits (of the product, if factorized).
        feed_forward_type (`str`, defaults to `"relu"`):
            `"relu"`, `"gelu"`, `"swish"`, `"glu"`, `"bilinear"`, `"reglu"`, `"geglu"` or `"swiglu"`. For equal
            parameter counts, reduce `intermediate_size` to two thirds for the last five (`parameter_matched_width`).
        gelu_approximate (`"none"` or `"tanh"`, defaults to `"none"`):
            The paper's exact GELU, or the approximation of T5 v1.1 and Flan-T5.
        hidden_dropout_prob (`float`, defaults to 0.1): Dropout rate for embeddings, sublayers and inside feed-forward
            layers.
        attention_dropout (`float`, defaults to 0.1): Dropout rate for attention weights.
        classifier_dropout (`float`, *optional*): Dropout before a classifier; `None` means `hidden_dropout_prob`.
        classifier_pooling (`"cls"`, `"mean"` or `"normalized_mean"`, defaults to `"mean"`):
            Input of sequence-level heads, as in `GMLPConfig`.
        layer_norm_eps (`float`, defaults to 1e-6): Epsilon of the norms.
        initializer_factor (`float`, defaults to 1.0):
            Factor for the initial standard deviations of everything except the random components.
        is_encoder_decoder, is_decoder (`bool`, defaults to `False`): The architecture.
        decoder_attention_components, decoder_num_attention_heads, decoder_head_dim, decoder_max_position_embeddings, \
        decoder_position_embedding_type (*optional*):
            These fields for the decoder of an encoder-decoder; `None` means the encoder's value.
        cross_attention_num_heads, cross_attention_head_dim (`int`, *optional*):
            Shape of cross-attention, which is always vanilla; `None` means that of the decoder's self-attention.
        tie_word_embeddings (`bool`, defaults to `True`): Whether language modelling heads share the embedding matrix.
        scale_decoder_outputs (`bool`, *optional*):
            Whether language modelling heads multiply the hidden states by `hidden_size ** -0.5`, as T5 does; `None`
            means `tie_word_embeddings`.
        sparse_prediction (`bool`, defaults to `False`):
            Whether training steps of `SynthesizerForMaskedLM` compute logits only for the tokens to predict. The loss
            is the same with less time and memory, and `logits` are `None`. Counting these tokens synchronizes with the
            GPU once per step.
        type_vocab_size (`int`, defaults to 0): Number of segment embeddings; with 0 `token_type_ids` have no effect.
        image_size (`int` or pair of `int`, *optional*):
            Height and width of the images, in pixels, for an image encoder; `None` for text. There is one token per
            patch, row by row, after a class token if `classifier_pooling="cls"`; `max_position_embeddings` is set to
            their number.
        patch_size (`int`, defaults to 16): Side of the square patches; `image_size` is a multiple of it.
        num_channels (`int`, defaults to 3): Number of image channels.
        out_features, out_indices, apply_layernorm, reshape_hidden_states (*optional*):
            As in `Dinov2Config`, for backbones; `stage_names` are `"stem"`, `"stage1"`, ... (see `ImageBackbone`).
        use_cache (`bool`, defaults to `True`): Whether decoders return a cache.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`, *optional*):
            Special token ids, by default T5's: 0, none, 1, 0.

    Raises:
        ValueError: If a value has the wrong type or is not an allowed choice, components are missing or repeat, sizes
            are out of range or do not fit together, a rate is not in [0, 1], or a special token is outside the
            vocabulary.

    Example:
    ```python
    >>> from tokenmixers import SynthesizerConfig, SynthesizerForConditionalGeneration

    >>> config = SynthesizerConfig.from_preset("random_vanilla", num_hidden_layers=2)
    >>> model = SynthesizerForConditionalGeneration(config)
    ```
    """

    model_type = "synthesizer"
    base_model_fsdp_plan = {}  # encoder and decoder have their own
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "d_ff": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "dropout_rate": "hidden_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps",
    }

    vocab_size: int = 32128
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_decoder_layers: int | None = None
    num_attention_heads: int = 12
    head_dim: int = 64
    attention_components: list[AttentionComponent] | tuple[AttentionComponent, ...] = ("random", "vanilla")
    mixture: Literal["softmax", "sigmoid", "sum"] = "softmax"
    max_position_embeddings: int = 512
    position_embedding_type: Literal["relative", "learned", "none"] = "relative"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dense_first_layer: Literal["own", "query"] = "own"
    dense_shared_across_heads: bool = False
    dense_bias: bool = True
    factorized_dense_factors: list[int] | tuple[int, ...] | None = None
    factorized_random_rank: int = 8
    random_initializer_range: float | int = 1.0
    feed_forward_type: Literal["relu", "gelu", "swish", "glu", "bilinear", "reglu", "geglu", "swiglu"] = "relu"
    gelu_approximate: Literal["none", "tanh"] = "none"
    hidden_dropout_prob: float | int = 0.1
    attention_dropout: float | int = 0.1
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["cls", "mean", "normalized_mean"] = "mean"
    layer_norm_eps: float = 1e-6
    initializer_factor: float | int = 1.0
    is_encoder_decoder: bool = False
    is_decoder: bool = False
    decoder_attention_components: list[AttentionComponent] | tuple[AttentionComponent, ...] | None = None
    decoder_num_attention_heads: int | None = None
    decoder_head_dim: int | None = None
    decoder_max_position_embeddings: int | None = None
    decoder_position_embedding_type: Literal["relative", "learned", "none"] | None = None
    cross_attention_num_heads: int | None = None
    cross_attention_head_dim: int | None = None
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    sparse_prediction: bool = False
    type_vocab_size: int = 0
    image_size: int | list[int] | tuple[int, int] | None = None
    patch_size: int = 16
    num_channels: int = 3
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
    if TYPE_CHECKING:  # a property, which type checkers do not take for an argument
        num_labels: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        for other, name in self.attribute_map.items():
            value = getattr(self, name)
            if other in kwargs and value not in (getattr(type(self), name), kwargs[other]):
                raise ValueError(f"`{other}={kwargs[other]}` and `{name}={value}` are two names for one field.")
            if other in kwargs:  # now, because other fields depend on it
                setattr(self, name, kwargs.pop(other))
        self.attention_components = list(self.attention_components)
        if self.decoder_attention_components is not None:
            self.decoder_attention_components = list(self.decoder_attention_components)
        if self.factorized_dense_factors is not None:
            self.factorized_dense_factors = list(self.factorized_dense_factors)
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_hidden_layers
        if self.scale_decoder_outputs is None:
            self.scale_decoder_outputs = self.tie_word_embeddings
        super().__post_init__(**kwargs)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "SynthesizerConfig":
        """Create the configuration of a model of the papers or of the Synthesizer authors' code.

        Args:
            name: A key of `PRESETS`, e.g. `"random_vanilla"`, `"mesh_dense_plus"` or `"t5_base_swiglu"`.
            overrides: Fields to set differently, e.g. `is_encoder_decoder=False` for the encoder alone.

        Raises:
            ValueError: If there is no such preset, or a field is wrong.
        """
        if name not in PRESETS:
            raise ValueError(f"There is no Synthesizer preset {name!r}. Presets: {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **{cls.attribute_map.get(key, key): overrides[key] for key in overrides}})

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "SynthesizerConfig":
        """The configuration of an encoder-decoder's encoder or decoder, with its values under the plain names.

        Args:
            decoder: `True` for the decoder.
            encoder: `True` for the encoder. With both or neither, and for other models, returns `self`.
        """
        if not self.is_encoder_decoder or bool(decoder) == bool(encoder):
            return self
        # The result is not split again, so it keeps neither `is_encoder_decoder` nor the other side's fields.
        side = copy.deepcopy(self)
        side.is_encoder_decoder = False
        side.is_decoder = bool(decoder)
        side.factorized_dense_factors = list(self.dense_factors)
        if decoder:
            side.num_hidden_layers = self.num_decoder_layers or self.num_hidden_layers
            side.cross_attention_num_heads, side.cross_attention_head_dim = self.cross_attention_shape
            for name in _DECODER_OVERRIDES:
                if getattr(self, f"decoder_{name}") is not None:
                    setattr(side, name, getattr(self, f"decoder_{name}"))
        else:
            side.use_cache = False
        for name in _DECODER_OVERRIDES:
            setattr(side, f"decoder_{name}", None)
        return side

    @property
    def cross_attention_shape(self) -> tuple[int, int]:
        """Number of heads and head size of cross-attention."""
        num_heads = self.cross_attention_num_heads or self.decoder_num_attention_heads or self.num_attention_heads
        return num_heads, self.cross_attention_head_dim or self.decoder_head_dim or self.head_dim

    @property
    def max_sequence_length(self) -> int | None:
        """Maximum sequence length, or `None` if there is no limit."""
        unlimited = set(self.attention_components) <= {"vanilla", "relative"}
        return None if unlimited and self.position_embedding_type != "learned" else self.max_position_embeddings

    @property
    def dense_factors(self) -> tuple[int, int]:
        """The `(a, b)` of `"factorized_dense"`."""
        if self.factorized_dense_factors is not None:
            return tuple(self.factorized_dense_factors)  # type: ignore[return-value]  # validated: two
        length = max(self.max_position_embeddings, self.decoder_max_position_embeddings or 0)
        a = math.isqrt(length)
        while length % a:
            a -= 1
        if 4 * a * a < length:  # no divisor near the root, e.g. for a prime: round up
            a = math.isqrt(length - 1) + 1
        return a, -(-length // a)

    def validate_architecture(self) -> None:
        """Check what types cannot express; strict validation calls this at construction and when saving."""
        super().validate_architecture()
        if self.is_encoder_decoder and self.is_decoder:
            raise ValueError("Set either `is_encoder_decoder` or `is_decoder`, not both.")
        if self.image_size is not None and (self.is_encoder_decoder or self.is_decoder):
            raise ValueError(
                "A model with `image_size` set is an encoder: leave out `is_encoder_decoder` and `is_decoder`."
            )
        for name in ("attention_components", "decoder_attention_components"):
            self._validate_components(name)
        self._validate_numbers()
        length = max(self.max_position_embeddings, self.decoder_max_position_embeddings or 0)
        factors = self.dense_factors
        if len(factors) != 2 or min(factors) < 1 or math.prod(factors) < length:
            raise ValueError(
                "`factorized_dense_factors` must be two numbers [a, b] with a * b at least the maximum length "
                f"{length}, got {list(factors)}."
            )

    def _validate_components(self, name: str) -> None:
        components = getattr(self, name)
        if components is None:
            return
        if not components or len(set(components)) < len(components):
            raise ValueError(
                f"`{name}` must name one or more different components of "
                f"{', '.join(get_args(AttentionComponent))}; got {components}."
            )
        if self.mixture == "sigmoid" and len(components) > 2:
            raise ValueError(f"`mixture='sigmoid'` mixes two components, but `{name}` is {components}: use 'softmax'.")

    def _validate_numbers(self) -> None:
        check_least(self, 1, "num_decoder_layers", "num_attention_heads", "head_dim", "factorized_random_rank")
        check_least(self, 1, "decoder_num_attention_heads", "decoder_head_dim", "decoder_max_position_embeddings")
        check_least(self, 1, "cross_attention_num_heads", "cross_attention_head_dim")
        check_rates(self, "attention_dropout")
        check_not_negative(self, "initializer_factor", "random_initializer_range")
        if self.image_size is None:
            check_token_ids(self, "decoder_start_token_id")
        if self.relative_attention_num_buckets < 4 or self.relative_attention_num_buckets % 2:
            raise ValueError(
                "`relative_attention_num_buckets` must be even and at least 4, got "
                f"{self.relative_attention_num_buckets}: half of the buckets are for each direction."
            )
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                "`relative_attention_max_distance` must be more than half of `relative_attention_num_buckets="
                f"{self.relative_attention_num_buckets}`, got {self.relative_attention_max_distance}."
            )


__all__ = ["PRESETS", "SynthesizerConfig"]
