"""Configurations, tokenizers, models and checkpoints to resume, from the command line's arguments."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.utils import logging

from ...tokenization.tokenizer_training import train_unigram_tokenizer
from ..base.arguments import ModelArguments
from ..base.errors import UserError
from ..base.shipped_files import MODEL_CARDS


#: Longer maximum lengths mean none: tokenizers without one report 10**30.
LONGEST_PLAUSIBLE = 10**6

#: Vocabularies are padded to multiples of this, for speed.
ROWS_MULTIPLE = 128

logger = logging.get_logger(__name__)


def load_config(arguments: ModelArguments) -> PreTrainedConfig:
    """The configuration of the checkpoint, or of the model to build, with its overrides.

    Raises:
        UserError: If it cannot be found, or an override names no field or gives it a wrong value.
    """
    if (arguments.model_name_or_path is None) == (arguments.config_name is None):
        raise UserError("give either --model_name_or_path (a checkpoint) or --config_name (to train from scratch).")
    name = arguments.model_name_or_path or arguments.config_name
    if (MODEL_CARDS / name / "config.json").is_file():
        name = MODEL_CARDS / name
    try:
        config = AutoConfig.from_pretrained(name, **arguments.hub_arguments())
    except (OSError, ValueError) as error:
        raise UserError(f"no configuration can be loaded from {str(name)!r}: {error}") from error
    overrides = parse_overrides(arguments.config_overrides or "")
    for key in overrides:
        if arguments.model_name_or_path is not None and "drop" not in key:
            raise UserError(f"--config_overrides {key}: of a checkpoint only the dropout rates can be changed.")
        if not hasattr(config, key):
            raise UserError(f"--config_overrides names {key!r}, which is no field of {type(config).__name__}.")
    try:
        return type(config)(**{**config.to_diff_dict(), **overrides})
    except Exception as error:  # strict dataclasses raise several kinds
        if not overrides:
            raise
        raise UserError(f"--config_overrides {arguments.config_overrides!r} is not possible: {error}") from error


def parse_overrides(text: str) -> dict[str, Any]:
    """`"a=1,b=x"` as `{"a": 1, "b": "x"}`, values read as YAML.

    Raises:
        UserError: If a part is not of the form `name=value`.
    """
    overrides = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--config_overrides has {part!r}; expected name=value[,name=value ...].")
        overrides[key.strip()] = yaml.safe_load(value)
    return overrides


def load_tokenizer(
    arguments: ModelArguments,
    max_length: int | None,
    texts: Iterable[str],
    is_main_process: bool,
    kind: str = "encoder",
) -> PreTrainedTokenizerBase:
    """The tokenizer named on the command line, the checkpoint's own, or a newly trained one.

    Args:
        arguments: Names the tokenizer.
        max_length: The model's maximum length, saved in a new tokenizer.
        texts: Training texts of a new tokenizer; not read otherwise.
        is_main_process: With several processes the main one trains, and the others receive its result.
        kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.

    Raises:
        UserError: If none is named or it cannot be loaded.
    """
    if arguments.train_tokenizer is not None:
        if arguments.tokenizer_name is not None:
            raise UserError(
                "--train_tokenizer makes a new tokenizer and --tokenizer_name loads one: give one of them."
            )
        trained = [None]
        if is_main_process:
            try:
                trained = [train_unigram_tokenizer(texts, arguments.train_tokenizer, max_length, kind=kind)]
            except ValueError as error:
                raise UserError(f"--train_tokenizer {arguments.train_tokenizer}: {error}") from error
        return broadcast_object_list(trained)[0]
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is None:
        raise UserError("a model from scratch needs --tokenizer_name (an existing one) or --train_tokenizer SIZE.")
    try:
        return AutoTokenizer.from_pretrained(name, **arguments.hub_arguments())
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer can be loaded from {name!r}: {error}") from error


def check_train_tokenizer(arguments: ModelArguments, args: TrainingArguments) -> None:
    """Check that there are texts for a new tokenizer.

    Raises:
        UserError: If `--train_tokenizer` is given without `--do_train`, so that no training data are loaded.
    """
    if arguments.train_tokenizer is not None and not args.do_train:
        raise UserError("--train_tokenizer needs --do_train: the tokenizer is trained on the training data.")


def fit_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new_tokenizer: bool) -> None:
    """Make the configuration agree with the tokenizer.

    A new tokenizer sets the vocabulary's size; an existing one has to fit.

    Raises:
        UserError: If the tokenizer has more ids than the model has embeddings.
    """
    if new_tokenizer:
        config.vocab_size = len(tokenizer)
    elif len(tokenizer) > config.vocab_size:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} ids, the model only vocab_size={config.vocab_size}. Use the model's "
            f"own tokenizer, or train from a configuration with --config_overrides vocab_size={len(tokenizer)}."
        )
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, name) is not None and hasattr(config, name):
            setattr(config, name, getattr(tokenizer, name))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id  # as T5 does


def warn_of_unused_rows(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if a new model has rows for tokens that do not exist, more than padding to a multiple of 128 explains."""
    ids, rows = len(tokenizer), config.vocab_size
    if rows > -(-ids // ROWS_MULTIPLE) * ROWS_MULTIPLE:
        logger.warning(
            f"the model has vocab_size={rows} and the tokenizer {ids} ids: {rows - ids} rows of the embeddings are "
            f"never trained, and --config_overrides vocab_size={ids} leaves them out."
        )


def fitting_tokenizer(
    arguments: ModelArguments,
    config: PreTrainedConfig,
    texts: Iterable[str],
    args: TrainingArguments,
    saved_in: str | None = None,
    kind: str = "encoder",
) -> PreTrainedTokenizerBase:
    """Load or train the tokenizer, and make the configuration agree with it.

    A new model with many more rows than the tokenizer has ids gives a warning.

    Args:
        arguments: Names the tokenizer.
        config: Changed in place, see `fit_vocabulary`.
        texts: Training texts of a new tokenizer; not read otherwise.
        args: The Trainer's arguments.
        saved_in: Folder with the tokenizer that an interrupted run has trained: training is not reproducible.
        kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.

    Raises:
        UserError: If it cannot be loaded or trained, or does not fit.
    """
    new_tokenizer = arguments.train_tokenizer is not None
    if new_tokenizer and saved_in is not None:
        arguments = dataclasses.replace(arguments, train_tokenizer=None, tokenizer_name=saved_in)
    length = getattr(config, "max_position_embeddings", None)
    tokenizer = load_tokenizer(arguments, length, texts, args.process_index == 0, kind)
    fit_vocabulary(config, tokenizer, new_tokenizer)
    if arguments.model_name_or_path is None and args.process_index == 0:
        warn_of_unused_rows(config, tokenizer)
    return tokenizer


def set_label_names(config: PreTrainedConfig, names: Sequence[str], trained: bool) -> None:
    """Set the labels of a classifier.

    Args:
        config: Changed in place.
        names: Names of the classes, in order; a single name for regression.
        trained: Whether the model will be trained on them. Otherwise it must have these labels already.

    Raises:
        UserError: If the model has other labels and will not be trained.
    """
    known = [config.id2label[index] for index in range(config.num_labels)]
    if not trained and known != list(names):
        raise UserError(
            f"the model predicts {', '.join(map(repr, known))}, the data ask for {', '.join(map(repr, names))}: "
            "finetune it first, with --do_train."
        )
    config.id2label = dict(enumerate(names))
    config.label2id = {name: index for index, name in enumerate(names)}


def sequence_length(
    requested: int | None,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    argument: str = "--max_seq_length",
) -> int:
    """Tokens per training sequence: the requested number, or the most that model and tokenizer allow.

    Args:
        requested: The requested number, if any.
        config: Configuration of the model, or of the encoder or decoder in question.
        tokenizer: Its special tokens count too.
        argument: Name of the command line argument, for messages.

    Raises:
        UserError: If the model has fewer positions than requested, or special tokens would leave no room for text.
    """
    most = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    if requested is None:
        if min(most, tokenizer.model_max_length) > LONGEST_PLAUSIBLE:
            raise UserError(f"neither the model nor the tokenizer has a maximum length: give {argument}.")
        return min(most, tokenizer.model_max_length)
    if requested > most:
        raise UserError(
            f"{argument} {requested} does not fit the model, whose sequences have at most {most} tokens "
            "(max_position_embeddings)."
        )
    least = tokenizer.num_special_tokens_to_add() + 1
    if requested < least:
        raise UserError(f"{argument} {requested} leaves no room for text; the least is {least}.")
    return requested


def checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """The checkpoint to resume from, `None` to start from scratch.

    The same command resumes an unfinished run in `output_dir` from its newest complete checkpoint.

    Raises:
        UserError: If `output_dir` holds a finished run or something else, or there is nothing to resume.
    """
    requested, folder = arguments.resume_from_checkpoint, Path(arguments.output_dir)
    if requested and requested.lower() not in ("true", "1", "yes"):
        if not Path(requested).is_dir():
            raise UserError(f"--resume_from_checkpoint: there is no folder {requested!r}.")
        return requested
    present = folder.is_dir() and any(folder.iterdir())
    checkpoints = sorted(folder.glob("checkpoint-*"), key=_step) if present else []
    complete = [path for path in checkpoints if _is_complete(path, arguments)]
    last = str(complete[-1]) if complete else None
    if requested and last is None:
        raise UserError(f"--resume_from_checkpoint: there is no complete checkpoint in {str(folder)!r}.")
    if present and arguments.do_train and not requested:
        if (folder / "all_results.json").is_file():
            raise UserError(f"{str(folder)!r} holds a finished run. Choose another --output_dir, or remove it.")
        # A run that was killed while it wrote its first checkpoint leaves nothing else.
        if last is None and set(folder.iterdir()) != set(checkpoints):
            raise UserError(f"{str(folder)!r} is not empty and holds no checkpoint. Choose another --output_dir.")
    return last


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_complete(checkpoint: Path, arguments: TrainingArguments) -> bool:
    """Whether a checkpoint was written completely: the Trainer writes its state last."""
    try:
        TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError):
        return False
    if arguments.save_only_model or arguments.world_size == 1:
        return True
    # Other processes may write their files later.
    return all((checkpoint / f"rng_state_{rank}.pth").is_file() for rank in range(arguments.world_size))


def build_model(
    arguments: ModelArguments, config: PreTrainedConfig, auto_class: type, **options: Any
) -> PreTrainedModel:
    """The checkpoint, or a model from scratch, through one of Transformers' Auto classes.

    Args:
        arguments: Names the checkpoint, if any.
        config: The model's configuration.
        auto_class: E.g. `AutoModelForMaskedLM`.
        options: Further arguments of `from_pretrained`.

    Raises:
        UserError: If the checkpoint's files are damaged, or a model from scratch is to be sharded.
    """
    if arguments.fsdp_size is not None:
        if arguments.model_name_or_path is None:
            raise UserError("--fsdp_size shards a checkpoint: save the model first, and give --model_name_or_path.")
        options["distributed_config"] = DistributedConfig(fsdp_size=arguments.fsdp_size)
    if arguments.model_name_or_path is not None:
        name, options = arguments.model_name_or_path, options | arguments.hub_arguments()
        try:
            return auto_class.from_pretrained(name, config=config, **options)
        except SafetensorError as error:
            raise UserError(f"the weights of {name!r} are damaged ({error}): fetch or save them again.") from error
    return auto_class.from_config(config, trust_remote_code=arguments.trust_remote_code)
