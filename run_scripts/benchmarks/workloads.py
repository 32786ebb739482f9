"""Experiments that measure whole jobs: texts of real lengths, and masked language modelling."""

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from tokenmixers import GMLPForMaskedLM, GMLPModel

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError, report_bad_data
from ..data.files import iterate_lines
from .model_comparisons import Sizes, randomise_gates, shipped_config, tokens, transformers_for
from .timing import Candidate, Case, Group, Inputs, model_candidate, synchronise


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder or the Hub.

    Raises:
        UserError: If there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer can be loaded from {name!r}: {error}") from error


def read_lines(file: str, count: int, wanted: str) -> list[str]:
    """The first lines of a file that are not blank.

    Args:
        file: Path of the file.
        count: Most lines.
        wanted: What they are for, for messages.

    Raises:
        UserError: If the file is missing, has no such lines, or cannot be read.
    """
    if not Path(file).is_file():
        raise UserError(f"there is no file {file!r} to take {wanted} from.")
    with report_bad_data():
        found = list(islice(filter(str.strip, iterate_lines(file)), count))
    if not found:
        raise UserError(f"{file} has no lines to take {wanted} from.")
    return found


def read_lengths(file: str, tokenizer_name: str | None, count: int) -> list[int]:
    """Token counts from a file: one number per line, or texts (or pairs of texts, with a tab) to tokenize.

    Args:
        file: Path of the file.
        tokenizer_name: For texts: folder or Hub id of a tokenizer.
        count: Number of lines to read; empty lines do not count.

    Raises:
        UserError: If the file is missing or empty, or there is no tokenizer for its text.
    """
    lines = read_lines(file, count, "lengths")
    if all(line.strip().isdecimal() for line in lines):
        return [int(line) for line in lines]
    if tokenizer_name is None:
        raise UserError(f"{file} has text, not numbers: give a --tokenizer.")
    tokenizer = load_tokenizer(tokenizer_name)
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
    """Batches of rows with several whole texts each, and the texts in each row."""
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
    """Undo batching, for `comparable` of `model_candidate`: one tensor for each text, in the given order."""

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


def real_lengths(case: Case, sizes: Sizes) -> Iterator[Group]:
    """5: texts of real lengths: like lengths together, packed, and padded to the maximum as in the paper."""
    longest, generator = sizes.text_lengths[-1], torch.Generator().manual_seed(0)
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


def masked_language_modelling(case: Case, sizes: Sizes) -> Iterator[Group]:
    """8: masked language modelling: logits of masked tokens or of all, and the Trainer against bare steps."""
    if not case.training:
        return
    config = shipped_config("gmlp-base", **sizes.shrunk)
    length = min(sizes.text_lengths[-1], config.max_position_embeddings)
    everywhere = randomise_gates(GMLPForMaskedLM(config))
    masked = GMLPForMaskedLM(shipped_config("gmlp-base", sparse_prediction=True, **sizes.shrunk))
    masked.load_state_dict(everywhere.state_dict())
    by_kind = {"logits of masked tokens": masked, "logits of all tokens": everywhere}
    ids = tokens(config.vocab_size, sizes.batch_size, length)
    labels = ids.masked_fill(torch.rand(ids.shape) > 0.15, IGNORED_LABEL)
    labels[:, 0] = ids[:, 0]  # every row has a label
    facts = {"batch": sizes.batch_size, "length": length}
    for name in ("gmlp-base, MLM step", "gmlp-base, MLM step, layers checkpointed"):
        if "checkpointed" in name:
            for model in by_kind.values():
                model.activation_checkpointing_enable()
        candidates = [
            model_candidate(
                kind, model, [{"input_ids": ids, "labels": labels}], case, weights="shared", items=ids.numel()
            )
            for kind, model in by_kind.items()
        ]
        yield Group(name, candidates, facts)
    if not case.compiled:
        small = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 4096}
        many = 3 if sizes.shrunk else 21
        for name, changes, rows, length, steps in (
            ("small gMLP", small | sizes.shrunk, 16 * sizes.batch_size, min(64, sizes.text_lengths[-1]), many),
            ("gmlp-base", sizes.shrunk, sizes.batch_size, sizes.text_lengths[-1], 3),
        ):
            with tempfile.TemporaryDirectory() as folder:
                candidates = _trainer_and_bare_steps(changes, rows, length, steps, case, folder)
                yield Group(f"{name}, {steps - 1} steps", candidates, {"batch": rows, "length": length})


class _StepClock(TrainerCallback):
    """Records when the first and the last step of a run end."""

    def __init__(self, device: torch.device):
        self.device = device

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step in (1, state.max_steps):
            synchronise(self.device)
        if state.global_step == 1:
            self.start = time.perf_counter()
        self.seconds = time.perf_counter() - self.start


def _trainer_and_bare_steps(
    changes: dict[str, int], batch_size: int, length: int, steps: int, case: Case, folder: str
) -> list[Candidate]:
    """`run_mlm`'s Trainer with its data, and the same steps on precomputed batches.

    The first step of each run does not count: it fills the pipeline.
    """
    # Imported here, as in `_packed_batches`.
    from datasets import Dataset

    from ..data.masking import MaskingArguments, MaskingCollator
    from ..data.row_seeds import SeededCollator, number_rows
    from ..training.language_modeling import build_trainer

    config = shipped_config("gmlp-base", sparse_prediction=True, **changes)
    special = {name: f"[{name[:-6].upper()}]" for name in ("pad_token", "mask_token")}
    vocabulary = {token: number for number, token in enumerate(special.values())}
    vocabulary |= {str(number): number for number in range(len(vocabulary), config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary)), **special)
    rows = tokens(config.vocab_size, batch_size * steps, length)
    data = Dataset.from_dict({"input_ids": rows.tolist(), "special_tokens_mask": torch.zeros_like(rows).tolist()})
    model = AutoModelForMaskedLM.from_config(config)
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=1e-6,
        bf16=case.dtype == torch.bfloat16,
        use_cpu=case.device.type == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        logging_strategy="no",
    )
    data = number_rows(data)
    mask = SeededCollator(MaskingCollator(tokenizer, **MaskingArguments().collator_options()), args.seed)
    trainer = build_trainer(model, tokenizer, args, data, data, mask)
    batches = [
        {name: tensor.to(case.device) for name, tensor in batch.items()} for batch in trainer.get_train_dataloader()
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    clock = _StepClock(case.device)
    trainer.add_callback(clock)

    def all_but_the_first() -> float:
        trainer.train()
        return clock.seconds

    def bare_steps() -> None:
        model.train()
        for batch in batches[1:]:
            with torch.autocast(case.device.type, case.dtype, enabled=case.dtype != torch.float32):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

    common = {"items": rows.numel() // steps * (steps - 1), "is_profiled": False}
    return [
        Candidate("bare steps", bare_steps, **common),
        Candidate("run_mlm's Trainer and data", all_but_the_first, **common),
    ]
