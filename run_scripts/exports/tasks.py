"""Checkpoints to export: their task, inputs as users have them, and the files that go with a graph."""

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, PreTrainedModel

from ..base.errors import UserError, report_unreadable
from ..base.optional_packages import import_optional
from ..base.sequence_limits import longest_text
from ..base.trained_model import (
    check_folder,
    check_ids,
    default_prompt,
    load_sentence_transformer,
    load_trained,
    load_trained_tokenizer,
)
from ..training.trainer import forget_truncation
from .formats import FILES, Inputs


#: The Hub's name of a task -> how the names of its models end, which is the Auto class too.
ENDINGS = {
    "fill-mask": "ForMaskedLM",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "multiple-choice": "ForMultipleChoice",
    "image-classification": "ForImageClassification",
    "text-generation": "ForCausalLM",
    "feature-extraction": "Model",
}
SENTENCES = "sentence-similarity"

#: Pooling mode -> the end of its field before Sentence Transformers 6.
POOLING_FIELDS = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}

#: Tasks whose inputs are not single texts.
OTHER_INPUTS = ("question-answering", "multiple-choice", "image-classification")

#: Code of the card of an export.
EXAMPLE = """\
from onnxruntime import InferenceSession
from transformers import AutoTokenizer
from transformers.utils import cached_file

model = "{model}"
tokenizer, session = AutoTokenizer.from_pretrained(model), InferenceSession(cached_file(model, "{file}"))
texts = ["{prompt}This is a text.", "{prompt}This is another one."]
inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
print(session.run({outputs}, {{port.name: inputs[port.name] for port in session.get_inputs()}})[0])
"""

#: Texts of different lengths, the last one longer than most models take.
TEXTS = [str(item.__doc__) for item in (str.isalpha, len, str.split, sorted, int, str.format, print)]
TEXTS.append(" ".join(TEXTS) * 4)
#: Those that are given together.
BATCHES = (TEXTS[:5], TEXTS[:1], TEXTS[-2:])

#: Largest difference of a sentence transformer's modules from its `encode`, in a cosine or a share of the length.
ENCODE_TOLERANCE = 1e-4


def find_task(name: str) -> str:
    """The task of a checkpoint."""
    check_folder(name)
    if _has_modules(name):
        return SENTENCES
    with report_unreadable(name):
        config = AutoConfig.from_pretrained(name)
    (architecture, *_) = config.architectures or [""]
    if config.is_encoder_decoder:
        raise UserError(
            f"{name!r} is an encoder-decoder ({architecture or config.model_type}): it needs graphs for encoder, "
            "first and further tokens, which one graph does not hold. Use `export_for_generation` of Transformers."
        )
    for task, ending in ENDINGS.items():
        if architecture.endswith(ending):
            return task
    what = f"is a {architecture}" if architecture else "does not name its architecture"
    raise UserError(f"{name!r} {what}: give --task, one of {', '.join(ENDINGS)}, if its weights are for one of them.")


def _has_modules(name: str) -> bool:
    """Whether it is a checkpoint of Sentence Transformers."""
    if Path(name).is_dir():
        return (Path(name) / "modules.json").is_file()
    with report_unreadable(name):
        return transformers.utils.cached_file(name, "modules.json", _raise_exceptions_for_missing_entries=False)


