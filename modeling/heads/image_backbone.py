"""Image feature maps for the detection and segmentation heads of Transformers."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_outputs import BackboneOutput, BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .task_head import TaskHead


class ImageBackbone(BackboneMixin, TaskHead):
    """Returns hidden states as feature maps, which all have the resolution of the patches.

    Stages are `"stem"`, the embedded patches, and `"stage1"`, `"stage2"`, ..., the outputs of the blocks. These fields
    of the configuration, which `from_pretrained` also accepts as arguments, determine the output:

    Args:
        out_features, out_indices (`list`, *optional*): Names or indices of the stages to return, in order; by default
            the last.
        apply_layernorm (`bool`, defaults to `True`): Whether the final norm is applied to the feature maps.
        reshape_hidden_states (`bool`, defaults to `True`):
            Whether feature maps have the shape `(batch, hidden_size, rows, columns)`; otherwise they have the shape
            `(batch, tokens, hidden_size)` and include the class token, if there is one.

    Raises:
        ValueError: For unknown or unordered stages, and images of another size.
    """

    reads_images = True
    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too
    # Weights of image classifiers that backbones do not have.
    _keys_to_ignore_on_load_unexpected = [r"^classifier\.", r"^(model\.)?pooler\."]

    def __init__(self, config: PreTrainedConfig):
        if len(config.stage_names) != config.num_hidden_layers + 1:  # changed after the configuration was created
            is_last = config.out_features == config.stage_names[-1:]
            config.set_stages(None if is_last else config.out_features)
        super().__init__(config)
        self.num_features = [config.hidden_size] * len(config.stage_names)

    def _build_head(self, config: PreTrainedConfig) -> None:
        if config.use_class_token:
            del self.model.pooler

    @property
    def has_attentions(self) -> bool:  # type: ignore[override]  # a class attribute in Transformers' own models
        """Whether there are attention weights to return."""
        return "attentions" in (self._can_record_outputs or {})

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return getattr(self.model, "encoder", self.model).norm

    @can_return_tuple
    @filter_output_hidden_states
    @auto_docstring
    def forward(
        self,
        pixel_values: torch.FloatTensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BackboneOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch_size, num_tokens)`, *optional*):
            One number for the class token, if there is one, and for each patch; patches with 0 do not change the
            others.
        """
        outputs = self._hidden_states(pixel_values, attention_mask, **kwargs)
        stages = dict(zip(self.stage_names, outputs.hidden_states, strict=True))
        feature_maps = tuple(self._feature_map(stages[name]) for name in self.out_features)
        return BackboneOutput(
            feature_maps=feature_maps,  # type: ignore[arg-type]  # any number of them
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    @capture_outputs(tie_last_hidden_states=False)
    def _hidden_states(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> BaseModelOutput:
        """All hidden states before the final norm, which the decorator records."""
        return BaseModelOutput(self.encode_patches(pixel_values, attention_mask, **kwargs))

    def encode_patches(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor:
        """Embed images and apply all blocks, without the final norm; arguments as in `forward`.

        Returns:
            Shape `(batch, tokens, hidden_size)`.
        """
        model = self.model
        hidden_states = model.embed_patches(pixel_values)
        layout = model._token_layout(hidden_states, attention_mask, None, None, None)
        hidden_states = model.dropout(hidden_states)
        for layer in model.layers:
            hidden_states = layer(hidden_states, layout=layout, **kwargs)
        return hidden_states

    def _feature_map(self, hidden_state: torch.Tensor) -> torch.Tensor:
        if self.config.apply_layernorm:
            hidden_state = self.final_norm(hidden_state)
        if not self.config.reshape_hidden_states:
            return hidden_state
        patches = hidden_state[:, int(self.config.use_class_token) :]
        return patches.transpose(1, 2).unflatten(2, self.config.patch_grid).contiguous()
