"""A teacher's logits of the training data, computed once and kept in files.

The folder of a cache is named by a fingerprint of everything that the logits depend on: the teacher's weights, the
training rows, and how batches are made of them. Another teacher or other data have another folder. A file in it
(safetensors) holds consecutive rows and is complete as soon as it exists: an interrupted run goes on with those that
are missing.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer

from ..base.errors import BadDataError, UserError
from .run_folder import write_atomically


#: Column with the number of a row in the training data.
TEACHER_ROW = "teacher_row"

#: Entry of a batch with the teacher's logits of its rows.
TEACHER_LOGITS = "teacher_logits"

#: Name of the folder for caches in an output folder; the Hub does not get it.
FOLDER = "_teacher_logits"

#: What is in a cache, for people, and how its rows are divided.
RECORD = "cache.json"

#: Fields of a configuration that saving and loading change.
_OF_THE_FILE = ("_name_or_path", "transformers_version", "architectures", "dtype")

#: About so many bytes are in a file.
FILE_SIZE = 64 * 2**20

#: So many rows show how large the cache will be.
_SAMPLE = 32


@dataclass
class CachePlan:
    """Where a cache will be, and what it depends on besides the teacher and the rows.

    Args:
        parent: Its folder is made in this one.
        settings: How batches are made of the rows.
        top_k: Logits to keep of a token's; all by default.
    """

    parent: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    top_k: int | None = None


class CachingCollator:
    """Adds the teacher's logits to the batches of another collator.

    Args:
        collator: Gets the rows without their number.
        distillation: Puts the logits of rows together.
        cache: The logits. Without it nothing is added, as to batches of rows without a number.
    """

    def __init__(self, collator: Any, distillation: Any, cache: "LogitsFiles | None" = None):
        self.collator = collator
        self.join = distillation.join  # a static method: not the teacher
        self.cache = cache

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        numbers = [row[TEACHER_ROW] for row in rows if TEACHER_ROW in row]
        batch = self.collator([{name: row[name] for name in row if name != TEACHER_ROW} for row in rows])
        if self.cache is not None and numbers:
            batch[TEACHER_LOGITS] = self.join([self.cache[int(number)] for number in numbers], batch)
        return batch


def fingerprint(teacher: PreTrainedModel, rows: datasets.Dataset, settings: Mapping[str, Any]) -> str:
    """A hash of everything that the teacher's logits depend on, 32 hexadecimal digits.

    Image files are represented by path, size and time of their last change.
    """
    digest = hashlib.blake2b(digest_size=16)
    config = {name: value for name, value in teacher.config.to_dict().items() if name not in _OF_THE_FILE}
    known = [type(teacher).__name__, config, settings]
    digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    digest_weights(digest, teacher)
    for content in _row_contents(rows):
        digest.update(content)
    return digest.hexdigest()


def digest_weights(digest: Any, model: torch.nn.Module) -> None:
    """Add a model's parameters and buffers to a digest of `hashlib`."""
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _row_contents(rows: datasets.Dataset) -> Iterator[bytes]:
    images = [name for name, feature in rows.features.items() if isinstance(feature, datasets.Image)]
    tables = rows.with_format("arrow")
    for start in range(0, len(rows), 1000):
        table = tables[start : start + 1000].replace_schema_metadata(None).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield sink.getvalue()
        for name in images:
            for path in pa.compute.struct_field(table[name], "path").to_pylist():
                if path is not None and Path(path).is_file():
                    state = Path(path).stat()
                    yield f"{state.st_size} {state.st_mtime_ns}".encode()


