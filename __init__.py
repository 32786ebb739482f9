"""gMLP, aMLP, Synthesizer and MLP-Mixer for Hugging Face Transformers.

Importing this package costs next to nothing: public names are loaded when first used, and the models enter the Auto
classes at the moment Transformers itself loads those, so that torch is not imported a moment earlier.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .configuration.auto_classes import FAMILIES, IMAGE_PROCESSORS, Family


if TYPE_CHECKING:  # type checkers know nothing of names that are loaded when first used
    from .configuration.configuration_amlp import AMLPConfig as AMLPConfig
    from .configuration.configuration_gmlp import GMLPConfig as GMLPConfig
    from .configuration.configuration_hybrid_bert import HybridBertConfig as HybridBertConfig
    from .configuration.configuration_mlp_mixer import MLPMixerConfig as MLPMixerConfig
    from .configuration.configuration_synthesizer import SynthesizerConfig as SynthesizerConfig
    from .configuration.shipped_models import shipped_config as shipped_config
    from .configuration.shipped_models import shipped_configs as shipped_configs
    from .configuration.shipped_models import shipped_model as shipped_model
    from .configuration.shipped_models import shipped_models as shipped_models
    from .modeling.modeling_amlp import *  # noqa: F403
    from .modeling.modeling_gmlp import *  # noqa: F403
    from .modeling.modeling_hybrid_bert import *  # noqa: F403
    from .modeling.modeling_mlp_mixer import *  # noqa: F403
    from .modeling.modeling_synthesizer import *  # noqa: F403
    from .modeling.pipelines.question_answering import QuestionAnsweringPipeline as QuestionAnsweringPipeline
    from .tokenization.image_processing_timm import TimmImageProcessorPil as TimmImageProcessorPil
    from .tokenization.tokenizer_training import train_unigram_tokenizer as train_unigram_tokenizer


__version__ = "0.1.0"

_MODULE_OF: dict[str, str] = {
    "QuestionAnsweringPipeline": "modeling.pipelines.question_answering",
    "TimmImageProcessorPil": "tokenization.image_processing_timm",
    **dict.fromkeys(
        ("shipped_config", "shipped_configs", "shipped_model", "shipped_models"), "configuration.shipped_models"
    ),
    "train_unigram_tokenizer": "tokenization.tokenizer_training",
}
for _model_type, _family in FAMILIES.items():
    _MODULE_OF[_family.config] = f"configuration.configuration_{_model_type}"
    _MODULE_OF.update(dict.fromkeys(_family.models.values(), f"modeling.modeling_{_model_type}"))
    _MODULE_OF[_family.models["AutoModel"].replace("Model", "PreTrainedModel")] = f"modeling.modeling_{_model_type}"

__all__ = ["__version__", *sorted(_MODULE_OF)]


def _load(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # which would take any name for one of ours
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_configs(auto: ModuleType) -> None:
    for model_type, family in FAMILIES.items():
        auto.AutoConfig.register(model_type, _load(family.config), exist_ok=True)


def _register_models(auto: ModuleType) -> None:
    for family in FAMILIES.values():
        for auto_class, model_class in family.models.items():
            getattr(auto, auto_class).register(_load(family.config), _load(model_class), exist_ok=True)


def _register_tokenizers(auto: ModuleType) -> None:
    from transformers import PreTrainedTokenizerFast

    for family in FAMILIES.values():
        auto.AutoTokenizer.register(_load(family.config), tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)


def _families_with_images() -> list[Family]:
    return [family for family in FAMILIES.values() if "AutoModelForImageClassification" in family.models]


def _register_image_processors(auto: ModuleType) -> None:
    from transformers.utils import is_vision_available

    if not is_vision_available():
        return
    classes = {backend: _load(name) for backend, name in IMAGE_PROCESSORS.items()}
    for family in _families_with_images():
        auto.AutoImageProcessor.register(_load(family.config), image_processor_classes=classes, exist_ok=True)


def _register_no_video_processors(auto: ModuleType) -> None:
    # Image pipelines try to load one. Without an entry they make up a class from the image processor's name, and ask
    # whether to run the checkpoint's code for it.
    for family in _families_with_images():
        auto.VIDEO_PROCESSOR_MAPPING.register(_load(family.config), {}, exist_ok=True)


def _register_pipelines(pipelines: ModuleType) -> None:
    # Transformers refuses the name "question-answering", whoever registers it.
    task, registry = "extractive-question-answering", pipelines.PIPELINE_REGISTRY
    if task in registry.supported_tasks:
        return
    from transformers import AutoModelForQuestionAnswering

    pipeline_class = _load("QuestionAnsweringPipeline")
    registry.register_pipeline(task, pipeline_class, pt_model=AutoModelForQuestionAnswering, type="text")
    # The name under which saved pipelines are found, without this package: there it is not refused.
    pipeline_class._registered_impl = {"question-answering": registry.supported_tasks[task]}


def _register_lora_targets(constants: ModuleType) -> None:
    # What `LoraConfig()` adapts where it names no `target_modules`: most of a model's weights.
    blocks = ["proj_in", "proj_out"]
    targets = dict.fromkeys(("gmlp", "amlp", "mlp_mixer"), blocks)
    targets |= {"synthesizer": ["v_proj", "o_proj"], "hybrid_bert": ["v_proj", "o_proj", *blocks]}
    for model_type in FAMILIES:
        constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(model_type, targets[model_type])


# They import the Auto classes or pipelines, and what is to be registered there needs them complete: our models import
# the first, the others are our pipeline and our image processor.
_WAIT_FOR = (
    "transformers.modeling_layers",
    f"{__name__}.modeling.pipelines.question_answering",
    f"{__name__}.tokenization.image_processing_timm",
)


class _RegisterAfterImport(importlib.abc.MetaPathFinder):
    """Calls `registrations[module name](module)` right after that module was imported (a post-import hook).

    A call that falls into the import of one of `_WAIT_FOR` comes right after that one.
    """

    def __init__(self, registrations: dict[str, Callable[[ModuleType], None]]):
        self.registrations = registrations
        self._searching = False
        self._importing = 0
        self._due: list[ModuleType] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (*self.registrations, *_WAIT_FOR) or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)  # asks the other finders
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                self._importing += 1
                try:
                    execute(module)
                finally:
                    self._importing -= 1
                if fullname in self.registrations:
                    self._due.append(module)
                while self._due and not self._importing:
                    due = self._due.pop(0)
                    self.registrations[due.__name__](due)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]  # of this module alone
        return spec


def _register() -> None:
    registrations = {
        "transformers.models.auto.configuration_auto": _register_configs,
        "transformers.models.auto.modeling_auto": _register_models,
        "transformers.models.auto.tokenization_auto": _register_tokenizers,
        "transformers.models.auto.image_processing_auto": _register_image_processors,
        "transformers.models.auto.video_processing_auto": _register_no_video_processors,
        "transformers.pipelines": _register_pipelines,
        "peft.utils.constants": _register_lora_targets,
    }
    for name in registrations.keys() & sys.modules.keys():
        registrations.pop(name)(sys.modules[name])
    if registrations:
        sys.meta_path.insert(0, _RegisterAfterImport(registrations))


_register()
