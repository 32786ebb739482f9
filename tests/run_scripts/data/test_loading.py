import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.loading import limited


@pytest.fixture
def rows() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [str(number) for number in range(20)]})


def test_a_limit_above_the_number_of_rows_is_none(rows, monkeypatch):
    monkeypatch.setattr(datasets.Dataset, "take", lambda self, n: self.select(range(n)))  # before datasets 5.2
    with pytest.raises(IndexError):
        rows.take(21)
    assert limited(rows, 21)["text"][:] == rows["text"][:]
    assert sorted(limited(rows, 21, shuffle=True)["text"]) == sorted(rows["text"])
    assert limited(rows, None, shuffle=True)["text"][:] == rows["text"][:]


def test_the_first_rows_or_always_the_same_ones(rows):
    assert limited(rows, 3)["text"][:] == ["0", "1", "2"]
    drawn = limited(rows, 3, shuffle=True)["text"]
    assert drawn == [str(number) for number in np.random.default_rng(0).permutation(20)[:3]]
    assert limited(rows, 9, shuffle=True)["text"][:3] == drawn


def test_streamed_rows(rows):
    assert [row["text"] for row in limited(rows.to_iterable_dataset(), 3)] == ["0", "1", "2"]
    assert len(list(limited(rows.to_iterable_dataset(), 21))) == 20
