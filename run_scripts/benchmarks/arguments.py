"""What the benchmark measures, and how often."""

from copy import deepcopy
from dataclasses import dataclass, field

from ...configuration.configuration_synthesizer import PRESETS
from ..base.ranges import check_ranges


#: The numbers of the experiments.
CELLS = (1, 2, 3, 4, 5, 6, 10, 11, 12)
IMAGE_MODELS = ("ti16", "s16", "b16")

#: What `--gpu` sets, unless another value is given.
GPU_SETTINGS = {
    "cells": [1, 2, 3, 6, 4],  # compiling the steps of cell 4 takes longest
    "dtypes": ["bfloat16"],
    "compile": True,
    "compile_layers": True,
    "rounds": 10,
    "batch_size": 32,
    "presets": ["random"],
    "image_models": ["s16", "b16"],
    "minutes": 14.0,
}


@dataclass
class BenchmarkArguments:
    """What is measured, and how often."""

    output_dir: str = field(metadata={"help": "New folder for results.json."})
    cells: list[int] = field(
        default_factory=lambda: list(CELLS), metadata={"help": "Experiments, by the numbers above.", "choices": CELLS}
    )
    modes: list[str] = field(
        default_factory=lambda: ["inference", "training"],
        metadata={"help": "What is timed.", "choices": ["inference", "training"]},
    )
    dtypes: list[str] | None = field(
        default=None,
        metadata={
            "help": "Types; by default float32, and bfloat16 where it is native.",
            "choices": ["float32", "bfloat16"],
        },
    )
    compile: bool = field(
        default=False, metadata={"help": "Measure with torch.compile too, decoding with static caches."}
    )
    compile_layers: bool = field(
        default=False,
        metadata={"help": "With --compile: compile each layer, in a tenth of the time. Decoding is compiled whole."},
    )
    rounds: int = field(default=15, metadata={"help": "Timed calls of each candidate, after one or two to warm up."})
    batch_size: int = field(default=4, metadata={"help": "Sequences or images at a time."})
    lengths: list[int] = field(
        default_factory=lambda: [128, 512],
        metadata={"help": "Tokens per text for cells 2 and 3; cells 4 and 5 take the largest."},
    )
    presets: list[str] = field(
        default_factory=lambda: [name for name in PRESETS if not name.startswith("t5_base_")],
        metadata={
            "help": "Synthesizer presets for cells 3 and 4; by default all but those named t5_base_...",
            "choices": list(PRESETS),
            "metavar": "NAME",
        },
    )
    length_files: list[str] = field(
        default_factory=list,
        metadata={
            "help": "For cell 5: files with a token count, a text, or two texts and a tab between them per line."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "Tokenizer for length_files with texts."},
    )
    texts: int = field(
        default=64, metadata={"help": "For cell 5: how many lines of each file count, and drawn lengths."}
    )
    image_models: list[str] = field(
        default_factory=lambda: list(IMAGE_MODELS),
        metadata={"help": "gMLP sizes for cell 1.", "choices": list(IMAGE_MODELS)},
    )
    minutes: float | None = field(
        default=None,
        metadata={"help": "Start no further group after this many minutes; eager mode is then measured first."},
    )
    gpu: bool = field(
        default=False,
        metadata={
            "help": "For a GPU, in 15 minutes: bfloat16, eager and compiled, images, texts, encoders, sequence to "
            "sequence, growth up to 16384 tokens. What fails or lacks a package is left out, and said at the end."
        },
    )
    quick: bool = field(default=False, metadata={"help": "Small models and short texts: does it run?"})

    def __post_init__(self):
        if self.gpu:
            defaults = BenchmarkArguments(self.output_dir)
            for name, value in GPU_SETTINGS.items():
                if getattr(self, name) == getattr(defaults, name):
                    setattr(self, name, deepcopy(value))
        check_ranges(self, ("at least 1", "rounds batch_size texts lengths"), ("a finite number above 0", "minutes"))
        self.lengths = sorted(self.lengths)
        if self.quick:
            self.batch_size, self.lengths, self.presets, self.image_models = 2, [16], self.presets[:3], ["ti16"]
            self.texts = min(6, self.texts)

    @property
    def shrunk(self) -> dict[str, int]:
        """Fields of configurations that make every model smaller."""
        return {"num_hidden_layers": 2, "vocab_size": 1000} if self.quick else {}

    @property
    def growth(self) -> list[int]:
        """The lengths of cell 6."""
        if self.quick:
            return [16, 32]
        return [512, 1024, 2048, 4096, 8192, 16384] if self.gpu else [128, 256, 512, 1024, 2048, 4096, 8192]
