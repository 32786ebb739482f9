import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.files import find_files
from tokenmixers.run_scripts.data.loading import limited
from tokenmixers.run_scripts.data.text_corpus import load_texts


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


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a[1].txt", "a[[]1].txt", "b[2]/a.txt"])
def test_a_file_is_found_by_its_name_before_it_is_a_pattern(name, streaming, tmp_path):
    (tmp_path / "b[2]").mkdir()
    for other in ("a1.txt", "a[1].txt", "a[[]1].txt", "b[2]/a.txt"):
        (tmp_path / other).write_text(other)
    assert [row["text"] for row in load_texts([str(tmp_path / name)], "text", "train", streaming)] == [name]


def test_a_pattern_finds_names_with_brackets(tmp_path):
    for name in ("a1.txt", "a[1].txt"):
        (tmp_path / name).write_text(name)
    assert find_files([str(tmp_path / "a[[]1].txt")]) == [str(tmp_path / "a[1].txt")]
    assert sorted(load_texts([str(tmp_path / "a*.txt")], "text", "train")["text"]) == ["a1.txt", "a[1].txt"]
