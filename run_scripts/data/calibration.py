"""Calibration text: a few batches on which a trained model is observed."""

import copy
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerBase

from ..base.errors import UserError
from ..base.ranges import check_ranges
from .collators import pad_rows
from .loading import Split, load_files, load_named
from .packing import row_encoder, tokenize
from .row_seeds import SeededCollator
from .span_corruption import DataCollatorForSpanCorruption, span_corruption_lengths
from .text_corpus import text_only
from .text_pairs import pairs_of, tokenize_pairs


@dataclass
class CalibrationArguments:
    """The text on which a model is observed, and how much of it."""

    calibration_file: list[str] | None = field(
        default=None,
        metadata={"help": "Files or glob patterns: txt (a document a line), json(l), csv, parquet; also compressed."},
    )
    calibration_dataset_name: str | None = field(
        default=None, metadata={"help": "Data set on the Hub, or a local data set folder, instead of files."}
    )
    calibration_dataset_config_name: str | None = field(
        default=None, metadata={"help": "Configuration of that data set."}
    )
    calibration_split: str = field(default="train", metadata={"help": "Split of that data set."})
    calibration_column: str = field(
        default="text", metadata={"help": "Column that holds the text, or with a target column the source."}
    )
    calibration_target_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the targets, for a model that was finetuned on pairs of texts. Without it spans of the "
            "text are hidden, as in T5's pretraining."
        },
    )
    calibration_noise_density: float = field(default=0.15, metadata={"help": "Share of the tokens to hide."})
    calibration_mean_span_length: float = field(
        default=3.0, metadata={"help": "Mean length of a hidden span, in tokens."}
    )
    calibration_samples: int = field(default=512, metadata={"help": "Rows to use, drawn at random; all if fewer."})
    calibration_length: int | None = field(
        default=None, metadata={"help": "Most tokens of a row in the encoder; the new model's maximum by default."}
    )
    calibration_batch_size: int = field(default=8, metadata={"help": "Rows per batch."})
    calibration_seed: int = field(default=0, metadata={"help": "Draws the rows, and the spans to hide."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "calibration_samples calibration_length calibration_batch_size"))
        check_ranges(self, ("a share between 0 and 1", "calibration_noise_density"))
        check_ranges(self, ("a finite number of at least 1", "calibration_mean_span_length"))
        check_ranges(self, ("from 0 to 4294967295", "calibration_seed"))

    @property
    def is_given(self) -> bool:
        """Whether a text is named."""
        return self.calibration_file is not None or self.calibration_dataset_name is not None


def calibration_batches(
    arguments: CalibrationArguments,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    max_target_length: int,
) -> list[dict[str, torch.Tensor]]:
    """Batches for an encoder-decoder, padded on the right.

    Args:
        arguments: Names the text.
        tokenizer: The model's tokenizer.
        max_length: Most tokens that the encoder takes.
        max_target_length: Most tokens that the decoder takes.

    Returns:
        Each with `input_ids`, `attention_mask` and `labels`, -100 for padding.

    Raises:
        UserError: If there is no text, it cannot be read, a row does not fit the model, or spans cannot be hidden.
    """
    if (arguments.calibration_file is None) == (arguments.calibration_dataset_name is None):
        raise UserError("give the calibration text as either --calibration_file or --calibration_dataset_name.")
    length = arguments.calibration_length or max_length
    if length > max_length:
        raise UserError(f"--calibration_length {length} does not fit the model, which takes {max_length} tokens.")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    split = _load(arguments)
    make = _corrupted_batches if arguments.calibration_target_column is None else _pair_batches
    return make(arguments, tokenizer, split, length, max_target_length)


def _load(arguments: CalibrationArguments) -> Split:
    if arguments.calibration_file is not None:
        return load_files(arguments.calibration_file)
    name, config = arguments.calibration_dataset_name, arguments.calibration_dataset_config_name
    return load_named(name, config, arguments.calibration_split)


def _chosen(rows: Split, arguments: CalibrationArguments) -> list[list[dict]]:
    """The rows to use, in batches."""
    rows = rows.shuffle(seed=arguments.calibration_seed)
    rows = list(rows.select(range(min(arguments.calibration_samples, len(rows)))))
    size = arguments.calibration_batch_size
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _corrupted_batches(
    arguments: CalibrationArguments,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    length: int,
    max_target_length: int,
) -> list[dict[str, torch.Tensor]]:
    split = text_only(split, arguments.calibration_column, "calibration")
    noise = arguments.calibration_noise_density, arguments.calibration_mean_span_length
    try:
        tokens, target_length = span_corruption_lengths(length, *noise)
        if target_length > max_target_length:
            raise UserError(
                f"--calibration_length {length} makes targets of {target_length} tokens, and the decoder takes "
                f"{max_target_length}."
            )
        collator = SeededCollator(DataCollatorForSpanCorruption(tokenizer, *noise), arguments.calibration_seed)
        rows = tokenize(split, row_encoder(tokenizer, tokens, pack=True, special_tokens=False), shortest_row=2)
        if not len(rows):
            raise UserError("the calibration text is too short: a row needs two tokens.")
        return [collator(batch) for batch in _chosen(rows, arguments)]
    except ValueError as error:
        raise UserError(f"span corruption is not possible: {error}") from error


def _pair_batches(
    arguments: CalibrationArguments,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    length: int,
    max_target_length: int,
) -> list[dict[str, torch.Tensor]]:
    for name in ("calibration_column", "calibration_target_column"):
        column = getattr(arguments, name)
        if column.partition(".")[0] not in split.column_names and column not in split.column_names:
            known = ", ".join(map(repr, split.column_names))
            raise UserError(f"--{name} {column!r} is no column of the calibration data, which have {known}.")
    source, target = arguments.calibration_column, arguments.calibration_target_column
    pairs = pairs_of(split, source, target, "calibration text", skip_empty=True)
    rows = tokenize_pairs(pairs, tokenizer, length, max_target_length)
    return [pad_rows(batch, tokenizer) for batch in _chosen(rows, arguments)]
