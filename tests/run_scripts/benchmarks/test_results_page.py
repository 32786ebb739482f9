import csv
import json
import re
import shlex
import shutil
from dataclasses import asdict

import pytest

from tokenmixers.run_scripts import benchmark_page
from tokenmixers.run_scripts.base.arguments import parse_arguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.benchmarks import results_page
from tokenmixers.run_scripts.benchmarks.arguments import BenchmarkArguments


PUBLISHED = MODEL_CARDS / "benchmarks"
RESULTS = sorted(PUBLISHED.glob("*/*.json"))


def test_published_tables_are_those_of_the_published_results():
    assert RESULTS
    assert (PUBLISHED / "README.md").read_text("utf-8") == results_page.page(PUBLISHED)
    assert (PUBLISHED / "speed_ups.csv").read_text("utf-8") == results_page.speed_ups(
        results_page.read_machines(PUBLISHED)
    )


def test_the_text_says_what_was_measured():
    """Operations of BERT, as a share of those of gMLP with as many parameters; compiled times, as a share of eager."""
    text = " ".join((PUBLISHED / "README.md").read_text(encoding="utf-8").split())
    rows = [
        row for path in PUBLISHED.glob("c-epyc-zen4/*.json") for row in json.loads(path.read_text("utf-8"))["results"]
    ]

    def only(key, **wanted):
        (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
        return found[key] * (found["milliseconds"] if key == "operations_per_second" else 1)

    case = {"case": "inference, float32, eager", "cell": 3}
    shares = []
    for length in (128, 512):
        bert, gmlp = (
            only("operations_per_second", **case, group=f"gmlp-base, {length} tokens", model=model)
            for model in ("BERT", "tokenmixers")
        )
        shares.append(f"{bert / gmlp:.2f}")
    assert f"{shares[0]} of gMLP-base's operations at 128 tokens. At 512 it has {shares[1]} of them." in text

    def of_eager(cell, mode, dtype):
        compiled, eager = (
            only("milliseconds", cell=cell, model="gMLP", case=f"{mode}, {dtype}, {way}")
            for way in ("compiled", "eager")
        )
        return f"{compiled / eager:.2f}"

    cells = (11, "inference"), (12, "training")
    sentence, step = ([of_eager(*cell, dtype) for dtype in ("float32", "bfloat16")] for cell in cells)
    assert f"needs {sentence[0]} (float32) and {sentence[1]} (bfloat16) of the eager time for one sentence" in text
    assert f"training step of gMLP {step[0]} and {step[1]} times as long" in text
    notes = text.split("## What the results depend on")[1].split("### Files of texts")[0]
    assert {*re.findall(r"\d+\.\d+|\d+ %", notes)} == {*shares, *sentence, *step}  # no other figure without a test
    whole = {*re.findall(r"(?<![\w.-])\d+(?![\w.])(?!\.\d)", notes)}
    assert whole <= {number for row in rows for number in re.findall(r"\d+", f"{row['group']} {row['model']}")}
    found = list(csv.DictReader((PUBLISHED / "speed_ups.csv").read_text("utf-8").splitlines()))
    cases = [
        (line, case, cell) for line in found for case, cell in line.items() if cell and case.startswith(("fl", "bf"))
    ]
    for line, case, cell in cases:
        speed_up, eager, gpu = float(cell), "compiled" not in case, line["machine"] == "D"
        if line["against"] == "BERT, equal parameters" and line["model"].startswith("gmlp") and eager:
            assert (speed_up < 1) == ((line["machine"], case[:7]) != ("B", "float32"))
        if gpu and ("512 tokens" in line["model"] or "16-224" in line["model"]):
            assert (speed_up > 1) == ("training" not in case or "512 tokens" in line["model"])


@pytest.mark.parametrize("path", RESULTS, ids=[f"{path.parent.name}-{path.stem}" for path in RESULTS])
def test_commands_measure_what_was_measured(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))["arguments"]
    make, target, setting = shlex.split(results_page.command(path.stem, recorded))
    assert (make, target, setting[:6]) == ("make", "bench", "BENCH=")
    (arguments,) = parse_arguments((BenchmarkArguments,), shlex.split(setting[6:]))
    told = asdict(arguments) | {"sentence_file": None, "sentences": 10_000}  # options that left, with their defaults
    assert told == told | recorded | {"output_dir": told["output_dir"]}


