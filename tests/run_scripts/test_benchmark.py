import csv
import json
import statistics
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import DeviceType

from tokenmixers import (
    AMLPConfig,
    AMLPModel,
    GMLPConfig,
    GMLPForMaskedLM,
    SynthesizerConfig,
    SynthesizerForConditionalGeneration,
    SynthesizerModel,
)
from tokenmixers.modeling.spatial_gating_unit import SpatialGatingUnit
from tokenmixers.run_scripts import benchmark
from tokenmixers.run_scripts.base.arguments import UserError
from tokenmixers.run_scripts.benchmark import crossover
from tokenmixers.run_scripts.benchmarks import model_comparisons, timing, workloads
from tokenmixers.run_scripts.benchmarks.model_comparisons import (
    Sizes,
    _decoding,
    as_g_mlp_pytorch,
    randomise_gates,
    text_against_g_mlp_pytorch,
    transformers_for,
)
from tokenmixers.run_scripts.benchmarks.timing import (
    Case,
    Contestant,
    Group,
    check_agreement,
    compare,
    count_flops,
    model_contestant,
    products_of,
    profiled,
    quartiles,
    take_turns,
)
from tokenmixers.run_scripts.benchmarks.workloads import (
    _batches_by_length,
    _packed_batches,
    _padded_batches,
    _texts_of,
    read_lengths,
)


CPU = torch.device("cpu")
INFERENCE = Case("inference", torch.float32, False, CPU)
TRAINING = Case("training", torch.float32, False, CPU)
SHRUNK = Sizes(batch_size=1, presets=[], length_files=[], tokenizer=None, texts=6).quick()
SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


@pytest.fixture
def with_pictures():
    """For tests that look at them."""


@pytest.fixture(autouse=True)
def _without_pictures(request, monkeypatch):
    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr(benchmark, "plot_results", lambda output, rows: None)


def gmlp(**changes):
    torch.manual_seed(0)
    return randomise_gates(GMLPForMaskedLM(GMLPConfig(**SIZES, max_position_embeddings=8, **changes)))


def run(tmp_path, *cells, **options):
    options = {"modes": "inference", "dtypes": "float32", "rounds": 1, "batch_size": 1, **options}
    values = {key: value if isinstance(value, list) else [value] for key, value in options.items()}
    arguments = [part for key, value in values.items() for part in (f"--{key}", *map(str, value))]
    return benchmark.main(
        ["--quick", "--output_dir", str(tmp_path / "results"), "--cells", *map(str, cells), *arguments]
    )


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


