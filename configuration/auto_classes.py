"""Which class of this package each Auto class of Transformers returns, by `model_type`.

Data only: importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Family:
    """The classes of one model family, by name.

    Attributes:
        config: Name of the configuration class in `configuration/configuration_<model_type>.py`.
        models: Auto class name -> model class name in `modeling/modeling_<model_type>.py`.
        image_processors: Backend -> class in `tokenization/` that prepares images for the family; empty for
            families that read text alone.
    """

    config: str
    models: dict[str, str]
    image_processors: dict[str, str] = field(default_factory=dict)


def _encoder_heads(prefix: str) -> dict[str, str]:
    return {
        "AutoModel": f"{prefix}Model",
        "AutoModelForPreTraining": f"{prefix}ForMaskedLM",
        "AutoModelForMaskedLM": f"{prefix}ForMaskedLM",
        "AutoModelForSequenceClassification": f"{prefix}ForSequenceClassification",
        "AutoModelForTokenClassification": f"{prefix}ForTokenClassification",
        "AutoModelForMultipleChoice": f"{prefix}ForMultipleChoice",
        "AutoModelForQuestionAnswering": f"{prefix}ForQuestionAnswering",
    }


# Resizes, then crops the centre, with Pillow; there is no other one for torchvision.
_CROPPING_PROCESSORS = {"pil": "TimmImageProcessorPil", "torchvision": "TimmImageProcessorPil"}


def _text_and_image_family(prefix: str) -> Family:
    return Family(
        config=f"{prefix}Config",
        models={
            **_encoder_heads(prefix),
            "AutoModelForImageClassification": f"{prefix}ForImageClassification",
            "AutoBackbone": f"{prefix}Backbone",
        },
        image_processors=_CROPPING_PROCESSORS,
    )


def _with_decoder(family: Family, causal_lm: str) -> Family:
    return replace(family, models={**family.models, "AutoModelForCausalLM": causal_lm})


FAMILIES: dict[str, Family] = {
    "gmlp": _with_decoder(_text_and_image_family("GMLP"), "GMLPForCausalLM"),
    "amlp": _with_decoder(_text_and_image_family("AMLP"), "AMLPForCausalLM"),
    "mlp_mixer": _text_and_image_family("MLPMixer"),
    "synthesizer": Family(
        config="SynthesizerConfig",
        models={
            **_text_and_image_family("Synthesizer").models,
            "AutoModelForCausalLM": "SynthesizerForCausalLM",
            "AutoModelForSeq2SeqLM": "SynthesizerForConditionalGeneration",
        },
        image_processors=_CROPPING_PROCESSORS,
    ),
}
