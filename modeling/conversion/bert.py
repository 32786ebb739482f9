"""Models whose layers are those of a BERT, some of them with other token mixing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ...configuration.configuration_hybrid_bert import HybridBertConfig
from ..inputs.entries_by_position import resized
from ..layers.synthetic_logits import OffsetLogits
from ..modeling_hybrid_bert import BLOCKS, HybridBertModel
from .bert_scores import filled, start_aft


_MODULES = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.token_type_embeddings": "token_type_embeddings",
    "embeddings.LayerNorm": "embed_norm",
}
_LAYER_MODULES = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "self_attn_norm",
    "intermediate.dense": "proj_in",
    "output.dense": "proj_out",
    "output.LayerNorm": "mlp_norm",
}
# Fields that the layers of both models share.
_FIELDS = [
    *("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "layer_norm_eps"),
    *("initializer_range", "pad_token_id"),
]

Batch = Mapping[str, torch.Tensor]
"""Inputs of a model: `input_ids` and `attention_mask`, `(batch, length)`, and `token_type_ids` where there are any."""


def hybrid_from_bert(
    bert: PreTrainedModel,
    keep_layers: Sequence[int] | None = None,
    token_mixers: Sequence[str] | None = None,
    batches: Iterable[Batch] = (),
    **overrides: object,
) -> HybridBertModel:
    """Make a model from layers of a BERT.

    Args:
        bert: A `BertModel`, or a model with one.
        keep_layers: Numbers of the BERT's layers in the order of the new model's; `None` for all.
        token_mixers: Their token mixing in the new model, as in `HybridBertConfig`; `None` for `"full_attention"`.
            Such layers are copied. `"random_synthesizer"` copies all weights except those of queries and keys, and
            starts its logits at the logarithm of the layer's mean attention weight for each head and offset, and for
            the first token as key. `"aft"` copies the same weights, and its scores and logits are nearest to the
            layer's queries times keys, see `start_aft`. `"dense_synthesizer"` copies the same weights. `"gmlp"` and
            `"amlp"` copy nothing.
        batches: Texts to measure attention on, a few hundred sentences, padded on the right. Needed for
            `"random_synthesizer"` and `"aft"`.
        overrides: Fields of the new configuration, e.g. `hidden_dropout_prob=0.0` or `num_mean_queries=4`.

    Returns:
        The model, in evaluation mode, with the BERT's dtype. New weights are initialized at random.

    Raises:
        ValueError: If the model is not a BERT, layers do not exist, the number of `token_mixers` is another, texts are
            missing or have fewer different queries than `num_mean_queries`, or an override belongs to the BERT's
            weights.

    Example:
    ```python
    >>> model = hybrid_from_bert(bert, [0, 2, 5], ["random_synthesizer", "full_attention", "full_attention"], batches)
    ```
    """
    if bert.config.model_type != "bert" or bert.config.is_decoder:
        kind = "decoder" if bert.config.model_type == "bert" else f"model of type {bert.config.model_type!r}"
        raise ValueError(f"Only encoders of type 'bert' have the layers of this model, got a {kind}.")
    bert = bert.base_model  # type: ignore[assignment]  # a `BertModel`
    layers = bert.config.num_hidden_layers
    kept = list(range(layers)) if keep_layers is None else list(keep_layers)
    types = ["full_attention"] * len(kept) if token_mixers is None else list(token_mixers)
    if wrong := [layer for layer in kept if not 0 <= layer < layers]:
        raise ValueError(
            f"There is no layer {wrong[0]} to keep: the model's layers have the numbers 0 to {layers - 1}."
        )
    if len(types) != len(kept):
        raise ValueError(f"`token_mixers` must name one type for each of the {len(kept)} layers, got {len(types)}.")
    model = HybridBertModel(_config(bert.config, types, overrides)).to(bert.dtype).eval()  # type: ignore[arg-type]
    copied = _copied_weights(bert, {i: source for i, source in enumerate(kept) if types[i] not in BLOCKS})
    model.load_state_dict({name: copied.get(name, own) for name, own in model.state_dict().items()})
    if not {"random_synthesizer", "aft"}.isdisjoint(types):
        batches = list(batches)
        if not batches:
            raise ValueError("Layers that start with a layer's attention need texts to measure it on: give `batches`.")
        _start_layers(model, bert, kept, batches)
    return model


def _start_layers(model: HybridBertModel, bert: PreTrainedModel, kept: Sequence[int], batches: list[Batch]) -> None:
    types = model.config.token_mixers or []
    measured = mean_attention(
        bert, [source for source, name in zip(kept, types, strict=True) if name == "random_synthesizer"], batches
    )
    tiny = torch.finfo(torch.float32).tiny
    for layer, source, name in zip(model.layers, kept, types, strict=True):
        mixer: Any = getattr(layer, "self_attn", None)  # blocks have none
        if name == "random_synthesizer":
            _start_logits(mixer.logits, *(means.clamp(min=tiny).log() for means in measured[source]))
        elif name == "aft":
            _start_logits(mixer.logits, *start_aft(mixer, bert, source, batches))


def _config(bert_config: PreTrainedConfig, token_mixers: Sequence[str], overrides: Mapping) -> HybridBertConfig:
    fields = {name: getattr(bert_config, name) for name in _FIELDS}
    for name, value in overrides.items():
        if name in fields and "dropout" not in name and value != fields[name]:
            raise ValueError(f"`{name}={value!r}` does not fit the BERT's weights, for which it is {fields[name]!r}.")
    return HybridBertConfig(**{**fields, "token_mixers": list(token_mixers), **overrides})


def _copied_weights(bert: PreTrainedModel, source_of: Mapping[int, int]) -> dict[str, torch.Tensor]:
    """The BERT's embeddings, and its layers by their new number, under their new names."""
    names: dict[str, list[str]] = {name: [own] for name, own in _MODULES.items()}
    for layer, source in source_of.items():
        for name, own in _LAYER_MODULES.items():
            names.setdefault(f"encoder.layer.{source}.{name}", []).append(f"layers.{layer}.{own}")
    weights = {}
    for name, tensor in bert.state_dict().items():
        module, _, kind = name.rpartition(".")
        weights.update({f"{own}.{kind}": tensor for own in names.get(module, ())})
    return weights


