"""Floating-point operations of the models by formula; one multiply-add counts as two.

The formulas count matrix products and the convolution over patches, independent of the kernel or attention
implementation that runs. They do not count norms, activations, softmax and sums. Toeplitz weights count as the full
matrix, even if an FFT computes their product, and causal products count all pairs of tokens.

PyTorch's `FlopCounterMode` counts the same with `attn_implementation="eager"` and without kernels
(`use_kernels(model, False)`). Otherwise it counts less, because it has no formula for FFTs, custom operators and the
CPU attention kernel. It does not support FlexAttention on CPUs.

Per sequence and layer, with n tokens, d = `hidden_size` and f = `intermediate_size`:

- gMLP: 2ndf + 2n²g + 2ngd, with g = f / 2 channels in a split gate and g = f in the others;
- aMLP: gMLP's + 6nda + 4n²a + 2nag, with a = `attention_size`;
- MLP-Mixer: 4nsd + 4ndf, with s = `token_mixing_size`;
- Synthesizer: 4ndf (6ndf if the feed-forward is gated) plus `synthesizer_attention_flops`;
- BERT: 8nd² + 4n²d + 4ndf; in hybrids without queries and keys 4nd² + 2n²d + 4ndf, with dense logits 2nd² + 2n²d more.

A training step costs three times the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..heads.classification import TokenClassificationHead
from ..inputs.token_layout import longest_sequence
from ..layers.feed_forward import FEED_FORWARD_TYPES


def gmlp_layer_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
    """FLOPs of a gMLP block on `batch` sequences of `length` tokens."""
    channels = 2 * length * config.hidden_size * (config.intermediate_size + config.gate_size)
    return batch * (channels + 2 * length**2 * config.gate_size)


def amlp_layer_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
    """FLOPs of an aMLP block: a gMLP block with tiny attention."""
    projections = 2 * length * config.attention_size * (3 * config.hidden_size + config.gate_size)
    attention = projections + 4 * length**2 * config.attention_size
    return gmlp_layer_flops(config, batch, length) + batch * attention


def mlp_mixer_layer_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
    """FLOPs of an MLP-Mixer block: two products over the tokens and two over the channels."""
    return batch * 4 * length * config.hidden_size * (config.token_mixing_size + config.intermediate_size)


def synthesizer_attention_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
    """FLOPs of a Synthesizer's self-attention.

    Values and output: 4ndw + 2n²w. Queries and keys of `vanilla`: 4ndw + 2n²w. `dense`: 2ndw (unless the query is its
    first layer) + 2n²w. `factorized_dense`: as `dense`, with a + ⌈n/a⌉ instead of n outputs. `factorized_random`:
    2n²hk, once for the batch. The others need no products.
    """
    names, width, square = config.attention_components, config.num_attention_heads * config.head_dim, length**2
    per_sequence = 4 * length * config.hidden_size * width + 2 * square * width
    dense = {"dense", "factorized_dense"}.intersection(names)
    projection = 2 * length * config.hidden_size * width
    per_sequence += len(dense) * projection if config.dense_first_layer == "own" else 0
    if "vanilla" in names:
        per_sequence += 2 * projection + 2 * square * width
    elif dense and config.dense_first_layer == "query":
        per_sequence += projection
    if "dense" in names:
        per_sequence += 2 * square * width
    if "factorized_dense" in names:
        tile = config.dense_factors[0]
        per_sequence += 2 * length * width * (tile + -(-length // tile))
    shared = 0
    if "factorized_random" in names:
        shared = 2 * square * config.num_attention_heads * config.factorized_random_rank
    return batch * per_sequence + shared


def synthesizer_layer_flops(
    config: PreTrainedConfig, batch: int, length: int, encoder_length: int | None = None
) -> int:
    """FLOPs of a Synthesizer block, with cross-attention to `encoder_length` tokens if given."""
    matrices = 3 if FEED_FORWARD_TYPES[config.feed_forward_type][1] else 2
    total = 2 * matrices * length * config.hidden_size * config.intermediate_size
    if encoder_length is not None:
        width = math.prod(config.cross_attention_shape)
        total += 4 * (length + encoder_length) * config.hidden_size * width + 4 * length * encoder_length * width
    return batch * total + synthesizer_attention_flops(config, batch, length)


def _bert_layer_flops(projections: int, products: int) -> Callable[[PreTrainedConfig, int, int], int]:
    """The formula of a layer of BERT with so many projections of the width, and products with n x n matrices."""

    def layer_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
        width = config.hidden_size
        channels = 2 * length * width * (projections * width + 2 * config.intermediate_size)
        return batch * (channels + 2 * products * length**2 * width)

    return layer_flops


def _aft_layer_flops(config: PreTrainedConfig, batch: int, length: int) -> int:
    """FLOPs of a layer of BERT with scores in the place of queries and keys; see `aft_attention`."""
    heads, scores = config.num_attention_heads, config.num_mean_queries * config.num_attention_heads
    more = scores if config.num_mean_queries > 1 else 0  # the shares, and a product of their number of columns
    sums = 0 if batch == config.num_mean_queries == 1 else scores + more  # a single sample has a map with its own
    outputs = scores + more + (heads if config.aft_gate else 0)
    products = length**2 * (config.hidden_size + sums)
    layer = _bert_layer_flops(projections=2, products=0)(config, batch, length)
    return layer + 2 * batch * (length * config.hidden_size * outputs + products)


LAYER_FLOPS: dict[str, Callable[..., int]] = {
    "gmlp": gmlp_layer_flops,
    "amlp": amlp_layer_flops,
    "mlp_mixer": mlp_mixer_layer_flops,
    "synthesizer": synthesizer_layer_flops,
    "aft": _aft_layer_flops,
    "full_attention": _bert_layer_flops(projections=4, products=2),
    "random_synthesizer": _bert_layer_flops(projections=2, products=1),
    "dense_synthesizer": _bert_layer_flops(projections=3, products=2),
}
"""`model_type`, or a name in `token_mixers` -> formula for a layer."""


def _head_flops(model: nn.Module, batch: int, length: int) -> int:
    total = 0
    is_per_token = {"lm_head": True, "qa_outputs": True}
    is_per_token["classifier"] = isinstance(model, TokenClassificationHead)
    for name, per_token in is_per_token.items():
        head = getattr(model, name, None)
        if head is not None:
            total += 2 * batch * (length if per_token else 1) * head.in_features * head.out_features
    return total


def _check_count(name: str, value: int, most: int | None = None) -> None:
    if value < 1 or (most is not None and value > most):
        allowed = "at least 1" if most is None else f"from 1 to the model's `max_position_embeddings={most}`"
        raise ValueError(f"`{name}` must be {allowed}, got {value}.")


class CountsFlops(PreTrainedModel):
    """A `PreTrainedModel` with a formula in `LAYER_FLOPS`."""

    def forward_flops(
        self, batch_size: int = 1, sequence_length: int | None = None, target_length: int | None = None
    ) -> int:
        """FLOPs of a forward pass without padding, cache or labels; see the top of this module.

        Args:
            batch_size: Number of sequences or images.
            sequence_length: Number of tokens per sequence (of the encoder in an encoder-decoder); by default, and
                always for images, the maximum.
            target_length: Number of decoder tokens, by default the maximum. For encoder-decoders only.

        Returns:
            FLOPs including all logits; `sparse_prediction` is ignored.

        Raises:
            ValueError: If a number is less than 1, a length exceeds the maximum, or `target_length` is given without a
                decoder.
        """
        config = self.config
        types = (getattr(cls, "model_type", None) for cls in type(config).__mro__)  # a user's class may have its own
        names = getattr(config, "token_mixers", None)
        if names is None:
            names = [next(name for name in types if name in LAYER_FLOPS)] * config.num_hidden_layers
        length = config.max_position_embeddings if sequence_length is None else sequence_length
        _check_count("batch_size", batch_size)
        _check_count("sequence_length", length, longest_sequence(config))
        if target_length is not None and not config.is_encoder_decoder:
            raise ValueError(f"`target_length={target_length}` is for encoder-decoders; this model is not one.")
        total = 0
        if config.image_size is not None:
            length = config.max_position_embeddings
            rows, columns = config.patch_grid
            total += 2 * batch_size * rows * columns * config.num_channels * config.patch_size**2 * config.hidden_size
            if hasattr(self.base_model, "pooler"):
                total += 2 * batch_size * config.hidden_size**2
        total += sum(LAYER_FLOPS[name](config, batch_size, length) for name in names)
        if config.is_encoder_decoder:
            decoder = config.get_text_config(decoder=True)
            target_length = decoder.max_position_embeddings if target_length is None else target_length
            _check_count("target_length", target_length, longest_sequence(decoder))
            layer_flops = LAYER_FLOPS[names[0]](decoder, batch_size, target_length, length)
            total += decoder.num_hidden_layers * layer_flops
            length = target_length
        return total + _head_flops(self, batch_size, length)
