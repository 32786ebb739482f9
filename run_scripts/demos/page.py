"""The page of a demo, made with Gradio: inputs and answer, and beside them the picture of what mixed which tokens."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

from ..base.errors import UserError
from ..base.optional_packages import import_optional
from .checkpoints import Checkpoint
from .mixing_maps import MixingMap
from .pictures import Choice, draw, image_html, title
from .tasks import TASKS, Answer, Field, InputError, Table, answer


logger = logging.getLogger(__name__)

#: For the keyboard: Gradio's own outlines are hardly seen.
CSS = """
:focus-visible { outline: 3px solid #d97706 !important; outline-offset: 2px !important; }
input[type="number"]:focus-visible { outline-offset: -3px !important; }
#picture img { width: 100%; height: auto; max-height: 85vh; background: white; }
"""


class Controls(NamedTuple):
    """The components that choose what is drawn, in the order in which functions take and return their values."""

    kind: Any
    layer: Any
    head: Any
    row: Any
    column: Any
    class_token: Any


class Drawn(NamedTuple):
    """What the page keeps of an answer to draw another layer of it."""

    maps: list[MixingMap]
    pixels: Any


def import_gradio() -> Any:
    """Gradio, without its reports on usage.

    Raises:
        UserError: If it cannot be imported.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # is read at the import
    return import_optional("gradio", "demo", "the demo")


def build_page(checkpoint: Checkpoint) -> Any:
    """The page of a checkpoint, as `gradio.Blocks`."""
    gradio = import_gradio()
    task = TASKS[checkpoint.task]
    with gradio.Blocks(title=f"{checkpoint.title}: {task.title.lower()}", analytics_enabled=False) as page:
        model = f"{type(checkpoint.model).__name__} with {checkpoint.model.num_parameters():,} parameters"
        gradio.Markdown(f"# {task.title}\n`{checkpoint.title}`: {model}")
        drawn = gradio.State(None)
        with gradio.Row():
            with gradio.Column(min_width=300):
                fields = [_component(gradio, field, checkpoint) for field in task.fields]
                button = gradio.Button("Run", variant="primary")
                message = gradio.Textbox(label="Message", visible=False, interactive=False, elem_id="message")
                notes = gradio.Markdown(visible=False, elem_id="notes")
                text = gradio.HighlightedText(label="Text", visible=False, elem_id="text")
                table = {"interactive": False, "wrap": True, "buttons": []}
                answers = gradio.Dataframe(**table, visible=False, elem_id="answers")
            with gradio.Column(min_width=300):
                with gradio.Group(visible=False) as group:
                    controls = _controls(gradio)
                picture = gradio.HTML(elem_id="picture")
        shown = [message, notes, text, answers, drawn, group, *controls, picture]
        texts = [field.submit for field in fields if hasattr(field, "submit")]
        gradio.on([button.click, *texts], _runner(gradio, checkpoint), [*fields, *controls], shown, api_name="run")
        _redraw_on_change(gradio, drawn, controls, picture)
    return page


def _component(gradio: Any, field: Field, checkpoint: Checkpoint) -> Any:
    if field.kind == "image":
        return gradio.Image(label=field.label, type="pil", sources=["upload", "clipboard"], height=280)
    if field.kind == "number":
        return gradio.Slider(1, 128, field.example, step=1, label=field.label)
    if field.kind == "flag":
        return gradio.Checkbox(field.example, label=field.label)
    mask = getattr(checkpoint.processor, "mask_token", None) or ""
    # With one line at first, Enter submits and Shift+Enter begins a new one.
    example = str(field.example).replace("{mask}", mask)
    return gradio.Textbox(example, label=field.label, lines=1, max_lines=12)


def _controls(gradio: Any) -> Controls:
    return Controls(
        # Gradio's radio buttons do not answer to the arrow keys.
        kind=gradio.Dropdown([], label="What mixes tokens", filterable=False),
        layer=gradio.Slider(1, 2, 1, step=1, label="Layer"),
        head=gradio.Slider(0, 2, 0, step=1, label="Head (0: the mean of all)"),
        row=gradio.Slider(1, 2, 1, step=1, label="Row of the patch"),
        column=gradio.Slider(1, 2, 1, step=1, label="Column of the patch"),
        class_token=gradio.Checkbox(False, label="The class token instead of a patch"),
    )


def _runner(gradio: Any, checkpoint: Checkpoint) -> Callable[..., list]:
    names = [field.name for field in TASKS[checkpoint.task].fields]

    def run(*inputs: Any) -> list:
        values, choices = dict(zip(names, inputs, strict=False)), inputs[len(names) :]
        try:
            found = answer(checkpoint, values)
        except InputError as error:
            return _refused(gradio, str(error))
        except Exception as error:
            logger.exception("the model failed on an input")  # its traceback is for whoever runs the demo
            return _refused(gradio, f"The model failed on this input: {type(error).__name__}: {error}")
        return _shown(gradio, found, *choices)

    return run


def _refused(gradio: Any, sentence: str) -> list:
    hidden = gradio.update(visible=False)
    message = gradio.update(value=sentence, visible=True)
    return [message, *[hidden] * 3, None, hidden, *[gradio.skip()] * len(Controls._fields), ""]


def _shown(gradio: Any, found: Answer, *choices: Any) -> list:
    notes = " ".join([*found.notes, *([] if found.maps else ["There is no picture of this model."])])
    text = [(span.text, span.label) for span in found.text]
    drawn = Drawn(found.maps, found.pixels)
    return [
        gradio.update(visible=False),
        gradio.update(value=notes, visible=bool(notes)),
        gradio.update(value=text, visible=bool(text)),
        _answers(gradio, found.tables),
        drawn,
        gradio.update(visible=_has_choice(found.maps)),
        *_adapted(gradio, drawn, *choices),
    ]


def _answers(gradio: Any, tables: list[Table]) -> Any:
    """All tables as one. What they answer stands above it, and beside the answers if there are several."""
    if not tables:
        return gradio.update(visible=False)
    rows = [
        [table.caption, row.answer, f"{row.score:.1%}" if table.are_probabilities else f"{row.score:.3f}"]
        for table in tables
        for row in table.rows
    ]
    score = "Probability" if tables[0].are_probabilities else "Value"
    first = 0 if len(tables) > 1 else 1
    content = {"headers": ["For", "Answer", score][first:], "data": [row[first:] for row in rows]}
    return gradio.update(value=content, label=tables[0].caption if first else "Answers", visible=True)


def _has_choice(maps: list[MixingMap]) -> bool:
    """Whether the controls would not all be hidden."""
    return len(maps) > 1 or any(each.grid or each.weights[..., 0, 0].numel() > 1 for each in maps)


def _adapted(gradio: Any, drawn: Drawn, *choices: Any) -> list:
    """The controls, with the ranges of the chosen map and values within them, and the picture."""
    if not drawn.maps:
        return [*[gradio.skip()] * len(Controls._fields), ""]
    kind, layer, head, row, column, class_token = choices
    mixing = next((each for each in drawn.maps if each.name == kind), drawn.maps[0])
    layers, heads = mixing.weights.shape[:2]
    values = Controls(
        kind=mixing.name,
        layer=min(layer or 1, layers),
        head=head if head and head <= heads else 0,
        row=min(row or 1, mixing.grid[0]) if mixing.grid else 1,
        column=min(column or 1, mixing.grid[1]) if mixing.grid else 1,
        class_token=class_token and mixing.has_class_token,
    )
    rows, columns = mixing.grid or (1, 1)
    updates = Controls(
        kind={"choices": [each.name for each in drawn.maps], "visible": len(drawn.maps) > 1},
        layer={"maximum": max(layers, 2), "visible": layers > 1},
        head={"maximum": max(heads, 2), "visible": heads > 1},
        row={"maximum": max(rows, 2), "visible": rows > 1},
        column={"maximum": max(columns, 2), "visible": columns > 1},
        class_token={"visible": mixing.has_class_token},
    )
    # A value is sent only if it is another: the user may have gone on to the next.
    changed = [{} if old == new else {"value": new} for old, new in zip(choices, values, strict=True)]
    updates = [gradio.update(**update, **value) for update, value in zip(updates, changed, strict=True)]
    return [*updates, draw_choice(drawn, values)]


def draw_choice(drawn: Drawn, values: Controls) -> str:
    """The picture that the values of the controls name, as HTML."""
    mixing = next(each for each in drawn.maps if each.name == values.kind)
    head = int(values.head) - 1 if values.head else None
    patch = None if values.class_token else (int(values.row) - 1, int(values.column) - 1)
    choice = Choice(int(values.layer) - 1, head, patch)
    return image_html(draw(mixing, choice, drawn.pixels), title(mixing, choice))


def _redraw_on_change(gradio: Any, drawn: Any, controls: Controls, picture: Any) -> None:
    gradio.on(
        [control.input for control in controls],
        lambda *values: _adapted(gradio, *values),
        [drawn, *controls],
        [*controls, picture],
        trigger_mode="always_last",  # of calls that come while one runs: what is drawn is what was chosen last
        api_visibility="private",
        show_progress="hidden",
    )


def launch(
    checkpoint: Checkpoint,
    host: str | None = None,
    port: int | None = None,
    share: bool = False,
    inbrowser: bool = False,
    block: bool = True,
) -> Any:
    """Serve the page of a checkpoint.

    Args:
        checkpoint: The model.
        host: Address to listen on; by default that of the environment variable GRADIO_SERVER_NAME, or this machine
            alone.
        port: Port to listen on; by default that of GRADIO_SERVER_PORT, or the first free one from 7860 on.
        share: Whether to make a public address by way of Gradio's servers.
        inbrowser: Whether to open a browser.
        block: Whether to wait until the process is interrupted.

    Returns:
        The running `gradio.Blocks`, with its address in `local_url`.

    Raises:
        UserError: If Gradio is not installed, cannot listen on this address, or makes no public one.
    """
    page, gradio = build_page(checkpoint), import_gradio()
    check_address(host, port)
    if host is not None and ":" in host:
        host = f"[{host.strip('[]')}]"  # IPv6, as in a URL
    # Fonts that are there: Gradio's own come from the internet.
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    theme = gradio.themes.Default(primary_hue="blue", **fonts)
    # White text needs a darker button than Gradio's.
    theme.set(button_primary_background_fill="*primary_700", button_primary_background_fill_hover="*primary_800")
    options = {"theme": theme, "css": CSS, "ssr_mode": False, "footer_links": ["gradio", "settings"]}
    _serve(page, server_name=host, server_port=port, share=share, inbrowser=inbrowser, **options)
    if block:
        print(f"The page is at {page.local_url}", flush=True)
        if page.share_url:
            print(f"Its public address is {page.share_url}", flush=True)
        page.block_thread()
    return page


def check_address(host: str | None, port: int | None) -> None:
    """Check that the page can listen, before Gradio tries each of its ports for seconds.

    Args:
        host: As for `launch`.
        port: As for `launch`.

    Raises:
        UserError: If `host` is no address of this machine, or `port` is in use or not for this user.
    """
    host = (host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1").strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port or 0), family=family).close()
    except (OSError, UnicodeError) as error:  # the second for names that cannot be looked up
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            raise UserError(
                f"--port {port} is in use: give another one, or leave --port out for the first free one."
            ) from error
        if number == errno.EACCES:
            raise UserError(f"--port {port} is not for this user: give one from 1024 on.") from error
        raise UserError(
            f"--host {host!r} cannot be listened on ({error}): give an address of this machine, 127.0.0.1 for this "
            "machine alone or 0.0.0.0 for all that reach it."
        ) from error


def _serve(page: Any, share: bool, **options: Any) -> None:
    """Start Gradio's server, with messages of our own: Gradio's name arguments that the command does not have."""
    # Gradio says on standard output why there is no public address, also if quiet.
    with redirect_stdout(StringIO()) if share else nullcontext() as printed:
        try:
            page.launch(share=share, prevent_thread_lock=True, quiet=True, **options)
        except Exception as error:
            if page.is_running:
                page.close(verbose=False)
                raise UserError(
                    f"the page at {page.local_url} cannot be reached from this machine itself: if it uses a proxy, "
                    "set the environment variable NO_PROXY to 127.0.0.1,localhost and the value of --host."
                ) from error
            if not isinstance(error, OSError):
                raise
            port = options["server_port"]
            which = "no port from 7860 on is free" if port is None else f"--port {port} is in use"
            raise UserError(f"{which}: give another --port.") from error
    if share and not page.share_url:
        page.close(verbose=False)
        raise UserError(f"there is no public address: leave --share out. {printed.getvalue().strip()}")
