import json
import statistics
from importlib.util import find_spec

import pytest
import torch

from tokenmixers.run_scripts import benchmark
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks import experiments, timing
from tokenmixers.run_scripts.benchmarks.timing import Group, model_candidate


def run(tmp_path, *cells, **options):
    options = {"modes": "inference", "dtypes": "float32", "rounds": 1, "batch_size": 1, **options}
    values = {key: value if isinstance(value, list) else [value] for key, value in options.items()}
    arguments = [part for key, value in values.items() for part in (f"--{key}", *map(str, value))]
    return benchmark.main(
        ["--quick", "--output_dir", str(tmp_path / "results"), "--cells", *map(str, cells), *arguments]
    )


def test_no_candidate_falls_out_of_the_compiler(tmp_path, monkeypatch):
    """PyTorch's default is to give up compiling shared code after eight graphs."""

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    def cell(case, sizes):
        candidates = [
            model_candidate(str(width), Layer(width, 1), [{"x": torch.ones(1, width)}], case) for width in range(1, 11)
        ]
        yield Group("ten widths", candidates)

    monkeypatch.setitem(experiments.EXPERIMENTS, 6, cell)
    graphs = []
    compile_model = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model: compile_model(model, backend=lambda graph, _: graphs.append(1) or graph)
    )
    run(tmp_path, 6, compile=True)
    assert len(graphs) == 10


def test_timm_runs_with_the_same_weights(tmp_path):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    ours, peer = run(tmp_path, 1)
    assert ours["parameters"] == peer["parameters"]
    assert 0 < peer["difference"] < 1e-4
    assert ours["products"] == peer["products"] > 0


# Slow where the processor has no bfloat16.
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_report(dtype, tmp_path, monkeypatch):
    """No row is faster than the fastest product, however slow the square ones before were, as on some processors."""
    slow = lambda dtype, device, size: {"product": torch.ones(1, device=device, dtype=dtype).item()}  # noqa: E731
    monkeypatch.setattr(benchmark, "matmul_peaks", slow)
    (tmp_path / "short.txt").write_text("5\n9\n30\n1\n")
    results = run(tmp_path, 5, 6, length_files=tmp_path / "short.txt", texts=3, dtypes=dtype, rounds=2)
    report = json.loads((tmp_path / "results" / "results.json").read_text())
    assert report["results"] == results
    assert report["machine"]["threads"] == torch.get_num_threads()
    for row in results:
        assert row["milliseconds_q1"] <= row["milliseconds"] <= row["milliseconds_q3"]
        assert row["peak_bytes"] > 0
    of_file = [row for row in results if row["group"] == "lengths: short.txt"]
    assert {row["length"] for row in of_file} == {statistics.mean((5, 9, 16))}
    growth = [row for row in results if row["cell"] == 6]
    assert [row["length"] for row in growth if row["is_first"]] == [16, 32, 16, 32]
    units, layers = growth[:6], growth[6:]
    assert all(row["difference"] < 1e-2 for row in units if not row["is_first"])
    for ours, peer in zip(layers[::2], layers[1::2], strict=True):
        assert ours["length"] == peer["length"]
        assert abs(ours["parameters"] / peer["parameters"] - 1) < 0.02
    peaks = report["matmul_peaks"][dtype]
    assert peaks["product"] == 1.0 < peaks["rows"]
    compared = [row for row in growth if row["utilisation"]]
    assert compared
    for row in compared:
        assert 0 < row["utilisation"] <= 1
        assert row["utilisation"] == pytest.approx(row["operations_per_second"] / peaks["rows"])
        assert 0 < row["floor_q1"] <= row["floor"] <= row["floor_q3"]


def test_a_run_that_would_measure_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "matmul_peaks", lambda *_: {"product": 1.0})
    with pytest.raises(UserError, match=r"--cells 12 measure nothing in --modes inference"):
        run(tmp_path, 12)


def test_peaks_are_kept_by_type_and_number_of_threads():
    def row(dtype, threads, rate, fastest=None):
        return {"dtype": dtype, "threads": threads, "operations_per_second": rate, "fastest_product": fastest}

    rows = [row("float32", 2, 50.0, 70.0), row("float32", 1, 30.0), row("bfloat16", 2, None), row("float32", 2, 90.0)]
    peaks = {"float32": {"product": 80.0}, "bfloat16": {"product": 200.0}}
    benchmark.set_utilisation(rows[:3], peaks, 2)
    assert [row["utilisation"] for row in rows[:3]] == [50 / 80, 1.0, None]
    benchmark.set_utilisation(rows, peaks, 2)
    assert [row["utilisation"] for row in rows] == [50 / 90, 1.0, None, 1.0]
    assert peaks["float32, threads: 1"] == {"rows": 30.0}


