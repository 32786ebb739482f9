"""Write the page of the studies from the results of `study`.

    cp outputs/studies/gates/gates.json outputs/studies/gates/gates.png model_cards/studies/
    tokenmixers study_page

The page's text before its first `## ` is written by hand and stays, and `conclusions.yaml` beside it holds a paragraph
for each study. In the README, the lines between the two comments that name this command are replaced.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .studies.results_page import END, START, page, read_reports, verdicts_table


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
    folder = Path(arguments.folder)
    readme = Path(arguments.readme) if arguments.readme else MODEL_CARDS.parent / "README.md"
    for path in (folder / "README.md", readme):
        if not path.is_file():
            raise UserError(f"there is no {path}: the pages are in a checkout; --folder and --readme name others.")
    text, before = page(folder), readme.read_text(encoding="utf-8")
    first, start, rest = before.partition(START)
    _, end, last = rest.partition(END)
    if not (start and end):
        raise UserError(f"{readme} needs the lines {START!r} and {END!r} around the table of verdicts.")
    (folder / "README.md").write_text(text, encoding="utf-8")
    table = verdicts_table(read_reports(folder), short=True)
    readme.write_text(f"{first}{start}\n{table}\n{end}{last}", encoding="utf-8")
    print(f"{folder / 'README.md'}: {len(text.splitlines())} lines; {readme}: its table")


if __name__ == "__main__":
    main()
