"""What `make_data` writes: each module has `write(folder)`, or `Arguments` and `write(folder, arguments)`."""

from dataclasses import dataclass, field


@dataclass
class OutputArguments:
    """Where to."""

    output_dir: str = field(metadata={"help": "New or empty folder for the files."})
