"""Show a checkpoint in the browser: its answers, and which tokens it mixed for them.

    tokenmixers demo --model outputs/quickstart/gmlp
    tokenmixers demo --model outputs/quickstart/digits-gmlp --port 8000

Needs Gradio: `pip install '.[demo]'`.
"""

from dataclasses import dataclass, field

from transformers.utils import logging

from .base.arguments import parse_arguments
from .base.errors import UserError
from .demos.checkpoints import load_checkpoint
from .demos.page import import_gradio, launch


@dataclass
class DemoArguments:
    """What to show, and where."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address to listen on: this machine alone by default, 0.0.0.0 for all that reach it."},
    )
    port: int | None = field(default=None, metadata={"help": "Port; by default the first free one from 7860 on."})
    inbrowser: bool = field(default=False, metadata={"help": "Open the page in a browser of this machine."})
    share: bool = field(
        default=False, metadata={"help": "Make a public address for a week at most, by way of Gradio's servers."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Allow a checkpoint to run its own code on this machine."}
    )

    def __post_init__(self):
        if self.port is not None and not 0 < self.port < 65536:
            raise UserError(f"--port must be from 1 to 65535, got {self.port}.")


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((DemoArguments,), argv)
    logging.set_verbosity_error()
    import_gradio()  # whether it is there is known before a large model is loaded
    checkpoint = load_checkpoint(arguments.model, arguments.trust_remote_code)
    print(f"{checkpoint.name}: {checkpoint.task}. Press Ctrl+C to stop.")
    launch(
        checkpoint,
        server_name=arguments.host,
        server_port=arguments.port,
        share=arguments.share,
        inbrowser=arguments.inbrowser,
    )


if __name__ == "__main__":
    main()
