"""Write the tables of the benchmark pages from the results of `benchmark`.

    cp outputs/images/results.json model_cards/benchmarks/MACHINE/images.json
    tokenmixers benchmark_page

Each folder next to the page holds the results of one machine. The text before the page's first `## ` is written by
hand and stays. In the README, the lines between the two comments that name this command are replaced.
"""

from dataclasses import dataclass, field

from .base.arguments import parse_arguments
from .base.result_pages import write_pages
from .base.shipped_files import MODEL_CARDS
from .benchmarks.results_page import MARKS, page, read_machines, summary_table


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(
        default=str(MODEL_CARDS / "benchmarks"), metadata={"help": "Folder of the page, with a folder per machine."}
    )
    readme: str | None = field(
        default=None, metadata={"help": "File with the summary; the README next to model_cards by default."}
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder, readme = arguments.folder, arguments.readme
    write_pages(folder, readme, page, lambda path: summary_table(read_machines(path)), MARKS)


if __name__ == "__main__":
    main()
