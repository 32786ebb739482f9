"""Corpora read while training: shared between processes, shuffled, packed, and continued exactly where a run stopped.

A reader is a process, or a data loader worker of one. Each reads documents of its own in blocks, shuffles a block,
tokenizes it in parts and shuffles the rows of a part. All random numbers depend on the seed and the place alone. So
the place of a row is a few integers and the state of the file reader at the start of its block, and reading on from it
means reading that block again, and nothing before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
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
from .loading import readable
from .packing import Encoder


#: Documents that are tokenized, and packed, together.
PART = 1000


@dataclass(frozen=True)
class Place:
    """Where a reader stands: behind the rows that it has given so far.

    Args:
        epoch: Passes over the corpus before this one.
        block: Blocks of this pass before this one.
        shard: Shards (files) of this pass that were read to their end before this block.
        source: State of the `datasets.IterableDataset` of the next shard at the start of the block.
        part: Parts of the block before this one.
        row: Rows of the part that were given.
    """

    epoch: int = 0
    block: int = 0
    shard: int = 0
    source: dict[str, Any] | None = None
    part: int = 0
    row: int = 0


class TextStream(torch.utils.data.IterableDataset):
    """Rows of tokens, without end: a pass over the corpus follows another, the files in another order.

    Args:
        documents: In a column `text`.
        encoder: Makes rows of a batch of documents.
        seed: Of all shuffling.
        shuffle_buffer_size: Documents in a block, or up to a thousand more.
        shortest_row: Rows with fewer tokens are left out.

    Raises:
        BadDataError: While iterating, if a reader finds no document at all, or the data are damaged.
    """

    column_names = None  # as of a `datasets.IterableDataset` that has not been looked into

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
        self.places = [Place()]

    def __iter__(self) -> Iterator[tuple[dict[str, list], int, Place, int]]:
        """Rows, each with the number of its reader within the process, its part's place and its number in the part."""
        worker = get_worker_info()
        if worker is not None:
            reset_lock()  # remote files would hang in a forked process
        # The loader asks its workers in turn, from the first one on, which has to be whoever's turn it was.
        reader = 0 if worker is None else (worker.id + self.first) % worker.num_workers
        for row, place, number in self._rows(reader, self.places[reader]):
            yield row, reader, place, number

    def _rows(self, reader: int, start: Place) -> Iterator[tuple[dict[str, list], Place, int]]:
        place, readers = start, self.processes * len(self.places)
        while True:
            found = place != Place()
            for block, begun in self._blocks(self.process * len(self.places) + reader, readers, place):
                for part in range(begun.part, -(-len(block) // PART)):
                    here = replace(begun, part=part, row=begun.row if part == begun.part else 0)
                    for number, row in self._encode(block[part * PART : (part + 1) * PART], here):
                        found = True
                        yield row, here, number
            if not found:
                raise BadDataError(
                    f"one of {readers} readers found no text to train on: give fewer processes, or fewer "
                    "--dataloader_num_workers."
                )
            place = Place(epoch=place.epoch + 1)

    def _blocks(self, reader: int, readers: int, begun: Place) -> Iterator[tuple[list[str], Place]]:
        """The rest of a pass, from the block at a place on."""
        shards, state, texts = self._shards(reader, readers, begun.epoch), begun.source, []
        for number in range(begun.shard, len(shards)):
            source = shards[number]
            if state is not None:
                source.load_state_dict(state)
                state = None
            if not texts and number > begun.shard:
                begun = Place(begun.epoch, begun.block, number)
            for new in self._read(source):
                texts += new
                if len(texts) >= self.shuffle_buffer_size:
                    yield self._shuffled(texts, reader, begun), begun
                    texts = []
                    begun = Place(begun.epoch, begun.block + 1, number, source.state_dict())
        if texts:
            yield self._shuffled(texts, reader, begun), begun

    def _shards(self, reader: int, readers: int, epoch: int) -> list[datasets.IterableDataset]:
        """What a reader reads in a pass: files of its own, or where they are too few, some lines of every file."""
        count = self.documents.num_shards
        order = np.random.default_rng((self.seed, epoch)).permutation(count)
        by_file = count >= readers
        shards = [self.documents.shard(count, int(index)) for index in (order[reader::readers] if by_file else order)]
        return shards if by_file else [split_dataset_by_node(shard, reader, readers) for shard in shards]

    def _read(self, source: datasets.IterableDataset) -> Iterator[list[str]]:
        # Not `iter(source)`, which would share the documents between workers once more.
        batches = source.iter(batch_size=min(self.shuffle_buffer_size, PART))
        for batch in readable(batches, "train"):
            yield batch["text"]

    def _shuffled(self, texts: list[str], reader: int, place: Place) -> list[str]:
        order = np.random.default_rng((self.seed, reader, place.epoch, place.block)).permutation(len(texts))
        return [texts[index] for index in order]

    def _encode(self, texts: list[str], place: Place) -> Iterator[tuple[int, dict[str, list]]]:
        columns = self.encoder({"text": texts})
        rows = [index for index, ids in enumerate(columns["input_ids"]) if len(ids) >= self.shortest_row]
        order = np.random.default_rng((self.seed, place.epoch, place.block, place.part)).permutation(len(rows))
        for number in range(place.row, len(rows)):
            index = rows[order[number]]
            yield number, {name: values[index] for name, values in columns.items()}


class StreamLoader(DataLoader):
    """Batches of a `TextStream`, and where its readers stand after those that were taken, whatever was fetched ahead.

    Args:
        stream: The rows.
        collator: Makes batches of rows.
        options: Further arguments of `DataLoader`.
    """

    def __init__(self, stream: TextStream, collator: Callable[[list[dict[str, Any]]], Any], **options: Any):
        # A generator of its own: the workers' seed is not to be drawn from the model's random numbers.
        super().__init__(stream, collate_fn=_Collator(collator), generator=torch.Generator(), **options)

    def __iter__(self) -> Iterator[Any]:
        """Batches from where the stream stands, which moves on with each of them."""
        for batch, reader, place in super().__iter__():
            self.dataset.places[reader] = Place(**place)
            self.dataset.first = (reader + 1) % len(self.dataset.places)
            yield batch


class _Collator:
    def __init__(self, collator: Callable[[list[dict[str, Any]]], Any]):
        self.collator = collator

    def __call__(self, rows: list[tuple[dict[str, list], int, Place, int]]) -> tuple[Any, int, dict[str, Any]]:
        _, reader, place, number = rows[-1]
        return self.collator([row for row, *_ in rows]), reader, asdict(replace(place, row=number + 1))


class StreamState(TrainerCallback, ExportableState):
    """Saves where the readers of all processes stand in a checkpoint's `trainer_state.json`.

    Args:
        stream: What is trained on.
        args: The Trainer's arguments: their processes and workers share the stream.
    """

    def __init__(self, stream: TextStream, args: TrainingArguments):
        self.stream = stream
        self.step = 0
        self.readers: list[dict[str, Any]] = []
        stream.process, stream.processes = args.process_index, args.world_size
        stream.places = [Place()] * max(1, args.dataloader_num_workers)

    def restore(self, checkpoint: str) -> None:
        """Put the readers where they stood.

        Raises:
            UserError: If the checkpoint was written by another number of readers, or without a stream.
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
        if counts != (stream.processes, len(stream.places)):
            raise UserError(
                f"{checkpoint!r} was written by {counts[0]} processes with {counts[1]} readers each, this run has "
                f"{stream.processes} with {len(stream.places)}: streamed data are read on only by as many. Start "
                "with the same number of processes and --dataloader_num_workers."
            )
        stream.first = readers[stream.process]["first"]
        stream.places = [Place(**place) for place in readers[stream.process]["places"]]

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collect the places, in all processes, before a checkpoint is written in one."""
        state.epoch = state.global_step / state.max_steps  # the Trainer counts a resumed run from 0
        if control.should_save or control.should_evaluate:  # an evaluation may find the best model so far
            here = {"first": self.stream.first, "places": [asdict(place) for place in self.stream.places]}
            self.step, self.readers = state.global_step, gather_object([here])

    def state(self) -> dict[str, Any]:
        """What goes into the checkpoint."""
        return {"args": {}, "attributes": {"step": self.step, "readers": self.readers}}
