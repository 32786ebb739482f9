import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts.data.mixture import draw_examples, mix, mixing_rates


def test_rates_are_proportional_to_the_examples_up_to_the_limit():
    assert mixing_rates([300, 100], None).tolist() == [0.75, 0.25]
    assert mixing_rates([300, 100], limit=100).tolist() == [0.5, 0.5]


def test_tasks_come_as_often_as_their_rates_say():
    sizes, rates = [50, 7, 1000], np.array([0.3, 0.6, 0.1])
    drawn = draw_examples(sizes, rates, 20_000, seed=0)
    counts = np.histogram(drawn, bins=[0, 50, 57, 1057])[0]
    assert counts.sum() == 20_000
    assert counts / 20_000 == pytest.approx(rates, abs=4 * (0.25 / 20_000) ** 0.5)


def test_no_example_comes_again_before_all_of_its_task_have_come():
    drawn = draw_examples([5, 3], np.array([0.5, 0.5]), 400, seed=1)
    for first, size in ((0, 5), (5, 3)):
        own = [index for index in drawn if first <= index < first + size]
        passes = [own[start : start + size] for start in range(0, len(own) - size, size)]
        assert len(passes) > 20
        assert all(sorted(one) == list(range(first, first + size)) for one in passes)
        assert len(set(map(tuple, passes))) > 5  # in another order each time


def test_the_draw_is_a_function_of_the_seed():
    rates = mixing_rates([40, 9], None)
    draws = [draw_examples([40, 9], rates, 100, seed).tolist() for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


def test_rows_are_those_that_were_drawn():
    rows = {name: datasets.Dataset.from_dict({"input_ids": [[int(name == "b"), i] for i in range(n)]}) for name, n in
            (("a", 4), ("b", 2))}  # fmt: skip
    rates = mixing_rates([4, 2], None)
    mixed = mix(rows, rates, 30, seed=0)
    flat = [[0, i] for i in range(4)] + [[1, i] for i in range(2)]
    assert mixed["input_ids"][:] == [flat[index] for index in draw_examples([4, 2], rates, 30, seed=0)]
    assert mixed.column_names == ["input_ids"]
