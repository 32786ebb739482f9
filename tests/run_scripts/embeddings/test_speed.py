"""Sentences per second: models take turns, with each number of threads."""

import os
import time

import torch

from tokenmixers.run_scripts.embeddings import speed


def test_speeds_are_measured_in_turn_with_each_number_of_threads(monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before, calls = torch.get_num_threads(), []

    class Sleeper:
        def __init__(self, name: str, kind: str):
            self.name = name
            calls.append(("load", name, torch.get_num_threads()))

        def encode(self, sentences, batch_size, show_progress_bar):
            assert (len(sentences), batch_size, show_progress_bar) == (20, 4, False)
            calls.append((self.name, torch.get_num_threads(), os.environ["TOKENIZERS_PARALLELISM"]))
            time.sleep({"quick": 0.02, "slow": 0.1}[self.name])

    columns = {"quick one": ("quick", "float32"), "slow one": ("slow", "onnx")}
    rows = speed.measure(columns, Sleeper, ["a"] * 20, [1, 2], rounds=3, batch_size=4)
    assert [(row["name"], row["threads"], row["format"]) for row in rows] == [
        *(("quick one", 1, "float32"), ("slow one", 1, "onnx"), ("quick one", 2, "float32"), ("slow one", 2, "onnx"))
    ]
    assert all(len(row["seconds"]) == 3 for row in rows)
    for row in rows:
        assert row["sentences_per_second"] == 20 / sorted(row["seconds"])[1]
        assert row["seconds"][0] >= {"quick": 0.02, "slow": 0.1}[row["model"]]
    first, second = calls[:10], calls[10:]
    assert first[:2] == [("load", "quick", 1), ("load", "slow", 1)] and second[:2][0] == ("load", "quick", 2)
    assert {call[1:] for call in first[2:]} == {(1, "false")} and {call[1:] for call in second[2:]} == {(2, "true")}
    turns = [{call[0] for call in first[index : index + 2]} for index in range(2, 10, 2)]
    assert turns == [{"quick", "slow"}] * 4  # a round to warm up, and three
    assert torch.get_num_threads() == before and "TOKENIZERS_PARALLELISM" not in os.environ
