"""Stand-ins for the files of Transformers' tests that its source distribution lacks; used by transformers_suite.py.

The source distribution holds the files `tests/test_*.py` alone. What those import from others is made here: empty
classes for tests that are not there, processes for the distributed tests, and for the tests of pipelines small
checkpoints and what their answers have to be. Importing this module makes them known to Python's `import`.
"""

import importlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from transformers import CLIPImageProcessorPil, pipeline

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


# --- processes ---------------------------------------------------------------------------------------------------


def _call(rank: int, function: Callable[..., None], arguments: tuple) -> None:
    # That this function is unpickled first imports this module, which what it calls needs to be imported itself.
    torch.set_num_threads(1)
    function(rank, *arguments)


def _start_rank_processes(function: Callable[..., None], args: tuple = (), nprocs: int = 1) -> None:
    start_processes(_call, args=(function, args), nprocs=nprocs, start_method="spawn")


def _in_group(rank: int, function: Callable[..., None], world_size: int, store: str, arguments: tuple) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    function(rank, *arguments)
    dist.destroy_process_group()


def run_distributed(world_size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`run_distributed(2)(function)(*arguments)` calls `function(rank, *arguments)` in two processes on the CPU."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            with tempfile.TemporaryDirectory() as folder:
                _start_rank_processes(_in_group, (function, world_size, f"{folder}/store", arguments), world_size)

        return run

    return decorate


# --- pipelines ---------------------------------------------------------------------------------------------------


TEXTS = ["the gate mixes tokens", "channels", "this example is about the tokens"]


class _PipelineTests:
    """A pipeline on several inputs, in a batch and one by one, against the model's own outputs."""

    task: str

    def get_test_pipeline(self, model, tokenizer=None, image_processor=None, dtype="float32", **kwargs):
        parts = {"tokenizer": tokenizer} if image_processor is None else {"image_processor": image_processor}
        return pipeline(self.task, model=model.to(getattr(torch, dtype)), **parts, **self.options), self.examples

    options: dict[str, Any] = {}
    examples: list[Any] = TEXTS

    def run_pipeline_test(self, built, examples):
        alone = [built(example) for example in examples]
        together = built(examples, batch_size=2)
        tolerance = {"rel": 1e-2, "abs": 1e-2} if built.model.dtype == torch.float16 else {"rel": 1e-4, "abs": 1e-5}
        for example, one, other in zip(examples, alone, together, strict=True):
            count = len(self.numbers(one))  # of the features of a padded text: those of its tokens
            assert self.numbers(other)[:count] == pytest.approx(self.numbers(one), **tolerance)
            with torch.no_grad():
                expected = self.expected(built, example)
            assert self.numbers(one) == pytest.approx(expected, **tolerance)

    def numbers(self, answer) -> list[float]:
        return [entry["score"] for entry in (answer if isinstance(answer, list) else [answer])]

    def outputs(self, built, text):
        return built.model(**built.tokenizer(text, return_tensors="pt"))

    def expected(self, built, example) -> list[float]:
        raise NotImplementedError


class FeatureExtractionPipelineTests(_PipelineTests):
    task = "feature-extraction"

    def numbers(self, answer):
        return torch.tensor(answer).flatten().tolist()

    def expected(self, built, example):
        return self.outputs(built, example)[0].flatten().tolist()


class FillMaskPipelineTests(_PipelineTests):
    task = "fill-mask"
    examples = ["the [MASK] mixes", "[MASK]", "tokens and [MASK]"]

    def expected(self, built, example):
        ids = built.tokenizer(example, return_tensors="pt").input_ids
        masked = self.outputs(built, example).logits[ids == built.tokenizer.mask_token_id]
        return masked[0].softmax(-1).topk(5).values.tolist()


class TextClassificationPipelineTests(_PipelineTests):
    task = "text-classification"

    def expected(self, built, example):
        return [self.outputs(built, example).logits[0].softmax(-1).max().item()]


class TokenClassificationPipelineTests(_PipelineTests):
    task = "token-classification"

    def expected(self, built, example):
        special = built.tokenizer(example, return_special_tokens_mask=True).special_tokens_mask
        scores = self.outputs(built, example).logits[0].softmax(-1).max(-1)
        return [score for score, skip in zip(scores.values.tolist(), special, strict=True) if not skip]


class ZeroShotClassificationPipelineTests(_PipelineTests):
    task = "zero-shot-classification"
    options = {"candidate_labels": ["gates", "tokens"]}

    def numbers(self, answer):
        return answer["scores"]

    def expected(self, built, example):
        pairs = [(example, f"This example is {label}.") for label in self.options["candidate_labels"]]
        inputs = built.tokenizer(pairs, return_tensors="pt", padding=True)
        entailed = built.model(**inputs).logits[:, built.entailment_id]
        return entailed.softmax(0).sort(descending=True).values.tolist()


class TextGenerationPipelineTests(_PipelineTests):
    task = "text-generation"
    options = {"do_sample": False, "max_new_tokens": 6}

    def run_pipeline_test(self, built, examples):
        for example in examples:
            inputs = built.tokenizer(example, return_tensors="pt")
            generated = built.model.generate(**inputs, **self.options)[0]
            (found,) = built(example)
            assert found["generated_text"].endswith(
                built.tokenizer.decode(generated[inputs.input_ids.shape[1] :], skip_special_tokens=True)
            )
        assert len(built(examples, batch_size=2)) == len(examples)


class ImageClassificationPipelineTests(_PipelineTests):
    task = "image-classification"

    @property
    def examples(self):
        from PIL import Image

        return [Image.new("RGB", (20, 12 + 4 * shade), (9 * shade, 60, 200 - 40 * shade)) for shade in range(3)]

    def expected(self, built, example):
        pixels = built.image_processor(example, return_tensors="pt").pixel_values.to(built.model.dtype)
        return built.model(pixels).logits[0].softmax(-1).sort(descending=True).values.tolist()


def _pipeline_model_mapping(family: str) -> dict[str, type]:
    heads = {
        "feature-extraction": "AutoModel",
        "fill-mask": "AutoModelForMaskedLM",
        "text-classification": "AutoModelForSequenceClassification",
        "token-classification": "AutoModelForTokenClassification",
        "zero-shot": "AutoModelForSequenceClassification",
        "text-generation": "AutoModelForCausalLM",
        "image-classification": "AutoModelForImageClassification",
    }
    models = FAMILIES[family].models
    return {task: getattr(tokenmixers, models[head]) for task, head in heads.items() if head in models}


#: Model class of each task of pipelines, by family.
PIPELINE_MODELS = {family: _pipeline_model_mapping(family) for family in FAMILIES}


def save_pipeline_models(folder: Path) -> None:
    """Small checkpoints of all classes in `PIPELINE_MODELS`, and Transformers' list of them."""
    texts = [*TEXTS, "This example is gates.", "and mixes"] * 6
    tokenizer = tokenmixers.train_unigram_tokenizer(texts, 60, model_max_length=80, show_progress=False)
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, do_convert_rgb=True
    )
    names = dict(enumerate(["contradiction", "entailment", "neutral"]))
    labels = {"id2label": names, "label2id": {name: index for index, name in names.items()}}
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, **labels}
    summary = {}
    for family, mapping in PIPELINE_MODELS.items():
        for model_class in mapping.values():
            reads_images = "Image" in model_class.__name__
            kind = {"image_size": 16, "patch_size": 8} if reads_images else {"vocab_size": len(tokenizer)}
            if not reads_images:
                kind |= {"max_position_embeddings": 80, "pad_token_id": tokenizer.pad_token_id}
            kind |= {"is_decoder": True} if "CausalLM" in model_class.__name__ else {}
            torch.manual_seed(0)
            model = model_class(model_class.config_class(**sizes, **kind))
            with torch.no_grad():
                for weight in model.parameters():
                    weight.normal_(std=0.3)
            place = folder / family / model_class.__name__
            model.save_pretrained(place)
            (images if reads_images else tokenizer).save_pretrained(place)
            summary[model_class.__name__] = {
                "tokenizer_classes": [] if reads_images else [type(tokenizer).__name__],
                "processor_classes": [type(images).__name__] if reads_images else [],
            }
    (folder / "reports").mkdir()
    (folder / "reports" / "tiny_model_summary.json").write_text(json.dumps(summary), encoding="utf-8")


