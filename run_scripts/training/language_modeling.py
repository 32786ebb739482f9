"""Shared by the language modelling commands: corpus, tokenizing, perplexity, Trainer, the whole run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.nn import functional as F
from transformers import (
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import has_length

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.arguments import ModelArguments, parse_arguments
from ..base.errors import UserError, report_bad_data
from ..base.reporting import print_plan, print_table
from ..base.training_arguments import ScriptTrainingArguments, check_has_work
from ..data.collators import pad_rows
from ..data.loading import Split
from ..data.packing import row_encoder, tokenize
from ..data.row_seeds import SeededCollator
from ..data.text_corpus import TextDataArguments, iterate_texts, load_documents
from ..data.text_stream import TextStream
from ..metrics import load_metric
from .hyperparameter_grid import Comparison, GridArguments, run_command
from .model_card import CardArguments, CardFacts, describe_data
from .model_loading import fitting_tokenizer, load_config
from .run_folder import checkpoint_to_resume
from .teacher_outputs import supports_seq_idx
from .trainer import ScriptTrainer
from .training_run import train_and_evaluate


Rows = Split | TextStream
Collator = Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]

#: How the runs of a grid are compared.
COMPARISON = Comparison(("perplexity",))


@dataclass
class Corpus:
    """Documents by split name, with the tokenizer and the configuration that fit each other."""

    documents: dict[str, Split]
    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig


def load_corpus(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    args: ScriptTrainingArguments,
    resume_from: str | None,
    kind: str = "encoder",
) -> Corpus:
    """Load documents, those to train on only for a run that trains, configuration and tokenizer.

    Args:
        model_args: Names configuration and tokenizer.
        data_args: Names the text.
        args: The Trainer's arguments: seeds and processes.
        resume_from: Checkpoint to resume from.
        kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    config = load_config(model_args)
    with args.main_process_first(local=False, desc="loading the text"):
        seed = args.evaluation_seed if args.data_seed is None else args.data_seed
        documents = load_documents(data_args, seed, model_args.token)
    if "train" not in documents and args.do_train:
        raise UserError("--do_train needs training data: give --dataset_name or --train_file.")
    texts = iterate_texts(documents["train"]) if "train" in documents else ()
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from, kind)
    if not args.do_train:
        documents.pop("train", None)
    return Corpus(documents, tokenizer, config)


def tokenize_corpus(
    corpus: Corpus,
    data_args: TextDataArguments,
    args: TrainingArguments,
    max_seq_length: int,
    shortest_row: int = 1,
    **options: Any,
) -> dict[str, Rows]:
    """Rows of tokens by split name. Streamed training rows are an endless `TextStream`.

    Args:
        corpus: Documents and tokenizer.
        data_args: Whether and how to pack.
        args: The Trainer's arguments: seeds and processes.
        max_seq_length: Tokens per row.
        shortest_row: Rows with fewer tokens are dropped.
        options: Further arguments of `row_encoder`.
    """
    encode = row_encoder(
        corpus.tokenizer,
        max_seq_length,
        pack=not data_args.line_by_line,
        isolate=data_args.isolate_documents,
        **options,
    )
    rows: dict[str, Rows] = {}
    seed = args.seed if args.data_seed is None else args.data_seed
    with args.main_process_first(local=False, desc="tokenizing"):
        for name, split in corpus.documents.items():
            if name == "train" and data_args.streaming:
                rows[name] = TextStream(split, encode, seed, data_args.shuffle_buffer_size, shortest_row)
            else:
                rows[name] = tokenize(split, encode, shortest_row, data_args.preprocessing_num_workers)
                if has_length(rows[name]) and len(rows[name]) == 0:
                    raise UserError(
                        f"the {name} data have no text of {shortest_row} tokens or more: give longer texts."
                    )
    return rows


