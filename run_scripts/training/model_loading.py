"""Configurations, tokenizers, models and checkpoints to resume, from the command line's arguments."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig
from transformers.utils import logging

from ...tokenization.tokenizer_training import train_unigram_tokenizer
from ..base.arguments import MODEL_SOURCES, ModelArguments, check_spelling
from ..base.config_overrides import parse_overrides
from ..base.errors import UserError
from ..base.sequence_limits import longest_sequence, longest_text
from ..base.shipped_files import MODEL_CARDS
from ..base.trained_model import check_complete, check_folder, load_trained_tokenizer
from .run_folder import kept_tokenizer


#: Attribute of a model with the names of the weights that its checkpoint lacks.
MISSING_WEIGHTS = "_missing_weights"

#: Vocabularies are padded to multiples of this, for speed.
ROWS_MULTIPLE = 128

logger = logging.get_logger(__name__)

#: Texts that a new tokenizer is trained on at most.
MOST_TEXTS = 10_000_000


def load_config(arguments: ModelArguments) -> PreTrainedConfig:
    """The configuration of the checkpoint, or of the model to build, with its overrides.

    Raises:
        UserError: If it cannot be found, or an override names no field or gives it a value that is
            wrong or does not fit the checkpoint's weights.
    """
    if sum(getattr(arguments, source) is not None for source in MODEL_SOURCES) != 1:
        raise UserError(
            "give either --model_name_or_path (a checkpoint) or, to train from scratch, one of --config_name and "
            "--model_type."
        )
    config = _default_config(arguments.model_type) if arguments.model_type is not None else _named_config(arguments)
    overrides = parse_overrides(arguments.config_overrides or "")
    fields = {*config.to_dict(), *config.attribute_map, "num_labels"} - {"model_type", "transformers_version", "dtype"}
    for key in overrides:
        if key in ("dtype", "torch_dtype"):
            raise UserError(f"--config_overrides names {key!r}: weights are float32; give --precision instead.")
        if key not in fields:
            raise UserError(f"--config_overrides names {key!r}, which is no field of {type(config).__name__}.")
    given = {config.attribute_map.get(key, key): value for key, value in overrides.items()}
    kept = config.to_diff_dict()
    if isinstance(given.get("token_mixers"), list):
        kept["num_hidden_layers"] = len(given["token_mixers"])
    elif "num_hidden_layers" in given:
        kept.pop("token_mixers", None)
    try:
        changed = type(config)(**kept | given)
        unfit = [] if arguments.model_name_or_path is None else [name for name in overrides if not can_change(name)]
    except Exception as error:  # strict dataclasses raise several kinds
        if not overrides:
            raise
        raise UserError(f"--config_overrides {arguments.config_overrides!r} is not possible: {error}") from error
    if unfit:
        raise UserError(
            f"--config_overrides names {unfit[0]!r}: of a checkpoint only dropout rates and classifier_pooling can "
            "be changed."
        )
    return changed


#: Fields of new layers in the place of a teacher's, which it does not have.
AFT_FIELDS = ("num_mean_queries", "aft_gate")


def can_change(field: str) -> bool:
    """Whether a field of a checkpoint's configuration can have another value."""
    return "drop" in field or field == "classifier_pooling"


def _named_config(arguments: ModelArguments) -> PreTrainedConfig:
    name = arguments.model_name_or_path or arguments.config_name
    if (MODEL_CARDS / name / "config.json").is_file():
        name = MODEL_CARDS / name
    else:
        check_spelling(name)
        check_folder(name, token=arguments.token, revision=arguments.model_revision)
    try:
        return AutoConfig.from_pretrained(name, **arguments.hub_arguments())
    except (OSError, ValueError, StrictDataclassError) as error:
        raise UserError(f"no configuration can be loaded from {str(name)!r}: {str(error).rstrip('.')}.") from error


def _default_config(model_type: str) -> PreTrainedConfig:
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, CONFIG_MAPPING.keys(), n=3)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "For example bert, vit and t5 are."
        raise UserError(f"--model_type {model_type!r} is no model type of Transformers. {hint}")
    try:
        return AutoConfig.for_model(model_type)
    except Exception as error:  # of configurations that are made of others
        raise UserError(
            f"--model_type {model_type} has no default configuration ({error}): give --config_name."
        ) from error