@torch.no_grad()
def mean_attention(
    bert: PreTrainedModel, layers: Iterable[int], batches: Iterable[Batch]
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """The mean attention weights of a BERT by head and offset of two real tokens.

    Args:
        bert: A `BertModel`.
        layers: Numbers of the layers.
        batches: Texts.

    Returns:
        Layer -> the means for the offsets `-(N - 1)` to `N - 1`, shape `(2N - 1, heads)`, without those for the first
        token as key, and the means for that one, `(heads,)`. N is the length of the longest text. Offsets that do not
        occur have the value of the next smaller distance.
    """
    attention, training = bert.config._attn_implementation, bert.training
    n, heads = bert.config.max_position_embeddings, bert.config.num_attention_heads
    sums = {layer: torch.zeros(2 * n, heads, dtype=torch.float64) for layer in layers}
    counts, longest = torch.zeros(2 * n, dtype=torch.float64), 0
    bert.eval().set_attn_implementation("eager")
    try:
        for batch in batches:
            inputs = {name: tensor.to(bert.device) for name, tensor in batch.items()}
            attentions = bert(**inputs, output_attentions=True).attentions
            real = inputs["attention_mask"].bool().cpu()
            index = torch.arange(real.shape[1])
            # The last row is for the first token as key.
            rows = torch.where(index == 0, 2 * n - 1, n - 1 + index - index[:, None]).flatten()
            pairs = (real[:, :, None] & real[:, None, :]).double()
            counts.index_add_(0, rows, pairs.sum(0).flatten())
            longest = max(longest, real.shape[1])
            for layer, total in sums.items():
                weights = torch.einsum("bhqk,bqk->qkh", attentions[layer].double().cpu(), pairs)
                total.index_add_(0, rows, weights.flatten(0, 1))
    finally:
        bert.train(training).set_attn_implementation(attention)
    return {layer: _means(total, counts, n, longest) for layer, total in sums.items()}


def _means(total: torch.Tensor, counts: torch.Tensor, n: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    means = total / counts.clamp(min=1)[:, None]
    part = slice(n - longest, n + longest - 1)
    return filled(means[part], counts[part] > 0), means[-1]


@torch.no_grad()
def _start_logits(logits: OffsetLogits, offsets: torch.Tensor, first: torch.Tensor) -> None:
    """Set the logits of `n` offsets to each side; those farther away are copies of the farthest."""
    n = len(logits.weight) // 2 + 1
    logits.weight, logits.first.data = nn.Parameter(offsets.to(logits.weight)), first.to(logits.first)
    logits.resize(lambda tensor, dim: resized(tensor, dim, n))