class Checkpoint:
    """A model to export, with what prepares its inputs.

    Args:
        name: Folder or Hub id.
        task: A key of `ENDINGS`, or `SENTENCES`.

    Attributes:
        model: In float32 and evaluation mode. Called with the inputs of `batches`, it returns the graph's outputs.
        prompt: What has to stand before every text: a graph of token ids does not hold it. Empty if nothing.

    Raises:
        UserError: If it cannot be loaded, or a sentence transformer's `encode` does more than a graph can hold.
    """

    def __init__(self, name: str, task: str):
        self.name, self.task = name, task
        self.modules: Any = None
        self.prompt = ""
        if task == SENTENCES:
            self._load_sentence_transformer()
        else:
            self.model = load_trained(
                getattr(transformers, f"Auto{ENDINGS[task].replace('For', 'ModelFor', 1)}"), name
            )
            with report_unreadable(name):
                if task == "image-classification":
                    self.processor = AutoImageProcessor.from_pretrained(name)
                else:
                    self.processor = load_trained_tokenizer(name)
        self.model = self.model.float()
        if task != "image-classification":
            check_ids(name, self.processor, self.model)
            self._set_longest()
        self._accepted = inspect.signature(type(self.model).forward).parameters
        encoded = [] if self.modules is None else [self.modules.float().encode(rows) for rows in BATCHES]
        self.model.forward = MethodType(_forward(self.model.forward, self.modules), self.model)
        if self.modules is not None:
            self._check_encode(encoded)

    def _load_sentence_transformer(self) -> None:
        import_optional(
            "sentence_transformers", "embeddings", f"{self.name!r}, a checkpoint of Sentence Transformers,"
        )
        self.modules = load_sentence_transformer(self.name, device="cpu").eval()
        self.model = getattr(self.modules[0], "auto_model", None)
        if not isinstance(self.model, PreTrainedModel):
            raise UserError(
                f"{self.name!r} begins with a {type(self.modules[0]).__name__}, which is not a model of Transformers: "
                "there is no graph to export."
            )
        self.processor = self.modules.tokenizer
        self.prompt = default_prompt(self.modules)

    @torch.inference_mode()
    def _check_encode(self, encoded: Sequence[np.ndarray]) -> None:
        """Check that the outputs are what `encode` of the folder gives."""
        found = [self.model(**inputs)["sentence_embedding"].numpy() for inputs in self.batches()]
        for ours, theirs in zip(found, encoded, strict=True):
            if ours.shape != theirs.shape or np.abs(ours - theirs).max() > ENCODE_TOLERANCE * np.abs(theirs).max():
                raise UserError(
                    f"`encode` of {self.name!r} gives other embeddings than its modules do of the token ids, as by "
                    "include_prompt=false of its pooling: a graph does not hold this. Export a model without it."
                )

    def _set_longest(self) -> None:
        """Let the saved tokenizer cut texts at what the model takes: runtimes know of no other limit."""
        limits = [longest_text(self.model.config, self.processor)]
        limits += [self.modules.max_seq_length] if self.modules is not None else []
        limits = [limit for limit in limits if limit is not None]
        if limits:
            self.processor.model_max_length = min(limits)
        if getattr(self.processor, "pad_token", None) is None:
            raise UserError(f"the tokenizer of {self.name!r} has no padding token, which batches need.")

    def batches(self) -> list[Inputs]:
        """Inputs as users have them: of several lengths, padded, one at a time, and cut at the longest."""
        if self.task == "image-classification":
            images = [Image.linear_gradient("L").convert("RGB"), Image.radial_gradient("L").convert("RGB")]
            images.append(
                Image.merge("RGB", [images[0].getchannel(0), images[1].getchannel(0), images[0].getchannel(0)])
            )
            batches = [self.processor(rows, return_tensors="pt") for rows in (images, images[:1])]
        else:
            batches = [self._encode(rows) for rows in BATCHES]
        return [{key: value for key, value in batch.items() if key in self._accepted} for batch in batches]

    def _encode(self, texts: Sequence[str]) -> Inputs:
        texts, second = [self.prompt + text for text in texts], []
        if self.task in ("multiple-choice", "question-answering"):
            choices = 2 if self.task == "multiple-choice" else 1
            second = [TEXTS[number % 3] for number in range(choices * len(texts))]
            texts = [text for text in texts for _ in range(choices)]
        cut = self.processor.model_max_length < 10**6
        encoded = self.processor(texts, second or None, padding=True, truncation=cut, return_tensors="pt")
        if self.task == "multiple-choice":
            encoded = {key: value.view(-1, 2, value.shape[-1]) for key, value in encoded.items()}
        return encoded

    def save(self, folder: Path, output_dir: str) -> None:
        """Write configuration, model code, tokenizer or image processor, card, and modules of a sentence transformer.

        Args:
            folder: The folder to write to.
            output_dir: Its name at the end, for the card's example.
        """
        forget_truncation(self.processor)
        if self.modules is not None:
            self.modules.save_pretrained(str(folder), create_model_card=False)
            for weights in folder.glob("*.safetensors*"):
                weights.unlink()
            _add_older_fields(folder, self.processor.model_max_length)
            saved = load_trained_tokenizer(str(folder))
            if any(saved(text)["input_ids"] != self.processor(text)["input_ids"] for text in TEXTS):
                raise UserError(
                    f"`encode` of {self.name!r} changes texts before its tokenizer, as by do_lower_case, which "
                    "readers of an export do not. Give it a tokenizer that does this, and export that."
                )
        else:
            self.model.config.save_pretrained(folder)
            self.processor.save_pretrained(folder)
        card, notice = (Path(self.name) / name for name in ("README.md", "NOTICE"))
        if notice.is_file():
            (folder / notice.name).write_bytes(notice.read_bytes())
        if card.is_file():
            files = [file for file in FILES.values() if (folder / file).is_file()]
            kept = {"encoding": "utf-8", "errors": "surrogateescape"}  # as it is, also in another encoding
            text = exported_card(card.read_text(**kept), output_dir, files, self.task, self.prompt)
            (folder / card.name).write_text(text, **kept)


