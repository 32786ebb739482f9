"""Streamed rows: all documents once a pass, and after resuming those that an uninterrupted run would have read."""

import gzip
import itertools
import json
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState

from tokenmixers import train_unigram_tokenizer
from tokenmixers.run_scripts.base.errors import BadDataError, UserError
from tokenmixers.run_scripts.data.packing import row_encoder
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments, load_documents
from tokenmixers.run_scripts.data.text_stream import PART_SIZE, StreamLoader, StreamPosition, StreamState, TextStream


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Five files of 7, 8, ... documents, each document a number."""
    folder, numbers = tmp_path_factory.mktemp("shards"), iter(range(1000))
    for index in range(5):
        lines = [str(next(numbers)) for _ in range(7 + index)]
        (folder / f"{index}.txt").write_text("\n".join(lines))
    (folder / "validation.txt").write_text("held out")
    return folder


COUNT = 7 + 8 + 9 + 10 + 11


def documents(files, pattern="[0-9].txt", seen=None):
    arguments = TextDataArguments(
        train_file=[str(files / pattern)],
        validation_file=[str(files / "validation.txt")],
        streaming=True,
        max_eval_samples=1,
    )
    split = load_documents(arguments)["train"]
    return split if seen is None else split.map(lambda row: (seen.append(row["text"]), row)[1])


def numbers(rows):
    """An encoder that makes one row of each document."""
    return {"input_ids": [[int(text)] for text in rows["text"]]}


def collate(rows):
    return torch.tensor([row["input_ids"] for row in rows])


def loader(split, buffer=4, encoder=numbers, workers=0, process=0, processes=1, resume_from=None, batch=3):
    stream = TextStream(split, encoder, 5, buffer)
    args = SimpleNamespace(dataloader_num_workers=workers, process_index=process, world_size=processes)
    state = StreamState(stream, args)
    if resume_from is not None:
        state.restore(resume_from)
    return StreamLoader(stream, collate, batch_size=batch, num_workers=workers), state


def take(loader, count):
    return [batch.flatten().tolist() for batch in islice(iter(loader), count)]


def save(states, step, folder):
    """A checkpoint as one process writes it with what all of them have gathered."""
    readers = []
    for state in states:
        state.on_step_end(None, TrainerState(global_step=step, max_steps=100), TrainerControl(should_save=True))
        readers += state.readers
    states[0].readers = readers
    trainer_state = TrainerState(global_step=step, stateful_callbacks={"StreamState": states[0].state()})
    folder.mkdir(exist_ok=True)
    trainer_state.save_to_json(str(folder / "trainer_state.json"))
    return str(folder)


@settings(max_examples=25, deadline=None)
@given(
    pattern=st.sampled_from(["[0-9].txt", "[0-2].txt", "3.txt"]),
    processes=st.integers(1, 4),
    buffer=st.sampled_from([1, 4, 30, 10_000]),
)
def test_a_pass_gives_every_document_once(files, pattern, processes, buffer):
    split = documents(files, pattern)
    expected = [int(row["text"]) for row in split]
    rows, first = [], []
    for process in range(processes):
        stream = loader(split, buffer, process=process, processes=processes)[0].dataset
        mine = []
        for row, _, position, _ in stream:
            if position.epoch:
                break
            mine += row["input_ids"]
        rows += mine
        first.append(mine)
    assert Counter(rows) == Counter(expected)
    if buffer > 4 and processes == 1:
        assert rows != expected


def test_passes_differ_in_order(files):
    numbers_read = [number for batch in take(loader(documents(files))[0], 2 * COUNT // 3) for number in batch]
    assert sorted(numbers_read[:COUNT]) == sorted(numbers_read[COUNT:]) == list(range(COUNT))
    assert numbers_read[:COUNT] != numbers_read[COUNT:]


#: Worker processes take a second to start.
FAST = {(0, 1, "files"), (0, 1, "lines"), (0, 2, "files"), (0, 2, "lines"), (1, 2, "files"), (2, 1, "lines")}


@pytest.mark.parametrize(
    "workers, processes, kind",
    [
        case if case in FAST else pytest.param(*case, marks=pytest.mark.slow)
        for case in itertools.product([0, 1, 2], [1, 2], ["files", "lines"])
    ],
)
def test_reads_on_as_if_never_interrupted(files, tmp_path, workers, processes, kind):
    pattern = {"files": "[0-9].txt", "lines": "3.txt"}[kind]
    stops = [5] if workers else [1, 4, 9]  # more than a pass in one process
    whole = [
        take(loader(documents(files, pattern), workers=workers, process=process, processes=processes)[0], 25)
        for process in range(processes)
    ]
    for stop in stops:
        states = []
        for process in range(processes):
            loaded, state = loader(documents(files, pattern), workers=workers, process=process, processes=processes)
            assert take(loaded, stop) == whole[process][:stop]
            states.append(state)
        checkpoint = save(states, stop, tmp_path / f"checkpoint-{stop}")
        for process in range(processes):
            options = {"workers": workers, "process": process, "processes": processes, "resume_from": checkpoint}
            assert take(loader(documents(files, pattern), **options)[0], 25 - stop) == whole[process][stop:]


@settings(max_examples=15, deadline=None)
@given(stop=st.integers(1, 60), buffer=st.sampled_from([1, 4, 30]), batch=st.integers(1, 4))
def test_reads_on_from_any_position(files, stop, buffer, batch):
    whole = take(loader(documents(files), buffer, batch=batch)[0], stop + 10)
    part = loader(documents(files), buffer, batch=batch)[0]
    take(part, stop)
    again = loader(documents(files), buffer, batch=batch)[0]
    again.dataset.positions = [StreamPosition(**json.loads(json.dumps(vars(part.dataset.positions[0]))))]
    assert take(again, 10) == whole[stop:]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "txt.gz"])
def test_packed_text_is_read_on_from_every_kind_of_file(tmp_path, kind):
    texts = [f"document {number} of a corpus in many files " * (number % 7 + 1) for number in range(90)]
    for index in range(3):
        part = datasets.Dataset.from_dict({"text": texts[index::3]})
        path = tmp_path / f"{index}.{kind}"
        if kind == "txt.gz":
            path.write_bytes(gzip.compress("\n".join(part["text"]).encode()))
        else:
            {"parquet": part.to_parquet, "jsonl": part.to_json, "csv": part.to_csv}[kind](path)
    (tmp_path / "validation.txt").write_text("held out")
    tokenizer = train_unigram_tokenizer(texts, vocab_size=40, model_max_length=16, show_progress=False)

    def packed(**options):
        split = documents(tmp_path, f"[0-9].{kind}")
        return loader(split, 12, row_encoder(tokenizer, 16, pack=True), batch=1, **options)

    whole = take(packed()[0], 700)
    for stop in (31, 333, 555):
        loaded, state = packed()
        take(loaded, stop)
        checkpoint = save([state], stop, tmp_path / f"checkpoint-{stop}")
        assert take(packed(resume_from=checkpoint)[0], 100) == whole[stop : stop + 100]
    assert loaded.dataset.positions[0].block > 1
    assert loaded.dataset.positions[0].source["examples_iterable"]


def test_a_resumed_run_reads_its_block_and_nothing_before_it(files, tmp_path):
    seen: list[str] = []
    loaded, state = loader(documents(files, seen=seen))
    before = take(loaded, 9)  # six of the blocks of four and three more rows
    checkpoint = save([state], 9, tmp_path / "checkpoint-9")
    assert len(seen) >= 27
    seen.clear()
    again, _ = loader(documents(files, seen=seen), resume_from=checkpoint)
    take(again, 1)
    assert len(seen) <= 8
    assert not set(map(int, seen)) & {number for batch in before[:8] for number in batch}


def test_documents_of_a_block_are_tokenized_in_parts():
    split = datasets.Dataset.from_dict({"text": [str(n) for n in range(2 * PART_SIZE + 5)]}).to_iterable_dataset()
    calls: list[int] = []

    def counting(rows):
        calls.append(len(rows["text"]))
        return numbers(rows)

    rows = take(loader(split, 10_000, counting, batch=1)[0], 2 * PART_SIZE + 5)
    assert calls == [PART_SIZE, PART_SIZE, 5]
    assert sorted(number for (number,) in rows) == list(range(2 * PART_SIZE + 5))


def test_short_rows_are_left_out():
    split = datasets.Dataset.from_dict({"text": ["1", "22", "333", "4444"]}).to_iterable_dataset()
    stream = TextStream(split, lambda rows: {"input_ids": [list(text) for text in rows["text"]]}, 0, 10, 3)
    rows = [row["input_ids"] for row, *_ in islice(stream, 6)]
    assert sorted(map(len, rows)) == [3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 1}, "written by 2 processes with 1 readers each, this run has 1 with 1"),
        ({"processes": 2, "workers": 2}, "written by 2 processes with 1 readers each, this run has 2 with 2"),
    ],
)
def test_another_number_of_readers_is_refused(files, tmp_path, options, message):
    states = []
    for process in range(2):
        loaded, state = loader(documents(files), process=process, processes=2)
        take(loaded, 2)
        states.append(state)
    checkpoint = save(states, 2, tmp_path / "checkpoint-2")
    with pytest.raises(UserError, match=message):
        loader(documents(files), resume_from=checkpoint, **options)


def test_a_checkpoint_of_another_kind_of_run_is_refused(files, tmp_path):
    TrainerState(global_step=2).save_to_json(str(tmp_path / "trainer_state.json"))
    with pytest.raises(UserError, match="does not say how far the streamed data were read"):
        loader(documents(files), resume_from=str(tmp_path))


def test_more_readers_than_documents_are_refused(files):
    split = documents(files).take(2)
    with pytest.raises(BadDataError, match="one of 9 readers found no text to train on"):
        for process in range(9):
            take(loader(split, process=process, processes=9)[0], 1)


def test_held_out_documents_are_not_trained_on_by_any_reader(files):
    arguments = TextDataArguments(train_file=[str(files / "[0-9].txt")], streaming=True, max_eval_samples=12)
    splits = load_documents(arguments)
    held_out = {int(row["text"]) for row in splits["validation"]}
    assert held_out == set(range(12))
    trained = set()
    for process in range(2):
        for row, _, position, _ in loader(splits["train"], process=process, processes=2)[0].dataset:
            if position.epoch:
                break
            trained |= set(row["input_ids"])
    assert trained == set(range(COUNT)) - held_out
