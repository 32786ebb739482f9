"""Pretrain or continue a masked language model, and report its perplexity.

    python -m tokenmixers.run_scripts.run_mlm recipe.yaml --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_mlm ...
    accelerate launch -m tokenmixers.run_scripts.run_mlm ...

Works for every checkpoint that `AutoModelForMaskedLM` loads.
"""

import dataclasses
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.task_heads import MaskedLMHead
from .arguments import ModelArguments, UserError, parse_arguments
from .model_loading import checkpoint_to_resume, fit_vocabulary, load_config, load_tokenizer, sequence_length
from .reporting import print_plan, print_table, training_tokens_per_second
from .text_data import Split, TextDataArguments, iterate_texts, load_documents, masked_once, tokenize


@dataclass
class MaskingArguments:
    """Which tokens the model has to predict."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})
    mask_replace_prob: float = field(default=0.8, metadata={"help": "Share of those that become the mask token."})
    random_replace_prob: float = field(default=0.1, metadata={"help": "Share of those that become a random token."})
    whole_word_mask: bool = field(
        default=False, metadata={"help": "Choose whole words; they are then always replaced by mask tokens."}
    )

    def __post_init__(self):
        if self.whole_word_mask:
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0


class ReproducibleMasking:
    """Dynamic masking whose random numbers depend on a seed and the batch alone.

    Data loaders fetch batches ahead, so masks drawn from the global generator would differ in a resumed run.
    """

    def __init__(self, mask: DataCollatorForLanguageModeling, seed: int):
        self.mask = mask
        self.seed = seed

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        content = np.concatenate([np.asarray(row["input_ids"], dtype=np.int64) for row in rows])
        self.mask.generator = torch.Generator().manual_seed(zlib.crc32(content.tobytes(), self.seed & 0xFFFFFFFF))
        return self.mask(self._pad_offsets(rows) if self.mask.whole_word_mask else rows)

    def _pad_offsets(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        longest = max(len(row["input_ids"]) for row in rows)  # the tokenizer pads everything but these
        padded = []
        for row in rows:
            padding = [(0, 0)] * (longest - len(row["input_ids"]))
            offsets = [tuple(pair) for pair in row["offset_mapping"]]
            left = self.mask.tokenizer.padding_side == "left"
            padded.append({**row, "offset_mapping": padding + offsets if left else offsets + padding})
        return padded


def row_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed negative log-likelihood of each row's labels: what evaluation gathers instead of the logits.

    Args:
        logits: Shape `(batch, length, vocab_size)`.
        labels: Shape `(batch, length)`, -100 where nothing is asked.

    Returns:
        Shape `(batch,)`, in nats.
    """
    asked = labels != -100
    losses = F.cross_entropy(logits[asked].float(), labels[asked], reduction="none")
    return torch.zeros(len(labels), device=losses.device).index_add_(0, asked.nonzero()[:, 0], losses)


def perplexity(prediction: EvalPrediction) -> dict[str, float]:
    """Perplexity over all labelled tokens of the evaluation set, from `row_losses`."""
    tokens = int((prediction.label_ids != -100).sum())
    return {"perplexity": _exp(float(np.sum(prediction.predictions, dtype=np.float64)) / tokens)}


def unigram_perplexity(train: Split, evaluation: Split, vocab_size: int) -> float:
    """Perplexity of predicting each label by its frequency in the training data (add-one smoothed)."""
    counts = np.ones(vocab_size)
    for batch in train.iter(1000):
        ids = np.concatenate([np.asarray(row) for row in batch["input_ids"]])
        ordinary = np.concatenate([np.asarray(row) for row in batch["special_tokens_mask"]]) == 0
        counts += np.bincount(ids[ordinary], minlength=vocab_size)
    labels = np.concatenate([np.asarray(row) for row in evaluation["labels"]])
    labels = labels[labels != -100]
    return _exp(-float(np.mean(np.log(counts[labels] / counts.sum()))))


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def build_model(arguments: ModelArguments, config) -> PreTrainedModel:
    """The checkpoint, or a model from scratch."""
    if arguments.model_name_or_path is not None:
        return AutoModelForMaskedLM.from_pretrained(
            arguments.model_name_or_path, config=config, **arguments.hub_arguments()
        )
    return AutoModelForMaskedLM.from_config(config, trust_remote_code=arguments.trust_remote_code)


