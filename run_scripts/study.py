"""Test claims of the papers with small models, equal budgets and several seeds.

    tokenmixers study gates --data_dir data --jobs 2
    tokenmixers study gates --quick

All models get the same tokens, steps, batches and choice of learning rates. Finished runs are not repeated, and the
same command continues runs that were killed. The output folder gets a JSON file with all runs, a table with the
verdicts on the claims, and a picture. To continue on another machine, copy the JSON file into the output folder there,
or the whole folder if a task finetunes models of another. The intervals of the verdicts need scipy: `pip install
'.[glue]'`. `studies/definition.py` describes the file of a study.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import logging

from .base.arguments import check_output_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.ranges import check_ranges
from .studies.analysis import Analysis
from .studies.definition import Study, names_of_studies, read_study
from .studies.models import describe_models
from .studies.results_page import plot_study, study_section, verdict_lines, write_tables
from .studies.runs import Executor
from .studies.workspace import Workspace


@dataclass
class StudyArguments:
    """How to run a study, whose name (or YAML file) is the first argument."""

    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of the runs; outputs/studies/NAME, with the setting's name if there is one."},
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of the data files that the study names; the Hub's data by default."}
    )
    quick: bool = field(
        default=False,
        metadata={"help": "Minutes instead of hours: tries the command, and decides nothing."},
    )
    setting: str | None = field(default=None, metadata={"help": "Use another setting of the study's file."})
    jobs: int | None = field(
        default=None,
        metadata={"help": "Runs at a time, which share the cores; by default 1, with --quick 2."},
    )

    def __post_init__(self):
        check_ranges(self, ("at least 1", "jobs"))
        if self.quick and self.setting is not None:
            raise UserError("--quick is itself a setting: give either --quick or --setting.")


def write_report(report: dict[str, Any], folder: Path, study: Study) -> None:
    """Write the tables and the picture of a study next to its JSON file, and print the page's and the verdicts."""
    analysis = Analysis(report, study)
    text = study_section(analysis)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / analysis.study.stem
    Path(f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    plot_study(analysis, Path(f"{stem}.png"))
    write_tables([analysis], folder)
    files = [file for ending in ("json", "md", "png") if (file := Path(f"{stem}.{ending}")).is_file()]
    files += [folder / "results.csv", folder / "claims.csv"]
    print(f"\n{text}\n\n{verdict_lines(analysis)}\n\nwritten: {', '.join(map(str, files))}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    studies = f"the name of a study: {', '.join(names_of_studies())}, or a YAML file."
    (arguments,) = parse_arguments((StudyArguments,), words, "STUDY [arguments]", f"STUDY is {studies}")
    if not name:
        raise UserError(f"the first argument is {studies}")
    setting = "quick" if arguments.quick else arguments.setting or "default"
    study = read_study(name, setting)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = check_output_folder(arguments.output_dir or f"outputs/studies/{study.stem}")
    import_optional("scipy", "glue", "a study")  # before hours of training, at whose end the verdicts need it
    models = describe_models(study)  # before anything is written
    workspace = Workspace(study, folder, arguments.data_dir)
    write_report(Executor(workspace, models, arguments.jobs or (2 if arguments.quick else 1)).execute(), folder, study)


if __name__ == "__main__":
    main()
