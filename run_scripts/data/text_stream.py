"""Streamed text corpora: split over processes, shuffled, packed, and resumed exactly.

A reader is a process, or one of its data loader workers. It reads its own documents in blocks, shuffles a block,
tokenizes it in parts and shuffles the rows of each part. Random numbers depend on the seed and the position only. A
position is therefore a few integers and the state of the file reader at the start of the block. Resuming reads that
block again, and nothing before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.utils import gather_object
from datasets.distributed import split_dataset_by_node
from fsspec.asyn import reset_lock
from torch.utils.data import DataLoader, get_worker_info
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from ..base.errors import BadDataError, UserError
from .loading import iterate_rows
from .packing import Encoder
from .row_seeds import ROW_NUMBER


#: Documents in a part of a block, which are tokenized and packed together.
PART_SIZE = 1000


@dataclass(frozen=True)
class StreamPosition:
    """The position of a reader, behind the rows that it has yielded.

    Args:
        epoch: Number of the pass over the corpus, from 0.
        block: Number of the block in this pass.
        shard: Number of shards (files) of this pass that were read completely before this block.
        source: State of the next shard's `datasets.IterableDataset` at the start of the block.
        part: Number of the part in the block.
        row: Number of rows of the part that were yielded.
    """

    epoch: int = 0
    block: int = 0
    shard: int = 0
    source: dict[str, Any] | None = None
    part: int = 0
    row: int = 0


class TextStream(torch.utils.data.IterableDataset):
    """An endless stream of token rows. Every pass over the corpus has another order.

    Args:
        documents: In a column `text`.
        encoder: Turns a batch of documents into rows, see `row_encoder`.
        seed: Seed of all shuffling.
        shuffle_buffer_size: Documents in a block, or up to a thousand more.
        shortest_row: Rows with fewer tokens are dropped.

    Raises:
        BadDataError: While iterating, if a reader finds no document, or the data are damaged.
    """

    column_names = None  # unknown, as for a `datasets.IterableDataset` without features

    def __init__(
        self,
        documents: datasets.IterableDataset,
        encoder: Encoder,
        seed: int,
        shuffle_buffer_size: int,
        shortest_row: int = 1,
    ):
        self.documents = documents
        self.encoder = encoder
        self.seed = seed
        self.shuffle_buffer_size = shuffle_buffer_size
        self.shortest_row = shortest_row
        self.process, self.processes = 0, 1
        self.first = 0
        self.positions = [StreamPosition()]

    def with_seed(self, seed: int) -> "TextStream":
        """The same documents in another order, from the start."""
        return TextStream(self.documents, self.encoder, seed, self.shuffle_buffer_size, self.shortest_row)

    def __iter__(self) -> Iterator[tuple[dict[str, list], int, StreamPosition, int]]:
        """Yield a numbered row, the index of its reader, the position of its part, and its index in the part."""
        worker = get_worker_info()
        if worker is not None:
            reset_lock()  # otherwise remote files hang in a forked process
        # The loader polls its workers in order. After resuming, the first has to be the one whose turn it was.
        reader = 0 if worker is None else (worker.id + self.first) % worker.num_workers
        first = self.process * len(self.positions)
        for row, position, number in self._rows(reader, self.positions[reader]):
            place = [first + reader, position.epoch, position.block, position.part, number]
            yield {**row, ROW_NUMBER: place}, reader, position, number

    def _rows(self, reader: int, start: StreamPosition) -> Iterator[tuple[dict[str, list], StreamPosition, int]]:
        position, readers = start, self.processes * len(self.positions)
        while True:
            found = position != StreamPosition()
            for block, begun in self._blocks(self.process * len(self.positions) + reader, readers, position):
                for part in range(begun.part, -(-len(block) // PART_SIZE)):
                    here = replace(begun, part=part, row=begun.row if part == begun.part else 0)
                    for number, row in self._encode(block[part * PART_SIZE : (part + 1) * PART_SIZE], here):
                        found = True
                        yield row, here, number
            if not found:
                raise BadDataError(
                    f"one of {readers} readers found no text to train on: give fewer processes, or fewer "
                    "--dataloader_num_workers."
                )
            position = StreamPosition(epoch=position.epoch + 1)

    def _blocks(self, reader: int, readers: int, begun: StreamPosition) -> Iterator[tuple[list[str], StreamPosition]]:
        """The blocks of a pass, from a position on."""
        shards, state, texts = self._shards(reader, readers, begun.epoch), begun.source, []
        for number in range(begun.shard, len(shards)):
            source = shards[number]
            if state is not None:
                source.load_state_dict(state)
                state = None
            if not texts and number > begun.shard:
                begun = StreamPosition(begun.epoch, begun.block, number)
            for new in self._read(source):
                texts += new
                if len(texts) >= self.shuffle_buffer_size:
                    yield self._shuffled(texts, reader, begun), begun
                    texts = []
                    begun = StreamPosition(begun.epoch, begun.block + 1, number, source.state_dict())
        if texts:
            yield self._shuffled(texts, reader, begun), begun

    def _shards(self, reader: int, readers: int, epoch: int) -> list[datasets.IterableDataset]:
        """The shards of a reader in a pass: its own files, or some lines of every file if there are too few files."""
        count = self.documents.num_shards
        order = self._permutation((epoch,), count)
        by_file = count >= readers
        shards = [self.documents.shard(count, int(index)) for index in (order[reader::readers] if by_file else order)]
        return shards if by_file else [split_dataset_by_node(shard, reader, readers) for shard in shards]

    def _permutation(self, numbers: tuple[int, ...], length: int) -> np.ndarray:
        return np.random.default_rng((self.seed, *numbers)).permutation(length)

    def _read(self, source: datasets.IterableDataset) -> Iterator[list[str]]:
        # Not `iter(source)`, which would split the documents between workers a second time.
        batches = source.iter(batch_size=min(self.shuffle_buffer_size, PART_SIZE))
        for batch in iterate_rows(batches, "train"):
            yield batch["text"]

    def _shuffled(self, texts: list[str], reader: int, position: StreamPosition) -> list[str]:
        order = self._permutation((reader, position.epoch, position.block), len(texts))
        return [texts[index] for index in order]

    def _encode(self, texts: list[str], position: StreamPosition) -> Iterator[tuple[int, dict[str, list]]]:
        columns = self.encoder({"text": texts})
        rows = [index for index, ids in enumerate(columns["input_ids"]) if len(ids) >= self.shortest_row]
        order = self._permutation((position.epoch, position.block, position.part), len(rows))
        for number in range(position.row, len(rows)):
            index = rows[order[number]]
            yield number, {name: values[index] for name, values in columns.items()}


class StreamLoader(DataLoader):
    """Batches of a `TextStream`, with the readers' positions after the batches that were used, not those prefetched.

    Args:
        stream: The rows.
        collator: Turns rows into a batch.
        options: Further arguments of `DataLoader`.
    """

    def __init__(self, stream: TextStream, collator: Callable[[list[dict[str, Any]]], Any], **options: Any):
        # Its own generator: seeding the workers must not draw from the model's random numbers.
        collate = partial(_collate, collator=collator)
        super().__init__(stream, collate_fn=collate, generator=torch.Generator(), **options)

    def __iter__(self) -> Iterator[Any]:
        """Batches from the stream's positions on. Every batch advances them."""
        for batch, reader, position in super().__iter__():
            self.dataset.positions[reader] = StreamPosition(**position)
            self.dataset.first = (reader + 1) % len(self.dataset.positions)
            yield batch


