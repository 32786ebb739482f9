"""Write the tables of the benchmarks' page and the README's picture from published results.

    cp outputs/images/results.json model_cards/benchmarks/F-new-machine/images.json
    tokenmixers benchmark_page

Each folder next to the page holds the results of one machine. Its name begins with the letter that the tables call the
machine. The text before the page's first `## ` and its section "What the results depend on" are written by hand and
stay. `speed_ups.csv` next to the page gets all speed-ups. If `../embeddings` has results of `evaluate_embeddings`,
quality.json and speed.json, they are drawn in `../pictures/embeddings.png`, and the scores are written to
`../embeddings/scores.csv`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.shipped_files import MODEL_CARDS
from .benchmarks.results_page import page, read_machines, speed_ups
from .embeddings.pictures import draw, published
from .embeddings.results import scores_csv


@dataclass
class PageArguments:
    """Which page."""

    folder: str = field(
        default=str(MODEL_CARDS / "benchmarks"), metadata={"help": "Folder of the page, with a folder per machine."}
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PageArguments,), argv)
    folder = Path(arguments.folder)
    own = folder / "README.md"
    if not own.is_file():
        raise UserError(f"there is no {own}: the page is in a checkout; --folder names another.")
    text = page(folder)
    own.write_text(text, encoding="utf-8")
    (folder / "speed_ups.csv").write_text(speed_ups(read_machines(folder)), encoding="utf-8")
    print(f"{own}: {len(text.splitlines())} lines; {folder / 'speed_ups.csv'}: all speed-ups")
    results = folder.parent / "embeddings"
    if (results / "quality.json").is_file():
        picture = folder.parent / "pictures" / "embeddings.png"
        draw(*published(results), picture)
        scores = results / "scores.csv"
        scores.write_text(scores_csv(json.loads((results / "quality.json").read_text("utf-8"))["results"]), "utf-8")
        print(f"{picture}: drawn from {results}; {scores}: all scores")


if __name__ == "__main__":
    main()
