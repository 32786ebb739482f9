"""Folders of trained models: what they must have, and loading them.

Every command opens a model by one of these functions, which refuse a folder that is not whole: Transformers and
Sentence Transformers replace what is missing by random weights, an empty tokenizer or a pooling of their own.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, logging

from .errors import UserError, report_unreadable


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


#: Class of a module of Sentence Transformers -> its files, if they are others than config.json.
MODULE_FILES: dict[str, tuple[str, ...]] = {
    "Normalize": (),
    "Router": (),  # whose name has changed
    "Asym": (),
    "StaticEmbedding": ("tokenizer.json",),
    "LSTM": ("lstm_config.json",),
    "CNN": ("cnn_config.json",),
    "WordEmbeddings": ("wordembedding_config.json",),
}

#: Classes of modules with weights in their folders, and the names of these files.
MODULES_WITH_WEIGHTS = (
    *("Dense", "LayerNorm", "StaticEmbedding", "LSTM", "CNN", "WordEmbeddings", "WordWeights"),
    "WeightedLayerPooling",
)
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

#: Endings of the files that a model is made of: weights, settings, tokenizer, code.
_ENDINGS = (".safetensors", ".bin", ".json", ".txt", ".model", ".py", ".onnx", ".onnx_data", ".data", ".xml")
#: Files and folders that a run leaves beside them.
_OF_RUNS = re.compile(r"training_args\.bin|trainer_state\.json|.*results.*\.json|.*predictions.*|checkpoint-.*|[_.].*")
_OF_TOKENIZERS = re.compile(r"(tokenizer|vocab|merges|special_tokens|added_tokens)[^/]*|[^/]*\.model")
#: Files of which a model or a tokenizer on the Hub has at least one.
_KNOWN_BY = ("config.json", "modules.json", "tokenizer_config.json", "tokenizer.json")
#: How to find what is in the cache, `None` if nothing is.
_LOCAL = {
    "local_files_only": True,
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
    "_raise_exceptions_for_gated_repo": False,
}


def label_names(config: PreTrainedConfig) -> list[str]:
    """The names of a classifier's labels, in the order of their indices."""
    return [config.id2label[index] for index in range(config.num_labels)]


def file_fingerprint(path: str | Path) -> str:
    """A hash of a file's content: 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_fingerprint(name: str, revision: str | None = None, tokenizer_alone: bool = False) -> str:
    """A hash of a model's files, wherever its folder is: 32 hexadecimal digits.

    Args:
        name: Folder or Hub id. Of a Hub id, its commit in the cache counts; without any, the name.
        revision: Which one on the Hub.
        tokenizer_alone: Whether only the files of a folder's tokenizer count.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        known = filter(None, (cached_file(name, file, revision=revision, **_LOCAL) for file in _KNOWN_BY))
        # Their folder is named by the commit. More of its files may be downloaded later: they are not hashed.
        commit = next((Path(file).parent.name for file in known), revision)
        return hashlib.blake2b(f"{name}@{commit}".encode(), digest_size=16).hexdigest()
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if tokenizer_alone and not _OF_TOKENIZERS.fullmatch(place.as_posix()):
            continue
        if path.suffix in _ENDINGS and path.is_file() and not any(map(_OF_RUNS.fullmatch, place.parts)):
            digest.update(f"{place.as_posix()} {file_fingerprint(path)}\n".encode())
    return digest.hexdigest()


def check_folder(name: str, may_be_static: bool = False, **hub: Any) -> None:
    """Check that a folder is there and has the files of its modules, and that it is a model with layers.

    Transformers would look for a missing folder on the Hub, without a network repeatedly.

    Args:
        name: Folder, or Hub id, of which only the layers are checked.
        may_be_static: Whether it may be static embeddings, which have a tokenizer and no layers.
        hub: `token` and `revision` of a Hub id.
    """
    path = Path(name)
    if (name.count("/") > 1 or path.is_absolute() or name.startswith((".", "~"))) and not path.exists():
        raise UserError(f"there is no folder {name!r}.")
    if name.count("/") == 1 and not path.exists() and any(path.parent.glob("*/config.json")):
        raise UserError(
            f"there is no {path.name!r} in the folder {str(path.parent)!r}: correct {name!r}, or run where "
            "there is no such folder if it is a Hub id."
        )
    modules: list[str] = []
    if path.is_dir():
        modules = check_modules(path, lambda file: (path / file).is_file())
    elif not may_be_static and (file := _modules_of_hub(name, hub)) is not None:
        modules = check_modules(Path(file).parent, lambda _: True)  # what is missing there is downloaded later
    if modules[:1] == ["StaticEmbedding"] and not may_be_static:
        raise UserError(
            f"{name!r} is a static model: an embedding for each token, and no layers to train, cut, export or "
            "convert. It gives embeddings (`SentenceTransformer.encode`), which `evaluate_embeddings` measures, a "
            "classifier of scikit-learn takes as features, and a student learns (--teacher of "
            "run_sentence_embeddings). Give a model with layers here."
        )


