"""Write the page of the studies from the results of `study`.

    cp outputs/studies/gates/gates.json outputs/studies/gates/gates.png model_cards/studies/
    tokenmixers study_page

The text before the page's first `## ` is written by hand and stays. `conclusions.yaml` next to the page holds a
paragraph for each study.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .studies.results_page import page


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
    text = page(own.parent)
    own.write_text(text, encoding="utf-8")
    print(f"{own}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