MACHINE = {"device": "cpu", "processor": "x", "instructions": "AVX9", "versions": "torch 1", "peers": {"timm": "2"}}
MACHINE |= {"allocator": {}, "threads": 3, "date": "2020-02-02 02:02 UTC"}


def row(model, ratio, milliseconds, **changes):
    facts = {"cell": 1, "group": "gmlp-s16-224", "mode": "inference", "dtype": "float32", "compiled": False}
    return {**facts, "model": model, "is_first": ratio == 1, "ratio": ratio, "milliseconds": milliseconds, **changes}


def write(folder, machine, name, rows, **facts):
    (folder / machine).mkdir(exist_ok=True)
    report = {"arguments": {"output_dir": "somewhere", "cells": [1], "compile": True}, "machine": MACHINE | facts}
    report["results"] = rows
    (folder / machine / f"{name}.json").write_text(json.dumps(report))


@pytest.fixture
def folder(tmp_path):
    notes = "## What the results depend on\n\nThe processor.\n"
    (tmp_path / "README.md").write_text(f"# Title\n\nBy hand.\n\n## old\n\nold\n\n{notes}\n## B: old\n")
    both = [row("tokenmixers", 1, 20.0), row("timm", 0.5, 30.0)]
    both += [row("tokenmixers", 1, 20.0, compiled=True), row("timm", 0.8, 30.0, compiled=True)]
    write(tmp_path, "c-one", "images", both)
    write(tmp_path, "c-one", "older", [row("tokenmixers", 1, 1.0), row("timm", 0.1, 9.0)], date="2019-01-01 00:00 UTC")
    two = [row("Synthesizer, vanilla", 1, 9.0), row("T5", 0.7, 30.0), row("Synthesizer, random", 0.9, 10.0)]
    two.append(row("Synthesizer, random_dense", 0.8, 20.0))
    two = [{**line, "cell": 4, "group": "seq2seq encoding", "dtype": "bfloat16"} for line in two]
    write(tmp_path, "d-two", "t5", two, processor="y")
    three = [row("tokenmixers", 1, 9.0), row("BERT", 0.8, 1.0), row("ModernBERT", 0.4, 1.0)]
    three += [row("tokenmixers", 1, 9.0, compiled=True), row("BERT", 0.25, 1.0, compiled=True)]
    three += [row("tokenmixers", 1, 9.0, mode="training"), row("ModernBERT", 2.0, 1.0, mode="training")]
    three = [{**line, "cell": 3, "group": "gmlp-base, 64 tokens", "dtype": "bfloat16"} for line in three]
    write(tmp_path, "d-two", "encoders", three, processor="y")
    return tmp_path


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


PEERS = ("BERT, equal parameters", "ModernBERT, equal parameters", "T5, equal shape", "T5, equal shape")


