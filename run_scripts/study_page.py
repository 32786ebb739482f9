"""Write the page of the studies from the results of `study`.

    cp outputs/studies/gates/gates.json model_cards/studies/
    tokenmixers study_page

The text before the page's first `## ` and its section "How the studies are made" are written by hand and stay.
`conclusions.yaml` next to the page holds a finding, one line, and a conclusion, a paragraph, for each study. The
pictures are drawn again.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .studies.results_page import page, plot_study, read_reports


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(default=str(MODEL_CARDS / "studies"), metadata={"help": "Folder of the page and the results."})


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    own = Path(arguments.folder) / "README.md"
    if not own.is_file():
        raise UserError(f"there is no {own}: the page is in a checkout; --folder names another.")
    for stem, analysis in read_reports(own.parent).items():
        plot_study(analysis, own.parent / f"{stem}.png")
    text = page(own.parent)
    own.write_text(text, encoding="utf-8")
    print(f"{own}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
