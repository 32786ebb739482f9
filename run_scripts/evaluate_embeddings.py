"""Evaluate sentence embeddings on similarity, retrieval, labels and clusters.

    tokenmixers evaluate_embeddings --models sentence-transformers/all-MiniLM-L6-v2 outputs/embeddings \
        --data_dir embedding_eval glue/STS-B --output_dir outputs/evaluation
    tokenmixers evaluate_embeddings --models outputs/teacher outputs/student --data_dir held_out.tsv ...
    tokenmixers evaluate_embeddings --models outputs/embeddings --data_dir embedding_eval --tasks similarity trec ...

Prints and writes a table that compares the models, with their scores relative to those of the first one. With
`--speed_file glue/STS-B/dev.tsv`, also measures and plots their speed. The guide on sentence embeddings describes the
formats of the data. Needs the extra `embeddings`.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.precision import device_type
from .base.ranges import check_ranges
from .base.trained_model import model_fingerprint
from .benchmarks.results import machine
from .embeddings.formats import FORMATS, ONNX_FILES, has_format
from .embeddings.pictures import draw
from .embeddings.results import summarise, table_of
from .embeddings.speed import all_threads, measure, read_sentences, speed_table
from .embeddings.tasks import METRICS, EmbeddingTask, load_tasks
from .training.run_folder import write_atomically


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


COMMAND = "evaluate_embeddings"

#: The results of an evaluation that has not ended.
UNFINISHED = "results.unfinished.json"


@dataclass
class EmbeddingEvaluationArguments:
    """Which models, on which sets."""

    models: list[str] = field(
        metadata={
            "help": "Checkpoints of Sentence Transformers, model2vec or Transformers' encoders (mean pooling): "
            "folders, Hub ids, or names of models that come with this package. Shares are of the first one's scores."
        }
    )
    output_dir: str = field(
        metadata={
            "help": "New folder for results.json and results.md. The same command continues an unfinished evaluation."
        }
    )
    data_dir: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Folders, each with a set, or with a folder for each set; or files, such as held-out pairs. "
            "Without any, --speed_file measures speed alone."
        },
    )
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
        metadata={
            "help": "Table with sentences (sentence1 and sentence2, anchor and positive, or text) to measure the "
            "speed with."
        },
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
        if not self.data_dir and self.speed_file is None:
            raise UserError("there is nothing to measure: give --data_dir, --speed_file or both.")


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
    """The models of a call on its sets."""

    def __init__(self, arguments: EmbeddingEvaluationArguments):
        from .embeddings.models import describe_model

        self.arguments = arguments
        self.columns = find_columns(arguments)
        self.facts = {
            title: {**describe_model(self.load(name, kind)), "model_files": model_fingerprint(name)}
            for title, (name, kind) in self.columns.items()
        }

    def load(self, name: str, kind: str) -> "SentenceTransformer":
        """Load a model in a format."""
        from .embeddings.models import load_embedder

        return load_embedder(name, kind, self.arguments.max_seq_length, self.arguments.trust_remote_code)

    def results(self, tasks: list[EmbeddingTask], earlier: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The result of each model on each set; those that an evaluation had when it was stopped as they are.

        Another model or set in the same place is evaluated anew: contents count, not names.
        """
        from .embeddings.scores import evaluate

        for title, (name, kind) in self.columns.items():
            model = None
            facts = {"model": name, "format": kind, **self.facts[title], "batch_size": self.arguments.batch_size}
            for task in tasks:
                row = {**facts, "set": task.name, "split": task.split, "kind": task.kind, "rows": task.rows}
                row["set_content"] = task.fingerprint
                known = next((result for result in earlier if row.items() <= result.items()), None)
                if known is None:
                    model = model or self.load(name, kind)
                    start = time.perf_counter()
                    found = evaluate(model, task, self.arguments.batch_size)
                    known = {**row, "metric": METRICS[task.kind], **found, "seconds": time.perf_counter() - start}
                    print(f"{title}, {task.title}: {METRICS[task.kind]} {100 * known['score']:.2f}", flush=True)
                yield known

    def speeds(self) -> list[dict[str, Any]]:
        """Sentences per second of all models, see `embeddings.speed.measure`."""
        arguments = self.arguments
        sentences = read_sentences(arguments.speed_file or "", arguments.speed_sentences)
        threads = arguments.threads or list(dict.fromkeys((1, all_threads())))
        return measure(self.columns, self.load, sentences, threads, arguments.rounds, arguments.batch_size)


def page(tables: list[str], run: dict[str, Any]) -> str:
    """The tables with what made them, as Markdown."""
    where = f"{run['accelerator'] or run['processor']}, {run['threads']} threads; {run['versions']}; {run['date']}"
    content = "\n\n".join(tables)
    scores = "Scores times 100. " if run["rows"] else ""
    return f"{content}\n\n{scores}{where}.\n\n```\n{run['command']}\n```\n"


def as_json(content: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def earlier_results(arguments: EmbeddingEvaluationArguments) -> list[dict[str, Any]]:
    """The results in the output folder, if an evaluation was stopped there.

    Raises:
        UserError: If the folder has anything else.
    """
    file = Path(arguments.output_dir).expanduser() / UNFINISHED
    if not file.is_file():
        check_new_folder(arguments.output_dir)
        return []
    results = json.loads(file.read_text(encoding="utf-8"))
    print(f"going on from {len(results)} results in {file.parent}: what has changed is evaluated anew", flush=True)
    return results


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Entry point; returns the rows of the table, see `embeddings.results.summarise`."""
    (arguments,) = parse_arguments((EmbeddingEvaluationArguments,), argv)
    output, earlier = Path(arguments.output_dir).expanduser(), earlier_results(arguments)
    if arguments.speed_file is not None:
        read_sentences(arguments.speed_file, 1)
    tasks = load_tasks(arguments.data_dir, arguments.tasks, arguments.split) if arguments.data_dir else []
    for module in ("sentence_transformers", "sklearn"):
        import_optional(module, "embeddings", COMMAND)
    if any(kind in ONNX_FILES for kind in arguments.formats):
        import_optional("onnxruntime", "export", "the format onnx")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    run = describe_run(argv)
    for task in tasks:
        if task.note:
            print(f"{task.title}: {task.note}")
    evaluation = Evaluation(arguments)
    output.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for result in evaluation.results(tasks, earlier):
        results.append(result)
        write_atomically(output / UNFINISHED, as_json(results))  # the next set may take an hour, or fail
    found = iter(result["score"] for result in results)
    scores = {title: [next(found) for _ in tasks] for title in evaluation.columns}
    rows = summarise(tasks, scores)
    content = run | {"models": list(scores), "rows": rows, "results": results}
    tables = [table_of(rows, list(scores))] if tasks else []
    if tasks:
        print(f"\n{tables[0]}\n", flush=True)
    if arguments.speed_file is not None:
        content["speeds"] = evaluation.speeds()
        tables.append(speed_table(content["speeds"]))
        print(f"{tables[-1]}\n", flush=True)
        if tasks:
            draw(results, content["speeds"], output / "quality_speed.png")
    write_atomically(output / "results.json", as_json(content))
    write_atomically(output / "results.md", page(tables, content))
    (output / UNFINISHED).unlink(missing_ok=True)
    return rows


if __name__ == "__main__":
    main()
