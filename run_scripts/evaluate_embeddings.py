"""Evaluate sentence embeddings on similarity, retrieval, labels and clusters.

    tokenmixers evaluate_embeddings --models sentence-transformers/all-MiniLM-L6-v2 outputs/embeddings \
        --data_dir embedding_eval glue/STS-B --output_dir outputs/evaluation
    tokenmixers evaluate_embeddings --models outputs/embeddings --data_dir embedding_eval --tasks similarity trec ...

Several models stand side by side, with their share of the first one's scores. A figure that is in the output folder is
not computed again. The guide on sentence embeddings shows the formats of the data. Needs the extra `embeddings`.
"""

import shlex
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_output_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.precision import device_type
from .base.ranges import check_ranges
from .benchmarks.results import machine
from .embeddings.results import COMMAND, PROTOCOL, Result, ResultFile, key_of, summarise, table_of
from .embeddings.tasks import METRICS, EmbeddingTask, load_tasks
from .training.run_folder import write_atomically


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


FORMATS = ("float32", "bfloat16")


@dataclass
class EmbeddingEvaluationArguments:
    """Which models, on which sets."""

    models: list[str] = field(
        metadata={
            "help": "Checkpoints of Sentence Transformers, model2vec or Transformers' encoders (mean pooling): "
            "folders, Hub ids, or names of models that come with this package. Shares are of the first one's scores."
        }
    )
    data_dir: list[str] = field(metadata={"help": "Folders, each with a set, or with a folder for each set."})
    output_dir: str = field(metadata={"help": "Folder for results.json and results.md; it may hold earlier results."})
    tasks: list[str] | None = field(
        default=None, metadata={"help": "Names of sets or kinds, such as sts12 or retrieval; all by default."}
    )
    split: Literal["test", "dev"] = field(
        default="test",
        metadata={"help": "Files to evaluate on; dev stands in for a test file that is missing or hides its labels."},
    )
    formats: list[str] = field(
        default_factory=lambda: ["float32"],
        metadata={"help": "Formats of every model, side by side: float32, bfloat16."},
    )
    batch_size: int = field(default=32, metadata={"help": "Texts that are encoded together."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Longer texts are cut to this many tokens; the model's own by default."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Allow a checkpoint to run its own code on this machine."}
    )

    def __post_init__(self):
        check_ranges(self, ("at least 1", "batch_size max_seq_length"))
        for name, values in (("models", self.models), ("formats", self.formats)):
            for value in values:
                if values.count(value) > 1:
                    raise UserError(f"--{name} has {value!r} twice: give each once.")
        for kind in self.formats:
            if kind not in FORMATS:
                raise UserError(f"--formats {kind!r} is unknown; there are {', '.join(FORMATS)}.")

    @property
    def columns(self) -> dict[tuple[str, str], str]:
        """Every model in every format, and what the table calls it: the last part of its path, if no other has it."""
        last = [Path(name).name or name for name in self.models]
        short = [part if last.count(part) == 1 else name for part, name in zip(last, self.models, strict=True)]
        return {
            (name, kind): title if self.formats == ["float32"] else f"{title}, {kind}"
            for name, title in zip(self.models, short, strict=True)
            for kind in self.formats
        }


def describe_run(argv: list[str] | None) -> dict[str, Any]:
    """Date, command, machine and versions of this run."""
    words = sys.argv[1:] if argv is None else argv
    facts = machine(device_type(use_cpu=False))
    del facts["peers"]
    packages = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "scikit-learn"))
    command = {"command": shlex.join(["tokenmixers", COMMAND, *map(str, words)])}
    return command | facts | {"versions": f"{packages}, {facts['versions']}"}


class Evaluation:
    """The models of a call on its sets, each figure once.

    Raises:
        UserError: If a model cannot be loaded, before anything is computed.
    """

    def __init__(self, arguments: EmbeddingEvaluationArguments, tasks: list[EmbeddingTask], file: ResultFile):
        from .embeddings.models import describe_model

        self.arguments, self.tasks, self.file = arguments, tasks, file
        self.computed = 0
        self.models = {column: describe_model(self._load(*column)) for column in arguments.columns}

    def _load(self, name: str, kind: str) -> "SentenceTransformer":
        from .embeddings.models import load_embedder

        return load_embedder(name, kind, self.arguments.max_seq_length, self.arguments.trust_remote_code)

    def scores(self) -> dict[str, list[float]]:
        """Title of each model -> its scores on the sets. What the output folder lacks is computed and written."""
        found: dict[str, list[float]] = {}
        for column, title in self.arguments.columns.items():
            known = self.file.results()
            missing = [task for task in self.tasks if self._key(column, task) not in known]
            if len(missing) < len(self.tasks):
                print(f"{title}: {len(self.tasks) - len(missing)} of {len(self.tasks)} sets are in {self.file.path}")
            model = self._load(*column) if missing else None
            for task in missing:
                result = self._evaluate(model, column, task)
                print(f"{title}, {task.title}: {METRICS[task.kind]} {100 * result['score']:.2f}", flush=True)
                self.file.add(result)
                self.computed += 1
            known = self.file.results()
            found[title] = [known[self._key(column, task)]["score"] for task in self.tasks]
        return found

    def _key(self, column: tuple[str, str], task: EmbeddingTask) -> Any:
        return key_of({"weights": self.models[column]["weights"], "files": task.fingerprint, "protocol": PROTOCOL})

    def _evaluate(self, model: "SentenceTransformer", column: tuple[str, str], task: EmbeddingTask) -> Result:
        from .embeddings.scores import evaluate

        start = time.perf_counter()
        score, figures = evaluate(model, task, self.arguments.batch_size)
        name, kind = column
        return {
            "model": name,
            "format": kind,
            **self.models[column],
            "set": task.name,
            "split": task.split,
            "kind": task.kind,
            "rows": task.rows,
            "files": task.fingerprint,
            "protocol": PROTOCOL,
            "metric": METRICS[task.kind],
            "score": score,
            "figures": figures,
            "batch_size": self.arguments.batch_size,
            "seconds": time.perf_counter() - start,
        }


def page(table: str, run: dict[str, Any], earlier: int) -> str:
    """The table with what made it, as Markdown.

    Args:
        table: The table.
        run: From `describe_run`.
        earlier: Number of scores that earlier runs computed.
    """
    where = f"{run['accelerator'] or run['processor']}, {run['threads']} threads; {run['versions']}; {run['date']}"
    note = f" {earlier} scores are of earlier runs, which results.json lists." if earlier else ""
    return f"{table}\n\nScores times 100. {where}.{note}\n\n```\n{run['command']}\n```\n"


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns the rows of the table, see `embeddings.results.summarise`."""
    (arguments,) = parse_arguments((EmbeddingEvaluationArguments,), argv)
    output = check_output_folder(arguments.output_dir)
    tasks = load_tasks(arguments.data_dir, arguments.tasks, arguments.split)
    for module in ("sentence_transformers", "sklearn"):
        import_optional(module, "embeddings", COMMAND)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    run = describe_run(argv)
    file = ResultFile(output, run)
    for task in tasks:
        if task.note:
            print(f"{task.title}: {task.note}")
    evaluation = Evaluation(arguments, tasks, file)
    scores = evaluation.scores()
    rows = summarise(tasks, scores)
    table = table_of(rows, list(scores))
    print(f"\n{table}\n", flush=True)
    file.change("tables", [{"models": list(scores), "rows": rows}], lambda entry: tuple(entry["models"]))
    write_atomically(output / "results.md", page(table, run, len(scores) * len(tasks) - evaluation.computed))
    return rows


if __name__ == "__main__":
    main()
