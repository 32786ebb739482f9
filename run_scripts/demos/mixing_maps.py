"""Which tokens a model mixed with which weights, for one input: numbers only, `pictures.py` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ...modeling.layers.spatial_gating_unit import SpatialProjection
from ...modeling.layers.token_mixing import TokenMixingMLP
from ...modeling.recorded_inputs import record_inputs


#: A map of a text shows this many tokens at most.
MAX_TOKENS = 128


@dataclass(frozen=True)
class MixingMap:
    """Weights from each token (columns) to each token (rows), in every layer.

    Attributes:
        name: What they are, e.g. "spatial weights".
        weights: Float32 on the CPU, shape `(layers, heads, rows, columns)`.
        signed: Whether weights can be negative; those of attention are probabilities.
        rows: Texts of the tokens that are written; of an image, empty.
        columns: Texts of the tokens that are read; of an image, empty.
        grid: Rows and columns of patches of an image. The last tokens are its patches, row by row; one before them is
            the class token. `None` for text.
    """

    name: str
    weights: torch.Tensor
    signed: bool
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    grid: tuple[int, int] | None = None

    @property
    def has_class_token(self) -> bool:
        """Whether a class token is before the patches."""
        return self.grid is not None and self.weights.shape[-1] > self.grid[0] * self.grid[1]

    def of_layer(self, layer: int, head: int | None = None) -> torch.Tensor:
        """The weights of a layer and head, counted from 0, shape `(rows, columns)`; `None`: the mean of the heads."""
        weights = self.weights[layer]
        return weights.mean(0) if head is None else weights[head]


def collect_maps(
    model: PreTrainedModel,
    inputs: Mapping[str, torch.Tensor],
    tokens: Sequence[str] = (),
    decoder_tokens: Sequence[str] = (),
) -> list[MixingMap]:
    """Run a model on one input and collect everything that mixes tokens in it.

    Args:
        model: In evaluation mode, with eager attention.
        inputs: Arguments of `forward`, a batch of one without padding.
        tokens: The texts of `input_ids`; empty for images.
        decoder_tokens: The texts of `decoder_input_ids`.

    Returns:
        Spatial weights, for the positions of the input; token mixing (see `token_mixing_slopes`); and attention of
        every kind. Empty if the model has nothing of these, or is an image model whose patches are not known.
    """
    mixers = [module for module in model.modules() if isinstance(module, TokenMixingMLP)]
    projections = [module for module in model.modules() if isinstance(module, SpatialProjection)]
    with torch.no_grad(), record_inputs(mixers) as mixed:
        outputs = model(**inputs, output_attentions=True)
    grid = None
    if "pixel_values" in inputs:
        grid = getattr(model.config, "patch_grid", None)
        if grid is None:
            return []
    found = []
    if projections:
        length = projections[0].max_length if grid else inputs["input_ids"].shape[1]
        matrices = [[module.matrix(length).detach()] for module in projections]
        found.append(_map("spatial weights", matrices, True, tokens, tokens, grid))
    if mixers:
        slopes = [[token_mixing_slopes(module, mixed[module][0])] for module in mixers]
        found.append(_map("token mixing", slopes, True, tokens, tokens, grid))
    for name, attentions, rows, columns in _attentions(model.config, outputs, tokens, decoder_tokens):
        found.append(_map(name, [weights[0] for weights in attentions], False, rows, columns, grid))
    return found


def token_mixing_slopes(module: TokenMixingMLP, hidden_states: torch.Tensor) -> torch.Tensor:
    """The derivative of each output token by each input token, at this input, as a mean over the channels.

    The token mixing of MLP-Mixer, `W2 f(W1 x)`, has an activation f between its two maps: its weights from token to
    token, `W2 diag(f'(W1 x)) W1`, depend on the input and the channel.
    """
    length = hidden_states.shape[1]
    weight_in, weight_out = module.weight_in[:, :length].detach(), module.weight_out[:length].detach()
    inner = (weight_in @ hidden_states[0] + module.bias_in[:, None]).detach().requires_grad_()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(module.activation(inner).sum(), inner)
    return weight_out @ (slopes.mean(1, keepdim=True) * weight_in)


def _attentions(
    config: PreTrainedConfig, outputs: Mapping, tokens: Sequence[str], decoder_tokens: Sequence[str]
) -> list[tuple[str, tuple[torch.Tensor, ...], Sequence[str], Sequence[str]]]:
    """Name, weights of each layer, row tokens and column tokens of every attention that the outputs have."""
    name = attention_name(config)
    possible = [
        (name, "attentions", tokens, tokens),
        (f"encoder: {name}", "encoder_attentions", tokens, tokens),
        (f"decoder: {name}", "decoder_attentions", decoder_tokens, decoder_tokens),
        ("cross-attention", "cross_attentions", decoder_tokens, tokens),
    ]
    kinds = [(name, outputs.get(key), rows, columns) for name, key, rows, columns in possible]
    return [(name, weights, rows, columns) for name, weights, rows, columns in kinds if weights]


def attention_name(config: PreTrainedConfig) -> str:
    """What the papers call the self-attention of a model."""
    if config.model_type == "amlp":
        return "tiny attention"
    synthetic = "vanilla" not in getattr(config, "attention_components", ["vanilla"])
    return "synthetic attention" if synthetic else "attention"


def _map(
    name: str,
    layers: Sequence[Sequence[torch.Tensor] | torch.Tensor],
    signed: bool,
    rows: Sequence[str],
    columns: Sequence[str],
    grid: tuple[int, int] | None,
) -> MixingMap:
    """A `MixingMap` from the heads of each layer; of a text, its first tokens."""
    weights = torch.stack([torch.stack([head.float().cpu() for head in layer]) for layer in layers])
    if grid is None:
        weights = weights[..., :MAX_TOKENS, :MAX_TOKENS].clone()  # so that the rest is not kept
    return MixingMap(name, weights, signed, rows[:MAX_TOKENS], columns[:MAX_TOKENS], grid and tuple(grid))
