"""Write the tables of the benchmark pages and the README's picture from published results.

    cp outputs/images/results.json model_cards/benchmarks/F-new-machine/images.json
    tokenmixers benchmark_page

Each folder next to the page holds the results of one machine. Its name begins with the letter that the tables call the
machine. The text before the page's first `## ` and its section "What the results depend on" are written by hand
and stay. In the README, the lines between the two comments that name this command are replaced. If `../embeddings` has
results of `evaluate_embeddings`, quality.json and speed.json, they are drawn in `../pictures/embeddings.png`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .benchmarks.results_page import page, with_summary
from .embeddings.pictures import draw, published


@dataclass
class PageArguments:
    """Which pages."""

    folder: str = field(
        default=str(MODEL_CARDS / "benchmarks"), metadata={"help": "Folder of the page, with a folder per machine."}
    )
    readme: str = field(
        default=str(MODEL_CARDS.parent / "README.md"), metadata={"help": "File with the summary between two comments."}
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder, readme = Path(arguments.folder), Path(arguments.readme)
    own = folder / "README.md"
    for path in (own, readme):
        if not path.is_file():
            raise UserError(f"there is no {path}: the pages are in a checkout; --folder and --readme name others.")
    text, summary = page(folder), with_summary(readme, folder)  # both before one is written
    own.write_text(text, encoding="utf-8")
    readme.write_text(summary, encoding="utf-8")
    print(f"{own}: {len(text.splitlines())} lines; {readme}: its table")
    results = folder.parent / "embeddings"
    if (results / "quality.json").is_file():
        picture = folder.parent / "pictures" / "embeddings.png"
        draw(*published(results), picture)
        print(f"{picture}: drawn from {results}")


if __name__ == "__main__":
    main()