def load_tokenizer(
    arguments: ModelArguments,
    max_length: int | None,
    texts: Iterable[str],
    is_main_process: bool,
    kind: str = "encoder",
    kept: str | None = None,
) -> PreTrainedTokenizerBase:
    """The tokenizer named on the command line, the checkpoint's own, or a newly trained one.

    Args:
        arguments: Names the tokenizer.
        max_length: The model's maximum length, saved in a new tokenizer.
        texts: Training texts of a new tokenizer; not read otherwise.
        is_main_process: With several processes the main one trains, and the others receive its result.
        kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.
        kept: Folder of the main process with the new tokenizer, if an earlier attempt has trained it.

    Raises:
        UserError: If none is named or it cannot be loaded.
    """
    if arguments.train_tokenizer is not None:
        if arguments.tokenizer_name is not None:
            raise UserError(
                "--train_tokenizer makes a new tokenizer and --tokenizer_name loads one: give one of them."
            )
        trained = [None]
        if is_main_process and kept is not None:
            trained = [load_trained_tokenizer(kept)]
        elif is_main_process:
            try:
                some = _first_texts(texts)
                trained = [train_unigram_tokenizer(some, arguments.train_tokenizer, max_length, kind=kind)]
            except ValueError as error:
                raise UserError(f"--train_tokenizer {arguments.train_tokenizer}: {error}") from error
        return broadcast_object_list(trained)[0]
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is None:
        raise UserError("a model from scratch needs --tokenizer_name (an existing one) or --train_tokenizer SIZE.")
    return load_trained_tokenizer(name, **arguments.hub_arguments())


def _first_texts(texts: Iterable[str]) -> Iterator[str]:
    """The first `MOST_TEXTS` texts, with a warning if there are more."""
    for index, text in enumerate(texts):
        if index == MOST_TEXTS:
            logger.warning(
                f"the new tokenizer is trained on the first {MOST_TEXTS:,} texts alone. If these differ from the "
                "others, give a tokenizer as --tokenizer_name."
            )
            return
        yield text


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


def leave_out_token_types(config: PreTrainedConfig, tokenizer: Any) -> None:
    """Let the tokenizer of a model without token types, here and where it is saved, give no `token_type_ids`."""
    names = getattr(tokenizer, "model_input_names", [])  # of an image processor too
    if getattr(config, "type_vocab_size", None) == 0 and "token_type_ids" in names:
        names = [name for name in names if name != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


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
    data_args: Any,
    texts: Iterable[str],
    args: TrainingArguments,
    saved_in: str | None = None,
    kind: str = "encoder",
    content: str | None = None,
) -> PreTrainedTokenizerBase:
    """Load or train the tokenizer, and make the configuration agree with it.

    A new model with many more rows than the tokenizer has ids gives a warning.

    Args:
        arguments: Names the tokenizer.
        config: Changed in place, see `fit_vocabulary`.
        data_args: Argument dataclass that names the data.
        texts: Training texts of a new tokenizer; not read otherwise.
        args: The Trainer's arguments. Their `tokenizer_settings` are set if the tokenizer is new.
        saved_in: Folder with the tokenizer that an interrupted run has trained, to continue with. Without it, what
            `keep_tokenizer` has left in the output folder, or in that of the grid, is used.
        kind: Special tokens of a new tokenizer, see `train_unigram_tokenizer`.
        content: Hash of the training data, which a kept tokenizer must have been trained on.

    Raises:
        UserError: If it cannot be loaded or trained, or does not fit.
    """
    new_tokenizer, kept = arguments.train_tokenizer is not None, None
    length = getattr(config, "max_position_embeddings", None)
    if new_tokenizer:
        settings = {**vars(arguments), **vars(data_args), "max_length": length, "kind": kind, "content": content}
        settings.pop("token")  # is secret
        args.tokenizer_settings = settings
        kept = kept_tokenizer(args.output_dir, settings) if args.grid is None else args.grid.kept_tokenizer()
        if saved_in is not None and kept is None:  # the kept one's path stays, and tokenized rows are found by it
            arguments = dataclasses.replace(arguments, train_tokenizer=None, tokenizer_name=saved_in)
    tokenizer = load_tokenizer(arguments, length, texts, args.process_index == 0, kind, kept)
    fit_vocabulary(config, tokenizer, new_tokenizer)
    if arguments.model_name_or_path is None and args.process_index == 0:
        warn_of_unused_rows(config, tokenizer)
    return tokenizer


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
    if requested is None:
        requested = longest_text(config, tokenizer)
        if requested is None:
            raise UserError(f"neither the model nor the tokenizer has a maximum length: give {argument}.")
        return requested
    most = longest_sequence(config)
    if most is not None and requested > most:
        raise UserError(
            f"{argument} {requested} does not fit the model, whose sequences have at most {most} tokens "
            "(max_position_embeddings)."
        )
    least = tokenizer.num_special_tokens_to_add() + 1
    if requested < least:
        raise UserError(f"{argument} {requested} leaves no room for text; the least is {least}.")
    return requested


