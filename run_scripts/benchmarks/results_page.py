"""The tables of `model_cards/benchmarks/README.md` and of the README."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import UserError
from ..base.reporting import markdown_table
from .arguments import BenchmarkArguments


#: The comments around the README's table.
MARKS = ("<!-- table of `tokenmixers benchmark_page` -->", "<!-- end of the table -->")


class Comparison(NamedTuple):
    """Models of one experiment to compare: each of `ours` with each of `peers`."""

    cell: int
    title: str
    ours: str
    peers: tuple[str, ...]


#: BERTs of as many layers as gMLP, and of as many operations and parameters.
SENTENCE_PEERS = ("BERT of equal shape", "BERT, 3 layers")
#: Ends the names of models that ONNX Runtime runs.
ONNX = ", ONNX Runtime"

#: The tables of the page. If `ours` ends in `*`, there is a row for each model whose name starts like this.
COMPARISONS = (
    Comparison(1, "Images: the same weights in timm", "tokenmixers", ("timm",)),
    Comparison(2, "Text: the same weights in g-mlp-pytorch", "tokenmixers, Toeplitz", ("g-mlp-pytorch",)),
    Comparison(3, "Encoders: BERT and ModernBERT with as many parameters", "tokenmixers", ("BERT", "ModernBERT")),
    Comparison(4, "Sequence to sequence: T5 with the same shape", "Synthesizer, *", ("T5",)),
    Comparison(
        5, "Texts of real lengths: packed rows", "gMLP, packed", ("gMLP, by length", "BERT, by length", "gMLP, padded")
    ),
    Comparison(6, "Long texts: the gate with Toeplitz weights", "Toeplitz, by length", ("Toeplitz, matrix", "full")),
    Comparison(
        6, "Long texts: ModernBERT's layers with as many parameters", "gMLP, 6 layers", ("ModernBERT, 3 layers",)
    ),
    Comparison(8, "Masked language modelling: sparse logits", "logits of masked tokens", ("logits of all tokens",)),
    Comparison(9, "Our models with kernels and without", "with kernels", ("without",)),
    Comparison(10, "Sentence embeddings: BERTs of MiniLM's shape", "gMLP", SENTENCE_PEERS),
    Comparison(11, "One sentence at a time: BERTs of MiniLM's shape", "gMLP", (*SENTENCE_PEERS, f"gMLP{ONNX}")),
    Comparison(
        11,
        "One sentence at a time, all by ONNX Runtime",
        f"gMLP{ONNX}",
        tuple(f"{peer}{ONNX}" for peer in SENTENCE_PEERS),
    ),
    Comparison(12, "Finetuning: BERTs of MiniLM's shape", "gMLP", SENTENCE_PEERS),
)


class Measure(NamedTuple):
    """A figure of the first model of each group, if it was measured."""

    key: str
    title: str
    text: str
    scale: float = 1.0


class MeasureTable(NamedTuple):
    """A table of measures, which share a cell."""

    measures: tuple[Measure, ...]
    cases: tuple[bool, ...] = (False, True)
    """Eager, compiled."""
    on_accelerators: bool = False
    """Only there."""


MEASURES = (
    MeasureTable(
        (
            Measure("per_second", "Tokens or images per second", "{:,.0f}"),
            Measure("utilisation", "share of the fastest matrix product", "{:.0%}"),
            Measure("peak_bytes", "memory besides the weights, MB", "{:,.0f}", 1e-6),
        ),
        on_accelerators=True,
    ),
    MeasureTable((Measure("floor", "Share of the floor", "{:.0%}"),)),
    MeasureTable((Measure("compile_seconds", "Seconds to compile", "{:,.1f}"),), cases=(True,)),
)


class SummaryRow(NamedTuple):
    """A row of the README's table, whose figures share a cell."""

    ours: str
    against: str
    groups: tuple[tuple[int, str, str], ...]
    """Number of the experiment, group and mode of each figure."""
    models: tuple[str, str]


_BOTH = ("inference", "training")