@pytest.mark.slow
def test_encoders_and_seq2seq(tmp_path):
    results = run(tmp_path, 3, 4, modes=["inference", "training"], presets=["random", "dense_vanilla"])
    encoders = ("gmlp-base", "amlp-base", "synthesizer-random", "synthesizer-dense-vanilla")
    assert {row["group"] for row in results} == {
        *(f"{name}, 16 tokens" for name in encoders),
        *("seq2seq encoding", "seq2seq decoding", "seq2seq step"),
    }
    by_kind = {(row["group"], row["model"], row["mode"]): row for row in results}
    for group in ("gmlp-base, 16 tokens", "synthesizer-random, 16 tokens"):
        parameters = [
            by_kind[group, kind, "inference"]["parameters"] for kind in ("tokenmixers", "BERT", "ModernBERT")
        ]
        assert max(parameters) / min(parameters) < 1.01
    decoding = {row["model"]: row for row in results if row["group"] == "seq2seq decoding"}
    assert decoding["T5"]["difference"] < 1e-4
    assert decoding["T5"]["cache_bytes"] == decoding["Synthesizer, vanilla"]["cache_bytes"]
    assert decoding["T5"]["cache_bytes"] == 2 * decoding["Synthesizer, random"]["cache_bytes"]


def without_a_gpu(monkeypatch):
    """`--gpu` on this machine, nothing compiled, with two groups of a small model as cell 6."""

    def cell(case, sizes):
        for width in (2, 3):
            layer = torch.nn.Linear(width, 1)
            yield Group(str(width), [model_candidate("layer", layer, [{"input": torch.ones(1, width)}], case)])

    monkeypatch.setitem(experiments.EXPERIMENTS, 6, cell)
    monkeypatch.setattr(benchmark, "gpu_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(timing, "compiled", lambda model, case: model)
    monkeypatch.setattr(benchmark, "matmul_peaks", lambda *_: {"product": 1e15})


def test_what_a_gpu_measures(tmp_path, monkeypatch):
    without_a_gpu(monkeypatch)
    results = run(tmp_path, 6, gpu=True, modes=["inference", "training"], dtypes="bfloat16")
    assert [(row["compiled"], row["mode"]) for row in results if row["is_first"]] == [
        (compiled, mode) for compiled in (False, True) for mode in ("inference", "training") for _ in range(2)
    ]
    assert {row["dtype"] for row in results} == {"bfloat16"}
    recorded = json.loads((tmp_path / "results" / "results.json").read_text())
    assert recorded["arguments"]["compile_layers"] and recorded["arguments"]["minutes"] == 14
    assert "left_out" not in recorded


def test_what_fails_on_a_gpu_is_left_out_and_said(tmp_path, monkeypatch):
    without_a_gpu(monkeypatch)
    monkeypatch.setitem(experiments.PEERS, 2, "no_such_peer")

    def fails(group, case, rounds):
        if case.training:
            raise torch.OutOfMemoryError("too large")
        return measure(group, case, rounds)

    measure = benchmark.measure
    monkeypatch.setattr(benchmark, "measure", fails)
    with pytest.raises(UserError, match=r"lack what was left out: --cells 2 needs no_such_peer.*OutOfMemoryError"):
        run(tmp_path, 2, 6, gpu=True, modes=["inference", "training"], dtypes="bfloat16")
    report = json.loads((tmp_path / "results" / "results.json").read_text())
    assert {row["mode"] for row in report["results"]} == {"inference"}
    assert len(report["left_out"]) == 1 + 2 * 2  # the package, and two groups, eager and compiled
    assert report["arguments"]["cells"] == [2, 6]


def test_no_group_begins_after_the_time(tmp_path, monkeypatch):
    without_a_gpu(monkeypatch)
    with pytest.raises(UserError, match=r"left out: cell 6, inference, bfloat16, eager: groups after 1e-09 minutes"):
        run(tmp_path, 6, gpu=True, dtypes="bfloat16", minutes=1e-9)


def test_a_missing_peer_is_named_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(experiments.PEERS, 6, "no_such_peer")
    with pytest.raises(UserError, match=r"--cells 6 needs no_such_peer.*pip install '\.\[bench\]'"):
        run(tmp_path, 6)
    assert not (tmp_path / "results").exists()
