"""Write the tables of the benchmark pages from the results of `benchmark`.

    cp outputs/images/results.json model_cards/benchmarks/MACHINE/images.json
    tokenmixers benchmark_page

Each folder beside the page holds the results of one machine. The page's text before its first `## ` is written by hand
and stays. In the README, the lines between the two comments that name this command are replaced.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .benchmarks.results_page import page, read_machines, summary_table, with_summary


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(
        default=str(MODEL_CARDS / "benchmarks"), metadata={"help": "Folder of the page, with a folder per machine."}
    )
    readme: str | None = field(
        default=None, metadata={"help": "File with the summary; the README beside model_cards by default."}
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder = Path(arguments.folder)
    readme = Path(arguments.readme) if arguments.readme else MODEL_CARDS.parent / "README.md"
    for path in (folder / "README.md", readme):
        if not path.is_file():
            raise UserError(f"there is no {path}: the pages are in a checkout; --folder and --readme name others.")
    summary = with_summary(readme.read_text(encoding="utf-8"), summary_table(read_machines(folder)))
    text = page(folder)
    (folder / "README.md").write_text(text, encoding="utf-8")
    readme.write_text(summary, encoding="utf-8")
    print(f"{folder / 'README.md'}: {len(text.splitlines())} lines; {readme}: its table")


if __name__ == "__main__":
    main()
