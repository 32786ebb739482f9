"""A training and an evaluation step of a tiny model, before any data are read.

What Transformers cannot do with the given arguments, it may say only when it trains or evaluates, often in a
traceback. The trial finds that at the beginning, and leaves nothing behind.
"""

import copy
import gc
import json
import logging
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np
import torch
from accelerate.logging import MultiProcessAdapter
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import parse_flag_from_env
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)
from transformers.training_args import ParallelMode
from transformers.utils.logging import info_once, warning_once

from ...configuration.configuration_gmlp import GMLPConfig
from ...configuration.configuration_synthesizer import SynthesizerConfig
from ...modeling.modeling_gmlp import GMLPForSequenceClassification
from ...modeling.modeling_synthesizer import SynthesizerForConditionalGeneration
from ..base.errors import UserError
from .trainer import ScriptSeq2SeqTrainer, ScriptTrainer


#: What is not tried: that needs time or data, or is saved, reported or pushed.
NOT_TRIED = {
    "max_steps": 10**9,  # without a number: the schedule is one of many steps, of which one is taken
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "auto_find_batch_size": False,
    "dataloader_drop_last": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "metric_for_best_model": "loss",
    "logging_strategy": "no",
    "logging_first_step": False,
    "disable_tqdm": True,
    "report_to": [],
    "push_to_hub": False,
    "full_determinism": False,
    "enable_jit_checkpoint": False,
    "generation_config": None,  # may be on the Hub
    "generation_max_length": 2,
}
#: What would need many rows, or names modules of another model -> what is tried instead.
TRIED_AS = {
    "gradient_accumulation_steps": 2,
    "eval_accumulation_steps": 1,
    "torch_empty_cache_steps": 1,
    "optim_target_modules": "all-linear",
}
#: Workers are not started.
WORKERS = {
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataloader_persistent_workers": False,
    "dataloader_multiprocessing_context": None,
}


def try_arguments(args: TrainingArguments) -> None:
    """Train and evaluate a tiny model for one step each, if the command is to train and to evaluate.

    This takes some hundredths of a second, and the error names the argument that Transformers refuses. Models in parts
    (FSDP in several processes, DeepSpeed) are not tried: their settings may name layers of the real model.
    """
    if not _can_be_tried(args):
        return
    try:
        _take_steps(args)
    except Exception as error:
        reason = _reason(args)
        if reason is None:
            raise
        message = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(f"{reason} cannot be used here: {message}.") from error


def _can_be_tried(args: TrainingArguments) -> bool:
    launched = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")
    if args.deepspeed or any(parse_flag_from_env(f"ACCELERATE_USE_{name}") for name in launched):
        return False
    return not (args.fsdp and args.parallel_mode == ParallelMode.DISTRIBUTED)


def _reason(args: TrainingArguments) -> str | None:
    """The given argument without which the trial succeeds, or all of them; `None` if it fails without any."""
    defaults = type(args)(output_dir=args.output_dir, use_cpu=args.use_cpu)
    names = [
        item.name for item in fields(args) if item.init and item.name not in {*NOT_TRIED, "output_dir", "use_cpu"}
    ]
    given = [name for name in names if not name.startswith("do_") and getattr(args, name) != getattr(defaults, name)]
    # Several processes would wait for each other if only one has failed. What refines another argument comes later.
    for name in reversed(given) if args.world_size == 1 else ():
        if _succeeds(args, defaults, [name]):
            return f"--{name} {_as_text(getattr(args, name))}"
    if not given or (args.world_size == 1 and not _succeeds(args, defaults, given)):
        return None
    return ", ".join(f"--{name} {_as_text(getattr(args, name))}" for name in given)


def _succeeds(args: TrainingArguments, defaults: TrainingArguments, names: list[str]) -> bool:
    changed = copy.copy(args)
    for name in names:
        setattr(changed, name, getattr(defaults, name))
    try:
        _take_steps(changed)
    except Exception:
        return False
    return True


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_as_text, value))
    if isinstance(value, (dict, bool)):
        return json.dumps(value, default=str)
    return str(value.value if isinstance(value, Enum) else value)


