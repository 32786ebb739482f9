"""Models of sentence embeddings to evaluate: loaded in a format, checked, and told apart by a fingerprint.

Imports sentence-transformers (extra `embeddings`), so a command imports this module only after it has checked that.
"""

import hashlib
import json
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ..base.errors import UserError, report_unreadable
from ..base.shipped_files import MODEL_CARDS
from ..base.trained_model import check_folder
from ..training.model_loading import sequence_length
from ..training.sentence_embeddings import check_encoder


#: What a fingerprint of a configuration leaves out: it says where a model lies or who wrote it, not what it computes.
_IRRELEVANT = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "auto_map")


def find_embedding_model(name: str) -> str:
    """A model as given, or the folder of one that comes with this package.

    Raises:
        UserError: If the name is that of a missing folder.
    """
    shipped = MODEL_CARDS / name
    if (shipped / "modules.json").is_file() and "/" not in name:
        return str(shipped)
    check_folder(name)
    return name


def load_embedder(
    name: str, kind: str = "float32", max_seq_length: int | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """A model that embeds sentences, in a format. Its embeddings are float32 in every format.

    Checkpoints of Sentence Transformers, and of model2vec, have their own pooling; encoders of Transformers get the
    mean over the tokens.

    Args:
        name: Folder, Hub id, or name of a model that comes with this package.
        kind: `"float32"` or `"bfloat16"`.
        max_seq_length: Tokens that texts are cut to; the model's own by default. Static embeddings have no limit.
        trust_remote_code: Whether the checkpoint may run its own code.

    Raises:
        UserError: If it cannot be loaded, gives no embeddings of texts, or does not take so many tokens.
    """
    path, dtype = find_embedding_model(name), getattr(torch, kind)
    torch.manual_seed(0)  # of weights that are missing and not used, such as BERT's pooler: the fingerprint has them
    with report_unreadable(name):
        model = SentenceTransformer(path, model_kwargs={"dtype": dtype}, trust_remote_code=trust_remote_code)
    model = model.to(dtype).eval()  # modules beside the one of Transformers too
    model.register_forward_hook(_to_float32)
    if getattr(model, "transformers_model", None) is not None:
        check_encoder(model.config)
        model.max_seq_length = sequence_length(max_seq_length or _longest(model), model.config, model.tokenizer)
    try:
        shape = model.encode(["A sentence."], show_progress_bar=False).shape
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(f"{name!r} gives no embeddings of texts: {error}") from error
    if len(shape) != 2:
        raise UserError(f"{name!r} gives no embeddings of texts, but an array of shape {shape}.")
    return model


def _longest(model: SentenceTransformer) -> int | None:
    """The model's longest text in tokens, as far as it has one."""
    longest = model.max_seq_length
    return None if longest is None or longest > 10**6 else int(longest)


def _to_float32(model: SentenceTransformer, inputs: Any, outputs: dict[str, Any]) -> None:
    """Similarities are computed in the type of the embeddings, and bfloat16 has too few digits to rank by them."""
    outputs["sentence_embedding"] = outputs["sentence_embedding"].float()


def describe_model(model: SentenceTransformer) -> dict[str, Any]:
    """What the results say about a model: `weights` (its fingerprint), parameters, dimensions, longest text."""
    parameters = list(model.parameters())
    return {
        "weights": fingerprint(model),
        "parameters": sum(parameter.numel() for parameter in parameters),
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
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            settings.append({key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT})
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(_describe_tokenizer(model.tokenizer).encode())
    return digest.hexdigest()


def _describe_tokenizer(tokenizer: Any) -> str:
    """All that decides about a text's tokens. Padding and truncation change with every call."""
    fast = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return f"{type(tokenizer).__name__} {sorted(tokenizer.get_vocab().items())}"
    content = json.loads(fast.to_str())
    return json.dumps({key: value for key, value in content.items() if key not in ("padding", "truncation")})
