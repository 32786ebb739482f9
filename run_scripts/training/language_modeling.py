"""Shared by the language modelling commands: the corpus, its rows of tokens, perplexity, the Trainer."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import has_length

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError
from ..base.reporting import print_table
from ..base.training_arguments import order_seed
from ..data.collators import pad_rows, precompute_labels
from ..data.loading import Split
from ..data.packing import row_encoder, tokenize
from ..data.row_seeds import SeededCollator
from ..data.text_corpus import iterate_texts, load_documents
from ..data.text_stream import TextStream
from ..metrics import load_metric
from .distillation import DistillationArguments
from .run import Run, Task
from .teacher_outputs import supports_seq_idx
from .trainer import ScriptTrainer


Rows = Split | TextStream
Collator = Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]


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


def perplexity(prediction: EvalPrediction, causal: bool = False) -> dict[str, float]:
    """Perplexity over all labelled tokens of the evaluation set, from `row_losses`.

    If `causal`, from `next_token_row_losses`: the first token of a row has no prediction.
    """
    labels = prediction.label_ids[:, 1:] if causal else prediction.label_ids
    tokens = (labels != IGNORED_LABEL).sum(axis=-1)
    return load_metric("token_perplexity").compute(predictions=prediction.predictions, references=tokens)


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


class LanguageModeling(Task):
    """What the language modelling commands share: the corpus, its rows of tokens, and perplexity.

    Attributes:
        is_causal: Whether the logits at a token predict the next token.
    """

    jobs = ("do_train", "do_eval")
    counts_tokens = evaluates_before = True
    is_causal: ClassVar[bool] = False

    def collator(self, run: Run, model: PreTrainedModel) -> Collator:
        raise NotImplementedError

    def evaluation_collator(self, run: Run) -> Collator:
        """Makes the labels of the evaluation rows, once."""
        raise NotImplementedError

    def check(self, run: Run) -> None:
        """A stream has no end."""
        if run.data_args.streaming and run.args.do_train and run.args.max_steps < 1:
            raise UserError("--streaming needs --max_steps: the length of a streamed corpus is not known.")

    def load(self, run: Run) -> dict[str, Split]:
        """Documents; those to train on only for a run that trains."""
        documents, trains = load_documents(run.data_args, run.model_args.token), run.args.do_train
        if "train" not in documents and trains:
            raise UserError("--do_train needs training data: give --dataset_name or --train_file.")
        return {name: split for name, split in documents.items() if name != "train" or trains}

    def texts(self, run: Run) -> Iterable[str]:
        return iterate_texts(run.data["train"])

    def encode(self, run: Run) -> dict[str, Rows]:
        """Rows of tokens. Streamed training rows are an endless `TextStream`."""
        return self.tokenize(run, run.max_seq_length)

    def tokenize(self, run: Run, length: int, shortest_row: int = 1, **options: Any) -> dict[str, Rows]:
        """`run.data` as rows of tokens."""
        data_args, args = run.data_args, run.args
        pack, isolate = not data_args.line_by_line, data_args.isolate_documents
        encode = row_encoder(run.tokenizer, length, pack=pack, isolate=isolate, **options)
        rows: dict[str, Rows] = {}
        for name, split in run.data.items():
            if name == "train" and data_args.streaming:
                size = data_args.shuffle_buffer_size
                rows[name] = TextStream(split, encode, order_seed(args), size, shortest_row)
            else:
                rows[name] = tokenize(split, encode, shortest_row, data_args.preprocessing_num_workers)
                if has_length(rows[name]) and len(rows[name]) == 0:
                    raise UserError(
                        f"the {name} data have no text of {shortest_row} tokens or more: give longer texts."
                    )
        return rows

    def build_trainer(self, run: Run, model: PreTrainedModel, **options: Any) -> ScriptTrainer:
        """A Trainer that reports perplexity, on an evaluation set whose labels are made once."""
        args, train = run.args, run.rows.get("train")
        if isinstance(train, TextStream):  # each run of a grid reads it from the start, in its own order
            train = train.with_seed(order_seed(args))
        evaluation = precompute_labels(run.rows["validation"], self.evaluation_collator(run))
        if "seq_idx" in (evaluation.column_names or ()) and not supports_seq_idx(model):
            raise UserError(
                f"--isolate_documents: {type(model).__name__} cannot keep the documents of a row apart. gMLP, aMLP "
                "and Synthesizer encoders and decoders can; --line_by_line gives each document a row of its own."
            )
        args.remove_unused_columns = False  # the collators need columns that models do not take
        collator = self.collator(run, model)
        return ScriptTrainer(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=evaluation,
            data_collator=partial(_collate, collator=collator, tokenizer=run.tokenizer),
            callbacks=[collator] if isinstance(collator, SeededCollator) else None,
            processing_class=run.tokenizer,
            preprocess_logits_for_metrics=next_token_row_losses if self.is_causal else row_losses,
            compute_metrics=partial(perplexity, causal=self.is_causal),
        )

    def metric_types(self, run: Run) -> dict[str, str]:
        return {"perplexity": "perplexity"}

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        own = [run[kind] for kind in self.arguments[1:] if not issubclass(kind, DistillationArguments)]
        settings = {name: value for given in own for name, value in vars(given).items()}
        unit = run.data_args.text_unit
        return {"hyper_parameters": ({} if unit == "line" else {"text_unit": unit}) | settings}

    def baselines(self, run: Run, trainer: ScriptTrainer) -> dict[str, float]:
        """The perplexity of a unigram model, where the training data can be counted."""
        train = trainer.train_dataset
        if not run.args.do_eval or train is None or "special_tokens_mask" not in (train.column_names or ()):
            return {}
        return {"unigram": unigram_perplexity(train, trainer.eval_dataset, len(run.tokenizer))}

    def validation_results(self, run: Run, trainer: ScriptTrainer) -> dict[str, float]:
        """Perplexity alone: there are no predictions to write."""
        return trainer.evaluate()

    def report(self, run: Run, results: Mapping[str, float], model_type: str) -> None:
        found = perplexities(results)
        names = {
            "unigram": "unigram model",
            "untrained": f"{model_type}, before training",
            "trained": f"{model_type}, trained" if run.args.do_train else "the model",
        }
        rows = [(label, f"{found[key]:,.1f}") for key, label in names.items() if key in found]
        head = ("on the validation text", "perplexity") if rows else ("training", "speed")
        if "tokens_per_second" in found:
            rows.append(("training tokens per second", f"{found['tokens_per_second']:,.0f}"))
        print_table(head, rows)


def perplexities(results: Mapping[str, Any]) -> dict[str, Any]:
    """Perplexities (`unigram`, `untrained`, `trained`) and `tokens_per_second` of a run; of a grid all as it is."""
    if "runs" in results:
        return dict(results)
    names = {"unigram": "unigram", "before_perplexity": "untrained", "eval_perplexity": "trained"}
    names["tokens_per_second"] = "tokens_per_second"
    return {name: results[key] for key, name in names.items() if key in results}