def _modules_of_hub(name: str, hub: dict[str, Any]) -> str | None:
    """The modules.json of a Hub id; only a repository that the cache knows nothing of is asked for it."""
    from .hub_errors import offline_without_network  # which imports `datasets`, in a second

    try:
        known = [cached_file(name, file, **hub, **_LOCAL) for file in ("modules.json", "config.json")]
        if any(known):
            return known[0]
        with offline_without_network():
            return cached_file(name, "modules.json", **hub, **{**_LOCAL, "local_files_only": False})
    except OSError:  # no such repository, or no name of one, which loading it says
        return None


def check_modules(folder: Path, has: Callable[[str], bool]) -> list[str]:
    """Check that a folder has the files of the modules of Sentence Transformers, if it is one of theirs.

    Args:
        folder: The folder.
        has: Whether a file counts, by its path in the folder.

    Returns:
        The classes of its modules.
    """
    if not has("modules.json"):
        if has("config_sentence_transformers.json"):
            raise UserError(f"{str(folder)!r} has no modules.json, which names its modules: copy or save it again.")
        return []
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        parts = [(Path(module["path"]), module["type"].split(".")) for module in modules]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"the modules.json of {str(folder)!r} cannot be read ({error}): copy it again.") from error
    for path, kind in parts:
        if kind[0] != "sentence_transformers":
            continue
        files: list[tuple[str, ...]] = [(file,) for file in MODULE_FILES.get(kind[-1], ("config.json",))]
        files += [WEIGHTS] if kind[-1] in MODULES_WITH_WEIGHTS else []
        for names in files:
            if not any(has((path / file).as_posix()) for file in names):
                raise UserError(
                    f"{str(folder)!r} has no {(path / names[0]).as_posix()}, the file of a module that its "
                    "modules.json names: copy or save it again."
                )
    return [kind[-1] for _, kind in parts]


def check_complete(name: str, missing: Iterable[str], poolers: bool = False) -> None:
    """Check that a checkpoint lacks no weights.

    Args:
        name: The checkpoint.
        missing: Names of the weights that it lacks.
        poolers: Whether those of a base model's pooler count. Nothing here reads its output, except a Sentence
            Transformer that asks for it.
    """
    if names := sorted(name for name in missing if poolers or not name.startswith("pooler.")):
        raise UserError(
            f"{name!r} has no weights for {', '.join(names[:3])}: it was not trained for this task, or is not whole."
        )