def row_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed negative log-likelihood of each row's labels: what evaluation gathers instead of the logits.

    Args:
        logits: Shape `(batch, length, vocab_size)`; a model's further outputs may follow in a tuple.
        labels: Shape `(batch, length)`, -100 = ignored by the loss.

    Returns:
        Shape `(batch,)`, in nats.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    labelled = labels != IGNORED_LABEL
    losses = F.cross_entropy(logits[labelled].float(), labels[labelled], reduction="none")
    return torch.zeros(len(labels), device=losses.device).index_add_(0, labelled.nonzero()[:, 0], losses)


def next_token_row_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """`row_losses` of causal models: the logits at each token are about the next one."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return row_losses(logits[:, :-1], labels[:, 1:])


def perplexity(prediction: EvalPrediction) -> dict[str, float]:
    """Perplexity over all labelled tokens of the evaluation set, from `row_losses`."""
    return _perplexity(prediction.predictions, prediction.label_ids)


def next_token_perplexity(prediction: EvalPrediction) -> dict[str, float]:
    """The same from `next_token_row_losses`: the first token of a row has no prediction."""
    return _perplexity(prediction.predictions, prediction.label_ids[:, 1:])


def _perplexity(losses: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    tokens = (labels != IGNORED_LABEL).sum(axis=-1)
    return load_metric("token_perplexity").compute(predictions=losses, references=tokens)


def unigram_perplexity(train: Split, evaluation: Split, vocab_size: int) -> float:
    """Perplexity of predicting each label by its frequency in the training data (add-one smoothed).

    Args:
        train: With `input_ids` and `special_tokens_mask`.
        evaluation: With `labels`, -100 = ignored by the loss.
        vocab_size: Number of the tokenizer's ids. A model can have more rows, for tokens that do not exist.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for batch in train.with_format("arrow").iter(10_000):  # Python's lists would take minutes for large corpora
        ids, special = (_flat(batch, name) for name in ("input_ids", "special_tokens_mask"))
        counts += np.bincount(ids[special == 0], minlength=vocab_size)
    labels = _flat(evaluation.with_format("arrow")[:], "labels")
    labels = labels[labels != IGNORED_LABEL]
    loss = -np.log((counts[labels] + 1) / (counts.sum() + vocab_size)).sum()
    return load_metric("token_perplexity").compute(predictions=[loss], references=[len(labels)])["perplexity"]


def _flat(table: pa.Table, column: str) -> np.ndarray:
    """The numbers of all lists in a column."""
    return table[column].combine_chunks().flatten().to_numpy()


def _collate(
    rows: list[dict[str, Any]],
    collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]],
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, torch.Tensor]:
    """A batch of training rows, or of rows that have their labels. Not a local function: workers unpickle it."""
    return pad_rows(rows, tokenizer) if "labels" in rows[0] else collator(rows)


def build_trainer(
    model: PreTrainedModel,
    corpus: Corpus,
    args: TrainingArguments,
    train: Rows | None,
    evaluation: Split,
    collator: Collator,
    causal: bool = False,
) -> Trainer:
    """A Trainer that reports perplexity.

    Args:
        model: Computes the loss.
        corpus: Its tokenizer is saved with the model.
        args: The Trainer's arguments.
        train: Tokenized rows; `None` for a run that only evaluates.
        evaluation: Rows with `input_ids` and fixed `labels`, see `precompute_labels`.
        collator: Makes batches of training rows; evaluation rows are padded only.
        causal: Whether the logits at a token predict the next token.

    Raises:
        UserError: If the model does not support `seq_idx`, which the rows have.
    """
    if "seq_idx" in (evaluation.column_names or ()) and not supports_seq_idx(model):
        raise UserError(
            f"--isolate_documents: {type(model).__name__} cannot keep the documents of a row apart. gMLP, aMLP and "
            "Synthesizer encoders and decoders can; --line_by_line gives each document a row of its own."
        )
    args.remove_unused_columns = False  # the collators need columns that models do not take
    return ScriptTrainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=partial(_collate, collator=collator, tokenizer=corpus.tokenizer),
        callbacks=[collator] if isinstance(collator, SeededCollator) else None,
        processing_class=corpus.tokenizer,
        preprocess_logits_for_metrics=next_token_row_losses if causal else row_losses,
        compute_metrics=next_token_perplexity if causal else perplexity,
    )


