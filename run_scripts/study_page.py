"""Write the pages of the studies from the results of `study`.

    cp outputs/studies/gates/gates.json model_cards/studies/
    tokenmixers study_page

The text before a page's first `## ` is written by hand and stays. `conclusions.yaml` next to the pages holds a
finding, one line, a conclusion, the claim of the first picture and the page for each study. The pictures are drawn
again; `results.csv` and `claims.csv` have all columns and all pairs.
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .studies.results_page import (
    README,
    pages,
    plot_findings,
    plot_study,
    read_conclusions,
    read_reports,
    write_tables,
)


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(default=str(MODEL_CARDS / "studies"), metadata={"help": "Folder of pages and results."})


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder = Path(arguments.folder)
    own = folder / README
    if not own.is_file():
        raise UserError(f"there is no {own}: the page is in a checkout; --folder names another.")
    analyses = read_reports(folder)
    for stem, analysis in analyses.items():
        plot_study(analysis, folder / f"{stem}.png")
    shown = {stem: text["shown"] for stem, text in read_conclusions(folder).items() if "shown" in text}
    if shown and find_spec("matplotlib"):
        plot_findings(analyses, shown, folder / "findings.png")
    texts = pages(folder, analyses)
    write_tables(analyses.values(), folder)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{folder / name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
