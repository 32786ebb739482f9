import json
import shlex
from dataclasses import asdict

import pytest

from tokenmixers.run_scripts import benchmark_page
from tokenmixers.run_scripts.arguments import MODEL_CARDS, UserError, parse_arguments
from tokenmixers.run_scripts.benchmark import BenchmarkArguments


PUBLISHED = MODEL_CARDS / "benchmarks"
RESULTS = sorted(PUBLISHED.glob("*.json"))


def test_published_page_is_that_of_the_published_results():
    assert RESULTS
    assert (PUBLISHED / "README.md").read_text(encoding="utf-8") == benchmark_page.page(PUBLISHED)


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_commands_measure_what_was_measured(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))["arguments"]
    make, target, setting = shlex.split(benchmark_page.command(path.stem, recorded))
    assert (make, target, setting[:6]) == ("make", "bench", "BENCH=")
    (arguments,) = parse_arguments((BenchmarkArguments,), shlex.split(setting[6:]))
    assert asdict(arguments) == asdict(arguments) | recorded


#: What all tables of a page have in common.
MACHINE = {"device": "cpu", "processor": "x", "versions": {}, "peers": {}, "allocator": {}}


def test_numbers_of_a_table_by_hand(tmp_path):
    row = {"group": "g", "case": "inference, float32, eager", "milliseconds_q1": 1000.0, "milliseconds_q3": 4000.0}
    rows = [
        {**row, "model": "ours", "milliseconds": 2000.0, "ratio": 1.0, "ratio_q1": 1.0, "ratio_q3": 1.0},
        {**row, "model": "theirs", "milliseconds": 3000.0, "ratio": 0.5, "ratio_q1": 0.4, "ratio_q3": 0.8},
    ]
    rows[0] |= {
        "per_second": 1234.43,
        "utilisation": 0.456,
        "peak_bytes": 7_600_000,
        "unit": "images",
        "cache_bytes": 2000,
    }
    rows[0] |= {"operators": {"mm": 0.5, "gelu": 0.25, "add": 0.126, "mul": 0.1}}
    rows[1] |= {"per_second": None, "utilisation": None, "peak_bytes": None, "parameters": 34_567}
    report = {
        "arguments": {"output_dir": "somewhere", "cells": [6], "compile": True, "quick": False},
        "machine": {"date": "2020-02-02 02:02 UTC", "threads": 3} | MACHINE,
        "matmul_peaks": {"float32": {"product": 2e9, "convolution": 5e9}},
        "fourier_from": {"inference, float32, eager": 2048, "training, float32, eager": None},
        "results": rows,
    }
    (tmp_path / "growth.json").write_text(json.dumps(report))
    (tmp_path / "zebras.json").write_text(json.dumps(report | {"arguments": {"cells": [1]}}))
    (tmp_path / "README.md").write_text("# Title\n\nBy hand.\n\n## growth\n\nold\n")
    benchmark_page.main(["--folder", str(tmp_path)])
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    lines = text.split("\n")
    assert text.startswith("# Title\n\nBy hand.\n\n\n## zebras\n")
    assert [line for line in lines if line.startswith("#")] == ["# Title", "## zebras", "## growth"]  # by cell
    assert 'make bench BENCH="--output_dir outputs/growth --cells 6 --compile"' in lines
    assert "2020-02-02 02:02 UTC; 3 threads; peak float32 5 GFLOP/s." in lines
    assert "Fourier transforms, inference, float32, eager: faster from 2,048 tokens on." in lines
    assert "Fourier transforms, training, float32, eager: faster nowhere." in lines
    ours, theirs = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[-3:-1])
    assert ours[2:] == [
        "ours",
        "2,000.0 (1,000.0-4,000.0)",
        "1.00 (1.00-1.00)",
        "1,234.4 images",
        "46%",
        "8",
        "2",
        "",
        "mm 50%, gelu 25%, add 13%",
    ]
    assert theirs[2:] == ["theirs", "3,000.0 (1,000.0-4,000.0)", "2.00 (1.25-2.50)", "", "", "", "", "34.6", ""]
    benchmark_page.main(["--folder", str(tmp_path)])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text


def test_options_that_cannot_be_told_are_refused():
    with pytest.raises(UserError, match="measured with --speed, which"):
        benchmark_page.command("growth", {"speed": 1})
    with pytest.raises(UserError, match="argument with a space"):
        benchmark_page.command("growth", {"cells": [6], "tokenizer": "my tokenizer"})


@pytest.mark.parametrize("fact", ["device", "processor", "versions", "peers", "allocator"])
def test_results_of_several_machines_are_refused(tmp_path, fact):
    machine = {"date": "", "threads": 1} | MACHINE
    (tmp_path / "README.md").write_text("# Title\n")
    for name, told in (("growth", {"torch": "1"}), ("mlm", {"torch": "2"})):
        report = {"arguments": {"cells": [6]}, "machine": machine | {fact: told}, "matmul_peaks": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps({**report, "results": []}))
    with pytest.raises(
        UserError, match=rf'differ in their {fact}.*growth: \{{"torch": "1"\}}; mlm: \{{"torch": "2"\}}'
    ):
        benchmark_page.page(tmp_path)