def _take_steps(args: TrainingArguments) -> None:
    args = copy.copy(args)
    steps = args.max_steps
    for name, value in NOT_TRIED.items():
        setattr(args, name, value)
    if steps > 0:
        args.max_steps = steps
    for name, value in TRIED_AS.items():
        if getattr(args, name) not in (None, 1):
            setattr(args, name, value)
    if args.eval_strategy != "no":
        args.eval_strategy, args.eval_steps, args.eval_delay = "steps", 1, 0
    args.activation_checkpointing |= bool(args.activation_checkpointing_kwargs)
    # Compilers and their modes are looked up, without compiling.
    compiling = torch.compiler.set_stance("force_eager") if args.torch_compile else nullcontext()
    with _no_traces(args.device), compiling, tempfile.TemporaryDirectory() as args.output_dir:
        trainer = _trainer(args)
        trainer.get_train_dataloader()  # refuses what is wrong about workers, which are not started
        for name, value in WORKERS.items():
            setattr(args, name, value)
        if args.do_train:
            trainer.train()
        if (args.do_eval or args.do_predict) and "eval_counted" not in trainer.evaluate():
            raise ValueError("evaluations would have no metrics")


class _TrialMixin:
    """Transformers' own steps, also where a program replaces them for its own training."""

    train, training_step = Trainer.train, Trainer.training_step


class _TrialTrainer(_TrialMixin, ScriptTrainer): ...


class _Seq2SeqTrialTrainer(_TrialMixin, ScriptSeq2SeqTrainer): ...


def _trainer(args: TrainingArguments) -> Trainer:
    generates = isinstance(args, Seq2SeqTrainingArguments)
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    positions = {"max_position_embeddings": 8, "pad_token_id": 0}
    row: dict[str, Any] = {"input_ids": [3, 4, 5], "attention_mask": [1, 1, 1], "labels": 1}
    if generates:
        config = SynthesizerConfig(
            **size, **positions, num_attention_heads=2, is_encoder_decoder=True, decoder_start_token_id=0
        )
        model = SynthesizerForConditionalGeneration(config)
        row |= {"labels": [3, 4], "decoder_input_ids": [0, 3]}
    else:
        model = GMLPForSequenceClassification(GMLPConfig(**size, **positions, num_labels=2))
    rows = [row] * (2 * args.world_size)
    trainer_class = _Seq2SeqTrialTrainer if generates else _TrialTrainer
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=default_data_collator,
        compute_metrics=_count,
        callbacks=[_StopAfterOneStep()],
    )
    trainer.pop_callback(PrinterCallback)
    return trainer


def _count(prediction: EvalPrediction) -> dict[str, float]:
    """The metrics of the commands take whole arrays."""
    if not isinstance(prediction.label_ids, np.ndarray):
        raise ValueError("metrics need the predictions of all batches as one array")
    return {"counted": len(prediction.label_ids)}


class _StopAfterOneStep(TrainerCallback):
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        control.should_training_stop = True
        return control


@contextmanager
def _no_traces(device: torch.device) -> Iterator[None]:
    """Keep random states, the environment, and the state of `accelerate`; say nothing."""
    python, arrays = random.getstate(), np.random.get_state()
    environment, level = dict(os.environ), logging.root.manager.disable
    freezes = gc.get_freeze_count() == 0  # else the caller has frozen objects, which have to stay so
    if freezes:
        gc.freeze()  # `accelerate` collects garbage: that of the trial alone takes a tenth of the time
    with torch.random.fork_rng([device] if device.type == "cuda" else []), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
            for once in (info_once, warning_once, MultiProcessAdapter.warning_once):
                once.cache_clear()  # what was not shown now may be said later
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update(environment)
            AcceleratorState._reset_state()
            GradientState._reset_state()
            random.setstate(python)
            np.random.set_state(arrays)
            if freezes:
                gc.unfreeze()
