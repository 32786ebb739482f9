"""The experiment with texts of real lengths."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

from tokenmixers import GMLPModel

from ..base.errors import UserError, report_bad_data
from ..base.trained_model import load_trained_tokenizer
from ..data.files import iterate_lines
from .arguments import BenchmarkArguments
from .model_comparisons import randomise_gates, shipped_config, tokens, transformers_for
from .timing import Case, Group, Inputs, model_candidate


def read_lengths(file: str, tokenizer_name: str | None, count: int) -> list[int]:
    """Token counts from a file: one number per line, or texts (or pairs of texts, with a tab) to tokenize."""
    if not Path(file).is_file():
        raise UserError(f"there is no file {file!r} to take lengths from.")
    with report_bad_data():
        lines = list(islice(filter(str.strip, iterate_lines(file)), count))
    if not lines:
        raise UserError(f"{file} has no lines to take lengths from.")
    if all(line.strip().isdecimal() for line in lines):
        return [int(line) for line in lines]
    if tokenizer_name is None:
        raise UserError(f"{file} has text, not numbers: give a --tokenizer.")
    tokenizer = load_trained_tokenizer(tokenizer_name)
    return [len(tokenizer(*line.split("\t")[:2])["input_ids"]) for line in lines]


def _padded_batch(lengths: list[int], rows: list[int], length: int, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    mask = torch.arange(length) < torch.tensor([lengths[row] for row in rows])[:, None]
    return {"input_ids": ids[rows, :length] * mask, "attention_mask": mask.long()}


def _padded_batches(lengths: list[int], batch_size: int, length: int, ids: torch.Tensor) -> tuple[Inputs, list[int]]:
    """Batches of a fixed number of rows of a fixed length, and the text in each row."""
    order = list(range(len(lengths)))
    starts = range(0, len(order), batch_size)
    return [_padded_batch(lengths, order[start : start + batch_size], length, ids) for start in starts], order


def _batches_by_length(lengths: list[int], room: int, ids: torch.Tensor) -> tuple[Inputs, list[int]]:
    """Batches of texts of similar length, of up to `room` tokens with padding, and the text in each row."""
    batches: list[list[int]] = []
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for text in order:
        if not batches or (len(batches[-1]) + 1) * lengths[text] > room:
            batches.append([])
        batches[-1].append(text)
    return [_padded_batch(lengths, batch, lengths[batch[-1]], ids) for batch in batches], order


def _packed_batches(
    lengths: list[int], batch_size: int, length: int, ids: torch.Tensor
) -> tuple[Inputs, list[list[int]]]:
    """Batches of rows that hold several whole texts, and the texts in each row."""
    from ..data.packing import first_fit  # with the package that reads data, which other experiments do without

    packed = first_fit(lengths, length)
    rows = {"input_ids": torch.zeros(len(packed), length, dtype=torch.long)}
    rows |= {"attention_mask": rows["input_ids"].clone(), "seq_idx": rows["input_ids"] - 1}
    for index, texts in enumerate(packed):
        start = 0
        for number, text in enumerate(texts):
            place = slice(start, start + lengths[text])
            rows["input_ids"][index, place] = ids[text, : lengths[text]]
            rows["attention_mask"][index, place] = 1
            rows["seq_idx"][index, place] = number
            start = place.stop
    starts = range(0, len(packed), batch_size)
    return [{name: rows[name][start : start + batch_size] for name in rows} for start in starts], packed


def _texts_of(lengths: list[int], order: list[int] | list[list[int]]) -> Callable:
    """Undo batching, for `comparable` of `model_candidate`: one tensor per text, in the given order."""

    def select(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        found = {}
        rows = [row for output in outputs for row in output]
        for texts, row in zip(order, rows, strict=True):
            start = 0
            for text in texts if isinstance(texts, list) else [texts]:
                found[text] = row[start : start + lengths[text]]
                start += lengths[text]
        return [found[text] for text in range(len(lengths))]

    return select


def real_lengths(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """5: texts of real lengths: batched by length, packed, and padded to the maximum as in the paper."""
    longest, generator = sizes.lengths[-1], torch.Generator().manual_seed(0)
    spread = (torch.randn(sizes.texts, generator=generator) / 8 + 0.5) * longest
    sources = {"normally distributed": [max(round(length), longest // 32) for length in spread.tolist()]}
    sources |= {Path(file).name: read_lengths(file, sizes.tokenizer, sizes.texts) for file in sizes.length_files}
    for source, lengths in sources.items():
        lengths = [min(max(length, 1), longest) for length in lengths]
        config = shipped_config("gmlp-base", **sizes.shrunk)
        gmlp = randomise_gates(GMLPModel(config))
        ids = tokens(config.vocab_size, len(lengths), longest)
        room = sizes.batch_size * longest
        row = min(longest, max(128, *lengths))  # the spatial product grows with the row
        ways = {
            "by length": _batches_by_length(lengths, room, ids),
            "packed": _packed_batches(lengths, room // row, row, ids),
            "padded": _padded_batches(lengths, sizes.batch_size, longest, ids),
        }
        candidates = [
            model_candidate(
                f"{kind}, {way}",
                model,
                batches,
                case,
                weights=None if case.training else kind,  # steps on other batches have other gradients
                comparable=_texts_of(lengths, order),
                items=sum(lengths),
            )
            for kind, model in {"gMLP": gmlp, "BERT": transformers_for(gmlp, sizes)["BERT"]}.items()
            for way, (batches, order) in ways.items()
            if (kind, way) != ("BERT", "packed")  # which does not support `seq_idx`
        ]
        facts = {"batch": sizes.batch_size, "texts": len(lengths), "length": sum(lengths) / len(lengths)}
        yield Group(f"lengths: {source}", candidates, facts)
