"""The tables of `model_cards/benchmarks/README.md`, from the results of `benchmark.py` that lie beside it.

    cp outputs/images/results.json model_cards/benchmarks/images.json
    python -m tokenmixers.run_scripts.benchmark_page

What stands above the first `## ` is written by hand and stays.
"""

import json
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .arguments import MODEL_CARDS, UserError, parse_arguments
from .benchmark import BenchmarkArguments
from .reporting import markdown_table, shown


_COLUMNS = ("group", "case", "model", "ms (quartiles)", "times the first's (quartiles)")
_COLUMNS += ("per second", "of peak", "MB", "cache kB", "k parameters", "longest operators")


@dataclass
class PageArguments:
    """Which page."""

    folder: str = field(
        default=str(MODEL_CARDS / "benchmarks"), metadata={"help": "Folder of README.md and the result files."}
    )


def command(name: str, arguments: dict[str, Any]) -> str:
    """The command that measures a table again, from the arguments in its results.

    Raises:
        UserError: If an argument exists no more, or has a space in it.
    """
    own = {"output_dir": f"outputs/{name}"}
    defaults, words = asdict(BenchmarkArguments(**own)), []
    for option, value in (arguments | own).items():
        if option not in defaults:
            raise UserError(f"{name}.json was measured with --{option}, which benchmark.py has no more.")
        if value == defaults[option] and option not in own:
            continue
        words += [f"--{option}", *map(str, value if isinstance(value, list) else [] if value is True else [value])]
    if any(" " in word for word in words):
        raise UserError(f"{name}.json has an argument with a space, which a command in `make bench` cannot have.")
    return f'make bench BENCH="{" ".join(words)}"'


def table(name: str, report: dict[str, Any]) -> str:
    """One table, with the command above it."""
    machine = report["machine"]
    peaks = ", ".join(
        f"{dtype} {max(found.values()) / 1e9:.0f} GFLOP/s" for dtype, found in report["matmul_peaks"].items()
    )
    lines = [f"## {name}\n", f"```bash\n{command(name, report['arguments'])}\n```\n"]
    lines.append(f"{machine['date']}; {machine['threads']} threads; peak {peaks}.\n")
    for case, length in report.get("fourier_from", {}).items():
        where = f"from {length:,} tokens on" if length else "nowhere"
        lines.append(f"Fourier transforms, {case}: faster {where}.\n")
    columns = list(zip(_COLUMNS, *map(_cells, report["results"]), strict=True))
    told = [column for column in columns if any(column[1:])]  # not what nobody measured
    head, *rows = zip(*told, strict=True)
    lines.append(markdown_table(head, rows))
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["group"],
        row["case"],
        row["model"],
        f"{row['milliseconds']:,.1f} ({row['milliseconds_q1']:,.1f}-{row['milliseconds_q3']:,.1f})",
        f"{1 / row['ratio']:.2f} ({1 / row['ratio_q3']:.2f}-{1 / row['ratio_q1']:.2f})",
        shown(row["per_second"], "{:,.1f} " + row.get("unit", "tokens")),
        shown(row["utilisation"], "{:.0%}"),
        shown(row["peak_bytes"], "{:,.0f}", 1e-6),
        shown(row.get("cache_bytes"), "{:,.0f}", 1e-3),
        shown(row.get("parameters"), "{:,.1f}", 1e-3),
        ", ".join(f"{name} {share:.0%}" for name, share in islice(row.get("operators", {}).items(), 3)),
    )


def page(folder: Path) -> str:
    """The whole page: what README.md says above its first `## `, and the tables by cell and name.

    Raises:
        UserError: If results are of several machines.
    """
    head = (folder / "README.md").read_text(encoding="utf-8").split("\n## ")[0].rstrip()
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    reports = dict(sorted(found.items(), key=lambda item: (item[1]["arguments"]["cells"], item[0])))
    for fact in ("device", "processor", "versions", "peers", "allocator"):
        values = {json.dumps(report["machine"].get(fact), sort_keys=True): name for name, report in reports.items()}
        if len(values) > 1:
            told = "; ".join(f"{name}: {value}" for value, name in values.items())
            raise UserError(f"The results differ in their {fact}, which the page tells once ({told}): measure again.")
    tables = [table(name, report) for name, report in reports.items()]
    return "\n\n\n".join([head, *tables]) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder = Path(arguments.folder)
    text = page(folder)
    (folder / "README.md").write_text(text, encoding="utf-8")
    print(f"{folder / 'README.md'}: {text.count(chr(10) + '## ')} tables")


if __name__ == "__main__":
    main()
