"""Load the model of a demo, with its tokenizer or image processor, for the task that it was trained for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedConfig, PreTrainedModel

import tokenmixers  # noqa: F401  (registers the models)

from ..base.errors import UserError, report_unreadable
from ..base.sequence_limits import longest_text
from ..base.trained_model import check_folder, load_trained


class TaskName(NamedTuple):
    """A task that the demo can show.

    Attributes:
        name: The name of the task on the Hub.
        auto_class: The Auto class of Transformers for its models.
        endings: How the names of its model classes end.
    """

    name: str
    auto_class: str
    endings: tuple[str, ...]


TASK_NAMES = (
    TaskName("fill-mask", "AutoModelForMaskedLM", ("ForMaskedLM",)),
    TaskName("text-classification", "AutoModelForSequenceClassification", ("ForSequenceClassification",)),
    TaskName("token-classification", "AutoModelForTokenClassification", ("ForTokenClassification",)),
    TaskName("question-answering", "AutoModelForQuestionAnswering", ("ForQuestionAnswering",)),
    TaskName("text-generation", "AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    TaskName("text2text-generation", "AutoModelForSeq2SeqLM", ("ForConditionalGeneration",)),
    TaskName("image-classification", "AutoModelForImageClassification", ("ForImageClassification",)),
)


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to be shown.

    Attributes:
        name: Folder or Hub id, as the user gave it.
        task: A name in `TASK_NAMES`.
        model: In evaluation mode, with eager attention, which returns its weights.
        processor: The tokenizer, or the image processor of an image model.
    """

    name: str
    task: str
    model: PreTrainedModel
    processor: Any

    @property
    def title(self) -> str:
        """The name without the path of its folder."""
        return Path(self.name).resolve().name if Path(self.name).is_dir() else self.name

    @property
    def max_length(self) -> int | None:
        """The number of tokens that model and tokenizer take, whichever is less; `None` without a limit."""
        return longest_text(self.model.config, self.processor)


def find_task(config: PreTrainedConfig, name: str) -> TaskName:
    """The task of a checkpoint, by the class that saved it.

    Args:
        config: Its configuration.
        name: The user's name of it, for messages.

    Raises:
        UserError: If the configuration names no class, or one for a task that the demo does not show.
    """
    saved_by = (config.architectures or [None])[0]
    for task in TASK_NAMES:
        if saved_by is not None and saved_by.endswith(task.endings):
            return task
    known = ", ".join(f"...{ending}" for task in TASK_NAMES for ending in task.endings)
    what = "does not say which class saved it" if saved_by is None else f"was saved by {saved_by}"
    raise UserError(f"the demo cannot show {name!r}, which {what} (`architectures` in config.json): it shows {known}.")


def load_checkpoint(name: str, trust_remote_code: bool = False) -> Checkpoint:
    """Load model and tokenizer or image processor; on a GPU if there is one.

    Args:
        name: Checkpoint folder or Hub id.
        trust_remote_code: Whether code of the checkpoint may run, for models that neither Transformers nor this
            package has.

    Raises:
        UserError: If something cannot be loaded, or the demo does not show the model's task.
    """
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UserError(f"there is no folder {name!r}: give the folder of a checkpoint or a Hub id.")
    check_folder(name)
    options = {"trust_remote_code": trust_remote_code}
    with report_unreadable(name):
        config = AutoConfig.from_pretrained(name, **options)
    task = find_task(config, name)
    with report_unreadable(name):
        # An image model first: a missing processor is then not taken for a missing model.
        model_class = getattr(transformers, task.auto_class)
        model = load_trained(model_class, name, attn_implementation="eager", **options)
        processor_class = AutoImageProcessor if task.name == "image-classification" else AutoTokenizer
        processor = processor_class.from_pretrained(name, **options)
    if task.name == "fill-mask" and processor.mask_token is None:
        raise UserError(f"the tokenizer of {name!r} has no mask token.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Checkpoint(name, task.name, model.eval().to(device), processor)