def build_trainer(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    masking: MaskingArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> Trainer:
    """Load data, tokenizer and model, and join them in a Trainer.

    A resumed run takes the tokenizer of its checkpoint: training one again need not give the same.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    config = load_config(model_args)
    with args.main_process_first(local=False, desc="loading the text"):
        documents = load_documents(data_args, args.data_seed or args.seed, model_args.token)
    new_tokenizer = model_args.train_tokenizer is not None
    if new_tokenizer and resume_from is not None:
        model_args = dataclasses.replace(model_args, train_tokenizer=None, tokenizer_name=resume_from)
    tokenizer = load_tokenizer(
        model_args,
        getattr(config, "max_position_embeddings", None),
        iterate_texts(documents["train"]),
        args.process_index == 0,
    )
    fit_vocabulary(config, tokenizer, new_tokenizer)
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    try:
        mask = ReproducibleMasking(DataCollatorForLanguageModeling(tokenizer, **vars(masking)), args.seed)
    except ValueError as error:
        raise UserError(f"masking is not possible: {error}") from error
    with args.main_process_first(local=False, desc="tokenizing"):
        tokenized = {
            name: tokenize(
                split,
                tokenizer,
                length,
                pack=not data_args.line_by_line,
                word_offsets=masking.whole_word_mask,
                num_workers=data_args.preprocessing_num_workers,
            )
            for name, split in documents.items()
        }
    evaluation = masked_once(tokenized["validation"], mask)
    pad = DataCollatorForTokenClassification(tokenizer)

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return pad(rows) if "labels" in rows[0] else mask(rows)

    model = build_model(model_args, config)
    if isinstance(model, MaskedLMHead):
        model.config.sparse_prediction = True  # training steps need no logits
    args.remove_unused_columns = False  # the masking collator reads more than the model does
    return Trainer(
        model=model,
        args=args,
        train_dataset=tokenized["train"],
        eval_dataset=evaluation,
        data_collator=collate,
        processing_class=tokenizer,
        preprocess_logits_for_metrics=row_losses,
        compute_metrics=perplexity,
    )


def run(trainer: Trainer, resume_from: str | None) -> dict[str, float]:
    """Train and evaluate as the arguments say.

    Returns:
        Perplexities (`unigram`, `untrained`, `trained`) and training tokens per second, as far as they were measured.
    """
    args, results = trainer.args, {}
    if not isinstance(trainer.train_dataset, torch.utils.data.IterableDataset):
        results["unigram"] = unigram_perplexity(
            trainer.train_dataset, trainer.eval_dataset, trainer.model.config.vocab_size
        )
    if args.do_eval and not args.do_train:
        results["trained"] = trainer.evaluate()["eval_perplexity"]
    if args.do_train:
        # Not `evaluate()` before `train()`: the Trainer would then leave the model without its DDP wrapper.
        args.eval_on_start = args.do_eval
        outcome = trainer.train(resume_from_checkpoint=resume_from)
        for entry in trainer.state.log_history:
            if entry["step"] == 0 and "eval_perplexity" in entry:
                results["untrained"] = entry["eval_perplexity"]
        trainer.save_model()
        results["tokens_per_second"] = training_tokens_per_second(trainer, resume_from)
        trainer.save_metrics("train", outcome.metrics, combined=not args.do_eval)
        trainer.save_state()
        if args.do_eval:
            metrics = trainer.evaluate()
            results["trained"] = metrics["eval_perplexity"]
            trainer.save_metrics("eval", {**metrics, **results})
        if args.push_to_hub:
            trainer.push_to_hub(tasks="fill-mask", tags=["masked-language-modeling"])
    return results


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns what `run` returns."""
    model_args, data_args, masking, args = parse_arguments(
        (ModelArguments, TextDataArguments, MaskingArguments, TrainingArguments), argv
    )
    if data_args.streaming and args.do_train and args.max_steps < 1:
        raise UserError("--streaming needs --max_steps: the length of a streamed corpus is not known.")
    resume_from = checkpoint_to_resume(args)
    args.include_num_input_tokens_seen = "non_padding"
    set_seed(args.seed)
    trainer = build_trainer(model_args, data_args, masking, args, resume_from)
    print_plan(trainer, resume_from)
    results = run(trainer, resume_from)
    if trainer.is_world_process_zero():
        names = {
            "unigram": "unigram model",
            "untrained": f"{trainer.model.config.model_type}, before training",
            "trained": f"{trainer.model.config.model_type}, trained" if args.do_train else "the model",
        }
        rows = [(label, f"{results[key]:,.1f}") for key, label in names.items() if key in results]
        if "tokens_per_second" in results:
            rows.append(("training tokens per second", f"{results['tokens_per_second']:,.0f}"))
        print_table(("on the validation text", "perplexity"), rows)
    trainer.accelerator.end_training()
    return results


if __name__ == "__main__":
    main()
