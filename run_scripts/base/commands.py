"""The commands of this package: names, groups, modules and descriptions, available without importing them."""

import ast
import sys
from pathlib import Path


RUN_SCRIPTS = Path(__file__).parents[1]
PACKAGE = __package__.rpartition(".")[0]

#: Commands that train a model; `launch` accepts these names.
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
    "Train": (*TRAINING_COMMANDS, "launch"),
    "Evaluate and use": (
        "fill_mask",
        "classify_images",
        "demo",
        "pseudo_perplexity",
        "evaluate_embeddings",
        "plot_spatial_weights",
    ),
    "Make data": ("make_data",),
    "Convert and share": ("export", "convert_t5", "convert_timm", "push_to_hub"),
    "Study and benchmark": ("study", "study_page", "benchmark", "benchmark_page"),
}

#: All commands.
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


#: The data sets that `make_data` writes.
SMALL_DATA = (
    "python_docs_corpus",
    "python_docs_questions",
    "python_docs_summaries",
    "docstring_tasks",
    "number_names",
    "associative_recall",
    "digits_images",
    "idx_images",
)


def file_of(name: str) -> Path:
    """The file of a command or of a data set of `make_data`."""
    return RUN_SCRIPTS.joinpath(*(["small_data"] if name in SMALL_DATA else []), f"{name}.py")


def module_of(name: str) -> str:
    """The module name, as for `python -m`, of a command or of a data set of `make_data`."""
    parts = file_of(name).relative_to(RUN_SCRIPTS).with_suffix("").parts
    return ".".join((PACKAGE, *parts))


def docstring_of(name: str) -> str:
    """The docstring of a module of `file_of`, read from its source."""
    return ast.get_docstring(ast.parse(file_of(name).read_text(encoding="utf-8"))) or ""


def describe(name: str) -> str:
    """The first line of `docstring_of`."""
    return docstring_of(name).partition("\n")[0]


def called_command() -> str | None:
    """The command that this process runs, as `tokenmixers NAME` or `python -m`; `None` in other programs."""
    name = Path(sys.argv[0].rpartition(" ")[2]).stem
    return name if name in COMMANDS else None
