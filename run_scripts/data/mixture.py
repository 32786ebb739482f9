"""Mixtures of tasks: which task and row every training example is."""

from collections.abc import Mapping, Sequence

import datasets
import numpy as np


def mixing_rates(sizes: Sequence[int], limit: int | None) -> np.ndarray:
    """The share of every task in a mixture: T5's examples-proportional mixing (arXiv:1910.10683, section 3.5.2).

    Args:
        sizes: Number of examples of each task.
        limit: Tasks with more examples count as having this many, T5's artificial limit K; `None` for no limit.

    Returns:
        The shares, which sum to 1.
    """
    counts = np.minimum(np.asarray(sizes, dtype=np.float64), np.inf if limit is None else limit)
    return counts / counts.sum()


def draw_examples(sizes: Sequence[int], rates: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Which example comes when. Every task's examples are drawn in random order, and again when all were drawn.

    Args:
        sizes: Number of examples of each task.
        rates: From `mixing_rates`.
        count: How many to draw.
        seed: Another seed gives another draw.

    Returns:
        Indices of examples in the concatenation of all tasks, shape `(count,)`.
    """
    draw = np.random.default_rng(seed)
    tasks = draw.choice(len(sizes), size=count, p=rates)
    chosen, start = np.empty(count, dtype=np.int64), 0
    for task, size in enumerate(sizes):
        places = np.flatnonzero(tasks == task)
        passes = [draw.permutation(size) for _ in range(-(-len(places) // size))]
        if passes:
            chosen[places] = start + np.concatenate(passes)[: len(places)]
        start += size
    return chosen


def mix(rows: Mapping[str, datasets.Dataset], rates: np.ndarray, count: int, seed: int) -> datasets.Dataset:
    """The training examples of a whole run, in the order in which they are trained.

    Example `i` is a function of the arguments alone, so that a resumed run gets the same as an uninterrupted one.

    Args:
        rows: The examples of each task.
        rates: Their shares, in the same order.
        count: Number of examples of the run.
        seed: Decides which comes when.
    """
    indices = draw_examples([len(split) for split in rows.values()], rates, count, seed)
    return datasets.concatenate_datasets(list(rows.values())).select(indices)
