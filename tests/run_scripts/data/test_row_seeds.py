import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainerState

from tokenmixers.run_scripts.data.row_seeds import ROW_NUMBER, SeededCollator


class Noise:
    def __call__(self, rows):
        return torch.tensor([generator.random() for generator in self.generators])


def test_random_numbers_depend_on_seed_epoch_and_row_alone():
    rows = [{ROW_NUMBER: 7}, {ROW_NUMBER: [0, 2, 1]}, {ROW_NUMBER: [1, 2, 1]}, {ROW_NUMBER: 8}]
    collator = SeededCollator(Noise(), seed=3)
    first = collator(rows)
    assert len(set(first.tolist())) == 4
    np.random.seed(99)
    assert torch.equal(collator(rows[::-1]), first.flip(0))
    assert torch.equal(SeededCollator(Noise(), seed=3)(rows[1:]), first[1:])
    assert not any(SeededCollator(Noise(), seed=4)(rows) == first)
    collator.on_epoch_begin(None, TrainerState(epoch=1.5), None)  # resumed within the second epoch
    second = collator(rows)
    assert not any(second == first)
    collator.on_epoch_begin(None, TrainerState(epoch=0), None)
    assert torch.equal(collator(rows), first)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_workers_learn_the_epoch(workers):
    collator = SeededCollator(Noise(), seed=3)
    rows = [{ROW_NUMBER: number} for number in range(6)]
    loader = DataLoader(rows, batch_size=2, collate_fn=collator, **workers)
    for epoch in range(2):
        collator.on_epoch_begin(None, TrainerState(epoch=float(epoch)), None)
        expected = [np.random.default_rng((3, epoch, number)).random() for number in range(6)]
        assert torch.equal(torch.cat(list(loader)), torch.tensor(expected))
