"""An `Answer` as HTML. Everything that comes from users and models is escaped."""

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from .pictures import Picture
from .tasks import Answer, Span, Table


def render_answer(answer: Answer, more_notes: Sequence[str] = ()) -> str:
    """Notes, the text with its marks, and the tables."""
    parts = [f"<p>{escape(note)}</p>" for note in [*answer.notes, *more_notes]]
    if answer.text:
        parts.append(f'<p class="answer-text">{"".join(map(_span, answer.text))}</p>')
    return f'<div class="answer" role="status">{"".join([*parts, *map(_table, answer.tables)])}</div>'


def _span(span: Span) -> str:
    text = escape(span.text)
    return text if span.label is None else f"<mark>{text} <small>{escape(span.label)}</small></mark>"


def _table(table: Table) -> str:
    score = "Probability" if table.are_probabilities else "Value"
    head = f'<thead><tr><th scope="col">Answer</th><th scope="col">{score}</th></tr></thead>'
    rows = "".join(
        f'<tr><th scope="row">{escape(row.answer)}</th><td>{_score(row.score, table.are_probabilities)}</td></tr>'
        for row in table.rows
    )
    return f"<table><caption>{escape(table.caption)}</caption>{head}<tbody>{rows}</tbody></table>"


def _score(score: float, is_probability: bool) -> str:
    if not is_probability:
        return f"{score:.3f}"
    return f'<span class="bar" style="--share: {score:.4f}">{score:.1%}</span>'


def render_message(message: str) -> str:
    """A message that screen readers say at once; nothing for an empty one."""
    return f'<p class="message" role="alert">{escape(message)}</p>' if message else ""


def render_picture(picture: Picture, title: str) -> str:
    """An image with its description as alternative text, and its title below."""
    # As the content of an attribute: the page's own styles do not reach into the image, and it runs no scripts.
    source = "data:image/svg+xml;utf8," + quote(picture.svg)
    image = f'<img src="{source}" alt="{escape(picture.description)}">'
    return f"<figure>{image}<figcaption>{escape(title)}</figcaption></figure>"