def run_script(
    build: Callable[..., Trainer], own_arguments: Sequence[type], task: str, argv: list[str] | None
) -> dict:
    """A whole language modelling command.

    Args:
        build: Builds the Trainer from the parsed arguments (model, data, the own ones, training) and the checkpoint to
            resume.
        own_arguments: The command's own argument dataclasses.
        task: The Hub's name of the model's task.
        argv: Command line; `sys.argv` by default.

    Returns:
        Perplexities (`unigram`, `untrained`, `trained`) and training tokens per second, as far as they were measured;
        for a grid the results of `hyperparameter_grid.run_all`.
    """
    model_args, data_args, *own, grid_args, card_args, args = parse_arguments(
        (ModelArguments, TextDataArguments, *own_arguments, GridArguments, CardArguments, ScriptTrainingArguments),
        argv,
    )
    check_has_work(args, "do_train", "do_eval")
    if data_args.streaming and args.do_train and args.max_steps < 1:
        raise UserError("--streaming needs --max_steps: the length of a streamed corpus is not known.")
    card = CardFacts(
        task,
        **describe_data(data_args),
        metrics={"perplexity": "perplexity"},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters=({} if data_args.text_unit == "line" else {"text_unit": data_args.text_unit})
        | {name: value for part in own for name, value in _settings_in_use(part).items()},
    )
    arguments = (model_args, data_args, *own)
    results = run_command(
        lambda run: _run_once(partial(build, *arguments), card, run), grid_args, args, arguments, COMPARISON
    )
    return results if grid_args.is_used else _perplexities(results)


def _settings_in_use(arguments: Any) -> dict[str, Any]:
    return arguments.in_use() if hasattr(arguments, "in_use") else vars(arguments)


def _run_once(build: Callable[..., Trainer], card: CardFacts, args: ScriptTrainingArguments) -> dict[str, float]:
    """One run. Returns the results of `train_and_evaluate`, and the perplexity before training as `untrained`."""
    resume_from = checkpoint_to_resume(args)
    args.include_num_input_tokens_seen = "non_padding"
    # Not `evaluate()` before `train()`: the Trainer would then leave the model without its DDP wrapper.
    args.eval_on_start = args.do_train and args.do_eval  # not when resumed, see `train_and_evaluate`
    set_seed(args.seed)
    with report_bad_data():
        trainer = build(args, resume_from)
    print_plan(trainer, resume_from)
    known = {}
    if (
        args.do_eval
        and trainer.train_dataset is not None
        and "special_tokens_mask" in (trainer.train_dataset.column_names or ())
    ):
        known["unigram"] = unigram_perplexity(
            trainer.train_dataset, trainer.eval_dataset, len(trainer.processing_class)
        )
    results = known | train_and_evaluate(trainer, card, resume_from, results=known)
    for entry in trainer.state.log_history:
        if entry["step"] == 0 and "eval_perplexity" in entry and args.do_train:
            results["untrained"] = entry["eval_perplexity"]
    if trainer.is_world_process_zero():
        _print_results(_perplexities(results), trainer)
    return results


def _perplexities(results: dict[str, float]) -> dict[str, float]:
    """Perplexities and speed under the names that a command returns."""
    names = {"unigram": "unigram", "untrained": "untrained", "eval_perplexity": "trained"}
    names["tokens_per_second"] = "tokens_per_second"
    return {name: results[key] for key, name in names.items() if key in results}


def _print_results(results: dict[str, float], trainer: Trainer) -> None:
    model_type = trainer.model.config.model_type
    names = {
        "unigram": "unigram model",
        "untrained": f"{model_type}, before training",
        "trained": f"{model_type}, trained" if trainer.args.do_train else "the model",
    }
    rows = [(label, f"{results[key]:,.1f}") for key, label in names.items() if key in results]
    head = ("on the validation text", "perplexity") if rows else ("training", "speed")
    if "tokens_per_second" in results:
        rows.append(("training tokens per second", f"{results['tokens_per_second']:,.0f}"))
    print_table(head, rows)
