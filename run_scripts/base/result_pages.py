"""Pages of published results that commands write, and the tables of them in the README."""

from collections.abc import Callable
from pathlib import Path

from .errors import UserError
from .shipped_files import MODEL_CARDS


def with_table(file: Path, table: str, marks: tuple[str, str]) -> str:
    """The content of a file with the table between two comments replaced.

    Args:
        file: The file, which is not changed.
        table: The new table.
        marks: The comments before and after it.

    Raises:
        UserError: If the file lacks them.
    """
    start, end = marks
    before, found, rest = file.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise UserError(f"{file} needs the lines {start!r} and {end!r} around its table.")
    return f"{before}{start}\n{table}\n{end}{after}"


def write_pages(
    folder: str,
    readme: str | None,
    page: Callable[[Path], str],
    table: Callable[[Path], str],
    marks: tuple[str, str],
) -> None:
    """Write the page of a folder of results, and its table in the README. Nothing is written if one of them fails.

    Args:
        folder: With the results and the page, `README.md`.
        readme: The file with the table; the README next to `model_cards` if `None`.
        page: Makes the page of the folder.
        table: Makes the table of the folder.
        marks: The comments around the table.

    Raises:
        UserError: If a page is missing or lacks the comments, or what `page` and `table` raise.
    """
    own, top = Path(folder) / "README.md", Path(readme) if readme else MODEL_CARDS.parent / "README.md"
    for path in (own, top):
        if not path.is_file():
            raise UserError(f"there is no {path}: the pages are in a checkout; --folder and --readme name others.")
    text = page(Path(folder))
    summary = with_table(top, table(Path(folder)), marks)
    own.write_text(text, encoding="utf-8")
    top.write_text(summary, encoding="utf-8")
    print(f"{own}: {len(text.splitlines())} lines; {top}: its table")
