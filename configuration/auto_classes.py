"""Which class of this package each Auto class of Transformers returns, by `model_type`.

Data only: importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The classes of one model family, by name.

    Attributes:
        config: Name of the configuration class in `configuration/configuration_<model_type>.py`.
        models: Auto class name -> model class name in `modeling/modeling_<model_type>.py`.
    """

    config: str
    models: dict[str, str]


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


FAMILIES: dict[str, Family] = {
    "gmlp": Family(config="GMLPConfig", models=_encoder_heads("GMLP")),
    "synthesizer": Family(
        config="SynthesizerConfig",
        models={
            **_encoder_heads("Synthesizer"),
            "AutoModelForCausalLM": "SynthesizerForCausalLM",
            "AutoModelForSeq2SeqLM": "SynthesizerForConditionalGeneration",
            "AutoModelForImageClassification": "SynthesizerForImageClassification",
        },
    ),
}