@pytest.mark.parametrize("case", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_disagreement_is_refused(case):
    ids = torch.randint(1, 50, (2, 6))
    models = {"one": gmlp(), "other": gmlp()}

    def contestants():
        labels = torch.arange(12)
        return [
            model_contestant(name, model, [{"input_ids": ids}], case, weights="same", labels=labels)
            for name, model in models.items()
        ]

    assert check_agreement(contestants(), 1e-6) == {"other": 0}
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[0] += 0.1  # is not read: only 6 of 8 tokens are there
    assert check_agreement(contestants(), 1e-6) == {"other": 0}
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[7] += 0.1
    with pytest.raises(UserError, match=r"other and one have the same weights but differ by"):
        check_agreement(contestants(), 1e-3)
    with torch.no_grad():
        models["other"].model.layers[0].sgu.spatial_proj.weight[7] = float("nan")
    with pytest.raises(UserError, match="nan"):
        check_agreement(contestants(), 1e-3)


def test_only_the_same_weights_are_compared():
    outputs = {"a": 1.0, "b": 1.0, "c": 5.0, "d": 6.0}
    weights = {"a": "x", "b": "x", "c": None, "d": "y"}
    contestants = [
        Contestant(name, print, lambda value=value: [torch.tensor(value)], weights[name])
        for name, value in outputs.items()
    ]
    assert check_agreement(contestants, 1e-6) == {"b": 0}


def test_a_training_step_moves_the_weights():
    model = gmlp()
    before = [parameter.clone() for parameter in model.parameters()]
    model_contestant("gMLP", model, [{"input_ids": torch.randint(1, 50, (2, 8))}], TRAINING).call()
    assert all(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    "model",
    [gmlp(), AMLPModel(AMLPConfig(**SIZES)), SynthesizerModel(SynthesizerConfig(**SIZES))],
    ids=lambda model: model.config.model_type,
)
def test_products_do_the_models_operations_and_flops_are_those_of_the_formula(model):
    from torch.utils.flop_counter import FlopCounterMode

    implementation, inputs = model.config._attn_implementation, [{"input_ids": torch.randint(1, 50, (2, 8))}]
    (products,) = products_of(model.eval(), inputs, INFERENCE)
    assert model.config._attn_implementation == implementation
    with FlopCounterMode(display=False) as counter:
        products.call()
    assert counter.get_total_flops() == count_flops(model, inputs) == model.forward_flops(2, 8)
    assert products_of(model, inputs, TRAINING) == []


def test_peak_memory_is_what_is_held_at_once():
    def call():
        first = torch.ones(1000)  # 4000 bytes
        second = first.double()  # 8000 more
        del first
        return second.sum()

    assert 12_000 <= profiled(call, CPU)[0] < 14_000


def test_shares_of_operators():
    small, large = torch.randn(16, 16), torch.randn(512, 512)

    def call():
        return small.mul(small), large @ large

    _, shares = profiled(call, CPU)
    assert {"mm", "mul"} <= shares.keys() and min(shares.values()) > 0
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert sum(shares.values()) == pytest.approx(1)


def test_shares_of_known_times(monkeypatch):
    times = (("aten::mul", 10), ("other::mul", 5), ("aten::mm", 60), ("## Call CompiledFxGraph f1 ##", 25))
    events = [SimpleNamespace(key=key, device_type=DeviceType.CPU, self_cpu_time_total=time) for key, time in times]
    events.append(SimpleNamespace(key="a kernel", device_type=DeviceType.CUDA, self_cpu_time_total=1000))
    events.append(SimpleNamespace(key="aten::view", device_type=DeviceType.CPU, self_cpu_time_total=0))
    profiler = SimpleNamespace(key_averages=lambda: events)
    monkeypatch.setattr(timing, "profile", lambda **_: nullcontext(profiler))
    monkeypatch.setattr(timing, "_peak_on_cpu", lambda _: 7)
    peak, shares = profiled(lambda: None, CPU)
    assert (peak, list(shares.items())) == (7, [("mm", 0.6), ("compiled loops", 0.25), ("mul", 0.15)])


def test_operations_are_counted_as_they_are_computed(monkeypatch):
    """Spectra are no products, and under autocast the length from which on they are taken is another."""
    unit = SpatialGatingUnit(8, 32, "toeplitz", 1e-5)
    monkeypatch.setattr(unit.spatial_proj, "fourier_lengths", {torch.bfloat16: 1})
    inputs = [{"hidden_states": torch.randn(2, 32, 8)}]
    flops = [
        model_contestant("unit", unit, inputs, Case("training", dtype, False, CPU)).flops
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert flops == [3 * 2 * 2 * 32 * 32 * 4, 0]


def test_no_contestant_falls_out_of_the_compiler(tmp_path, monkeypatch):
    """PyTorch's default is to give up compiling shared code after eight graphs."""

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    def cell(case, sizes):
        contestants = [
            model_contestant(str(width), Layer(width, 1), [{"x": torch.ones(1, width)}], case)
            for width in range(1, 11)
        ]
        yield Group("ten widths", contestants)

    monkeypatch.setitem(benchmark.CELLS, 7, cell)
    graphs = []
    compile_model = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model: compile_model(model, backend=lambda graph, _: graphs.append(1) or graph)
    )
    run(tmp_path, 7, compile=True)
    assert len(graphs) == 10


@pytest.mark.parametrize("rate, largest", [(1e9, 512), (1e12, 1024)])
def test_peaks_are_of_products_that_take_less_than_two_seconds(rate, largest, monkeypatch):
    sides = []

    def at_that_rate(calls, rounds, device):
        found = {name: call().shape for name, call in calls.items()}
        sides.extend(shape[0] for shape in found.values())
        return {name: [2 * shape[0] ** 3 / rate] * rounds for name, shape in found.items()}

    monkeypatch.setattr(timing, "take_turns", at_that_rate)
    assert timing.matmul_peaks(torch.float32, CPU, 1024) == pytest.approx({"product": rate, "convolution": rate})
    assert max(sides) == largest


def test_transformers_have_as_many_parameters():
    config = AMLPConfig(vocab_size=2000, num_hidden_layers=2, max_position_embeddings=64)
    model = AMLPModel(config)
    for peer in transformers_for(model, SHRUNK).values():
        assert peer.num_parameters() == pytest.approx(model.num_parameters(), rel=0.02)


def test_crossover():
    def rows(*ratios):
        lengths = zip((8, 16, 32), ratios, strict=True)
        return [{"model": "Toeplitz, Fourier", "length": length, "ratio": ratio} for length, ratio in lengths]

    assert crossover(rows(0.5, 1.2, 2.0)) == 16
    assert crossover(rows(1.5, 0.9, 2.0)) == 32
    assert crossover(rows(1.5, 2.0, 0.9)) is None


def test_lengths_of_a_file(tmp_path, monkeypatch):
    numbers, texts = tmp_path / "numbers.txt", tmp_path / "texts.txt"
    numbers.write_text("12\n\n7\n")
    texts.write_text("one two\none\ttwo three\n")
    assert read_lengths(str(numbers), None, 9) == [12, 7]
    assert read_lengths(str(numbers), None, 1) == [12]
    with pytest.raises(UserError, match="give a --tokenizer"):
        read_lengths(str(texts), None, 9)
    with pytest.raises(UserError, match="no file"):
        read_lengths(str(tmp_path / "nothing"), None, 9)
    with pytest.raises(UserError, match=r"no tokenizer can be loaded from .*missing"):
        read_lengths(str(texts), str(tmp_path / "missing"), 9)

    def tokenizer(*texts):
        return {"input_ids": " [SEP] ".join(texts).split()}

    monkeypatch.setattr(workloads.AutoTokenizer, "from_pretrained", lambda name: tokenizer)
    assert read_lengths(str(texts), "words", 9) == [2, 4]


@pytest.mark.parametrize("length", [5, 8])
@pytest.mark.parametrize("case", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_g_mlp_pytorch_with_our_weights(case, length):
    pytest.importorskip("g_mlp_pytorch")
    ours = gmlp(layer_norm_eps=1e-5)
    peer = as_g_mlp_pytorch(ours, length)
    ids, labels = torch.randint(1, 50, (2, length)), torch.arange(2 * length)
    contestants = [
        model_contestant("ours", ours, [{"input_ids": ids}], case, weights="same", labels=labels),
        model_contestant("theirs", peer, [{"x": ids}], case, weights="same", labels=labels),
    ]
    assert check_agreement(contestants, 1e-5)["theirs"] >= 0


def test_text_models_keep_their_kind_of_spatial_weights_at_every_length(monkeypatch):
    monkeypatch.setattr(model_comparisons, "as_g_mlp_pytorch", lambda model, length: deepcopy(model))
    for group in text_against_g_mlp_pytorch(INFERENCE, replace(SHRUNK, text_lengths=(8, 16))):
        toeplitz, full = (contestant.facts["parameters"] for contestant in group.contestants[:2])
        layers, longest = 2, 512
        assert full - toeplitz == layers * (longest**2 - (2 * longest - 1))


def test_timm_runs_with_the_same_weights(tmp_path):
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
    ours, peer, products = run(tmp_path, 1)
    assert ours["parameters"] == peer["parameters"]
    assert 0 < peer["difference"] < 1e-4
    assert products["model"] == "matrix products of the first"


# Slow where the processor has no bfloat16.
@pytest.mark.usefixtures("with_pictures")
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_report(dtype, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("5\n9\n30\n1\n")
    results = run(tmp_path, 5, 6, length_files=tmp_path / "short.txt", texts=3, dtypes=dtype, rounds=2)
    report = json.loads((tmp_path / "results" / "results.json").read_text())
    assert report["results"] == results
    assert report["machine"]["threads"] == torch.get_num_threads()
    with (tmp_path / "results" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [row["model"] for row in results]
    assert json.loads(rows[0]["operators"]) == results[0]["operators"] != {}
    for row in results:
        assert row["milliseconds_q1"] <= row["milliseconds"] <= row["milliseconds_q3"]
        assert row["peak_bytes"] > 0
    of_file = [row for row in results if row["group"] == "lengths: short.txt"]
    assert {row["length"] for row in of_file} == {statistics.mean((5, 9, 16))}
    growth = [row for row in results if row["cell"] == 6 and row["is_first"]]
    assert [row["length"] for row in growth] == [16, 32]
    assert all(row["difference"] < 1e-2 for row in results if row["cell"] == 6 and not row["is_first"])
    # In its own type the transform is not what the matrix gives, bit by bit; below 4,096 tokens the matrix is taken.
    found = [row["difference"] for row in results if row["model"] == "Toeplitz, Fourier"]
    assert any(found), found
    assert not any(row["difference"] for row in results if row["model"] == "Toeplitz, by length")
    assert {path.name for path in (tmp_path / "results").glob("*.png")} == {"cell_5.png", "cell_6.png"}
    assert f"Fourier transforms, inference, {dtype}, eager: faster" in capsys.readouterr().out


def test_every_cell_says_in_a_line_what_it_measures():
    assert all(function.__doc__.split("\n")[0].endswith(".") for function in benchmark.CELLS.values())


@pytest.mark.parametrize("options", [{"dtypes": "bfloat16"}, {"modes": "training"}])
def test_a_run_that_would_measure_nothing_is_refused(tmp_path, monkeypatch, options):
    monkeypatch.setattr(benchmark, "matmul_peaks", lambda *_: {"product": 1.0})
    with pytest.raises(UserError, match=r"--cells 7 measure nothing in .*: 7 is inference in float32"):
        run(tmp_path, 7, **options)


@pytest.mark.slow
def test_growth_compares_the_same_in_graphs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    results = run(tmp_path, 6, compile=True)
    compared = {(row["length"], row["compiled"]): [] for row in results}
    for row in results:
        compared[row["length"], row["compiled"]].append(row["model"])
    assert compared.keys() == {(length, compiled) for length in (16, 32) for compiled in (False, True)}
    assert all("Toeplitz, Fourier" in models and models == compared[16, False] for models in compared.values())
    assert "Fourier transforms, inference, float32, compiled: faster" in capsys.readouterr().out


def test_a_peak_from_a_busy_machine_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "matmul_peaks", lambda *_: {"product": 1.0})
    run(tmp_path, 6)
    assert "measured on a busy machine" in capsys.readouterr().out


def test_masked_language_modelling(tmp_path, monkeypatch):
    narrow = {"hidden_size": 64, "intermediate_size": 128}
    shipped = workloads.shipped_config
    monkeypatch.setattr(workloads, "shipped_config", lambda name, **changes: shipped(name, **narrow | changes))
    checkpointed, enable = [], GMLPForMaskedLM.gradient_checkpointing_enable

    def enabled(model):
        enable(model)
        checkpointed.append(model.is_gradient_checkpointing)

    monkeypatch.setattr(GMLPForMaskedLM, "gradient_checkpointing_enable", enabled)
    results = run(tmp_path, 8, modes="training")
    groups = {}
    for row in results:
        groups.setdefault(row["group"], []).append(row["model"])
    assert groups == {
        "gmlp-base, MLM step": ["logits of masked tokens", "logits of all tokens"],
        "gmlp-base, MLM step, layers checkpointed": ["logits of masked tokens", "logits of all tokens"],
        "small gMLP, 2 steps": ["bare steps", "run_mlm's Trainer and data"],
        "gmlp-base, 2 steps": ["bare steps", "run_mlm's Trainer and data"],
    }
    assert results[1]["difference"] < 1e-5 and results[3]["difference"] < 1e-5
    assert checkpointed == [True, True]
    # The utilisation is by the operations that are done: without those of the logits that nobody asked for.
    masked, everywhere = (row["utilisation"] * row["milliseconds"] for row in results[:2])
    config = GMLPConfig(vocab_size=1000, num_hidden_layers=2, **narrow)
    head = 3 * 2 * 16 * config.hidden_size * config.vocab_size  # of 16 tokens
    whole = 3 * GMLPForMaskedLM(config).forward_flops(1, 16)
    assert 1 - head / whole < masked / everywhere < 1 - head / whole / 2  # more than half were not masked
    assert all(row["milliseconds"] > 0 for row in results)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), st.integers(1, 3))
def test_batches_hold_every_text_once(lengths, batch_size):
    ids = torch.arange(1, len(lengths) * 16 + 1).reshape(len(lengths), 16)
    for batches, order in (
        _padded_batches(lengths, batch_size, 16, ids),
        _batches_by_length(lengths, batch_size * 16, ids),
        _packed_batches(lengths, batch_size, 16, ids),
    ):
        assert all(batch["input_ids"].numel() <= batch_size * 16 for batch in batches)
        assert sum(int(batch["attention_mask"].sum()) for batch in batches) == sum(lengths)
        texts = _texts_of(lengths, order)([batch["input_ids"] for batch in batches])
        for text, row, length in zip(texts, ids, lengths, strict=True):
            assert text.tolist() == row[:length].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("cell", [5, 6])
def test_compiled_and_in_training(tmp_path, cell):
    results = run(tmp_path, cell, compile=True, modes=["inference", "training"])
    assert {(row["mode"], row["compiled"]) for row in results} == {
        (mode, compiled) for mode in ("inference", "training") for compiled in (False, True)
    }
    assert all(("compiled loops" in row["operators"]) == row["compiled"] for row in results)


@pytest.mark.slow
def test_encoders_and_seq2seq(tmp_path):
    results = run(tmp_path, 3, 4, modes=["inference", "training"], presets=["random", "dense_vanilla"])
    assert {row["group"] for row in results} == {
        *("gmlp-base", "amlp-base", "synthesizer-random", "synthesizer-dense-vanilla"),
        *("seq2seq encoding", "seq2seq decoding", "seq2seq step"),
    }
    by_kind = {(row["group"], row["model"], row["mode"]): row for row in results}
    for group in ("gmlp-base", "synthesizer-random"):
        parameters = [
            by_kind[group, kind, "inference"]["parameters"] for kind in ("tokenmixers", "BERT", "ModernBERT")
        ]
        assert max(parameters) / min(parameters) < 1.01
    decoding = {row["model"]: row for row in results if row["group"] == "seq2seq decoding"}
    assert decoding["T5"]["difference"] < 1e-4
    assert decoding["T5"]["cache_bytes"] == decoding["Synthesizer, vanilla"]["cache_bytes"]
    assert decoding["T5"]["cache_bytes"] == 2 * decoding["Synthesizer, random"]["cache_bytes"]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_decoding_compares_the_steps_that_the_target_has(compiled):
    torch.manual_seed(0)
    config = SynthesizerConfig(**SIZES, num_attention_heads=2, is_encoder_decoder=True, decoder_start_token_id=0)
    model = SynthesizerForConditionalGeneration(config).eval()
    source, target = torch.randint(3, 50, (2, 7)), torch.randint(3, 50, (2, 5))
    before = torch.cat([torch.zeros(2, 1, dtype=torch.long), target[:, :-1]], dim=1)
    with torch.no_grad():
        expected = model(source, decoder_input_ids=before).logits
    case = Case("inference", torch.float32, compiled, CPU)
    (found,) = _decoding("ours", model, source, target, case, None).outputs()
    torch.testing.assert_close(found.transpose(0, 1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_compiled_decoding(tmp_path):
    results = run(tmp_path, 4, modes=["inference"], presets=["random"], compile=True)
    decoding = {(row["model"], row["compiled"]): row for row in results if row["group"] == "seq2seq decoding"}
    for model in ("T5", "Synthesizer, vanilla", "Synthesizer, random"):
        assert "compiled loops" in decoding[model, True]["operators"]
        assert "compiled loops" not in decoding[model, False]["operators"]
        assert decoding[model, True]["cache_bytes"] == decoding[model, False]["cache_bytes"]
    assert decoding["T5", True]["difference"] < 1e-4


@pytest.mark.parametrize("mode", ["inference", pytest.param("training", marks=pytest.mark.slow)])
def test_products_by_rows(mode, tmp_path):
    results = run(tmp_path, 9, modes=mode)
    ways = {"as tokenmixers chooses", "PyTorch's", "as a convolution"}
    for rows, expected in ((2, ways | {"the other way round"}), (16, ways)):
        for sizes in ("128 x 512", "768 x 3072", "768 x 1000"):
            assert {row["model"] for row in results if row["group"] == f"{sizes}, {rows} rows"} == expected
    differences = [row["difference"] for row in results if not row["is_first"]]
    assert 0 < max(differences) < 1e-5


def test_attention_by_length(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "profiled", lambda call, device: (None, {}))
    results = run(tmp_path, 10, modes=["inference", "training"])
    assert {row["model"] for row in results} == {"as tokenmixers chooses", "PyTorch's kernel", "written out"}
    shapes = {(row["mode"], row["length"], row["keys"]) for row in results}
    assert shapes == {("inference", 1, 16), ("inference", 16, 16), ("training", 16, 16)}
    kernels = [row for row in results if row["model"] == "PyTorch's kernel"]
    assert all(row["difference"] == 0 for row in kernels)  # ours has no other way in float32


@pytest.mark.slow
def test_start_up(tmp_path):
    results = run(tmp_path, 7, modes=["training", "inference"])
    assert [row["group"] for row in results] == ["import", "import", "first prediction", "first prediction"]
    assert all(row["milliseconds"] > 0 for row in results)


def test_mistakes(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--cells 11 is unknown"):
        run(tmp_path, 11)
    with pytest.raises(UserError, match="--dtypes float16 is unknown"):
        run(tmp_path, 6, dtypes="float16")
    with pytest.raises(UserError, match="--rounds must be at least 1"):
        run(tmp_path, 6, rounds=0)
    with pytest.raises(UserError, match="--texts must be at least 1"):
        run(tmp_path, 5, texts=0)
    monkeypatch.setitem(benchmark.PEERS, 6, "no_such_peer")
    with pytest.raises(UserError, match=r"--cells 6 needs no_such_peer.*pip install '\.\[bench\]'"):
        run(tmp_path, 6)
    assert not (tmp_path / "results").exists()
