"""The page of a demo, made of Gradio's components: inputs, answer, and a picture of what mixed which tokens."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from ..base.errors import UserError
from ..base.optional_packages import import_optional
from .answers import Answer, InputError, answer
from .checkpoints import Checkpoint
from .pictures import draw


logger = logging.getLogger(__name__)

#: Task -> a heading, and the texts that are asked for, with examples.
TASKS = {
    "fill-mask": (
        "Fill in missing words",
        {"Text with a mask": "The first argument must be a {mask} of integers."},
    ),
    "text-classification": (
        "Classify a text",
        {"Text": "A film that one wants to see again.", "Second text (only for models of pairs)": ""},
    ),
    "token-classification": ("Tag words", {"Text": "Ada lives in Rome and works in Oslo."}),
    "question-answering": (
        "Answer a question",
        {
            "Question": "What mixes tokens?",
            "Text with the answer": "In a gMLP the spatial gate mixes tokens, and linear maps mix channels.",
        },
    ),
    "text-generation": ("Continue a text", {"Start of a text": "The first argument"}),
    "text2text-generation": ("Turn a text into another", {"Text": "A house stands on the hill."}),
    "image-classification": ("Classify an image", {}),
}


def import_gradio() -> Any:
    """Gradio, without its reports on usage."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # is read at the import
    return import_optional("gradio", "demo", "the demo")


def build_page(checkpoint: Checkpoint) -> Any:
    """The page of a checkpoint, as `gradio.Blocks`."""
    gradio = import_gradio()
    title, texts = TASKS[checkpoint.task]
    with gradio.Blocks(title=f"{checkpoint.title}: {title.lower()}", analytics_enabled=False) as page:
        parameters = f"{checkpoint.model.num_parameters():,} parameters"
        gradio.Markdown(f"# {title}\n`{checkpoint.title}`: {type(checkpoint.model).__name__} with {parameters}")
        drawn = gradio.State(None)  # the answer, to draw another layer of it
        with gradio.Row():
            with gradio.Column(min_width=300):
                mask = getattr(checkpoint.processor, "mask_token", None) or ""
                # With one line at first, Enter submits and Shift+Enter begins a new one.
                fields = [
                    gradio.Textbox(example.replace("{mask}", mask), label=label, lines=1, max_lines=12)
                    for label, example in texts.items()
                ]
                if checkpoint.task == "image-classification":
                    fields = [gradio.Image(label="Image", type="pil", sources=["upload", "clipboard"])]
                if checkpoint.task.endswith("generation"):
                    fields.append(gradio.Slider(1, 128, 20, step=1, label="New tokens at most"))
                    fields.append(gradio.Checkbox(False, label="Sample: another text each time"))
                button = gradio.Button("Run", variant="primary")
                notes = gradio.Markdown()
                text = gradio.HighlightedText(label="Text", visible=False)
                answers = gradio.Dataframe(headers=["Answer", "Score"], interactive=False, visible=False)
            with gradio.Column(min_width=300):
                controls = [
                    gradio.Dropdown([], label="What mixes tokens", visible=False),
                    gradio.Slider(1, 2, 1, step=1, label="Layer", visible=False),
                    gradio.Slider(0, 2, 0, step=1, label="Head (0: the mean of all)", visible=False),
                    gradio.Slider(1, 2, 1, step=1, label="Patch (row by row, after a class token)", visible=False),
                ]
                picture = gradio.Plot(label="What is mixed")
        inputs, outputs = [*fields, *controls], [notes, text, answers, drawn, *controls, picture]
        submits = [field.submit for field in fields if isinstance(field, gradio.Textbox)]
        gradio.on([button.click, *submits], _runner(checkpoint), inputs, outputs, api_name="run")
        gradio.on(
            [control.input for control in controls],
            adapted,
            [drawn, *controls],
            [*controls, picture],
            trigger_mode="always_last",  # of calls that come while one runs: what is drawn is what was chosen last
            api_visibility="private",
            show_progress="hidden",
        )
    return page


def _runner(checkpoint: Checkpoint) -> Callable[..., list[Any]]:
    gradio = import_gradio()

    def run(*inputs: Any) -> list[Any]:
        values, choices = inputs[:-4], inputs[-4:]
        try:
            found = answer(checkpoint, *values)
        except InputError as error:
            raise gradio.Error(str(error)) from error
        except Exception as error:
            logger.exception("the model failed on an input")  # its traceback is for whoever runs the demo
            raise gradio.Error(f"The model failed on this input: {type(error).__name__}: {error}") from error
        notes = [*found.notes, *([] if found.maps else ["There is no picture of this model."])]
        return [
            " ".join(notes),
            gradio.update(value=found.text, visible=bool(found.text)),
            gradio.update(value=[[name, f"{score:.3f}"] for name, score in found.rows], visible=bool(found.rows)),
            found,
            *adapted(found, *choices),
        ]

    return run


def adapted(found: Answer, kind: str | None, layer: float, head: float, token: float) -> list[Any]:
    """The controls, with the ranges of the chosen map and values within them, and the picture."""
    update = import_gradio().update
    if not found.maps:
        return [*[update(visible=False)] * 4, None]
    mixing = next((each for each in found.maps if each.name == kind), found.maps[0])
    layers, heads, tokens = mixing.weights.shape[:3]
    layer, head, token = min(int(layer), layers), min(int(head), heads), min(int(token), tokens)
    kinds = [each.name for each in found.maps]
    return [
        update(choices=kinds, value=mixing.name, visible=len(kinds) > 1),
        update(maximum=max(layers, 2), value=layer, visible=layers > 1),
        update(maximum=max(heads, 2), value=head, visible=heads > 1),
        update(maximum=max(tokens, 2), value=token, visible=mixing.grid is not None),
        draw(mixing, layer - 1, head - 1 if head else None, token - 1, found.pixels),
    ]


def launch(checkpoint: Checkpoint, block: bool = True, **options: Any) -> Any:
    """Serve the page of a checkpoint, and return the running `gradio.Blocks`. `options` are those of its `launch`."""
    page = build_page(checkpoint)
    # Fonts that are there: Gradio's own come from the internet.
    theme = import_gradio().themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        if host := options.get("server_name"):  # at an address of another machine Gradio tries ports for minutes
            family, *_, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
            socket.create_server(address, family=family).close()
        page.launch(prevent_thread_lock=True, ssr_mode=False, theme=theme, **options)
    except (OSError, ValueError) as error:  # a port in use; an address of another machine
        page.close(verbose=False)
        raise UserError(f"the page cannot be served at --host and --port: {error}") from error
    if block:
        page.block_thread()
    return page
