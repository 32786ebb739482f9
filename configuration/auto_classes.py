"""The class of this package that each Auto class of Transformers returns, by `model_type`.

Data only: importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass


IMAGE_PROCESSORS = {"pil": "TimmImageProcessorPil", "torchvision": "TimmImageProcessorPil"}
"""Backend -> name of the image processor class in `tokenization/`. One class, which uses Pillow, serves both."""


@dataclass(frozen=True)
class Family:
    """The names of a model family's classes.

    Attributes:
        config: Name of the configuration class in `configuration/configuration_<model_type>.py`.
        models: Auto class name -> model class name in `modeling/modeling_<model_type>.py`.
    """

    config: str
    models: dict[str, str]


def _text_family(prefix: str, **others: str) -> Family:
    """A family for text; `others` maps Auto classes to classes beyond those of text encoders."""
    return Family(
        config=f"{prefix}Config",
        models={
            "AutoModel": f"{prefix}Model",
            "AutoModelForPreTraining": f"{prefix}ForMaskedLM",
            "AutoModelForMaskedLM": f"{prefix}ForMaskedLM",
            "AutoModelForSequenceClassification": f"{prefix}ForSequenceClassification",
            "AutoModelForTokenClassification": f"{prefix}ForTokenClassification",
            "AutoModelForMultipleChoice": f"{prefix}ForMultipleChoice",
            "AutoModelForQuestionAnswering": f"{prefix}ForQuestionAnswering",
            **others,
        },
    )


def _family(prefix: str, **decoders: str) -> Family:
    """A family for text and images; `decoders` maps Auto classes to its decoder classes."""
    images = {
        "AutoModelForImageClassification": f"{prefix}ForImageClassification",
        "AutoBackbone": f"{prefix}Backbone",
    }
    return _text_family(prefix, **images, **decoders)


FAMILIES: dict[str, Family] = {
    "gmlp": _family("GMLP", AutoModelForCausalLM="GMLPForCausalLM"),
    "amlp": _family("AMLP", AutoModelForCausalLM="AMLPForCausalLM"),
    "mlp_mixer": _family("MLPMixer"),
    "synthesizer": _family(
        "Synthesizer",
        AutoModelForCausalLM="SynthesizerForCausalLM",
        AutoModelForSeq2SeqLM="SynthesizerForConditionalGeneration",
    ),
    "hybrid_bert": _text_family("HybridBert"),
}