def _collate(
    rows: list[tuple[dict[str, list], int, StreamPosition, int]], collator: Callable[[list[dict[str, Any]]], Any]
) -> tuple[Any, int, dict[str, Any]]:
    """A batch, its reader, and the position behind it. Not a local function: workers unpickle it."""
    _, reader, position, number = rows[-1]
    next_position = replace(position, row=number + 1)
    return collator([row for row, *_ in rows]), reader, asdict(next_position)


class StreamState(TrainerCallback, ExportableState):
    """Saves the positions of all readers in a checkpoint's `trainer_state.json`.

    Args:
        stream: The training data.
        args: The Trainer's arguments, which give the numbers of processes and workers.
    """

    def __init__(self, stream: TextStream, args: TrainingArguments):
        self.stream = stream
        self.step = 0
        self.readers: list[dict[str, Any]] = []
        stream.process, stream.processes = args.process_index, args.world_size
        stream.positions = [StreamPosition()] * max(1, args.dataloader_num_workers)

    def restore(self, checkpoint: str) -> None:
        """Restore the readers' positions.

        Raises:
            UserError: If the checkpoint was written with another number of readers, or without streaming.
        """
        state = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))
        saved = (state.stateful_callbacks.get(type(self).__name__) or {}).get("attributes", {})
        readers, stream = saved.get("readers") or [], self.stream
        if saved.get("step") != state.global_step or not readers:
            raise UserError(
                f"{checkpoint!r} does not say how far the streamed data were read: resume without --streaming if it "
                "was written so, or from another checkpoint."
            )
        counts = len(readers), len(readers[0]["places"])
        if counts != (stream.processes, len(stream.positions)):
            raise UserError(
                f"{checkpoint!r} was written by {counts[0]} processes with {counts[1]} readers each, this run has "
                f"{stream.processes} with {len(stream.positions)}: streamed data are read on only by as many. Start "
                "with the same number of processes and --dataloader_num_workers."
            )
        stream.first = readers[stream.process]["first"]
        stream.positions = [StreamPosition(**position) for position in readers[stream.process]["places"]]

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Gather the positions of all processes before the main process writes a checkpoint."""
        state.epoch = state.global_step / state.max_steps  # the Trainer counts a resumed run from 0
        if control.should_save or control.should_evaluate:  # after an evaluation the best model is saved
            here = {"first": self.stream.first, "places": [asdict(position) for position in self.stream.positions]}
            self.step, self.readers = state.global_step, gather_object([here])

    def state(self) -> dict[str, Any]:
        """The state that the Trainer saves in the checkpoint."""
        return {"args": {}, "attributes": {"step": self.step, "readers": self.readers}}