def freeze_embeddings(model: PreTrainedModel) -> int:
    """Exclude the input and output embedding matrices of all parts of a model from training.

    They get no gradient and no optimizer state. Position embeddings train.

    Args:
        model: Changed in place.

    Returns:
        The number of parameters that do not train; a matrix that is used twice counts once.
    """
    parts = [model]
    if model.config.is_encoder_decoder:
        parts += [model.get_encoder(), model.get_decoder()]
    modules = [part.get_input_embeddings() for part in parts] + [model.get_output_embeddings()]
    matrices = {id(module.weight): module.weight for module in modules if module is not None}
    for matrix in matrices.values():
        matrix.requires_grad_(False)
    return sum(matrix.numel() for matrix in matrices.values())


def build_model(
    arguments: ModelArguments, config: PreTrainedConfig, auto_class: type, trained: bool = False, **options: Any
) -> PreTrainedModel:
    """The checkpoint, or a model from scratch, through one of Transformers' Auto classes.

    Its weights are float32, whatever type they were saved in: AdamW's updates get lost in half precision. Quantized
    weights, which do not train, stay as they are.

    Args:
        arguments: Names the checkpoint, if any.
        config: The model's configuration.
        auto_class: E.g. `AutoModelForMaskedLM`.
        trained: Whether the model will be trained: only then a checkpoint may lack the weights of a head.
        options: Further arguments of `from_pretrained`, for example another `dtype`.

    Raises:
        UserError: If the checkpoint's files or weights are missing or damaged, the configuration is for another kind
            of model, or a model from scratch is to be sharded.
    """
    if arguments.fsdp_size is not None:
        if arguments.model_name_or_path is None:
            raise UserError("--fsdp_size shards a checkpoint: save the model first, and give --model_name_or_path.")
        options["distributed_config"] = DistributedConfig(fsdp_size=arguments.fsdp_size)
    name = arguments.model_name_or_path or arguments.config_name or arguments.model_type
    with_report = options.pop("output_loading_info", False)
    try:
        if arguments.model_name_or_path is not None:
            quantized = getattr(config, "quantization_config", None)
            options.setdefault("dtype", "auto" if quantized else torch.float32)
            options |= {"output_loading_info": True, **arguments.hub_arguments()}
            model, report = auto_class.from_pretrained(name, config=config, **options)
            missing = report["missing_keys"]
            setattr(model, MISSING_WEIGHTS, sorted(missing))
            has_head = trained and auto_class is not AutoModel
            check_complete(name, _without_new_heads(model, missing) if has_head else missing)
            return (model, report) if with_report else model
        return auto_class.from_config(config, dtype=torch.float32, trust_remote_code=arguments.trust_remote_code)
    except SafetensorError as error:
        raise UserError(f"the weights of {name!r} are damaged ({error}): fetch or save them again.") from error
    except (OSError, ValueError) as error:
        reason = str(error).partition("Model type should be one of")[0]  # a hundred names follow
        raise UserError(f"no {auto_class.__name__} can be made of {name!r}: {reason}") from error


def _without_new_heads(model: PreTrainedModel, missing: Iterable[str]) -> list[str]:
    """Missing weights without those of heads that a checkpoint lacks as a whole, and of the pooler below a head.

    A part of a model is what its weights' names begin with. What a head shares with the base model is not its own.
    """
    weights, prefix = dict(model.named_parameters(remove_duplicate=False)), model.base_model_prefix
    new = {id(weights[name]) for name in missing if name in weights}
    shared = {id(weight) for name, weight in weights.items() if name.startswith(f"{prefix}.")}
    there = {
        name.partition(".")[0]
        for name, weight in weights.items()
        if id(weight) not in new and (name.startswith(f"{prefix}.") or id(weight) not in shared)
    }
    return [name for name in missing if name.partition(".")[0] in there and "pooler" not in name.split(".")]
