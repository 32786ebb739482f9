"""Models of sentence embeddings to evaluate, loaded in a format and checked.

Imports sentence-transformers (extra `embeddings`), so a command imports this module only after it has checked that.
"""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import transformer as library
from transformers import PreTrainedConfig

from ..base.errors import UserError
from ..base.trained_model import load_sentence_transformer
from ..exports.formats import Program
from ..training.model_loading import sequence_length
from ..training.sentence_embeddings import check_encoder
from .formats import ONNX_FILES, find_file


class OnnxEncoder(torch.nn.Module):
    """An encoder in ONNX Runtime, as Sentence Transformers calls encoders.

    It uses as many threads as PyTorch when it is made.
    """

    def __init__(self, file: Path, config: PreTrainedConfig):
        super().__init__()
        self.config = config
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
    if kind in ONNX_FILES:
        model = _load_onnx(name, kind, trust_remote_code)
    else:
        dtype = getattr(torch, kind)
        model = load_sentence_transformer(name, model_kwargs={"dtype": dtype}, trust_remote_code=trust_remote_code)
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
        return load_sentence_transformer(name, backend="onnx", trust_remote_code=trust_remote_code, device="cpu")


def _longest(model: SentenceTransformer) -> int | None:
    """The model's longest text in tokens, `None` if it has no limit."""
    longest = model.max_seq_length
    return None if longest is None or longest > 10**6 else int(longest)


def _to_float32(model: SentenceTransformer, inputs: Any, outputs: dict[str, Any]) -> None:
    """Similarities are computed in the type of the embeddings, and bfloat16 has too few digits to rank by them."""
    outputs["sentence_embedding"] = outputs["sentence_embedding"].float()


def describe_model(model: SentenceTransformer) -> dict[str, Any]:
    """The facts about a model in the results. The number of parameters is `None` in ONNX."""
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()) or None,
        "dimensions": model.get_embedding_dimension(),
        "max_seq_length": _longest(model),
        "device": str(model.device.type),
    }
