"""A teacher's embeddings of texts, computed once and kept in files in half precision.

The folder of a cache is named by a fingerprint of the teacher; embeddings are found by a hash of their text. So runs
on other parts of the same texts share them, and new texts are added. A file (safetensors) is complete as soon as it
exists: an interrupted run goes on with the texts that are missing.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedConfig

from ..base.errors import BadDataError, UserError
from .run_folder import write_atomically


#: File with what is in a cache, for people.
RECORD = "cache.json"

#: Texts in a file.
TEXTS_PER_FILE = 16_384

#: Entries of a tokenizer's files that say how it was used last, and where it was loaded from.
CHANGED_BY_USE = ("truncation", "padding", "is_local", "local_files_only")

#: Texts that the teacher reads together, of similar length. CPUs are faster with few.
_BATCH_SIZE = {"cpu": 16}


def text_key(text: str) -> int:
    """A hash of 64 bits. Among ten million texts two have the same one with a probability of 3 in a million."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _check_room(folder: Path, needed: float) -> None:
    """Check that a cache fits on its disk."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"--cache_teacher needs {needed / 1e9:.1f} GB in {str(folder.parent)!r}, where {free / 1e9:.1f} GB are "
            f"free: make room, or give another folder."
        )


def teacher_fingerprint(teacher: Any) -> str:
    """A hash of everything that a `SentenceTransformer`'s embeddings depend on: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    modules = [(name, *_describe_module(module)) for name, module in teacher.named_modules()]
    tokenizers = {id(found): found for module in teacher.modules() if (found := getattr(module, "tokenizer", None))}
    settings = [teacher.max_seq_length, teacher.truncate_dim, teacher.default_prompt_name, teacher.prompts]
    known = [modules, [_describe_tokenizer(tokenizer) for tokenizer in tokenizers.values()], settings]
    digest.update(json.dumps(known, sort_keys=True, default=_plain).encode())
    for name, tensor in sorted(teacher.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """What JSON has no type for. The order of a set is another one in every process."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _describe_module(module: torch.nn.Module) -> list[Any]:
    """A module's class, of remote code with the version of its files in the name, and its settings."""
    config = getattr(module, "config", None)
    config = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    settings = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    own = getattr(module, "get_config_dict", dict)()  # of Sentence Transformers' modules
    return [type(module).__module__, type(module).__qualname__, module.extra_repr(), settings, own]


def _describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """A tokenizer's files, without what using it or loading it from elsewhere changes."""
    if not hasattr(tokenizer, "save_pretrained"):  # of static embeddings, or for words
        return json.loads(tokenizer.to_str()) if hasattr(tokenizer, "to_str") else vars(tokenizer)
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}
    for name, text in files.items():
        if name.endswith(".json"):
            files[name] = {key: value for key, value in json.loads(text).items() if key not in CHANGED_BY_USE}
    return files


class TeacherEmbeddings:
    """The files of a teacher's cache.

    Args:
        parent: The teacher's folder is made in this one.
        teacher: A `SentenceTransformer`, on its device and in the number format that it computes in.
        name: Its name, for people.
    """

    def __init__(self, parent: Path, teacher: Any, name: str):
        self.folder = parent / teacher_fingerprint(teacher)
        self.teacher = teacher
        self.name = name
        self.dimension = int(teacher.get_embedding_dimension())
        self._open: dict[int, Any] = {}

    def add(self, texts: Iterator[str], rank: int = 0, processes: int = 1) -> int:
        """Let the teacher read the texts that the cache lacks.

        Several processes divide the texts; all of them have to call this.

        Returns:
            How many texts were missing.
        """
        known = set(self.keys.tolist())
        missing = {key: text for text in texts if (key := text_key(text)) not in known}
        if not missing:
            return 0
        _check_room(self.folder, len(missing) * (2 * self.dimension + 8))
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            facts = {"teacher": self.name, "dimension": self.dimension, "dtype": str(self.teacher.dtype)}
            write_atomically(self.folder / RECORD, json.dumps(facts, indent=2) + "\n")
        # In the order of the keys, which is random, files are alike; the teacher sorts the texts of each by length.
        keys = sorted(missing)
        parts = [keys[start : start + TEXTS_PER_FILE] for start in range(0, len(keys), TEXTS_PER_FILE)]
        for number, part in enumerate(parts[rank::processes], start=1):
            self._write(part, [missing[key] for key in part])
            if rank == 0:
                read = min(number * TEXTS_PER_FILE * processes, len(keys))
                print(f"the teacher has read {read:,} of {len(keys):,} texts", flush=True)
        return len(missing)

    def _write(self, keys: Sequence[int], texts: Sequence[str]) -> None:
        size = _BATCH_SIZE.get(self.teacher.device.type, 256)
        embeddings = self.teacher.encode(texts, batch_size=size, show_progress_bar=False, convert_to_tensor=True)
        if not embeddings.isfinite().all():
            raise UserError(f"the teacher {self.name!r} gives embeddings with infinite values or NaN.")
        tensors = {"keys": torch.tensor(keys), "embeddings": embeddings.half().cpu().contiguous()}
        name = f"{keys[0] & 0xFFFFFFFFFFFFFFFF:016x}-{len(keys)}.safetensors"
        partial = self.folder / f"_{name}.{os.getpid()}"
        save_file(tensors, partial)
        os.replace(partial, self.folder / name)
        self.__dict__.pop("files", None)
        self.__dict__.pop("keys", None)

    @cached_property
    def files(self) -> list[Path]:
        """The complete files, in alphabetical order."""
        return sorted(self.folder.glob("[!_]*.safetensors"))

    @cached_property
    def keys(self) -> np.ndarray:
        """The keys of all embeddings, file by file."""
        found = [self._read(path, "keys").numpy() for path in self.files]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def places(self, texts: Sequence[str]) -> list[int]:
        """Where the embeddings of texts stand, which must be there: numbers for `__getitem__`."""
        order = self._order
        wanted = np.array([text_key(text) for text in texts], dtype=np.int64)
        found = np.minimum(np.searchsorted(self.keys, wanted, sorter=order), len(order) - 1)
        places = order[found]
        if not np.array_equal(self.keys[places], wanted):
            raise BadDataError(
                f"{str(self.folder)!r} lacks embeddings: --cache_teacher needs a folder of all processes."
            )
        return places.tolist()

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.keys, kind="stable")

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(len(self._read(path, "keys")) for path in self.files)])

    def __getitem__(self, places: torch.Tensor) -> torch.Tensor:
        """The embeddings at `places` of shape `(rows,)`: float32, shape `(rows, dimension)`.

        Raises:
            BadDataError: If a file is missing or damaged.
        """
        result = torch.empty(len(places), self.dimension, dtype=torch.float16)
        places = places.cpu()
        numbers = torch.from_numpy(np.searchsorted(self._starts, places.numpy(), side="right") - 1)
        for number in numbers.unique().tolist():
            if number not in self._open:  # mapped, not read
                self._open[number] = self._read(self.files[number], "embeddings")
            rows = numbers == number
            result[rows] = self._open[number][places[rows] - int(self._starts[number])]
        return result.float()

    def _read(self, path: Path, name: str) -> torch.Tensor:
        try:
            with safe_open(path, "pt") as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise BadDataError(
                f"the teacher's embeddings in {str(path)!r} cannot be read ({error}): remove that file, and the "
                "teacher reads its texts again."
            ) from error