def check_vocabulary(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer is from files: without them Transformers makes one that knows special tokens alone."""
    files, whole = type(tokenizer).vocab_files_names, "tokenizer.json"
    folder, merges = Path(tokenizer.name_or_path), files.get("merges_file")
    cut_off = merges is not None and folder.is_dir() and not any((folder / file).exists() for file in (merges, whole))
    # T5's mark of a word's start is no special token.
    if cut_off or {*tokenizer.get_vocab()} <= {*tokenizer.all_special_tokens, "▁"}:
        instead = " and ".join(file for file in files.values() if file != whole)
        raise UserError(
            f"{name!r} has no {whole}{f', nor {instead}' if instead else ''}, or one with special tokens alone: save "
            "the tokenizer again."
        )


def check_ids(name: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Check that a model has an embedding for every id of its tokenizer; otherwise a `UserError` says what to do."""
    ids, rows = len(tokenizer), getattr(model.get_input_embeddings(), "num_embeddings", None)
    if rows is not None and ids > rows:
        raise UserError(
            f"the tokenizer of {name!r} has {ids} ids, its model {rows} embeddings: resize them "
            f"(`model.resize_token_embeddings({ids})`), or give the tokenizer that fits."
        )


def _checked_tokenizer(name: str, load: Callable[[], PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """A tokenizer, checked; what cannot be loaded for want of a file is a `UserError` that names it."""
    try:
        tokenizer = load()
    except (OSError, ValueError) as error:
        folder = Path(name)
        if (folder / "tokenizer_config.json").is_file() and not (folder / "tokenizer.json").is_file():
            raise UserError(f"{name!r} has no tokenizer.json: save the tokenizer again. ({error})") from error
        raise
    check_vocabulary(name, tokenizer)
    return tokenizer


@contextmanager
def checked_loading(check: Callable[[str, Iterable[str]], None]) -> Iterator[None]:
    """Check what another library loads inside the context.

    Args:
        check: Gets the name of every checkpoint, and the weights that it lacks. Tokenizers must have a vocabulary.
    """
    load_model = PreTrainedModel.from_pretrained.__func__
    load_tokenizer = PreTrainedTokenizerBase.from_pretrained.__func__

    def model(cls: type, name: str, *arguments: Any, **options: Any) -> Any:
        with_report = options.pop("output_loading_info", False)
        found, report = load_model(cls, name, *arguments, output_loading_info=True, **options)
        check(str(name), report["missing_keys"])
        return (found, report) if with_report else found

    def tokenizer(cls: type, name: str, *arguments: Any, **options: Any) -> PreTrainedTokenizerBase:
        return _checked_tokenizer(str(name), lambda: load_tokenizer(cls, name, *arguments, **options))

    with (
        patch.object(PreTrainedModel, "from_pretrained", classmethod(model)),
        patch.object(PreTrainedTokenizerBase, "from_pretrained", classmethod(tokenizer)),
    ):
        yield


def hide_bars_of_weights() -> None:
    """No bars for reading and writing weights, which stay on the screen; downloads keep theirs."""
    downloads_have_bars = not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads_have_bars:
        enable_progress_bars()


def load_trained(auto_class: type, name: str, **options: Any) -> PreTrainedModel:
    """Load a checkpoint that has all weights of the class, in evaluation mode."""
    check_folder(name)
    hide_bars_of_weights()
    with report_unreadable(name):
        model, report = auto_class.from_pretrained(name, output_loading_info=True, **options)
    check_complete(name, report["missing_keys"])
    return model.eval()


def load_trained_tokenizer(name: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint that has one."""
    try:
        return _checked_tokenizer(name, lambda: AutoTokenizer.from_pretrained(name, **options))
    except (OSError, ValueError) as error:
        lacks = Path(name).is_dir() and not (Path(name) / "tokenizer.json").is_file()
        raise UserError(
            f"no tokenizer can be loaded from {name!r}{', which has no tokenizer.json' if lacks else ''}: {error}"
        ) from error


def load_sentence_transformer(name: str, **options: Any) -> "SentenceTransformer":
    """Load a Sentence Transformer, or an encoder that gets mean pooling, with everything that embeddings depend on."""
    from sentence_transformers import SentenceTransformer  # of the extra `embeddings`

    check_folder(name, may_be_static=True)
    missing: list[str] = []
    with report_unreadable(name), checked_loading(lambda _, names: missing.extend(names)):
        try:
            model = SentenceTransformer(name, **options)
        except (TypeError, KeyError, RuntimeError) as error:  # what modules raise for settings or weights
            raise UserError(f"{name!r} cannot be loaded: a module's files do not fit it ({error}).") from error
    check_complete(name, missing, any("pooler_output" in str(getattr(part, "modality_config", "")) for part in model))
    tokenizer = getattr(model[0], "tokenizer", None)
    if isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.pad_token is None:
        raise UserError(
            f"the tokenizer of {name!r} has no padding token, which batches need: tokenizer_config.json must name it, "
            "save the tokenizer again."
        )
    if isinstance(encoder := model.transformers_model, PreTrainedModel):
        check_ids(name, tokenizer, encoder)
    if getattr(model[0], "do_lower_case", False):  # which the library reads and does not save
        model[0].config_keys = [*model[0].config_keys, "do_lower_case"]
    model.register_forward_hook(_truncate)  # what is trained is what `encode` gives
    return model


def _truncate(model: "SentenceTransformer", inputs: Any, outputs: dict[str, Any]) -> None:
    """Cut embeddings to the folder's `truncate_dim`, which `encode` alone does."""
    outputs["sentence_embedding"] = outputs["sentence_embedding"][..., : model.truncate_dim]


def default_prompt(model: "SentenceTransformer") -> str:
    """What `encode` puts before every text, by the folder's `default_prompt_name`; empty if nothing."""
    return model.prompts.get(model.default_prompt_name) or ""
