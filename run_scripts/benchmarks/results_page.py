"""The tables of `model_cards/benchmarks/README.md`, and all speed-ups as `speed_ups.csv`."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import UserError
from ..base.reporting import heading_link, markdown_table
from .arguments import BenchmarkArguments


#: The section of the page that is written by hand.
NOTES = "What the results depend on"

#: Above the table of one processor and one GPU.
SUMMARY_TEXT = (
    "Inference / training in eager mode, in float32 (fp32) and bfloat16 (bf16). The CPU is {cpu}, the GPU is {gpu}.\n"
    "The rows of one sentence train by finetuning, with PyTorch's attention function in BERT."
)

#: Above the table that compares the machines.
COMPARED_TEXT = "Inference in eager mode and float32. [`speed_ups.csv`](speed_ups.csv) has all that was compared."


class Comparison(NamedTuple):
    """Models of one experiment to compare: each of `ours` with each of `peers`."""

    cell: int
    ours: str
    peers: tuple[str, ...]


#: BERTs of as many layers as gMLP, and of as many operations and parameters.
SENTENCE_PEERS = ("BERT of equal shape", "BERT, 3 layers")
#: Ends the names of models that ONNX Runtime runs.
ONNX = ", ONNX Runtime"

#: What the page compares. If `ours` ends in `*`, there is a row for each model whose name starts like this.
COMPARISONS = (
    Comparison(1, "tokenmixers", ("timm",)),
    Comparison(2, "tokenmixers, Toeplitz", ("g-mlp-pytorch",)),
    Comparison(3, "tokenmixers", ("BERT", "ModernBERT")),
    Comparison(4, "Synthesizer, *", ("T5",)),
    Comparison(5, "gMLP, packed", ("gMLP, by length", "BERT, by length", "gMLP, padded")),
    Comparison(6, "Toeplitz, by length", ("Toeplitz, matrix", "full")),
    Comparison(6, "gMLP, 6 layers", ("ModernBERT, 3 layers",)),
    Comparison(10, "gMLP", SENTENCE_PEERS),
    Comparison(11, "gMLP", (*SENTENCE_PEERS, f"gMLP{ONNX}")),
    Comparison(11, f"gMLP{ONNX}", tuple(f"{peer}{ONNX}" for peer in SENTENCE_PEERS)),
    Comparison(12, "gMLP", SENTENCE_PEERS),
)

#: What a model compared with has in common with ours.
IN_COMMON = {
    "timm": "same weights",
    "g-mlp-pytorch": "same weights",
    "BERT": "equal parameters",
    "ModernBERT": "equal parameters",
    "T5": "equal shape",
}

#: The Synthesizer's presets on the page; the files have all.
PRESETS = ("vanilla", "random", "dense")


class SummaryRow(NamedTuple):
    """A row of a summary, whose figures share a cell."""

    ours: str
    against: str
    models: tuple[str, str]
    groups: tuple[tuple[int, str, str], ...]
    """Number of the experiment, group and mode of each figure."""
    compares: bool = False
    """Whether the page compares the machines by it: one or two rows of a family do."""


def _both(cell: int, group: str) -> tuple[tuple[int, str, str], ...]:
    """A group in inference and in training."""
    return (cell, group, "inference"), (cell, group, "training")


_MINILM = "gMLP of MiniLM's shape"
_SENTENCES = (10, "10,000 sentences, 1 thread", "inference")
_ONE_SENTENCE = (11, "one sentence at a time", "inference")
_SHAPES = tuple(zip(("BERT, equal shape", "BERT, equal operations"), SENTENCE_PEERS, strict=True))

#: The first table of the page.
SUMMARY = (
    SummaryRow("gMLP-S, images", "timm, same weights", ("tokenmixers", "timm"), _both(1, "gmlp-s16-224"), True),
    SummaryRow(
        "gMLP-base, 128 tokens",
        "g-mlp-pytorch, same weights",
        ("tokenmixers, Toeplitz", "g-mlp-pytorch"),
        _both(2, "gmlp-base, 128 tokens"),
        compares=True,
    ),
    *(
        SummaryRow(f"{name}, {length} tokens", "BERT, equal parameters", ("tokenmixers", "BERT"), groups, length > 128)
        for name, length in (("gMLP-base", 128), ("gMLP-base", 512), ("aMLP-base", 512))
        for groups in [_both(3, f"{name.lower()}, {length} tokens")]
    ),
    *(SummaryRow(f"{_MINILM}, 10,000 sentences", name, ("gMLP", peer), (_SENTENCES,)) for name, peer in _SHAPES),
    *(
        SummaryRow(
            f"{_MINILM}, one sentence",
            name,
            ("gMLP", peer),
            (_ONE_SENTENCE, (12, "finetuning on sentences", "training")),
        )
        for name, peer in _SHAPES
    ),
    SummaryRow(
        "Synthesizer (random), encoding",
        "T5, equal shape",
        ("Synthesizer, random", "T5"),
        ((4, "seq2seq encoding", "inference"), (4, "seq2seq step", "training")),
        compares=True,
    ),
)

#: Head of a column of the first table -> letter and dtype.
SUMMARY_COLUMNS = {
    "CPU fp32": ("C", "float32"),
    "CPU bf16": ("C", "bfloat16"),
    "GPU bf16": ("D", "bfloat16"),
}


#: Facts that must be equal in all results of a folder.
MACHINE_FACTS = ("device", "processor", "instructions", "accelerator", "bfloat16", "versions", "peers", "allocator")


Results = Mapping[str, Mapping[str, Any]]
"""Reports of one machine by name."""


def read_machines(folder: Path) -> dict[str, Results]:
    """The results of every machine, by its letter, with which the name of its folder begins."""
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
        letter = subfolder.name.partition("-")[0].upper()
        if letter in machines:
            raise UserError(f"two folders in {folder} begin with {letter!r}, one of them {subfolder}: rename it.")
        for other, results in machines.items():
            if machine_name(results) == machine_name(reports):
                raise UserError(f"{other} and {subfolder} hold results of {machine_name(reports)!r}: merge them.")
        machines[letter] = reports
    if not machines:
        raise UserError(f"there are no results in the folders of {folder}.")
    return machines


def machine_name(reports: Results) -> str:
    """The GPU, or the processor and its vector instructions."""
    machine = _machine(reports)
    bfloat16 = " with bfloat16" if machine.get("bfloat16") else ""
    return machine.get("accelerator") or f"{machine['processor']}, {machine['instructions']}{bfloat16}"


def _machine(reports: Results) -> Mapping[str, Any]:
    return next(iter(reports.values()))["machine"]


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
        if value == defaults.get(option, value) and not own.get(option):  # options that left had their default
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


def _format_figures(figures: Sequence[float | None]) -> str:
    """A cell of a table with these figures, empty if there are none."""
    return " / ".join("-" if figure is None else f"{figure:.2f}" for figure in figures) if any(figures) else ""


Figure = Callable[[Mapping[str, Any], str, str, bool], float | None]
"""A figure of a report, for a mode, a type, and eager or compiled."""


class Line(NamedTuple):
    """A comparison on a machine: its names, and its figures."""

    names: tuple[str, str]
    figure: Figure


def speed_ups(machines: Mapping[str, Results]) -> str:
    """All speed-ups, as text of a csv file: a row for each comparison on a machine, a column for each case."""
    cases = list(product(("float32", "bfloat16"), ("inference", "training")))
    head = [f"{', '.join(case)}{end}" for case in cases for end in ("", ", compiled")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["machine", "model", "against", *head])
    for letter, reports in machines.items():
        for line in (line for comparison in COMPARISONS for line in comparison_lines(comparison, reports)):
            found = [figure for dtype, mode in cases for figure in _eager_and_compiled(reports, line, mode, dtype)]
            if any(found):
                writer.writerow([letter, *line.names, *("" if one is None else f"{one:.2f}" for one in found)])
    return file.getvalue()


def _eager_and_compiled(reports: Results, line: Line, mode: str, dtype: str) -> list[float | None]:
    def figures(report: Mapping[str, Any]) -> list[float | None]:
        return [line.figure(report, mode, dtype, compiled) for compiled in (False, True)]

    return _figures_of_one_run(reports, figures)


def _row_name(group: str, model: str) -> str:
    """A group and our model in it, as far as its name says more."""
    own = model.removeprefix("tokenmixers").removeprefix(", ").removeprefix("Synthesizer, ")
    return f"{group}: {own}" if own else group


def _is_shown(name: str) -> bool:
    """Whether a group or model is on the page: not if it is another preset of the Synthesizer."""
    preset = re.match(r"synthesizer(?:-|, )([\w-]+)", name.lower())
    return preset is None or preset[1] in PRESETS


def comparison_lines(comparison: Comparison, reports: Results) -> list[Line]:
    """The speed-ups of one comparison, for each group and peer."""
    cell, ours, peers = comparison
    rows = list(_rows_of(reports, cell))
    models = [ours]
    if ours.endswith("*"):
        models = [name for name in dict.fromkeys(row["model"] for row in rows) if name.startswith(ours[:-1])]

    def line(group: str, model: str, peer: str) -> Line:
        against = ", ".join(filter(None, (peer, IN_COMMON.get(peer))))
        return Line(
            (_row_name(group, model), against), lambda report, *case: _figure(report, cell, group, *case, model, peer)
        )

    groups = dict.fromkeys(row["group"] for row in rows)
    return [line(*names) for names in product(groups, models, peers) if all(map(_is_shown, names))]


def machines_table(machines: Mapping[str, Results]) -> str:
    """The legend of the letters."""
    rows = []
    for letter, reports in machines.items():
        dates = sorted({report["machine"]["date"][:10] for report in reports.values()})
        measured = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        rows.append((heading_link(_title(letter, reports)), str(_machine(reports)["threads"]), measured))
    return markdown_table(("machine", "threads", "measured"), rows)


def compared_table(machines: Mapping[str, Results]) -> str:
    """The processors side by side: eager inference in float32."""
    rows = [row._replace(groups=row.groups[:1]) for row in SUMMARY if row.compares]
    processors = {letter: reports for letter, reports in machines.items() if not _machine(reports).get("accelerator")}
    return _summary(rows, {letter: (reports, "float32") for letter, reports in processors.items()})


def summary_table(machines: Mapping[str, Results]) -> str:
    """The first table: eager, of one processor and one GPU."""
    return _summary(SUMMARY, {head: (machines.get(key, {}), dtype) for head, (key, dtype) in SUMMARY_COLUMNS.items()})


def _summary(rows: Sequence[SummaryRow], columns: Mapping[str, tuple[Results, str]]) -> str:
    """A table of rows and columns, each of a machine and a type. Rows without figures are left out."""
    cells = [[_summary_cell(reports, row, dtype) for reports, dtype in columns.values()] for row in rows]
    # One column for both names: two do not fit on a phone.
    table = [
        (f"{row.ours} ({row.against})", *figures) for row, figures in zip(rows, cells, strict=True) if any(figures)
    ]
    return markdown_table(("model (compared with)", *columns), table)


def _summary_cell(reports: Results, row: SummaryRow, dtype: str) -> str:
    """The figures of a row. Inference and training may come from different runs."""
    found: list[float | None] = []
    for group in row.groups if reports else ():

        def figures(report: Mapping[str, Any], group: tuple[int, str, str] = group) -> list[float | None]:
            return [_figure(report, *group, dtype, False, *row.models)]

        found += _figures_of_one_run(reports, figures)
    return _format_figures(found)


def _title(letter: str, reports: Results) -> str:
    return f"{letter}: {machine_name(reports)}"


def machine_section(letter: str, reports: Results) -> str:
    """Versions and dates of a machine's results, and their commands."""
    machine = _machine(reports)
    others = [
        (report["machine"].get(kind) or {}).items() for kind in ("peers", "tools") for report in reports.values()
    ]
    peers = ", ".join(dict.fromkeys(f"{name} {version}" for items in others for name, version in items if version))
    facts = [f"{machine['threads']} threads", machine["versions"], peers]
    dates = sorted(report["machine"]["date"] for report in reports.values())
    facts.append(dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}")
    facts += dict.fromkeys(report["source"] for report in reports.values() if "source" in report)
    head = f"## {_title(letter, reports)}\n\n{'; '.join(fact for fact in facts if fact)}."
    commands = "\n".join(command(stem, report["arguments"]) for stem, report in reports.items())
    return f"{head}\n\n```bash\n{commands}\n```"


def page(folder: Path) -> str:
    """The page: README.md's text before its first `## `, a summary, the machines, its `NOTES`, the results."""
    machines = read_machines(folder)
    head, *sections = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")
    cpu, gpu = dict.fromkeys(letter for letter, _ in SUMMARY_COLUMNS.values())
    parts = [head, f"## Summary\n\n{SUMMARY_TEXT.format(cpu=cpu, gpu=gpu)}\n\n{summary_table(machines)}"]
    parts += [f"## Machines\n\n{machines_table(machines)}"]
    parts.append(f"## The processors compared\n\n{COMPARED_TEXT}\n\n{compared_table(machines)}")
    parts += [f"## {section}" for section in sections if section.startswith(NOTES)]
    parts += [machine_section(*item) for item in machines.items()]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