#: Rows without figures are left out.
SUMMARY = (
    SummaryRow(
        "gMLP-S, images: inference / training",
        "timm, same weights",
        tuple((1, "gmlp-s16-224", mode) for mode in _BOTH),
        ("tokenmixers", "timm"),
    ),
    SummaryRow(
        "gMLP-base, 128 tokens: inference / training",
        "g-mlp-pytorch, same weights",
        tuple((2, "gmlp-base, 128 tokens", mode) for mode in _BOTH),
        ("tokenmixers, Toeplitz", "g-mlp-pytorch"),
    ),
    *(
        SummaryRow(f"gMLP of MiniLM's shape: {name}", against, groups, ("gMLP", peer))
        for name, groups in (
            ("10,000 sentences, one thread", ((10, "10,000 sentences, 1 thread", "inference"),)),
            (
                "one sentence / finetuning",
                ((11, "one sentence at a time", "inference"), (12, "finetuning on sentences", "training")),
            ),
        )
        for peer, against in zip(SENTENCE_PEERS, ("BERT, equal shape", "BERT, equal operations"), strict=True)
    ),
    SummaryRow(
        "gMLP of MiniLM's shape: one sentence, ONNX Runtime",
        "BERT, equal shape",
        ((11, "one sentence at a time", "inference"),),
        (f"gMLP{ONNX}", f"{SENTENCE_PEERS[0]}{ONNX}"),
    ),
    SummaryRow(
        "Synthesizer (random): encoding / decoding / training",
        "T5, equal shape",
        ((4, "seq2seq encoding", "inference"), (4, "seq2seq decoding", "inference"), (4, "seq2seq step", "training")),
        ("Synthesizer, random", "T5"),
    ),
    *(
        SummaryRow(
            f"{name}, {length} tokens: inference / training",
            "BERT, equal parameters",
            tuple((3, f"{name.lower()}, {length} tokens", mode) for mode in _BOTH),
            ("tokenmixers", "BERT"),
        )
        for name, length in (("gMLP-base", 128), ("gMLP-base", 512), ("aMLP-base", 512))
    ),
)


#: Facts that must be equal in all results of a folder.
MACHINE_FACTS = ("device", "processor", "instructions", "accelerator", "bfloat16", "versions", "peers", "allocator")


Results = Mapping[str, Mapping[str, Any]]
"""Reports of one machine by name."""


def read_machines(folder: Path) -> dict[str, Results]:
    """The results of every machine, by its name: the GPU, or the processor and its vector instructions."""
    machines: dict[str, Results] = {}
    for subfolder in sorted({path.parent for path in folder.glob("*/*.json")}):
        reports = {path.stem: _read_report(path) for path in sorted(subfolder.glob("*.json"))}
        for fact in MACHINE_FACTS:
            values = {
                json.dumps(report["machine"].get(fact), sort_keys=True): name for name, report in reports.items()
            }
            if len(values) > 1:
                differences = "; ".join(f"{name}: {value}" for value, name in values.items())
                raise UserError(
                    f"the results in {subfolder} differ in their {fact} ({differences}): a folder is for one machine."
                )
        machine = next(iter(reports.values()))["machine"]
        bfloat16 = " with bfloat16" if machine.get("bfloat16") else ""
        name = machine.get("accelerator") or f"{machine['processor']}, {machine['instructions']}{bfloat16}"
        if name in machines:
            raise UserError(f"two folders in {folder} hold results of {name!r}, one of them {subfolder}: merge them.")
        machines[name] = reports
    if not machines:
        raise UserError(f"there are no results in the folders of {folder}.")
    return machines


def _read_report(path: Path) -> dict[str, Any]:
    """Read a report, and group its rows by cell, group, mode, type and compilation in `by_case`."""
    report = json.loads(path.read_text(encoding="utf-8"))
    report["by_case"] = {}
    for row in report["results"]:
        key = (row["cell"], row["group"], row["mode"], row["dtype"], row["compiled"])
        report["by_case"].setdefault(key, []).append(row)
    return report


def command(name: str, arguments: Mapping[str, Any]) -> str:
    """The command that repeats a measurement, from the arguments in its results."""
    own: dict[str, Any] = {"output_dir": f"outputs/{name}", "gpu": arguments.get("gpu", False)}
    defaults, words = asdict(BenchmarkArguments(**own)), []
    for option, value in (dict(arguments) | own).items():
        if value == defaults[option] and not own.get(option):
            continue
        words += [f"--{option}", *map(str, value if isinstance(value, list) else [] if value is True else [value])]
    return f'make bench BENCH="{" ".join(words)}"'


def times_as_fast(rows: Sequence[Mapping[str, Any]], ours: str, peer: str) -> float | None:
    """Speed-up of one candidate of a group over another; `None` if one of them was not measured.

    If `ours` is the first of its group, this is the median of the ratios within the rounds, otherwise the ratio of the
    medians.
    """
    by_name = {row["model"]: row for row in rows}
    if ours not in by_name or peer not in by_name:
        return None
    if by_name[ours]["is_first"]:
        return 1 / by_name[peer]["ratio"]
    return by_name[peer]["milliseconds"] / by_name[ours]["milliseconds"]


