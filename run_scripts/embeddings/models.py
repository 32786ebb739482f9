"""Models of sentence embeddings to evaluate: loaded in a format, checked, and told apart by a fingerprint.

Imports sentence-transformers (extra `embeddings`), so a command imports this module only after it has checked that.
"""

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import transformer as library
from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from ..base.errors import UserError, report_unreadable
from ..base.trained_model import check_folder
from ..exports.formats import Program
from ..training.model_loading import sequence_length
from ..training.sentence_embeddings import check_encoder
from .formats import ONNX_FILES, find_file


#: What a fingerprint of a configuration leaves out: it says where a model lies or who wrote it, not what it computes.
_IRRELEVANT = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "auto_map")


class OnnxEncoder(torch.nn.Module):
    """An encoder in ONNX Runtime, as Sentence Transformers calls encoders.

    It uses as many threads as PyTorch when it is made.
    """

    def __init__(self, file: Path, config: PreTrainedConfig):
        super().__init__()
        self.config = config
        self.content = hashlib.sha256(file.read_bytes()).hexdigest()
        self.program = Program(file)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> dict[str, torch.Tensor]:
        """The states of the tokens, shape `(texts, length, hidden_size)`. Options of PyTorch's models are ignored."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        return {"last_hidden_state": self.program(inputs)["last_hidden_state"]}


def load_embedder(
    name: str, kind: str = "float32", max_seq_length: int | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """A model that embeds sentences, in a format. Its embeddings are float32 in every format.

    Checkpoints of Sentence Transformers, and of model2vec, have their own pooling; encoders of Transformers get the
    mean over the tokens.
    """
    check_folder(name)
    torch.manual_seed(0)  # of weights that are missing and not used, such as BERT's pooler: the fingerprint has them
    with report_unreadable(name):
        if kind in ONNX_FILES:
            model = _load_onnx(name, kind, trust_remote_code)
        else:
            dtype = getattr(torch, kind)
            model = SentenceTransformer(name, model_kwargs={"dtype": dtype}, trust_remote_code=trust_remote_code)
            model = model.to(dtype)  # also modules other than that of Transformers
    model.eval()
    model.register_forward_hook(_to_float32)
    config = getattr(model[0], "config", None)
    if isinstance(config, PreTrainedConfig):
        check_encoder(config)
        model.max_seq_length = sequence_length(max_seq_length or _longest(model), config, model.tokenizer)
    try:
        shape = model.encode(["A sentence."], show_progress_bar=False).shape
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(f"{name!r} gives no embeddings of texts: {error}") from error
    if len(shape) != 2:
        raise UserError(f"{name!r} gives no embeddings of texts, but an array of shape {shape}.")
    return model


def _load_onnx(name: str, kind: str, trust_remote_code: bool) -> SentenceTransformer:
    """A model whose encoder is in ONNX.

    Sentence Transformers loads such files with Optimum, which does not work with Transformers 5.
    """
    file = find_file(name, kind)

    def load(*, config: PreTrainedConfig, **options: Any) -> OnnxEncoder:
        return OnnxEncoder(file, config)

    with mock.patch.object(library, "load_onnx_model", load):
        return SentenceTransformer(name, backend="onnx", trust_remote_code=trust_remote_code, device="cpu")


def _longest(model: SentenceTransformer) -> int | None:
    """The model's longest text in tokens, `None` if it has no limit."""
    longest = model.max_seq_length
    return None if longest is None or longest > 10**6 else int(longest)


def _to_float32(model: SentenceTransformer, inputs: Any, outputs: dict[str, Any]) -> None:
    """Similarities are computed in the type of the embeddings, and bfloat16 has too few digits to rank by them."""
    outputs["sentence_embedding"] = outputs["sentence_embedding"].float()


def describe_model(model: SentenceTransformer) -> dict[str, Any]:
    """What the results say about a model: `weights` (its fingerprint), parameters, dimensions, longest text.

    The parameters are `None` in ONNX.
    """
    return {
        "weights": fingerprint(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()) or None,
        "dimensions": model.get_embedding_dimension(),
        "max_seq_length": _longest(model),
        "device": str(model.device.type),
    }


def fingerprint(model: SentenceTransformer) -> str:
    """SHA-256 of all that embeddings depend on: weights in their type, modules and settings, tokenizer, prompts."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    settings: list[Any] = [model.prompts, model.default_prompt_name, _longest(model)]
    for module in model:
        settings.append([type(module).__name__, module.get_config_dict()])
        encoder = getattr(module, "model", None)
        if isinstance(encoder, OnnxEncoder):
            settings.append(encoder.content)
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            settings.append({key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT})
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(_describe_tokenizer(model.tokenizer).encode())
    return digest.hexdigest()


def _describe_tokenizer(tokenizer: Any) -> str:
    """All that decides about a text's tokens. Transformers sets padding and truncation anew in every call."""
    fast = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return f"{type(tokenizer).__name__} {sorted(tokenizer.get_vocab().items())}"
    content = json.loads(fast.to_str())
    if fast is not tokenizer:
        del content["padding"], content["truncation"]
    return json.dumps(content)
