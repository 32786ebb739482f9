"""Random numbers of rows: a function of a seed, the epoch and the row's number."""

from typing import Any

import datasets
import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


#: Column with the number of a row in its data set; in streamed data a list of integers, its position in the stream.
ROW_NUMBER = "row_number"


def number_rows(rows: datasets.Dataset) -> datasets.Dataset:
    """Add the column `ROW_NUMBER`, from which `SeededCollator` makes a row's random numbers."""
    return rows.add_column(ROW_NUMBER, np.arange(len(rows)))


class SeededCollator(TrainerCallback):
    """Gives a collator one random generator per row, seeded by a seed, the epoch and the row's number.

    What is drawn for a row then does not depend on the rest of its batch, and so neither on the number of processes
    nor on the data loader's workers, and a resumed run draws the same. As a callback it learns the epoch from the
    Trainer.

    Args:
        collator: A collator with an attribute `generators`, a list of `numpy.random.Generator`. Rows without a number
            get none.
        seed: Another seed gives other random numbers.
    """

    def __init__(self, collator: Any, seed: int):
        self.collator = collator
        self.seed = seed
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()  # also with workers that outlive an epoch

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw other numbers than in the epochs before."""
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        numbers = [np.atleast_1d(row[ROW_NUMBER]) for row in rows if ROW_NUMBER in row]
        epoch = int(self.epoch)
        self.collator.generators = [np.random.default_rng((self.seed, epoch, *number)) for number in numbers]
        return self.collator(rows)
