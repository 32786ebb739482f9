"""Classes of a checkpoint and of the data: the rows of the output layer follow the names."""

import copy
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch
from accelerate import PartialState, init_empty_weights
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..base.arguments import ModelArguments
from ..base.errors import UserError
from ..base.trained_model import label_names
from .model_loading import build_model, load_config


logger = logging.get_logger(__name__)

#: Names of ImageNet's folders.
_WORDNET_ID = re.compile(r"n\d{8}")


def set_label_names(config: PreTrainedConfig, names: Sequence[str], trained: bool) -> None:
    """Set the labels of a classifier, see `build_classifier`.

    Args:
        config: Changed in place.
        names: Names of the classes, in order; a single name for regression.
        trained: Whether the model will be trained on them. Otherwise it must have these labels already, in any order.
    """
    known = label_names(config)
    if not trained and not has_same_names(names, known):
        raise UserError(
            f"the model predicts {', '.join(map(repr, known))}, the data ask for {', '.join(map(repr, names))}: "
            "finetune it first, with --do_train."
        )
    config.id2label = dict(enumerate(names))
    config.label2id = {name: index for index, name in enumerate(names)}


def has_same_names(names: Sequence[str], known: Sequence[str]) -> bool:
    """Whether the names are the same in any order. Those that differ in case alone are the same."""
    return len(known) == len(names) and None not in indices_by_name(names, known)


def is_without_names(names: Sequence[str]) -> bool:
    """Whether the classes are called `LABEL_0`, `LABEL_1` and so on, as Transformers calls those without names."""
    return list(names) == [f"LABEL_{index}" for index in range(len(names))]


def indices_of(names: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """For each class of the data its index in the checkpoint.

    Classes without names keep their index. So do those that one side has as numbers from 0 on, or as WordNet ids, if
    both sides have as many.

    Args:
        names: The classes of the data.
        known: Those of the checkpoint.

    Returns:
        Indices; `None` for a class that the checkpoint does not have.
    """
    by_name = indices_by_name(names, known)
    if any(index is not None for index in by_name):
        return by_name
    as_many = len(known) == len(names)
    if is_without_names(known) or is_without_names(names) or (as_many and (_are_codes(known) or _are_codes(names))):
        return [index if index < len(known) else None for index in range(len(names))]
    return by_name


def indices_by_name(names: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """As `indices_of`, by name alone. Case matters only where names would be the same without it."""
    counts = [Counter(map(str.casefold, side)) for side in (names, known)]
    exact = {name: index for index, name in reversed([*enumerate(known)])}
    folded = {name.casefold(): index for name, index in exact.items()}

    def index(name: str) -> int | None:
        lower = name.casefold()
        once = all(count[lower] == 1 for count in counts)
        return exact.get(name, folded[lower] if once else None)

    return list(map(index, names))


def _are_codes(names: Sequence[str]) -> bool:
    return list(names) == list(map(str, range(len(names)))) or all(map(_WORDNET_ID.fullmatch, names))


def build_classifier(
    arguments: ModelArguments, config: PreTrainedConfig, auto_class: type, trained: bool
) -> PreTrainedModel:
    """A classifier, as `build_model`; the output layer of a checkpoint is that of the data's classes.

    Args:
        arguments: Names the checkpoint, if any.
        config: The model's configuration, with the names of the data's classes.
        auto_class: E.g. `AutoModelForSequenceClassification`.
        trained: Whether the model will be trained. Otherwise the checkpoint must have the same classes.
    """
    if arguments.model_name_or_path is None:
        return build_model(arguments, config, auto_class)
    options = {"ignore_mismatched_sizes": trained, "output_loading_info": True}
    model, report = build_model(arguments, config, auto_class, trained, **options)
    follow_names(model, arguments, auto_class, report)
    return model


def follow_names(
    model: PreTrainedModel, arguments: ModelArguments, auto_class: type, report: Mapping[str, Collection]
) -> None:
    """Bring the rows of a checkpoint's output layer into the order of the data's classes, with a warning.

    Rows of classes that the checkpoint does not have start at random, those of classes that the data do not have are
    left out. A single output, for regression, has no name that matters.

    Args:
        model: The checkpoint, loaded with a configuration that has the names of the data's classes; changed in place.
        arguments: Names the checkpoint.
        auto_class: What it was loaded with.
        report: Transformers' loading info.
    """
    own_config = load_config(arguments)
    known, names = label_names(own_config), label_names(model.config)
    if known == names or len(known) == len(names) == 1:
        return
    axes = class_axes(model)
    if report["missing_keys"] >= axes.keys():
        return
    own = model
    if len(known) != len(names):  # the loaded model has new rows alone
        options = {"ignore_mismatched_sizes": True, "output_loading_info": True}
        own, report = build_model(arguments, own_config, auto_class, trained=True, **options)
    without = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    head = [name for name in axes if name not in without]
    if not head:
        return
    indices = indices_of(names, known)
    if PartialState().is_main_process:
        logger.warning(_note(arguments.model_name_or_path, known, names, indices))
    if indices == list(range(len(known))):
        return
    fresh = model
    if own is model and None in indices:
        fresh = type(model)(model.config)
    for name in head:
        old, new = own.get_parameter(name), fresh.get_parameter(name)
        _take_rows(model.get_parameter(name), _whole(old), _whole(new), indices, axes[name])


def class_axes(model: PreTrainedModel) -> dict[str, int]:
    """The parameters of the output layers, whose shape depends on the number of classes -> axis of the classes."""
    config = copy.deepcopy(model.config)
    config.num_labels += 1
    with init_empty_weights():
        larger = type(model)(config)
    shapes = {name: (tuple(model.get_parameter(name).shape), tuple(p.shape)) for name, p in larger.named_parameters()}
    return {
        name: [size != other for size, other in zip(here, there, strict=True)].index(True)
        for name, (here, there) in shapes.items()
        if here != there
    }


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    """The values of a parameter, which `--fsdp_size` spreads over processes."""
    values = parameter.detach()
    return values.full_tensor() if isinstance(values, DTensor) else values


@torch.no_grad()
def _take_rows(
    parameter: torch.nn.Parameter, old: torch.Tensor, new: torch.Tensor, indices: Sequence[int | None], axis: int
) -> None:
    """Set a parameter to the old rows at the indices, and to new ones where there is none."""
    rows = [new.select(axis, row) if index is None else old.select(axis, index) for row, index in enumerate(indices)]
    values = torch.stack([row.to(parameter.device, parameter.dtype) for row in rows], dim=axis)
    if isinstance(parameter, DTensor):
        values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
    parameter.copy_(values)


def _note(checkpoint: str, known: Sequence[str], names: Sequence[str], indices: Sequence[int | None]) -> str:
    """What becomes of the checkpoint's output layer."""
    given = f"the classes of the checkpoint {checkpoint!r} are {some_names(known)}, those of the data "
    given += f"{some_names(names)}: "
    new = [name for name, index in zip(names, indices, strict=True) if index is None]
    if len(new) == len(names):
        return f"{given}the output layer starts at random."
    kept = [index for index in indices if index is not None]
    by_name = any(index is not None for index in indices_by_name(names, known))
    told = "the rows of the output layer follow the names" if by_name else "they are taken for the same, in this order"
    told += f"; new rows, which start at random: {some_names(new)}" if new else ""
    left = [name for index, name in enumerate(known) if index not in kept]
    return f"{given}{told}{f'; left out: {some_names(left)}' if left else ''}."


def some_names(names: Sequence[str]) -> str:
    """The first of some names, for messages."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
