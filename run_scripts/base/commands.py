"""The commands of this package: names, groups, modules and descriptions, known without importing any of them."""

import ast
import sys
from pathlib import Path


RUN_SCRIPTS = Path(__file__).parents[1]
PACKAGE = __package__.rpartition(".")[0]

#: The commands that train a model: `launch` and `data_rate` take their names.
TRAINING_COMMANDS = (
    "run_mlm",
    "run_clm",
    "run_span_corruption",
    "run_seq2seq",
    "run_text_to_text",
    "run_qa",
    "run_glue",
    "run_token_classification",
    "run_sentence_embeddings",
    "run_image_classification",
)

#: Title of a group -> its commands, in the order of `tokenmixers --help`.
GROUPS = {
    "Train": (*TRAINING_COMMANDS, "launch", "data_rate"),
    "Evaluate and use": (
        "fill_mask",
        "classify_images",
        "demo",
        "pseudo_perplexity",
        "lm_eval",
        "evaluate_embeddings",
        "plot_spatial_weights",
        "serving_formats",
    ),
    "Convert and share": ("convert_t5", "convert_timm", "convert_amlp_japanese", "push_to_hub"),
    "Make small data sets": (
        "python_docs_corpus",
        "python_docs_questions",
        "python_docs_summaries",
        "docstring_tasks",
        "number_names",
        "associative_recall",
        "digits_images",
        "idx_images",
    ),
    "Study and benchmark": ("study", "study_page", "benchmark", "benchmark_page"),
}

#: All commands.
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def file_of(command: str) -> Path:
    """The file of a command: `run_scripts/<command>.py`, or `run_scripts/small_data/<command>.py`."""
    file = RUN_SCRIPTS / f"{command}.py"
    return file if file.is_file() else RUN_SCRIPTS / "small_data" / f"{command}.py"


def module_of(command: str) -> str:
    """The name of a command's module, as for `python -m`."""
    parts = file_of(command).relative_to(RUN_SCRIPTS).with_suffix("").parts
    return ".".join((PACKAGE, *parts))


def docstring_of(command: str) -> str:
    """The docstring of a command's module, read from its source."""
    return ast.get_docstring(ast.parse(file_of(command).read_text(encoding="utf-8"))) or ""


def describe(command: str) -> str:
    """The first line of the docstring of a command's module."""
    return docstring_of(command).partition("\n")[0]


def called_command() -> str | None:
    """The command that this process runs, as `tokenmixers NAME` or `python -m`; `None` in other programs."""
    name = Path(sys.argv[0].rpartition(" ")[2]).stem
    return name if name in COMMANDS else None
