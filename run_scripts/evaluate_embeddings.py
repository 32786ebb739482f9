"""Evaluate sentence embeddings on similarity, retrieval, labels and clusters.

    tokenmixers evaluate_embeddings --models sentence-transformers/all-MiniLM-L6-v2 outputs/embeddings \
        --data_dir embedding_eval glue/STS-B --output_dir outputs/evaluation
    tokenmixers evaluate_embeddings --models outputs/embeddings --data_dir embedding_eval --tasks similarity trec ...

Several models stand side by side, with their share of the first one's scores. A figure that is in the output folder is
not computed again. With `--speed_file glue/STS-B/dev.tsv` the speed is measured as well, of all models in turn, and
drawn. The guide on sentence embeddings shows the formats of the data. Needs the extra `embeddings`.
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
from .embeddings.formats import FORMATS, ONNX_FILES, has_format
from .embeddings.results import COMMAND, PROTOCOL, Result, ResultFile, key_of, summarise, table_of
from .embeddings.speed import all_threads, draw, measure, read_sentences, speed_table
from .embeddings.tasks import METRICS, EmbeddingTask, load_tasks
from .training.run_folder import write_atomically


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


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
        metadata={
            "help": "Formats of every model, side by side; those that it has no files for are left out. "
            + "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
            + ".",
            "choices": list(FORMATS),
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Texts that are encoded together."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Longer texts are cut to this many tokens; the model's own by default."}
    )
    speed_file: str | None = field(
        default=None,
        metadata={"help": "Table with sentences (sentence1 and sentence2, or text) to measure the speed with."},
    )
    speed_sentences: int = field(default=512, metadata={"help": "Use this many sentences of it."})
    threads: list[int] | None = field(
        default=None, metadata={"help": "Numbers of threads to measure with; one and all cores by default."}
    )
    rounds: int = field(default=5, metadata={"help": "Timed passes of each model over the sentences."})
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Allow a checkpoint to run its own code on this machine."}
    )

    def __post_init__(self):
        check_ranges(self, ("at least 1", "batch_size max_seq_length speed_sentences threads rounds"))


def find_columns(arguments: EmbeddingEvaluationArguments) -> dict[str, tuple[str, str]]:
    """Every model in every format that it has, by what the table calls it.

    That is the last part of its path, if no other model has it, and the format.
    """
    models, formats = list(dict.fromkeys(arguments.models)), list(dict.fromkeys(arguments.formats))
    last = [Path(name).name or name for name in models]
    columns = {}
    for name, part in zip(models, last, strict=True):
        title = part if last.count(part) == 1 else name
        found = [kind for kind in formats if has_format(name, kind)]
        if not found:
            raise UserError(f"{name!r} has no files for {' or '.join(formats)}: give another of --formats.")
        if lacking := [kind for kind in formats if kind not in found]:
            print(f"{title}: has no files for {', '.join(lacking)}, left out")
        columns |= {title if formats == ["float32"] else f"{title}, {kind}": (name, kind) for kind in found}
    return columns


def describe_run(argv: list[str] | None) -> dict[str, Any]:
    """Date, command, machine and versions of this run."""
    words = sys.argv[1:] if argv is None else argv
    facts = machine(device_type(use_cpu=False))
    del facts["peers"]
    packages = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "scikit-learn"))
    command = {"command": shlex.join(["tokenmixers", COMMAND, *map(str, words)])}
    return command | facts | {"versions": f"{packages}, {facts['versions']}"}


class Evaluation:
    """The models of a call on its sets, each figure once."""

    def __init__(self, arguments: EmbeddingEvaluationArguments, tasks: list[EmbeddingTask], file: ResultFile):
        from .embeddings.models import describe_model

        self.arguments, self.tasks, self.file = arguments, tasks, file
        self.computed = 0
        self.columns = find_columns(arguments)
        self.models = {column: describe_model(self.load(*column)) for column in self.columns.values()}

    def load(self, name: str, kind: str) -> "SentenceTransformer":
        """Load a model in a format."""
        from .embeddings.models import load_embedder

        return load_embedder(name, kind, self.arguments.max_seq_length, self.arguments.trust_remote_code)

    def scores(self) -> dict[str, list[float]]:
        """Title of each model -> its scores on the sets. What the output folder lacks is computed and written."""
        found: dict[str, list[float]] = {}
        for title, column in self.columns.items():
            known = self.file.results()
            missing = [task for task in self.tasks if self._key(column, task) not in known]
            if len(missing) < len(self.tasks):
                print(f"{title}: {len(self.tasks) - len(missing)} of {len(self.tasks)} sets are in {self.file.path}")
            model = self.load(*column) if missing else None
            for task in missing:
                if self._key(column, task) in self.file.results():  # another process has computed it by now
                    continue
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

    def speeds(self) -> list[dict[str, Any]]:
        """Sentences per second of all models, see `embeddings.speed.measure`."""
        arguments = self.arguments
        sentences = read_sentences(arguments.speed_file or "", arguments.speed_sentences)
        threads = arguments.threads or list(dict.fromkeys((1, all_threads())))
        return measure(self.columns, self.load, sentences, threads, arguments.rounds, arguments.batch_size)


def page(tables: list[str], run: dict[str, Any], earlier: int) -> str:
    """The tables with what made them, as Markdown."""
    where = f"{run['accelerator'] or run['processor']}, {run['threads']} threads; {run['versions']}; {run['date']}"
    note = f" {earlier} scores are of earlier runs, which results.json lists." if earlier else ""
    content = "\n\n".join(tables)
    return f"{content}\n\nScores times 100. {where}.{note}\n\n```\n{run['command']}\n```\n"


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns the rows of the table, see `embeddings.results.summarise`."""
    (arguments,) = parse_arguments((EmbeddingEvaluationArguments,), argv)
    output = check_output_folder(arguments.output_dir)
    if arguments.speed_file is not None:
        read_sentences(arguments.speed_file, 1)
    tasks = load_tasks(arguments.data_dir, arguments.tasks, arguments.split)
    for module in ("sentence_transformers", "sklearn"):
        import_optional(module, "embeddings", COMMAND)
    if any(kind in ONNX_FILES for kind in arguments.formats):
        import_optional("onnxruntime", "export", "the format onnx")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    run = describe_run(argv)
    file = ResultFile(output, run)
    for task in tasks:
        if task.note:
            print(f"{task.title}: {task.note}")
    evaluation = Evaluation(arguments, tasks, file)
    scores = evaluation.scores()
    names, rows = list(scores), summarise(tasks, scores)
    file.put("tables", names, {"rows": rows})
    tables = [table_of(rows, names)]
    print(f"\n{tables[0]}\n", flush=True)
    if arguments.speed_file is not None:
        batch = {"batch_size": arguments.batch_size, "file": arguments.speed_file}
        file.put("speeds", names, batch | {"rows": evaluation.speeds()})
    if (speeds := file.get("speeds", names)) is not None:
        tables.append(speed_table(speeds["rows"]))
        print(f"{tables[1]}\n", flush=True)
        draw({"models": names, "rows": rows}, speeds["rows"], output)
    write_atomically(output / "results.md", page(tables, run, len(scores) * len(tasks) - evaluation.computed))
    return rows


if __name__ == "__main__":
    main()
