"""One training run, from the command line to the pushed model: everything that all training commands do, in order.

A command is a `Task`, which defines the data, the model and the metrics. Everything else is here. Optional parts are
attached from outside: a teacher (`teacher.py`), a grid of runs (`hyperparameter_grid.py`), and in the Trainer
(`trainer.py`) the card, pushes, and stopping on a bad loss.
"""

import copy
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch.distributed as dist
from accelerate import PartialState
from safetensors import SafetensorError
from torch.distributed import ProcessGroup
from transformers import (
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput, has_length, rotate_checkpoints

from ...configuration.auto_classes import FAMILIES
from ..base.arguments import ModelArguments, parse_arguments
from ..base.errors import UserError, report_bad_data
from ..base.memory import keep_freed_memory
from ..base.pictures import plot_history
from ..base.reporting import print_plan, print_table, training_speed, transformers_model, write_table
from ..base.trained_model import hide_bars_of_weights, model_fingerprint
from ..base.training_arguments import ScriptTrainingArguments, check_has_work
from ..data.fingerprint import fingerprint
from ..data.loading import INDEX
from .class_names import build_classifier, set_label_names
from .distillation import Distillation
from .hyperparameter_grid import Comparison, GridArguments, plan, run_all
from .model_card import CardFacts, describe_data, training_settings
from .model_loading import build_model, fitting_tokenizer, leave_out_token_types, load_config, sequence_length
from .run_folder import UNFINISHED, checkpoint_to_resume, forget_start, mark_finished, mark_unfinished, write_results
from .run_record import CONTENT, EXTENDED, MODELS, RunRecord, data_settings, evaluates_first, go_on_from
from .schedules import choose_learning_rate
from .teacher import NoTeacher, find_teacher
from .trainer import NoBatchError, ScriptTrainer, compare_by_first_set, forget_truncation
from .trial_step import try_arguments


#: Maximum length up to which attention as matrix products trains at least as fast, in bfloat16 on CPUs.
LONGEST_FOR_PRODUCTS = 256
#: Suffixes of measured times, which are not results of test data.
TIMES = ("_runtime", "_per_second", "_preparation_time")

Arguments = TypeVar("Arguments")


class Task:
    """The parts that a training command defines. Methods are listed in the order in which a run calls them.

    Attributes:
        arguments: The command's argument dataclasses. The first one describes the data.
        training_arguments: The argument dataclass of the Trainer.
        jobs: The supported jobs among `do_train`, `do_eval` and `do_predict`.
        pipeline_tag: The Hub's name of the task, a key of `model_card.SNIPPETS`.
        auto_class: Loads and builds the model.
        is_classifier: Whether the model has the classes of the data.
        tokenizer_kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.
        distillation: The distillation loss, if `arguments` includes `DistillationArguments`.
        trainer_class: The Trainer class.
        gathered: Selects the model outputs that evaluation gathers, `(logits, labels) -> logits`.
        keeps_columns: Whether the collator receives columns that the model does not accept.
        counts_tokens: Whether to report the training speed in tokens.
        evaluates_before: Whether to report the metrics before training, as `before_...`.
        draws_by_seed: Whether the seed chooses training rows: those of a grid's runs then differ.
        unit: Name of the examples in the printed results.
        scale: Factor for the printed metrics, 100 for fractions.
    """

    arguments: ClassVar[tuple[type, ...]]
    training_arguments: ClassVar[type[TrainingArguments]] = ScriptTrainingArguments
    jobs: ClassVar[tuple[str, ...]] = ("do_train", "do_eval", "do_predict")
    pipeline_tag: str
    auto_class: type
    is_classifier: ClassVar[bool] = False
    tokenizer_kind: ClassVar[str] = "encoder"
    distillation: ClassVar[type[Distillation]] = Distillation
    trainer_class: type = ScriptTrainer
    keeps_columns: ClassVar[bool] = False
    counts_tokens: ClassVar[bool] = False
    evaluates_before: ClassVar[bool] = False
    draws_by_seed: ClassVar[bool] = False
    unit: ClassVar[str] = "examples"
    scale: ClassVar[float] = 1.0

    def check(self, run: "Run") -> None:
        """Reject arguments that contradict each other, before anything is read."""

    def comparison(self, run: "Run") -> Comparison:
        """How to compare the runs of a grid: by the first metric, unless specified otherwise."""
        return Comparison(list(self.metric_types(run)), scale=self.scale)

    def find_teacher(self, run: "Run") -> NoTeacher:
        """The teacher that the command line names, if any."""
        return find_teacher(run)

    def load(self, run: "Run") -> Any:
        """`run.data`: the examples, checked and not yet encoded, for the splits of `wanted_splits`."""
        raise NotImplementedError

    def labels(self, run: "Run") -> Sequence[str] | None:
        """Class names for the configuration; `None` if the model has no classes."""
        return None

    def texts(self, run: "Run") -> Iterable[str]:
        """The training texts, which only `--train_tokenizer` needs."""
        return ()

    def load_tokenizer(self, run: "Run", resume_from: str | None) -> Any:
        """`run.tokenizer`; for image models, the image processor."""
        texts = () if run.model_args.train_tokenizer is None else self.texts(run)
        content = None
        if run.model_args.train_tokenizer is not None:
            rows = run.data["train"] if isinstance(run.data, Mapping) else run.data.train
            content = fingerprint(getattr(rows, "splits", rows))
        return fitting_tokenizer(
            run.model_args, run.config, run.data_args, texts, run.args, resume_from, self.tokenizer_kind, content
        )

    def lengths(self, run: "Run") -> dict[str, int]:
        """`run.lengths`: name of a length argument -> number of tokens."""
        requested = getattr(run.data_args, "max_seq_length", None)
        return {"--max_seq_length": sequence_length(requested, run.config, run.tokenizer)}

    def encode(self, run: "Run") -> dict[str, Any]:
        """`run.rows`: split -> rows for the collator, or -> (name -> rows) if a split has several sets.

        Predictions are in the order of the rows. Test rows without `labels` are predicted without metrics.
        """
        raise NotImplementedError

    def build_model(self, run: "Run", config: PreTrainedConfig) -> PreTrainedModel:
        """Load the checkpoint or create a new model."""
        if self.is_classifier:
            return build_classifier(run.model_args, config, self.auto_class, run.args.do_train)
        return build_model(run.model_args, config, self.auto_class, run.args.do_train)

    def collator(self, run: "Run", model: PreTrainedModel) -> Callable[[list[dict[str, Any]]], Mapping[str, Any]]:
        """The collator, which makes batches of rows."""
        raise NotImplementedError

    @staticmethod
    def gathered(logits: Any, labels: Any) -> Any:
        """The logits without a model's other outputs."""
        return logits[0] if isinstance(logits, tuple) else logits

    def build_trainer(self, run: "Run", model: PreTrainedModel, **options: Any) -> Any:
        """Create the Trainer, with further arguments if needed."""
        args, evaluation = run.args, run.rows.get("validation")
        if self.keeps_columns:
            args.remove_unused_columns = False
        if isinstance(evaluation, Mapping):
            compare_by_first_set(args, evaluation)
        collator = self.collator(run, model)
        settings = {
            "data_collator": collator,
            "callbacks": [collator] if isinstance(collator, TrainerCallback) else None,
            "train_dataset": run.rows.get("train"),
            "eval_dataset": evaluation,
            "processing_class": run.tokenizer,
            "compute_metrics": partial(self.metrics, run, "validation"),
            "preprocess_logits_for_metrics": self.gathered,
        }
        return self.trainer_class(model=model, args=args, **settings | options)

    def planned(self, run: "Run") -> Mapping[str, Sized] | None:
        """The evaluation data for the plan, if it differs from the Trainer's."""
        return None

    def metric_types(self, run: "Run") -> dict[str, str]:
        """The reported metrics, without `eval_` -> their types on the Hub."""
        raise NotImplementedError

    def card_facts(self, run: "Run", model: Any) -> dict[str, Any]:
        """Further arguments of `CardFacts`, such as the task's `hyper_parameters` and an `example` for the card."""
        return {}

    def baselines(self, run: "Run", trainer: Any) -> dict[str, Any]:
        """Results without the model, for comparison."""
        return {}

    def start(self, run: "Run", trainer: Any) -> None:
        """Change the new model before its first step, equally in all processes; not called when a run resumes."""

    def metrics(self, run: "Run", split: str, prediction: EvalPrediction) -> dict[str, float]:
        """Compute the metrics of a split's predictions, as selected by `gathered`."""
        raise NotImplementedError

    def write(self, run: "Run", split: str, part: str, output: PredictionOutput) -> Path | None:
        """Write predictions to the output folder. `part` is the name of one of several sets, otherwise empty."""
        raise NotImplementedError

    def validation_results(self, run: "Run", trainer: Any) -> dict[str, Any]:
        """Predict the validation data, write files, and return the metrics under names that start with `eval_`."""
        return run.evaluate(trainer)

    def test_results(self, run: "Run", trainer: Any) -> dict[str, Any]:
        """Predict the test data, write files, and return the metrics under names that start with `test_`."""
        return run.predict(trainer)

    def report(self, run: "Run", results: Mapping[str, Any], model_type: str) -> None:
        """Print the metrics and losses of the evaluated data."""
        for split, prefix in (("validation", "eval"), ("test", "test")):
            names = [name for name in self.metric_types(run) if f"{prefix}_{name}" in results]
            rows = [(name.replace("_", " "), f"{self.scale * results[f'{prefix}_{name}']:.2f}") for name in names]
            if rows:
                rows.append(("loss", f"{results[f'{prefix}_loss']:.4f}"))
                unit = f"{self.unit}{f', x {self.scale:g}' if self.scale != 1 else ''}"
                print_table((f"on the {split} {unit}", model_type), rows)


class Run:
    """The run of a command, or the runs of a grid, which share data and tokenizer.

    Args:
        task: The command.
        argv: Command line; `sys.argv[1:]` by default.

    Attributes:
        args: The Trainer's arguments; in a grid, those of the current run.
        model_args: The model arguments; for a student, including those that come from its teacher.
        data_args: The data arguments, the first dataclass of the task.
        teacher, config, data, tokenizer, lengths, rows: See `prepare`.
    """

    teacher: NoTeacher
    config: PreTrainedConfig
    data: Any
    tokenizer: Any
    lengths: dict[str, int]
    rows: dict[str, Any]

    def __init__(self, task: Task, argv: Sequence[str] | None = None):
        types = (ModelArguments, *task.arguments, GridArguments, task.training_arguments)
        *self.given, self.args = parse_arguments(types, argv)
        self.task = task
        self.model_args, self.data_args = self.given[:2]

    def __getitem__(self, kind: type[Arguments]) -> Arguments:
        """The arguments of one dataclass."""
        return next(arguments for arguments in self.given if isinstance(arguments, kind))

    @property
    def settings(self) -> list[Any]:
        """The arguments that are equal in all runs of a grid, without those of the Trainer."""
        return [given for given in self.given if not isinstance(given, GridArguments)]

    @property
    def max_seq_length(self) -> int:
        """Number of tokens per row, if there is one length."""
        (length,) = self.lengths.values()
        return length

    def command(self) -> dict[str, Any]:
        """Run everything that the command line asks for.

        Returns:
            The results of the run, as `execute`, or for a grid those of `hyperparameter_grid.run_all`.
        """
        args, grid = self.args, self[GridArguments]
        hide_bars_of_weights()
        check_has_work(args, *self.task.jobs)
        self.task.check(self)
        if self.model_args.train_tokenizer is not None and not args.do_train:
            raise UserError("--train_tokenizer needs --do_train: the tokenizer is trained on the training data.")
        if args.do_train and grid.learning_rates is None:
            choose_learning_rate(args, self.model_args)
        try_arguments(args)
        if args.use_cpu:
            keep_freed_memory()
        if grid.is_used:
            comparison, runs = self.task.comparison(self), plan(grid, args, self.settings)
            runs[0].grid.check()
            results = run_all(runs, self.execute, comparison)
        else:
            results = self.execute(args)
        leave_processes()
        return results

    @report_bad_data()
    def execute(self, args: TrainingArguments) -> dict[str, Any]:
        """Execute one run: train, evaluate and predict, and write everything to the output folder.

        The folder contains the model with its code and tokenizer, `train_results.json`, `eval_results.json`,
        `test_results.json`, the Trainer's history in `trainer_state.json` and as a plot in `history.png`, predictions,
        the card in `README.md`, and finally `all_results.json`. An interrupted run continues from its newest
        checkpoint and writes all other files again.

        Returns:
            The metrics of the evaluation with the prefix `eval_`, of the test data with `test_`, before training with
            `before_`, those of `Task.baselines`, and `tokens_per_second` if tokens are counted.
        """
        self.args, task = args, self.task
        resume_from = checkpoint_to_resume(args)
        if task.counts_tokens:
            args.include_num_input_tokens_seen = "non_padding"
        set_seed(args.seed)
        if not hasattr(self, "rows"):
            self.prepare(resume_from)
        trainer = self.build()
        print_plan(trainer, resume_from, task.planned(self))
        trainer.card = self.card(trainer)
        forget_truncation(trainer.processing_class)
        results = task.baselines(self, trainer)
        training: dict[str, float] = {}
        with _report_full_disk(args.output_dir):
            if args.do_train:
                if resume_from is None:
                    task.start(self, trainer)
                training, speed = _train(trainer, resume_from, self.fingerprints(), task)
                results |= speed
            if args.do_eval:
                results |= task.validation_results(self, trainer)
                results |= trainer.best_metrics()
                trainer.save_metrics("eval", results, combined=False)
            if args.do_predict:
                tested = task.test_results(self, trainer)
                trainer.save_metrics("test", tested, combined=False)
                results |= {name: value for name, value in tested.items() if not name.endswith(TIMES)}
                trainer.card = replace(trainer.card, test_results=results)
            if trainer.is_world_process_zero():
                if args.do_train:
                    plot_history(trainer.state.log_history, Path(args.output_dir) / "history.png")
                    trainer.create_model_card()
                write_results(args.output_dir, training | results, update=not args.do_train)
        if args.do_train:
            if args.push_to_hub:
                trainer.push_to_hub()
            if trainer.is_world_process_zero():
                mark_finished(args.output_dir)
        if task.evaluates_before and args.do_train:
            first = [entry for entry in trainer.state.log_history if entry["step"] == 0]
            known = [(name, entry) for entry in first for name in trainer.card.metrics if f"eval_{name}" in entry]
            results |= {f"before_{name}": entry[f"eval_{name}"] for name, entry in known}
        if trainer.is_world_process_zero():
            task.report(self, results, transformers_model(trainer.model).config.model_type)
        return results

    def prepare(self, resume_from: str | None = None) -> None:
        """Create what all runs of a grid share, each part from those before it: teacher, configuration, data,
        tokenizer, lengths, rows.

        Args:
            resume_from: Checkpoint with the tokenizer that an interrupted run trained.
        """
        task, args = self.task, self.args
        self.teacher = task.find_teacher(self)
        self.model_args = self.teacher.student_arguments(self.model_args)
        self.config = load_config(self.model_args)
        with args.main_process_first(local=False, desc="loading the data"):
            self.data = task.load(self)
        labels = task.labels(self)
        if labels is not None:
            set_label_names(self.config, labels, args.do_train)
        self.tokenizer = task.load_tokenizer(self, resume_from)
        self.lengths = task.lengths(self)
        self.teacher.check_student(self, labels)
        with args.main_process_first(local=False, desc="tokenizing"):
            self.rows = task.encode(self)
        leave_out_token_types(self.config, self.tokenizer)

    def build(self) -> Any:
        """Create the Trainer with a new model, and attach the teacher."""
        self.teacher.load(self)
        model = self.task.build_model(self, copy.deepcopy(self.config))
        if self.args.do_train:
            _choose_attention(model, self.args, self.lengths.values())
        trainer = self.task.build_trainer(self, model)
        self.teacher.teach(self, trainer)
        return trainer

    def card(self, trainer: Any) -> CardFacts:
        """The facts for the model card that the Trainer does not know."""
        facts: dict[str, Any] = {"task": self.task.pipeline_tag, "hyper_parameters": {}}
        facts["base_model"] = self.model_args.model_name_or_path
        facts |= {"metrics": self.task.metric_types(self), **describe_data(self.data_args)}
        facts |= self.task.card_facts(self, trainer.model)
        return CardFacts(**facts | {"hyper_parameters": facts["hyper_parameters"] | self.teacher.settings_in_use()})

    def fingerprints(self) -> dict[str, str | None]:
        """Hashes of the files of the teacher, the checkpoint to start from and the tokenizer, `None` without one."""
        model_args = self.model_args
        teacher, start = getattr(self.teacher, "name", None), model_args.model_name_or_path
        tokenizer, revision = model_args.tokenizer_name, model_args.model_revision
        found = (
            None if teacher is None else model_fingerprint(teacher),
            None if start is None else model_fingerprint(start, revision),
            None if tokenizer is None else model_fingerprint(tokenizer, revision, tokenizer_alone=True),
        )
        return dict(zip(MODELS, found, strict=True))

    def evaluate(self, trainer: Any) -> dict[str, float]:
        """Evaluate one or several sets and write the predictions."""
        metrics: dict[str, float] = {}
        for part, rows in sets_of(trainer.eval_dataset).items():
            output = trainer.predict(rows, metric_key_prefix=joined("eval", part))
            metrics |= output.metrics
            if trainer.is_world_process_zero():
                self.task.write(self, "validation", part, output)
        metrics |= trainer.overall_metrics(metrics)
        trainer.log(dict(metrics))
        return metrics

    def predict(self, trainer: Any) -> dict[str, float]:
        """Predict one or several test sets and write the predictions; metrics need labels."""
        trainer.compute_metrics = partial(self.task.metrics, self, "test")
        metrics: dict[str, float] = {}
        for part, rows in sets_of(self.rows.get("test", {})).items():
            output = trainer.predict(rows, metric_key_prefix=joined("test", part))
            metrics |= output.metrics
            path = self.task.write(self, "test", part, output) if trainer.is_world_process_zero() else None
            if path is not None:
                print(f"predictions for the test set: {path}", flush=True)
        return metrics

    def prediction_file(self, split: str, part: str = "", ending: str = "csv") -> Path:
        """The file of the predictions for a split, or for one of its sets: a name is given here alone."""
        return Path(self.args.output_dir) / f"{joined('predictions', split, part)}.{ending}"

    def write_predictions(self, split: str, part: str, columns: Mapping[str, Sequence[Any]]) -> Path:
        """Write predictions as a table, whose column `index` says which rows of the data they belong to.

        Args:
            split: `"validation"` or `"test"`.
            part: The name of one of several sets, else empty.
            columns: Columns of the table. Without one called `index` the rows are those of the data, in their order.
        """
        path = self.prediction_file(split, part)
        rows = range(len(next(iter(columns.values()))))
        write_table(path, columns if INDEX in columns else {INDEX: rows, **columns})
        return path


def joined(*parts: str) -> str:
    """Join the non-empty parts of a name for results and files."""
    return "_".join(filter(None, parts))


def sets_of(rows: Any) -> Mapping[str, Any]:
    """Name -> rows, for several sets or for one without a name."""
    return rows if isinstance(rows, Mapping) else {"": rows}


def _choose_attention(model: Any, args: TrainingArguments, lengths: Iterable[int]) -> None:
    """Let a model of Transformers compute attention as matrix products where PyTorch's function is slower.

    On CPUs, its backward pass in bfloat16 takes several times as long for short texts. Our models have a kernel.
    """
    encoder = transformers_model(model)
    if not isinstance(encoder, PreTrainedModel) or encoder.config.model_type in FAMILIES:
        return
    own_length = getattr(model, "max_seq_length", None) or 0  # of sentence embeddings; images state none
    if args.bf16 and args.device.type == "cpu" and max(lengths, default=own_length) <= LONGEST_FOR_PRODUCTS:
        encoder.set_attn_implementation("eager")


def _train(
    trainer: Any, resume_from: str | None, fingerprints: Mapping[str, str | None], task: Task
) -> tuple[dict[str, float], dict[str, float]]:
    """Train, and save the model and the history. Returns the Trainer's metrics, and `training_speed`."""
    args, rows = trainer.args, trainer.train_dataset
    if has_length(rows) and len(rows) == 0:
        raise UserError("there is nothing to train on: no rows of the training data are left. Give longer texts.")
    trainer.check_card()
    settings = {**training_settings(args, trainer.card), **data_settings(rows), **fingerprints}
    start = TrainerState()
    if resume_from is not None:  # read now, because training may remove the checkpoint
        start = go_on_from(resume_from, settings, transformers_model(trainer.model).config)
    if settings.get(EXTENDED):
        trainer.card = with_extensions(trainer.card, settings[EXTENDED])
    contents = {**fingerprints} if task.draws_by_seed else {CONTENT: settings[CONTENT], **fingerprints}
    if args.grid is not None:
        args.grid.check_contents(contents)
    begun = (Path(args.output_dir) / UNFINISHED).is_dir()
    trainer.add_callback(RunRecord(settings))
    if trainer.is_world_process_zero():
        new_tokenizer = trainer.processing_class, args.tokenizer_settings
        if args.grid is None:
            mark_unfinished(args.output_dir, *new_tokenizer)
        else:
            args.grid.start_run(*new_tokenizer, contents)
            mark_unfinished(args.output_dir)
    # Not `evaluate()` before `train()`: the Trainer would then leave the model without its DDP wrapper.
    resumed = None if resume_from is None else start
    args.eval_on_start = evaluates_first(args, trainer.card.metrics, task.evaluates_before, resumed)
    try:
        metrics = trainer.train(resume_from_checkpoint=resume_from).metrics
    except NoBatchError:
        if trainer.is_world_process_zero() and not begun:
            forget_start(args.output_dir, args.grid)
        raise
    if trainer.is_world_process_zero():  # an earlier run may have been killed while removing a checkpoint
        best = trainer.state.best_model_checkpoint
        rotate_checkpoints(args.output_dir, args.save_total_limit, best)
    if trainer.is_fsdp_enabled:  # checkpoints may be in parts; of a model in parts the Trainer saves nothing here
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(_internal_call=True)  # without a push, which is the last step
    trainer.is_saved = True
    trainer.save_metrics("train", metrics, combined=False)
    trainer.save_state()
    return metrics, training_speed(trainer.state, start)


def with_extensions(card: CardFacts, steps: Sequence[int]) -> CardFacts:
    """The facts of a run that was extended at these steps."""
    at = " and ".join(f"{step:,}" for step in steps)
    note = f"The run was extended at step {at}: from there the learning rate follows the schedule of the longer run."
    return replace(card, notes=" ".join(filter(None, (card.notes, note))))


@contextmanager
def _report_full_disk(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if getattr(error, "errno", None) != errno.ENOSPC and "No space left" not in str(error):
            raise
        raise UserError(
            f"the disk of {folder!r} is full. Earlier checkpoints are untouched: make room (or give "
            "--save_total_limit) and start the same command again."
        ) from error


_KEPT_PROCESS_GROUPS: list[ProcessGroup] = []


def leave_processes() -> None:
    """Destroy the process group at the end of a command.

    The group object is kept until Python exits. If it were freed here, with the model that uses it, its destructor
    would wait for its threads while it holds the GIL, which one of them may need: a deadlock (PyTorch 2.13, gloo).
    """
    if dist.is_initialized():
        _KEPT_PROCESS_GROUPS.append(dist.group.WORLD)
    PartialState().destroy_process_group()
