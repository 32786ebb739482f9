from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import T5Config, T5Model

from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks import timing
from tokenmixers.run_scripts.benchmarks.model_comparisons import randomise_gates
from tokenmixers.run_scripts.benchmarks.timing import (
    Candidate,
    Case,
    Group,
    check_agreement,
    compare,
    model_candidate,
    peak_memory,
    quartiles,
    repeated_layers,
    take_turns,
)


CPU = torch.device("cpu")


INFERENCE = Case("inference", torch.float32, False, CPU)


TRAINING = Case("training", torch.float32, False, CPU)


SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


def gmlp(**changes):
    torch.manual_seed(0)
    return randomise_gates(GMLPForMaskedLM(GMLPConfig(**SIZES, max_position_embeddings=8, **changes)))


def test_ratios_and_quartiles_by_hand():
    seconds = {"ours": [1.0, 2.0, 3.0, 4.0, 5.0], "theirs": [2.0, 2.0, 2.0, 2.0, 2.0]}
    summaries = compare(seconds)
    assert summaries["ours"]["milliseconds"] == 3000
    assert (summaries["ours"]["milliseconds_q1"], summaries["ours"]["milliseconds_q3"]) == (2000, 4000)
    assert {summaries["ours"][key] for key in ("ratio", "ratio_q1", "ratio_q3")} == {1}
    # Round by round: 0.5, 1, 1.5, 2, 2.5.
    assert [summaries["theirs"][key] for key in ("ratio_q1", "ratio", "ratio_q3")] == [1.0, 1.5, 2.0]
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_rounds_are_interleaved_and_start_with_another_each_time():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = take_turns(calls, rounds=3, device=CPU, warm_up=1)
    assert ["".join(order[start : start + 3]) for start in range(0, 12, 3)] == ["cab", "abc", "bca", "cab"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(second >= 0 for times in seconds.values() for second in times)


@pytest.mark.parametrize(("long_seconds", "warm_up"), [(60, 2), (-1, 1)])
def test_long_calls_warm_up_once(long_seconds, warm_up, monkeypatch):
    monkeypatch.setattr(timing, "LONG_SECONDS", long_seconds)
    made = []
    take_turns({"a": lambda: made.append("a")}, rounds=3, device=CPU)
    assert len(made) == warm_up + 3


def test_a_gpu_times_short_calls_several_at_a_time(monkeypatch):
    class Event:
        clock = 0.0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.time = Event.clock

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 1000 * (end.time - self.time)

    def call(seconds):
        calls[seconds] += 1
        Event.clock += seconds

    calls = {0.001: 0, 0.5: 0}
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    functions = {str(seconds): lambda seconds=seconds: call(seconds) for seconds in calls}
    found = take_turns(functions, 3, torch.device("cuda"), warm_up=1)
    assert found["0.001"] == pytest.approx([0.001] * 3)
    assert found["0.5"] == pytest.approx([0.5] * 3)
    assert calls == {0.001: 1 + 3 * 20, 0.5: 1 + 3}  # 0.02 seconds at a time


def test_layers_that_repeat():
    model = gmlp()
    assert repeated_layers(model) == list(model.model.layers)
    assert repeated_layers(torch.nn.Linear(2, 2)) == []
    sizes = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_heads": 2, "vocab_size": 9}
    t5 = T5Model(T5Config(**sizes, num_layers=2, num_decoder_layers=3))
    assert repeated_layers(t5) == [*t5.encoder.block, *t5.decoder.block]


@pytest.mark.parametrize("case", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_disagreement_is_refused(case):
    ids = torch.randint(1, 50, (2, 6))
    models = {"one": gmlp(), "other": gmlp()}

    def candidates():
        labels = torch.arange(12)
        return [
            model_candidate(name, model, [{"input_ids": ids}], case, weights="same", labels=labels)
            for name, model in models.items()
        ]

    assert check_agreement(candidates(), 1e-6) == {"other": 0}
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[0] += 0.1  # is not read: only 6 of 8 tokens are there
    assert check_agreement(candidates(), 1e-6) == {"other": 0}
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[7] += 0.1
    with pytest.raises(UserError, match=r"other and one have the same weights but differ by"):
        check_agreement(candidates(), 1e-3)
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[7] = float("nan")
    with pytest.raises(UserError, match="nan"):
        check_agreement(candidates(), 1e-3)


def test_peak_memory_is_what_is_held_at_once():
    def call():
        first = torch.ones(1000)  # 4000 bytes
        second = first.double()  # 8000 more
        del first
        return second.sum()

    assert 12_000 <= peak_memory(call, CPU) < 14_000


@pytest.mark.parametrize("rate, largest", [(1e9, 512), (1e12, 1024)])
def test_peaks_are_of_products_that_take_less_than_two_seconds(rate, largest, monkeypatch):
    sides = []

    def at_that_rate(calls, rounds, device):
        found = {name: call().shape for name, call in calls.items()}
        sides.extend(shape[0] for shape in found.values())
        slower = {256: 1, 512: 1.25, 1024: 1.5}  # large products may be slower: memory, or a processor that gets hot
        return {name: [2 * shape[0] ** 3 / rate * slower[shape[0]]] * rounds for name, shape in found.items()}

    monkeypatch.setattr(timing, "take_turns", at_that_rate)
    assert timing.matmul_peaks(torch.float32, CPU, 1024) == pytest.approx({"product": rate, "convolution": rate})
    assert max(sides) == largest


def test_a_row_by_hand(monkeypatch):
    """Times in turn: of the model, its products and the copies of their operands and results."""
    floor = SimpleNamespace(calls=[None] * 3, flops=6e9, bytes=70, fastest=5e9, products=print, copies=print)
    ours, other = Candidate("ours", lambda: None, items=8, is_profiled=False, floor=floor), Candidate("other", print)
    other.is_profiled = False
    times = {"ours": [4.0, 2.0, 2.0], "other": [4.0, 4.0, 4.0]}
    times |= {"products of ours": [1.0, 1.0, 1.5], "copies of ours": [2.0, 0.5, 0.2]}

    def by_hand(calls, rounds, device):
        assert calls.keys() == times.keys()
        return times

    monkeypatch.setattr(timing, "take_turns", by_hand)
    monkeypatch.setattr(timing, "seconds_of_first_calls", lambda group, case: {"ours": 9.0, "other": 9.0})
    first, second = timing.measure(Group("both", [ours, other]), replace(INFERENCE, compiled=True), 3)
    # Shares of the floor: (1 + 1) / 4, (1 + 0.25) / 2, (1.5 + 0.1) / 2.
    assert (first["floor_q1"], first["floor"], first["floor_q3"]) == pytest.approx((0.5625, 0.625, 0.7125))
    assert (first["products_milliseconds"], first["bytes_milliseconds"]) == (1000, 250)
    assert (first["operations_per_second"], first["per_second"], first["compile_seconds"]) == (3e9, 4, 7)
    assert (first["products"], first["bytes"], first["fastest_product"]) == (3, 70, 6e9)
    assert second["operations_per_second"] is None and "floor" not in second
    assert second["ratio"] == 0.5


def test_the_profiler_writes_no_lines(capfd):
    """Its library does, to the process's own output."""
    assert peak_memory(lambda: torch.ones(3) + 1, CPU) > 0
    assert capfd.readouterr().err == ""