class LogitsFiles:
    """The files of a cache.

    Args:
        folder: Of this cache alone.
        rows: Number of training rows.
        rows_per_file: Number of rows in each file but the last.
        classes: Entries of a row's logits, `None` if rows differ.
        top_k: How many of them are kept; all by default.
    """

    def __init__(self, folder: Path, rows: int, rows_per_file: int, classes: int | None, top_k: int | None = None):
        self.folder = folder
        self.rows = rows
        self.rows_per_file = rows_per_file
        self.classes = classes
        self.top_k = None if top_k is None or classes is None or top_k >= classes else top_k
        self._open: dict[tuple[int, int], tuple[Any, torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        """Number of files."""
        return -(-self.rows // self.rows_per_file)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def path(self, number: int) -> Path:
        """The file with this number."""
        return self.folder / f"logits-{number:05d}-of-{len(self):05d}.safetensors"

    def rows_of(self, number: int) -> range:
        """The rows in the file with this number."""
        return range(number * self.rows_per_file, min((number + 1) * self.rows_per_file, self.rows))

    def write(self, number: int, rows: Sequence[torch.Tensor]) -> None:
        """Write a file: complete as soon as it exists."""
        tensors = {}
        if self.top_k is not None:
            found = [row.topk(self.top_k) for row in rows]
            tensors["indices"] = torch.cat([top.indices.reshape(-1).int() for top in found])
            rows = [top.values for top in found]
        tensors["values"] = torch.cat([row.reshape(-1) for row in rows])
        tensors["starts"] = torch.tensor([0, *(row.numel() for row in rows)]).cumsum(0)
        tensors["lines"] = torch.tensor([len(row) for row in rows])
        partial = self.folder / f"_{self.path(number).name}.{os.getpid()}"
        save_file(tensors, partial)
        os.replace(partial, self.path(number))

    def __getitem__(self, row: int) -> torch.Tensor:
        """The logits of a row, with two dimensions; -inf for those that were not kept.

        Raises:
            BadDataError: If the file is missing or damaged.
        """
        number, place = divmod(row, self.rows_per_file)
        try:
            file, starts, lines = self._opened(number)
            part, count = slice(*starts[place : place + 2].tolist()), int(lines[place])
            width = (part.stop - part.start) // count if count else self.top_k or self.classes or 0
            values = file.get_slice("values")[part].view(count, width)
            if self.top_k is None:
                return values
            indices = file.get_slice("indices")[part].view(count, width).long()
            return values.new_full((count, self.classes), float("-inf")).scatter_(1, indices, values)
        except (OSError, SafetensorError) as error:
            raise BadDataError(
                f"the teacher's logits in {str(self.path(number))!r} cannot be read ({error}): remove that file, and "
                "the teacher runs again for its rows."
            ) from error

    def _opened(self, number: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        key = os.getpid(), number
        if key not in self._open:
            file = safe_open(self.path(number), "pt")
            self._open[key] = file, file.get_tensor("starts"), file.get_tensor("lines")
        return self._open[key]


def fill_cache(distillation: Any, trainer: Trainer, plan: CachePlan) -> None:
    """Let the teacher run over all training rows that the cache lacks, and give the Trainer's batches its logits.

    The files are divided between the processes.
    """
    args, rows = trainer.args, trainer.train_dataset.add_column(TEACHER_ROW, np.arange(len(trainer.train_dataset)))
    trainer.train_dataset = rows
    collator = trainer.data_collator = CachingCollator(trainer.data_collator, distillation)
    seen = trainer._remove_unused_columns(rows, "training") if args.remove_unused_columns else rows
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    settings = {**plan.settings, "precision": precision, "top_k": plan.top_k, "kind": type(distillation).__name__}
    settings["vocabulary"] = getattr(distillation, "vocabulary", None)
    folder = plan.parent / fingerprint(distillation.teacher, seen, settings)
    files = _plan_files(distillation, trainer, seen, folder, plan.top_k)
    missing = [number for number in range(len(files)) if not files.path(number).is_file()]
    if trainer.is_world_process_zero():
        _write_record(files, settings)
        state = f"runs over {len(missing)} of its {len(files)} parts" if missing else "is complete"
        print(f"the teacher's logits of {files.rows:,} rows: {folder} {state}", flush=True)
    trainer.accelerator.wait_for_everyone()
    for number in missing[args.process_index :: args.world_size]:
        part = seen.select(files.rows_of(number))
        files.write(number, list(_teacher_rows(distillation, trainer, part)))
    trainer.accelerator.wait_for_everyone()
    for number in range(len(files)):
        if not files.path(number).is_file():
            raise UserError(
                f"{str(files.path(number))!r} is missing: --cache_teacher needs a folder of all processes."
            )
    collator.cache = files


def _plan_files(
    distillation: Any, trainer: Trainer, rows: datasets.Dataset, folder: Path, top_k: int | None
) -> LogitsFiles:
    """The files of a cache, whose sizes follow from a few rows; or as an earlier attempt has planned them."""
    record = folder / RECORD
    if record.is_file():
        try:
            plan = json.loads(record.read_text(encoding="utf-8"))
            return LogitsFiles(folder, len(rows), plan["rows_per_file"], plan["classes"], top_k)
        except (ValueError, KeyError, TypeError) as error:
            raise BadDataError(
                f"{str(record)!r} is damaged: remove its folder, and the teacher runs again."
            ) from error
    some = list(_teacher_rows(distillation, trainer, rows.select(range(min(_SAMPLE, len(rows))))))
    classes = some[0].shape[1] if distillation.has_vocabulary else None
    kept = sum(row.numel() if top_k is None else len(row) * min(top_k, row.shape[1]) for row in some)
    size = kept * (some[0].element_size() + (4 if top_k is not None else 0)) / len(some)
    check_room(folder, size * len(rows), ", or keep fewer logits with --cache_top_k where there is one")
    return LogitsFiles(folder, len(rows), max(1, int(FILE_SIZE // max(size, 1))), classes, top_k)


def _teacher_rows(distillation: Any, trainer: Trainer, rows: datasets.Dataset) -> Iterator[torch.Tensor]:
    """The teacher's logits of each row, on the CPU."""
    args = trainer.args
    loader = DataLoader(
        rows,
        args.per_device_eval_batch_size,
        collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers,
        generator=torch.Generator(),  # the random numbers of the training stay the same
    )
    for batch in loader:
        batch = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            logits = distillation.teacher_logits(batch)
        yield from (row.cpu() for row in distillation.split(logits, batch))


def check_room(folder: Path, needed: float, remedies: str = "") -> None:
    """Check that a cache fits on its disk."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"--cache_teacher needs {needed / 1e9:.1f} GB in {str(folder.parent)!r}, where {free / 1e9:.1f} GB are "
            f"free: make room, or give another folder{remedies}."
        )


def _write_record(files: LogitsFiles, settings: Mapping[str, Any]) -> None:
    files.folder.mkdir(parents=True, exist_ok=True)
    plan = {"rows": files.rows, "rows_per_file": files.rows_per_file, "classes": files.classes, "settings": settings}
    write_atomically(files.folder / RECORD, json.dumps(plan, indent=2, default=str) + "\n")
