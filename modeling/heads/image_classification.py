"""Classification of images."""

import torch
from transformers import PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .classification import ClassificationHead
from .losses import classification_loss


class ImageClassificationHead(ClassificationHead):
    """Predicts one label (or several, or a number) per image from the pooled output."""

    reads_images = True
    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in Transformers' own models too

    def _build_head(self, config: PreTrainedConfig) -> None:
        super()._build_head(config)
        self.loss_function = classification_loss

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)`, *optional*):
            Class indices in `[0, num_labels)`; numbers if `num_labels == 1` (mean squared error); or one 0/1 number
            per label, shape `(batch_size, num_labels)`, for `problem_type="multi_label_classification"`.
        """
        outputs = self.model(pixel_values=pixel_values, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)