def _rows_of(reports: Results, cell: int) -> Iterator[Mapping[str, Any]]:
    for report in reports.values():
        yield from (row for row in report["results"] if row["cell"] == cell)


def _figure(
    report: Mapping[str, Any], cell: int, group: str, mode: str, dtype: str, compiled: bool, ours: str, peer: str
) -> float | None:
    """A comparison's figure in one run, if it was measured there."""
    return times_as_fast(report["by_case"].get((cell, group, mode, dtype, compiled), ()), ours, peer)


def _figures_of_one_run(
    reports: Results, figures: Callable[[Mapping[str, Any]], list[float | None]]
) -> list[float | None]:
    """The figures of one run: the run with most figures, or the newest of several."""
    runs = sorted(reports.values(), key=lambda report: report["machine"]["date"])
    return max(map(figures, reversed(runs)), key=lambda run: sum(figure is not None for figure in run))


def _format_figures(figures: Sequence[float | None], text: str = "{:.2f}") -> str:
    """A cell of a table with these figures, empty if there are none."""
    return " / ".join("-" if figure is None else text.format(figure) for figure in figures) if any(figures) else ""


def _columns(machines: Mapping[str, Results]) -> list[tuple[str, str]]:
    """A column per machine and type that was measured on it."""
    return [
        (machine, dtype)
        for machine, reports in machines.items()
        for dtype in ("float32", "bfloat16")
        if any(row["dtype"] == dtype for report in reports.values() for row in report["results"])
    ]


Figure = Callable[[Mapping[str, Any], str, str, bool], float | None]
"""A figure of a report, for a mode, a type, and eager or compiled."""


def case_table(
    title: str,
    head: tuple[str, str],
    lines: Sequence[tuple[tuple[str, str], Sequence[Figure]]],
    machines: Mapping[str, Results],
    texts: Sequence[str],
    cases: Sequence[bool] = (False, True),
) -> str:
    """A table of the page: eager / compiled, a column per machine, type and mode; empty if nothing was measured.

    A line's figures share a cell. `texts` are their formats.
    """

    def format_figure(machine: str, dtype: str, mode: str, figure: Figure, text: str) -> str:
        def figures(report: Mapping[str, Any]) -> list[float | None]:
            return [figure(report, mode, dtype, compiled) for compiled in cases]

        return _format_figures(_figures_of_one_run(machines[machine], figures), text).removesuffix(" / -")

    def cell(column: tuple[str, str, str], figures: Sequence[Figure]) -> str:
        found = [format_figure(*column, *each) for each in zip(figures, texts, strict=True)]
        return "; ".join(figure or "-" for figure in found) if any(found) else ""

    columns = [(*column, mode) for column in _columns(machines) for mode in ("inference", "training")]
    table = [(names, [cell(column, figures) for column in columns]) for names, figures in lines]
    table = [(names, cells) for names, cells in table if any(cells)]
    if not table:
        return ""
    measured = [index for index in range(len(columns)) if any(cells[index] for _, cells in table)]
    titles = [f"{machine}: {dtype}, {mode}" for machine, dtype, mode in columns]
    rows = [(*names, *(cells[index] for index in measured)) for names, cells in table]
    return f"## {title}\n\n{markdown_table((*head, *(titles[index] for index in measured)), rows)}"


def comparison_table(comparison: Comparison, machines: Mapping[str, Results]) -> str:
    """One table of the page, with a row per group, in which each peer has a figure."""
    cell, title, ours, peers = comparison
    rows = [row for reports in machines.values() for row in _rows_of(reports, cell)]
    models = [ours]
    if ours.endswith("*"):
        models = [name for name in dict.fromkeys(row["model"] for row in rows) if name.startswith(ours[:-1])]

    def line(group: str, model: str) -> tuple[tuple[str, str], list[Figure]]:
        name = f"{group}: {model.removeprefix(ours[:-1])}" if ours.endswith("*") else group

        def against(peer: str) -> Figure:
            return lambda report, *case: _figure(report, cell, group, *case, model, peer)

        return (name, "; ".join(peers)), list(map(against, peers))

    groups = dict.fromkeys(row["group"] for row in rows)
    lines = [line(*names) for names in product(groups, models)]
    return case_table(title, ("", "against"), lines, machines, ["{:.2f}"] * len(peers))


