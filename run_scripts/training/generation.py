"""Encoder-decoders that write texts: lengths, generation settings, the Trainer, and what it generated."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from ...modeling.heads.losses import IGNORED_LABEL
from ..base.errors import UserError, report_unreadable
from ..base.sequence_limits import longest_sequence
from ..base.training_arguments import GenerationTrainingArguments
from ..data.text_pairs import rows_of_length
from .language_modeling import row_losses
from .model_loading import sequence_length
from .run import Run, Task
from .trainer import ScriptSeq2SeqTrainer


class GenerationTrainer(ScriptSeq2SeqTrainer):
    """A Trainer whose predictions say which example they belong to, and how likely the right text was.

    Evaluation may see the examples sorted by length, and with several processes some of them twice. Its rows have the
    column `example`, their index in all evaluation sets.
    """

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
        """Loss, `(examples, row losses, generated ids)` and labels; without `predict_with_generate` no ids."""
        inputs = self._prepare_inputs(inputs)
        examples, labels = inputs.pop("example"), inputs.pop("labels")
        inputs.pop("decoder_input_ids", None)  # made for label smoothing, which evaluation does without
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, labels=labels)
        predictions = [examples, row_losses(outputs["logits"], labels)]
        if self.args.predict_with_generate:
            predictions.append(super().prediction_step(model, inputs, False, ignore_keys, **gen_kwargs)[1])
        return outputs["loss"].detach().mean(), tuple(predictions), labels

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, and put back the model's generation settings, in which generating fills in all defaults.

        What a run saves then does not depend on whether it has evaluated before.
        """
        model = self.accelerator.unwrap_model(self.model)
        with patch.object(model, "generation_config", copy.deepcopy(model.generation_config)):
            return super().evaluation_loop(*args, **kwargs)


class TextGeneration(Task):
    """What the commands that train encoder-decoders to write texts share.

    Rows have `input_ids` and `labels`, and those of evaluations their number, `example`.
    """

    training_arguments = GenerationTrainingArguments
    auto_class = AutoModelForSeq2SeqLM
    tokenizer_kind = "encoder-decoder"
    trainer_class: type[GenerationTrainer] = GenerationTrainer
    counts_tokens = True
    keeps_columns = True  # evaluation needs the column `example`

    def lengths(self, run: Run) -> dict[str, int]:
        """Most tokens of a source and of a target."""
        arguments, tokenizer, decoder = run.data_args, run.tokenizer, run.config.get_text_config(decoder=True)
        for role in ("pad", "eos"):
            if getattr(tokenizer, f"{role}_token_id") is None:
                raise UserError(
                    f"the tokenizer has no {role}_token, which this command needs: set one and save it again."
                )
        source, target = "--max_source_length", "--max_target_length"
        return {
            source: sequence_length(arguments.max_source_length, run.config, tokenizer, source),
            target: sequence_length(arguments.max_target_length, decoder, tokenizer, target),
        }

    def build_model(self, run: Run, config: PreTrainedConfig) -> PreTrainedModel:
        model = super().build_model(run, config)
        target_length = run.lengths["--max_target_length"]
        set_generation(model, run.args, target_length, run.config.get_text_config(decoder=True))
        return model

    def collator(self, run: Run, model: PreTrainedModel) -> DataCollatorForSeq2Seq:
        return DataCollatorForSeq2Seq(run.tokenizer, model=model if run.args.label_smoothing_factor else None)

    def build_trainer(self, run: Run, model: PreTrainedModel, **options: Any) -> GenerationTrainer:
        """The Trainer; a `UserError` if `--generation_config` cannot be loaded."""
        given = run.args.generation_config
        with report_unreadable(f"--generation_config {given}") if given else nullcontext():
            return super().build_trainer(run, model, preprocess_logits_for_metrics=None, **options)


def generated_texts(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Generated ids, padded with -100 or the padding token, as texts of one line."""
    ids = np.where(ids == IGNORED_LABEL, tokenizer.pad_token_id, ids)
    return [" ".join(text.split()) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def in_order(output: EvalPrediction | PredictionOutput, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Predictions of `GenerationTrainer` (without the column of examples) and labels: a row per example, in order.

    Raises:
        ValueError: If an example has no prediction.
    """
    examples, *predictions = output.predictions
    found, rows = np.unique(examples, return_index=True)
    if len(found) != count:
        raise ValueError(f"there are {count} examples, but predictions for {len(found)}.")
    return [array[rows] for array in predictions], output.label_ids[rows]


def print_truncation(rows: Mapping[str, datasets.Dataset], source_length: int, target_length: int) -> None:
    """Print how many texts fill the length limits, and may have been truncated."""
    for name, split in rows.items():
        for kind, column, length in (("source", "input_ids", source_length), ("target", "labels", target_length)):
            full = rows_of_length(split, column, length)
            if full:
                limit = f"--max_{kind}_length {length}"
                print(f"{full:,} of {len(split):,} {name} {kind}s fill {limit}: what is longer was cut")


def set_generation(
    model: PreTrainedModel, args: Seq2SeqTrainingArguments, target_length: int, config: PreTrainedConfig
) -> None:
    """Set the generated length, of evaluations and of the saved checkpoint, to the length of the targets.

    `--generation_max_length` and `--num_beams` take precedence; with `--generation_config` nothing is set.

    Args:
        model: Its `generation_config` is changed.
        args: The Trainer's arguments.
        target_length: Most tokens of a target, without the decoder's start token.
        config: Configuration of the decoder.
    """
    longest = longest_sequence(config)
    if longest is not None and (args.generation_max_length or 0) > longest + 1:
        raise UserError(
            f"--generation_max_length {args.generation_max_length} does not fit the model: at most {longest + 1}, its "
            f"{longest} positions and the start token."
        )
    if args.generation_config is None:
        model.generation_config.max_length = args.generation_max_length or target_length + 1
        if args.generation_num_beams is not None:
            model.generation_config.num_beams = args.generation_num_beams