# --- all of them -------------------------------------------------------------------------------------------------


_DISTRIBUTED: dict[str, Any] = {
    "run_distributed": run_distributed,
    "_start_rank_processes": _start_rank_processes,
    "_get_distributed_backend": lambda: "gloo",
    "_get_distributed_device_type": lambda: "cpu",
    "_get_rank_device": lambda rank: torch.device("cpu"),
    "_set_rank_device": lambda rank: None,
}
_FILES: dict[str, dict[str, Any]] = {
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils.test_configuration_utils": {
        "config_common_kwargs": {"return_dict": False, "chunk_size_feed_forward": 5},
    },
    "distributed_testing_utils": _DISTRIBUTED,
}
for _tests in _PipelineTests.__subclasses__():
    _file = "zero_shot" if "ZeroShot" in _tests.__name__ else _tests.task.replace("-", "_")
    _FILES[f"pipelines.test_pipelines_{_file}"] = {_tests.__name__: _tests}

for _file, _contents in _FILES.items():
    importlib.import_module("tests")
    _folder, _, _ = _file.rpartition(".")
    for _name in filter(None, (_folder, _file)):
        sys.modules.setdefault(f"tests.{_name}", types.ModuleType(f"tests.{_name}"))
    vars(sys.modules[f"tests.{_file}"]).update(_contents)
