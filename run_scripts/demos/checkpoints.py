"""Load the model of a demo, with its tokenizer or image processor, for the task that it was trained for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoImageProcessor, PreTrainedModel

import tokenmixers  # noqa: F401  (registers the models)

from ..base.errors import UserError, report_unreadable
from ..base.sequence_limits import longest_text
from ..base.trained_model import check_folder, load_trained, load_trained_tokenizer


#: The Hub's name of a task -> the end of its Auto class, and how the names of its model classes end.
TASK_NAMES = {
    "fill-mask": ("MaskedLM", ("ForMaskedLM",)),
    "text-classification": ("SequenceClassification", ("ForSequenceClassification",)),
    "token-classification": ("TokenClassification", ("ForTokenClassification",)),
    "question-answering": ("QuestionAnswering", ("ForQuestionAnswering",)),
    "text-generation": ("CausalLM", ("ForCausalLM", "LMHeadModel")),
    "text2text-generation": ("Seq2SeqLM", ("ForConditionalGeneration",)),
    "image-classification": ("ImageClassification", ("ForImageClassification",)),
}


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to be shown.

    Attributes:
        name: Folder or Hub id, as the user gave it.
        task: A key of `TASK_NAMES`.
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


def load_checkpoint(name: str, trust_remote_code: bool = False) -> Checkpoint:
    """Load model and tokenizer or image processor; on a GPU if there is one."""
    check_folder(name)
    options = {"trust_remote_code": trust_remote_code}
    with report_unreadable(name):
        config = AutoConfig.from_pretrained(name, **options)
    saved_by = (config.architectures or ["an unknown class"])[0]
    task = next((task for task, (_, ends) in TASK_NAMES.items() if saved_by.endswith(ends)), None)
    if task is None:
        known = ", ".join(f"...{end}" for _, ends in TASK_NAMES.values() for end in ends)
        raise UserError(f"the demo cannot show {name!r}, which was saved by {saved_by}: it shows {known}.")
    with report_unreadable(name):
        # An image model first: a missing processor is then not taken for a missing model.
        model_class = getattr(transformers, f"AutoModelFor{TASK_NAMES[task][0]}")
        model = load_trained(model_class, name, attn_implementation="eager", **options)
        if task == "image-classification":
            processor = AutoImageProcessor.from_pretrained(name, **options)
        else:
            processor = load_trained_tokenizer(name, **options)
    if task == "fill-mask" and processor.mask_token is None:
        raise UserError(f"the tokenizer of {name!r} has no mask token.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Checkpoint(name, task, model.to(device), processor)