def test_tables_by_hand(folder):
    benchmark_page.main(["--folder", str(folder)])
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Title\n\nBy hand.\n\n## Summary\n\nInference / training")
    assert re.findall("^## (.*)", text, flags=re.MULTILINE) == [
        *("Summary", "Machines", "The processors compared", "What the results depend on", "C: x, AVX9", "D: y, AVX9")
    ]
    rows = csv.DictReader((folder / "speed_ups.csv").read_text("utf-8").splitlines())
    found = [{key: cell for key, cell in line.items() if cell} for line in rows]
    bert, modern, *t5 = ({"machine": "D", "model": "gmlp-base, 64 tokens", "against": peer} for peer in PEERS)
    assert found == [
        # The median of neighbouring ratios, eager and compiled, of the newest run.
        {
            **{"machine": "C", "model": "gmlp-s16-224", "against": "timm, same weights"},
            **{"float32, inference": "2.00", "float32, inference, compiled": "1.25"},
        },
        bert | {"bfloat16, inference": "1.25", "bfloat16, inference, compiled": "4.00"},
        modern | {"bfloat16, inference": "2.50", "bfloat16, training": "0.50"},
        t5[0] | {"model": "seq2seq encoding: vanilla", "bfloat16, inference": "1.43"},
        # T5 is not compared with the row's own model: the ratio of the medians. Other presets are left out.
        t5[1] | {"model": "seq2seq encoding: random", "bfloat16, inference": "3.00"},
    ]
    lines = [cells(line) for line in text.splitlines()]
    assert ["[C: x, AVX9](#c-x-avx9)", "3", "2019-01-01 to 2020-02-02"] in lines
    compared = lines[lines.index(["model (compared with)", "C", "D"]) :]
    assert compared[2:4] == [["gMLP-S, images (timm, same weights)", "2.00", ""], [""]]
    assert 'make bench BENCH="--output_dir outputs/images --cells 1 --compile"' in text.splitlines()
    assert "3 threads; torch 1; timm 2; 2019-01-01 00:00 UTC to 2020-02-02 02:02 UTC." in text
    summary = [cells(line) for line in text.split("\n## ")[1].splitlines() if line.startswith("|")]
    assert summary[::2] == [
        ["model (compared with)", "CPU fp32", "CPU bf16", "GPU bf16"],
        ["gMLP-S, images (timm, same weights)", "2.00 / -", "", ""],
    ]
    assert summary[-1] == ["Synthesizer (random), encoding (T5, equal shape)", "", "", "3.00 / -"]
    benchmark_page.main(["--folder", str(folder)])
    assert (folder / "README.md").read_text(encoding="utf-8") == text


def test_the_picture_is_drawn_from_the_results_next_to_the_page(folder, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(benchmark_page, "draw", lambda *arguments: drawn.append(arguments))
    call = ["--folder", str(folder / "benchmarks")]
    for path in folder.glob("*"):
        (folder / "benchmarks").mkdir(exist_ok=True)
        path.rename(folder / "benchmarks" / path.name)
    benchmark_page.main(call)
    assert drawn == []
    shutil.copytree(MODEL_CARDS / "embeddings", folder / "embeddings")
    (folder / "embeddings" / "scores.csv").unlink()
    benchmark_page.main(call)
    ((results, speeds, path),) = drawn
    assert len(results) >= 120 and {row["format"] for row in speeds} == {"float32", "onnx-int8"}
    assert path == folder / "pictures" / "embeddings.png"
    written = folder / "embeddings" / "scores.csv"
    assert written.read_text() == (MODEL_CARDS / "embeddings" / "scores.csv").read_text()


@pytest.mark.parametrize("fact", results_page.MACHINE_FACTS)
def test_a_folder_is_for_one_machine(folder, fact):
    write(folder, "c-one", "other", [], **{fact: "another"})
    with pytest.raises(UserError, match=rf'c-one differ in their {fact}.*"another"'):
        results_page.page(folder)


def test_folders_of_the_same_machine_are_refused(folder):
    write(folder, "e-three", "images", [])
    with pytest.raises(UserError, match=r"C and .*e-three hold results of 'x, AVX9': merge them"):
        results_page.read_machines(folder)


def test_every_machine_has_a_letter_of_its_own(folder):
    write(folder, "d-three", "images", [], processor="z")
    with pytest.raises(UserError, match=r"two folders in .* begin with 'D', one of them .*d-two: rename it"):
        results_page.read_machines(folder)


def test_no_results_are_refused(tmp_path):
    with pytest.raises(UserError, match="no results in the folders of"):
        results_page.read_machines(tmp_path)