def exported_card(card: str, output_dir: str, files: Sequence[str], task: str, prompt: str = "") -> str:
    """A checkpoint's card for its export: its first example runs a graph, as there are no weights for PyTorch.

    Args:
        card: The checkpoint's card.
        output_dir: The export's folder, which `push_to_hub` replaces by the name on the Hub.
        files: The exported files. The example runs the first.
        task: As for `Checkpoint`. `OTHER_INPUTS` have no example.
        prompt: As for `Checkpoint`.
    """
    use = f"An export to {', '.join(f'`{file}`' for file in files)}, without weights for PyTorch.\n"
    use += f"Put the prompt `{prompt!r}` before every text: the graphs do not hold it.\n" if prompt else ""
    if task not in OTHER_INPUTS and files[0].endswith(".onnx"):
        outputs = ["sentence_embedding"] if task == SENTENCES else None
        words = {"prompt": json.dumps(prompt, ensure_ascii=False)[1:-1], "outputs": outputs}
        code = EXAMPLE.format(model=Path(output_dir).as_posix(), file=files[0], **words)
        use += f"\n```python\n{code}```\n"
    text, replaced = re.subn(r"(?ms)^```python\n.*?^```\n", lambda _: use, card, count=1)
    return text if replaced else re.sub(r"(?m)^(# .+\n)", lambda title: f"{title[1]}\n{use}", card, count=1)


def _add_older_fields(folder: Path, longest: int) -> None:
    """Name pooling and length as Sentence Transformers did before version 6: other servers read these fields."""
    length = folder / "sentence_bert_config.json"
    length.write_text(json.dumps({**json.loads(length.read_text()), "max_seq_length": longest}, indent=2))
    for file in folder.glob("*_Pooling/config.json"):
        fields = json.loads(file.read_text())
        chosen = fields["pooling_mode"]
        modes = [chosen] if isinstance(chosen, str) else chosen
        fields["word_embedding_dimension"] = fields["embedding_dimension"]
        fields |= {f"pooling_mode_{field}": mode in modes for mode, field in POOLING_FIELDS.items()}
        file.write_text(json.dumps(fields, indent=2))


def _forward(forward: Any, modules: Any) -> Any:
    """A `forward` that returns what the graph does, with the embedding of a sentence transformer's modules."""

    def exported(self: PreTrainedModel, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = forward(**inputs)
        if modules is None:  # BERT's pooled state comes from an untrained layer
            return {key: value for key, value in outputs.items() if key != "pooler_output"}
        states = outputs[0]
        features = {**inputs, "token_embeddings": states}
        for module in list(modules)[1:]:
            features = module(features)
        embedding = features["sentence_embedding"][..., : modules.truncate_dim]
        return {"last_hidden_state": states, "sentence_embedding": embedding}

    return exported
