"""Write the page of the studies from the results of `study`.

    cp outputs/studies/gates/gates.json outputs/studies/gates/gates.png model_cards/studies/
    tokenmixers study_page

The page's text before its first `## ` is written by hand and stays, and `conclusions.yaml` beside it holds a paragraph
for each study. In the README, the lines between the two comments that name this command are replaced.
"""

from dataclasses import dataclass, field

from .base.arguments import parse_arguments
from .base.result_pages import write_pages
from .base.shipped_files import MODEL_CARDS
from .studies.results_page import MARKS, page, read_reports, verdicts_summary


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(default=str(MODEL_CARDS / "studies"), metadata={"help": "Folder of the page and the results."})
    readme: str | None = field(
        default=None, metadata={"help": "File with the verdicts; the README beside model_cards by default."}
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point.

    Raises:
        UserError: If a page is missing, there are no results, or the README has no place for the verdicts.
    """
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder, readme = arguments.folder, arguments.readme
    write_pages(folder, readme, page, lambda path: verdicts_summary(read_reports(path)), MARKS)


if __name__ == "__main__":
    main()
