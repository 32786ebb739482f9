"""The tables of `model_cards/benchmarks/README.md` and of the README."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import UserError
from ..base.reporting import markdown_table
from .experiments import BenchmarkArguments


#: The comments around the README's table.
MARKS = ("<!-- table of `tokenmixers benchmark_page` -->", "<!-- end of the table -->")


class Comparison(NamedTuple):
    """Models of one experiment to compare: each of `ours` with each of `peers`."""

    cell: int
    title: str
    ours: str
    peers: tuple[str, ...]


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
)


class SummaryRow(NamedTuple):
    """A row of the README's table: one or several groups of an experiment, whose figures share a cell."""

    ours: str
    against: str
    cell: int
    groups: tuple[tuple[str, str], ...]
    """Group and mode of each figure."""
    models: tuple[str, str]


SUMMARY = (
    SummaryRow(
        "gMLP-S, images: inference / training",
        "timm, same weights",
        1,
        (("gmlp-s16-224", "inference"), ("gmlp-s16-224", "training")),
        ("tokenmixers", "timm"),
    ),
    SummaryRow(
        "gMLP-base, 128 tokens: inference / training",
        "g-mlp-pytorch, same weights",
        2,
        (("gmlp-base, 128 tokens", "inference"), ("gmlp-base, 128 tokens", "training")),
        ("tokenmixers, Toeplitz", "g-mlp-pytorch"),
    ),
    SummaryRow(
        "gMLP-base, 512 tokens: inference / training",
        "g-mlp-pytorch, same weights",
        2,
        (("gmlp-base, 512 tokens", "inference"), ("gmlp-base, 512 tokens", "training")),
        ("tokenmixers, Toeplitz", "g-mlp-pytorch"),
    ),
    *(
        SummaryRow(
            f"{name}, {length} tokens: inference / training",
            "BERT, as many parameters",
            3,
            ((f"{name.lower()}, {length} tokens", "inference"), (f"{name.lower()}, {length} tokens", "training")),
            ("tokenmixers", "BERT"),
        )
        for name, length in (("gMLP-base", 128), ("gMLP-base", 512), ("aMLP-base", 512))
    ),
    SummaryRow(
        "Synthesizer (random): encoding / decoding",
        "T5, same shape",
        4,
        (("seq2seq encoding", "inference"), ("seq2seq decoding", "inference")),
        ("Synthesizer, random", "T5"),
    ),
    SummaryRow(
        "Synthesizer (random): training",
        "T5, same shape",
        4,
        (("seq2seq step", "training"),),
        ("Synthesizer, random", "T5"),
    ),
    *(
        SummaryRow(
            "gMLP-base, packed: SST-2 / RTE / SQuAD",
            f"the same model, {way}",
            5,
            tuple((f"lengths: {name}.txt", "inference") for name in ("sst2", "rte", "squad")),
            ("gMLP, packed", candidate),
        )
        for way, candidate in (
            ("batches of similar length", "gMLP, by length"),
            ("padded to 512 tokens", "gMLP, padded"),
        )
    ),
    SummaryRow(
        "gMLP-base, MLM step, `sparse_prediction`",
        "logits of all tokens",
        8,
        (("gmlp-base, MLM step", "training"),),
        ("logits of masked tokens", "logits of all tokens"),
    ),
)


#: Facts that must be equal in all results of a folder.
MACHINE_FACTS = ("device", "processor", "instructions", "accelerator", "bfloat16", "versions", "peers", "allocator")


Results = Mapping[str, Mapping[str, Any]]
"""Reports of one machine by name."""


def read_machines(folder: Path) -> dict[str, Results]:
    """The results of every machine, by its name: the GPU, or the processor and its vector instructions.

    Raises:
        UserError: If there are none, a folder has several machines or versions, or two folders have the same machine.
    """
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
            raise UserError(
                f"two folders of {folder} hold results of {name!r}; one of them is {subfolder}: join them."
            )
        machines[name] = reports
    if not machines:
        raise UserError(f"there are no results in the folders of {folder}.")
    return machines