def measure_table(table: MeasureTable, machines: Mapping[str, Results]) -> str:
    """One table of the page, with a row per group: figures of its first model."""
    if table.on_accelerators:
        machines = {
            name: reports
            for name, reports in machines.items()
            if any(report["machine"].get("accelerator") for report in reports.values())
        }
    firsts = {
        (row["cell"], row["group"], row["model"])
        for reports in machines.values()
        for report in reports.values()
        for row in report["results"]
        if row["is_first"] and any(row.get(measure.key) is not None for measure in table.measures)
    }

    def line(cell: int, group: str, model: str) -> tuple[tuple[str, str], list[Figure]]:
        def figure_of(measure: Measure) -> Figure:
            def figure(report: Mapping[str, Any], *case: Any) -> float | None:
                rows = report["by_case"].get((cell, group, *case), ())
                values = [row.get(measure.key) for row in rows if row["model"] == model]
                return None if values in ([], [None]) else values[0] * measure.scale

            return figure

        return (group, model), list(map(figure_of, table.measures))

    lines = [line(*names) for names in sorted(firsts)]
    title = "; ".join(measure.title for measure in table.measures)
    texts = [measure.text for measure in table.measures]
    return case_table(title, ("", "model"), lines, machines, texts, table.cases)


def summary_table(machines: Mapping[str, Results]) -> str:
    """The README's table: eager, one column per machine and type."""
    columns = _columns(machines)
    table = [
        (row.ours, row.against, *(_summary_cell(machines[machine], row, dtype) for machine, dtype in columns))
        for row in SUMMARY
    ]
    table = [line for line in table if any(line[2:])]
    return markdown_table(("", "against", *(f"{machine}: {dtype}" for machine, dtype in columns)), table)


def with_summary(readme: Path, folder: Path) -> str:
    """The content of a README, with the table between its two comments replaced by the results in a folder."""
    start, end = MARKS
    before, found, rest = readme.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise UserError(f"{readme} needs the lines {start!r} and {end!r} around its table.")
    return f"{before}{start}\n{summary_table(read_machines(folder))}\n{end}{after}"


def _summary_cell(reports: Results, row: SummaryRow, dtype: str) -> str:
    """The figures of a row. Inference and training may come from different runs."""
    found: list[float | None] = []
    for mode in dict.fromkeys(mode for *_, mode in row.groups):

        def figures(report: Mapping[str, Any], mode: str = mode) -> list[float | None]:
            groups = [group for *group, of_mode in row.groups if of_mode == mode]
            return [_figure(report, *group, mode, dtype, False, *row.models) for group in groups]

        found += _figures_of_one_run(reports, figures)
    return _format_figures(found)


def machine_section(name: str, reports: Results) -> str:
    """Versions, dates and commands of a machine's results."""
    machine = next(iter(reports.values()))["machine"]
    others = [
        (report["machine"].get(kind) or {}).items() for kind in ("peers", "tools") for report in reports.values()
    ]
    peers = ", ".join(dict.fromkeys(f"{name} {version}" for items in others for name, version in items if version))
    facts = [f"{machine['threads']} threads", machine["versions"], peers]
    dates = sorted(report["machine"]["date"] for report in reports.values())
    facts.append(dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}")
    facts += dict.fromkeys(report["source"] for report in reports.values() if "source" in report)
    found: dict[str, list[float]] = {}
    for report in reports.values():
        for dtype, values in report.get("matmul_peaks", {}).items():
            found.setdefault(dtype, []).extend(values.values())
    peaks = [f"{dtype} {max(values) / 1e9:,.0f} GFLOP/s" for dtype, values in sorted(found.items())]
    if peaks:
        facts.append("fastest matrix product " + ", ".join(peaks))
    commands = "\n".join(command(stem, report["arguments"]) for stem, report in reports.items())
    return "\n\n".join([f"## {name}", f"{'; '.join(fact for fact in facts if fact)}.", f"```bash\n{commands}\n```"])


def page(folder: Path) -> str:
    """The page: the text before README.md's first `## `, a table per comparison and measure, a section per machine."""
    machines = read_machines(folder)
    head = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")[0].rstrip()
    tables = [comparison_table(comparison, machines) for comparison in COMPARISONS]
    tables += [measure_table(table, machines) for table in MEASURES]
    return "\n\n".join([head, *filter(None, tables), *(machine_section(*item) for item in machines.items())]) + "\n"
