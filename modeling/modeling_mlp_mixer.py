"""MLP-Mixer (arXiv 2105.01601), the baseline of "Pay Attention to MLPs" for text, and timm's `mixer_*` for images."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..configuration.configuration_mlp_mixer import MLPMixerConfig
from .heads.task_heads import (
    ImageClassificationHead,
    MaskedLMHead,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from .layers.drop_path import DropPath
from .layers.spatial_gating_unit import TokenPositions
from .modeling_gmlp import GMLPModel, GMLPPreTrainedModel


class TokenMixingMLP(nn.Module):
    """Two linear maps over the tokens with an activation between them, shared by all channels.

    Shorter sequences use the leading columns of `weight_in` and the leading rows of `weight_out`.

    Args:
        max_length: Longest sequence `n`.
        token_mixing_size: Width between the two maps.
        hidden_act: Name of the activation.

    Shapes:
        input and output `(batch, length, channels)` with `length <= n`; `weight_in` is `(token_mixing_size, n)`,
        `weight_out` `(n, token_mixing_size)`.
    """

    def __init__(self, max_length: int, token_mixing_size: int, hidden_act: str):
        super().__init__()
        self.weight_in = nn.Parameter(torch.zeros(token_mixing_size, max_length))
        self.bias_in = nn.Parameter(torch.zeros(token_mixing_size))
        self.weight_out = nn.Parameter(torch.zeros(max_length, token_mixing_size))
        self.bias_out = nn.Parameter(torch.zeros(max_length))
        self.activation = ACT2FN[hidden_act]

    def forward(self, hidden_states: torch.Tensor, positions: TokenPositions | None = None) -> torch.Tensor:
        """Mix tokens; `positions` as given by the model, `None` for 0, 1, 2, ..."""
        batch, length, _ = hidden_states.shape
        chosen = slice(length) if positions is None else positions.ids
        weight_in = self.weight_in.mT[chosen].mT.expand(batch, -1, -1)
        weight_out = self.weight_out[chosen].expand(batch, -1, -1)
        mixed = self.activation(torch.baddbmm(self.bias_in[:, None], weight_in, hidden_states))
        return torch.baddbmm(self.bias_out[chosen][..., None], weight_out, mixed)

    @torch.no_grad()
    def set_max_length(self, max_length: int) -> None:
        """Cover sequences up to `max_length`; new weights are zero, so nothing that fits both lengths changes."""
        grow = max_length - len(self.bias_out)
        self._replace(
            F.pad(self.weight_in, (0, grow)), F.pad(self.weight_out, (0, 0, 0, grow)), F.pad(self.bias_out, (0, grow))
        )

    @torch.no_grad()
    def resample(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Read old input tokens from new ones and write new output tokens from old ones, for another image size.

        Args:
            rows: Shape `(new n, n)`.
            columns: Shape `(n, new n)`.
        """
        device, dtype = self.weight_in.device, self.weight_in.dtype
        rows, columns = rows.to(device), columns.to(device)
        self._replace(
            (self.weight_in.to(columns.dtype) @ columns).to(dtype),
            (rows @ self.weight_out.to(rows.dtype)).to(dtype),
            (rows @ self.bias_out.to(rows.dtype)).to(dtype),
        )

    def _replace(self, weight_in: torch.Tensor, weight_out: torch.Tensor, bias_out: torch.Tensor) -> None:
        for name, value in (("weight_in", weight_in), ("weight_out", weight_out), ("bias_out", bias_out)):
            setattr(self, name, nn.Parameter(value, requires_grad=getattr(self, name).requires_grad))


class MLPMixerLayer(GradientCheckpointingLayer):
    """One block: an MLP over the tokens, then one over the channels, each with a norm before it and a residual.

    The mask acts on what the token-mixing MLP reads, after the norm, so that padding adds exactly nothing to any
    token. What that MLP writes to padding (its biases at least) stays there, as the next block masks it again.
    """

    def __init__(self, config: MLPMixerConfig, layer_idx: int = 0):
        super().__init__()
        self.token_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.token_mixing = TokenMixingMLP(config.max_position_embeddings, config.token_mixing_size, config.hidden_act)
        self.channel_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.proj_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.proj_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = DropPath(config.drop_path_rate)

    def forward(
        self,
        hidden_states: torch.Tensor,
        padding_mask: torch.Tensor | None = None,
        positions: TokenPositions | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Shapes: `hidden_states` and result `(batch, length, hidden_size)`, `padding_mask` `(batch, length, 1)`."""
        tokens = self.token_norm(hidden_states)
        if padding_mask is not None:
            tokens = tokens * padding_mask.to(tokens.dtype)
        hidden_states = hidden_states + self.drop_path(self.dropout(self.token_mixing(tokens, positions)))
        channels = self.activation(self.proj_in(self.channel_norm(hidden_states)))
        channels = self.proj_out(channels)
        return hidden_states + self.drop_path(self.dropout(channels))


class MLPMixerPreTrainedModel(GMLPPreTrainedModel):
    """What all MLP-Mixers share."""

    config: MLPMixerConfig
    _no_split_modules = ["MLPMixerLayer"]
    _can_record_outputs = {"hidden_states": MLPMixerLayer}
    _token_mixing_module = TokenMixingMLP
    _supports_seq_idx = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TokenMixingMLP):
            for weight in (module.weight_in, module.weight_out):
                init.normal_(weight, std=self.config.spatial_initializer_range)
            for bias in (module.bias_in, module.bias_out):
                init.zeros_(bias)


class MLPMixerModel(MLPMixerPreTrainedModel, GMLPModel):
    """The MLP-Mixer encoder: `GMLPModel` with other blocks."""

    layer_class = MLPMixerLayer

    def _layer_inputs(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.LongTensor | None,
        past_key_values: Cache | None,
        seq_idx: torch.Tensor | None,
    ) -> dict[str, Any]:
        if seq_idx is not None:
            raise ValueError(
                "MLP-Mixer takes no `seq_idx`: its token mixing adds up all tokens before the activation, so that "
                "documents in a row cannot be kept apart. Give each a row of its own."
            )
        return super()._layer_inputs(hidden_states, attention_mask, position_ids, past_key_values, seq_idx)


class MLPMixerForMaskedLM(MaskedLMHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a language modelling head, tied to the embeddings by default."""

    backbone_class = MLPMixerModel


class MLPMixerForSequenceClassification(SequenceClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a sequence classification or regression head, e.g. for GLUE."""

    backbone_class = MLPMixerModel


class MLPMixerForTokenClassification(TokenClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a classification head on every token, e.g. for named entities."""

    backbone_class = MLPMixerModel


class MLPMixerForMultipleChoice(MultipleChoiceHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a multiple choice head, e.g. for COPA or SWAG."""

    backbone_class = MLPMixerModel


class MLPMixerForQuestionAnswering(QuestionAnsweringHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with a span head for extractive question answering, e.g. SQuAD."""

    backbone_class = MLPMixerModel


class MLPMixerForImageClassification(ImageClassificationHead, MLPMixerPreTrainedModel):
    """MLP-Mixer with an image classification head, e.g. for ImageNet."""

    backbone_class = MLPMixerModel


__all__ = [
    "MLPMixerForImageClassification",
    "MLPMixerForMaskedLM",
    "MLPMixerForMultipleChoice",
    "MLPMixerForQuestionAnswering",
    "MLPMixerForSequenceClassification",
    "MLPMixerForTokenClassification",
    "MLPMixerModel",
    "MLPMixerPreTrainedModel",
]