def _read_report(path: Path) -> dict[str, Any]:
    """A report, with its rows by cell, group, mode, type and compilation in `by_case`."""
    report = json.loads(path.read_text(encoding="utf-8"))
    report["by_case"] = {}
    for row in report["results"]:
        key = (row["cell"], row["group"], row["mode"], row["dtype"], row["compiled"])
        report["by_case"].setdefault(key, []).append(row)
    return report


def command(name: str, arguments: Mapping[str, Any]) -> str:
    """The command that repeats a measurement, from the arguments in its results.

    Raises:
        UserError: If an argument no longer exists, or contains a space.
    """
    own = {"output_dir": f"outputs/{name}"}
    defaults, words = asdict(BenchmarkArguments(**own)), []
    for option, value in (dict(arguments) | own).items():
        if option not in defaults:
            raise UserError(f"{name}.json was measured with --{option}, which benchmark.py has no more.")
        if value == defaults[option] and option not in own:
            continue
        words += [f"--{option}", *map(str, value if isinstance(value, list) else [] if value is True else [value])]
    if any(" " in word for word in words):
        raise UserError(f"{name}.json has an argument with a space, which a command in `make bench` cannot have.")
    return f'make bench BENCH="{" ".join(words)}"'


def times_as_fast(rows: Sequence[Mapping[str, Any]], ours: str, peer: str) -> float | None:
    """Speedup of one candidate of a group over another; `None` if one of them was not measured.

    If `ours` is the first of its group, it is the median of the ratios within the rounds, else the ratio of the
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
    """The figures of a single run: the one with most of them, of several the newest."""
    runs = sorted(reports.values(), key=lambda report: report["machine"]["date"])
    return max(map(figures, reversed(runs)), key=lambda run: sum(figure is not None for figure in run))


def _format_figures(figures: Sequence[float | None]) -> str:
    """Figures as a cell of a table, which is empty if there are none."""
    return " / ".join("-" if figure is None else f"{figure:.2f}" for figure in figures) if any(figures) else ""


def _columns(machines: Mapping[str, Results]) -> list[tuple[str, str]]:
    """A column per machine and type that was measured on it."""
    return [
        (machine, dtype)
        for machine, reports in machines.items()
        for dtype in ("float32", "bfloat16")
        if any(row["dtype"] == dtype for report in reports.values() for row in report["results"])
    ]


def comparison_table(comparison: Comparison, machines: Mapping[str, Results]) -> str:
    """One table of the page: eager / compiled, a column per machine, type and mode, a row per group and peer.

    Empty if none of it was measured.
    """
    cell, title, ours, peers = comparison
    rows = [row for reports in machines.values() for row in _rows_of(reports, cell)]
    models = [ours]
    if ours.endswith("*"):
        models = [name for name in dict.fromkeys(row["model"] for row in rows) if name.startswith(ours[:-1])]
    columns = [
        (machine, dtype, mode)
        for machine, dtype in _columns(machines)
        for mode in ("inference", "training")
        if any((row["dtype"], row["mode"]) == (dtype, mode) for row in _rows_of(machines[machine], cell))
    ]
    table = []
    for group in dict.fromkeys(row["group"] for row in rows):
        for model in models:
            for peer in peers:
                cells = [
                    _eager_and_compiled(machines[machine], cell, group, mode, dtype, model, peer)
                    for machine, dtype, mode in columns
                ]
                if any(cells):
                    name = f"{group}: {model.removeprefix(ours[:-1])}" if ours.endswith("*") else group
                    table.append((name, peer, *cells))
    if not table:
        return ""
    head = ("", "against", *(f"{machine}: {dtype}, {mode}" for machine, dtype, mode in columns))
    return f"## {title}\n\n{markdown_table(head, table)}"


def _eager_and_compiled(reports: Results, cell: int, group: str, mode: str, dtype: str, ours: str, peer: str) -> str:
    """The two figures of a table's cell; empty where neither was measured."""

    def figures(report: Mapping[str, Any]) -> list[float | None]:
        return [_figure(report, cell, group, mode, dtype, compiled, ours, peer) for compiled in (False, True)]

    return _format_figures(_figures_of_one_run(reports, figures)).removesuffix(" / -")


