"""Synthesizers without query-key attention that start from what a T5's self-attention does on a calibration text.

Everything but self-attention's queries and keys stays T5's: embeddings, relative position biases, values, outputs,
cross-attention, feed-forward layers. The new logits are added to the position bias. They are chosen, layer by layer,
to minimise the mean Kullback-Leibler divergence KL(T5's attention weights || new weights) over the real tokens:

- `random`: the logarithm of the mean attention weights, which is the minimum, minus the position bias.
- `factorized_random`: that matrix by its singular values, then Adam on the divergence from the mean weights.
- `dense`, `factorized_dense`: Adam on the divergence, layer-wise distillation.
"""

import os
from collections.abc import Collection
from typing import Any

import torch
from transformers import PreTrainedModel

from ...configuration.configuration_synthesizer import SynthesizerConfig
from ..modeling_synthesizer import SynthesizerForConditionalGeneration
from .attention_distillation import distil_attention
from .attention_inputs import Batch, longest_row
from .mean_attention import fit_to_mean
from .t5 import check_shapes, convert_t5_config, load_t5, synthesizer_from_t5, to_dtype


#: The attention components that can be fitted.
FITTED_COMPONENTS = ("random", "dense", "factorized_random", "factorized_dense")


def fit_synthesizer(
    source: str | os.PathLike | PreTrainedModel,
    batches: Collection[Batch],
    component: str,
    *,
    epochs: int = 4,
    learning_rate: float = 1e-2,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> SynthesizerForConditionalGeneration:
    """Load a T5 model as a Synthesizer whose self-attention imitates T5's on a calibration text.

    Positions that no calibration row has get T5's position bias plus what pairs of the same distance have on average
    (the random components), or logits like the mean of the other keys (the dense ones).

    Args:
        source: Hub id or folder of a T5 model, or a `T5ForConditionalGeneration`.
        batches: Calibration data, read `epochs` times by the dense components and once by the others. Each has
            `input_ids` and either `labels` (-100 for padding) or `decoder_input_ids`, and optionally `attention_mask`
            and `decoder_attention_mask`, all `(batch, length)` and padded on the right.
        component: One of `FITTED_COMPONENTS`.
        epochs: Passes over the calibration data, of the dense components.
        learning_rate: Of Adam at the start; it falls linearly to 0. Of the dense components.
        dtype: Type of the weights; `None` means the type they are saved in. Fitting is in float32.
        device: Where to fit; where the model is by default.
        overrides: Fields of the new configuration, e.g. `max_position_embeddings=512`. With
            `decoder_attention_components=["vanilla"]` the decoder stays T5's, with `attention_components` the encoder.

    Returns:
        The model, in evaluation mode, with T5's generation settings.

    Raises:
        ValueError: If the model is not a T5 model, the component cannot be fitted or is mixed with others, or the
            batches are empty, longer than the model's positions, or padded on the left.
    """
    if component not in FITTED_COMPONENTS:
        raise ValueError(f"{component!r} cannot be fitted; these can: {', '.join(FITTED_COMPONENTS)}.")
    t5 = load_t5(source, dtype)
    teacher = synthesizer_from_t5(t5, dtype=torch.float32)
    overrides.setdefault("attention_components", [component])
    config = convert_t5_config(t5.config, tied_head=teacher.config.tie_word_embeddings, **overrides)
    sides = sides_to_fit(config, component)
    if not len(batches):
        raise ValueError("There are no calibration batches.")
    _check_lengths(batches, config, sides)
    device = torch.device(device or t5.device)
    student = _with_weights_of(teacher, config).eval()
    for model in (teacher, student):
        model.to(device)  # type: ignore[arg-type]  # taken for a function, because it is wrapped
    if component in ("random", "factorized_random"):
        fit_to_mean(teacher, student, batches, sides)
    else:
        distil_attention(teacher, student, batches, sides, epochs, learning_rate)
    student.generation_config = t5.generation_config
    to_dtype(student, dtype or t5.dtype)
    return student.eval()


def sides_to_fit(config: SynthesizerConfig, component: str) -> list[str]:
    """Those of `"encoder"` and `"decoder"` whose attention has the component; the other has T5's.

    Raises:
        ValueError: If a side has another component, or neither has this one.
    """
    sides = []
    for side in ("encoder", "decoder"):
        names = config.get_text_config(**{side: True}).attention_components
        if names == [component]:
            sides.append(side)
        elif names != ["vanilla"]:
            raise ValueError(
                f"The {side} is to have the components {names}, but {component!r} can be fitted only alone, and a "
                "side with 'vanilla' alone stays as it is."
            )
    if not sides:
        raise ValueError(f"Neither the encoder nor the decoder has the component {component!r} that is to be fitted.")
    return sides


def _check_lengths(batches: Collection[Batch], config: SynthesizerConfig, sides: list[str]) -> None:
    for side in sides:
        most, longest = config.get_text_config(**{side: True}).max_position_embeddings, longest_row(batches, side)
        if longest > most:
            raise ValueError(
                f"The calibration rows have up to {longest} tokens in the {side}, which has `max_position_embeddings="
                f"{most}`: cut the rows, or take more positions."
            )


def _with_weights_of(
    teacher: SynthesizerForConditionalGeneration, config: SynthesizerConfig
) -> SynthesizerForConditionalGeneration:
    student = SynthesizerForConditionalGeneration(config)
    weights = teacher.state_dict()
    own = student.state_dict()
    check_shapes(weights, own)
    student.load_state_dict({name: weights.get(name, tensor) for name, tensor in own.items()})
    return student