def summary_table(machines: Mapping[str, Results]) -> str:
    """The README's table: eager, one column per machine and type."""
    columns = _columns(machines)
    table = [
        (row.ours, row.against, *(_summary_cell(machines[machine], row, dtype) for machine, dtype in columns))
        for row in SUMMARY
    ]
    return markdown_table(("ours", "against", *(f"{machine}: {dtype}" for machine, dtype in columns)), table)


def _summary_cell(reports: Results, row: SummaryRow, dtype: str) -> str:
    """The figures of a row. Those of a mode are of one run: inference and training may be measured separately."""
    found: list[float | None] = []
    for mode in dict.fromkeys(mode for _, mode in row.groups):

        def figures(report: Mapping[str, Any], mode: str = mode) -> list[float | None]:
            groups = [group for group, of_mode in row.groups if of_mode == mode]
            return [_figure(report, row.cell, group, mode, dtype, False, *row.models) for group in groups]

        found += _figures_of_one_run(reports, figures)
    return _format_figures(found)


def accelerator_table(reports: Results) -> str:
    """What ratios do not show, of a GPU: throughput, share of the fastest product and memory, eager / compiled."""
    found: dict[tuple[str, str], dict[tuple[str, bool], Mapping[str, Any]]] = {}
    for report in sorted(reports.values(), key=lambda report: report["machine"]["date"]):
        for row in report["results"]:
            if row.get("utilisation") is not None and row["dtype"] == "bfloat16":
                case = (row["mode"], row["compiled"])
                found.setdefault((row["group"], row["model"]), {})[case] = row

    def cell(cases: Mapping[tuple[str, bool], Mapping[str, Any]], mode: str, key: str, text: str, scale: float) -> str:
        values = [cases.get((mode, compiled), {}).get(key) for compiled in (False, True)]
        shown = ["-" if value is None else text.format(value * scale) for value in values]
        return "" if set(shown) == {"-"} else " / ".join(shown)

    kinds = (("per second", "per_second", "{:,.0f}", 1.0), ("of peak", "utilisation", "{:.0%}", 1.0))
    kinds += (("MB", "peak_bytes", "{:,.0f}", 1e-6),)
    columns = [(mode, *kind) for mode in ("inference", "training") for kind in kinds]
    table = [
        (group, model, *(cell(cases, mode, *rest) for mode, _, *rest in columns))
        for (group, model), cases in found.items()
    ]
    return markdown_table(("", "model", *(f"{mode}: {title}" for mode, title, *_ in columns)), table) if table else ""


def machine_section(name: str, reports: Results) -> str:
    """Versions, dates and commands of a machine's results; of a GPU also throughput, share of the peak and memory."""
    machine = next(iter(reports.values()))["machine"]
    peers = ", ".join(f"{peer} {version}" for peer, version in (machine.get("peers") or {}).items() if version)
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
    parts = [f"## {name}", f"{'; '.join(fact for fact in facts if fact)}.", f"```bash\n{commands}\n```"]
    table = accelerator_table(reports) if machine.get("accelerator") else ""
    if table:
        parts.append("Tokens or images per second, share of the fastest product, and memory beside the weights in MB:")
        parts.append(table)
    return "\n\n".join(parts)


def page(folder: Path) -> str:
    """The whole page: the text before README.md's first `## `, a table per comparison, a section per machine.

    Raises:
        UserError: As `read_machines`.
    """
    machines = read_machines(folder)
    head = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")[0].rstrip()
    tables = filter(None, (comparison_table(comparison, machines) for comparison in COMPARISONS))
    return "\n\n".join([head, *tables, *(machine_section(*item) for item in machines.items())]) + "\n"
