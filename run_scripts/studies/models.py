"""Parameters, operations and bytes of the models of a study, counted before anything runs."""

from collections.abc import Mapping

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..base.arguments import ModelArguments
from ..base.config_overrides import merge_overrides
from ..base.errors import UserError
from ..benchmarks.timing import count_flops
from ..training.model_loading import build_model, load_config
from .definition import Study, Task, size_of
from .measures import check_measures


#: How far a model's number of parameters may be from the baseline's, relative to it.
TOLERANCE = 0.02

#: Training command -> the Auto class of its models.
AUTO_CLASSES = {
    "run_mlm": "AutoModelForMaskedLM",
    "run_clm": "AutoModelForCausalLM",
    "run_span_corruption": "AutoModelForSeq2SeqLM",
    "run_seq2seq": "AutoModelForSeq2SeqLM",
    "run_text_to_text": "AutoModelForSeq2SeqLM",
    "run_qa": "AutoModelForQuestionAnswering",
    "run_glue": "AutoModelForSequenceClassification",
    "run_token_classification": "AutoModelForTokenClassification",
    "run_sentence_embeddings": "AutoModel",
    "run_image_classification": "AutoModelForImageClassification",
}


class StaticEmbeddings(nn.EmbeddingBag):
    """What a student without layers computes: the mean of the embeddings of a text's tokens.

    Args:
        config: With `vocab_size` and `hidden_size`.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config.vocab_size, config.hidden_size)
        self.config = config

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length)` to `(batch, hidden_size)`."""
        return super().forward(input_ids)


def new_model(study: Study, task: Task, name: str, device: str = "meta") -> PreTrainedModel | StaticEmbeddings:
    """A model of a study with new weights; on the meta device they need no memory."""
    recipe = (task if task.starts_from is None else study.tasks[task.starts_from]).description(name)
    overrides = dict(recipe.get("config_overrides", {}))
    if vocabulary := _vocabulary(study, task):
        overrides["vocab_size"] = vocabulary
    kept = recipe.get("keep_layers")
    if kept is not None:
        overrides["num_hidden_layers"] = len(kept)
    if "token_mixers" in recipe:
        overrides["token_mixers"] = recipe["token_mixers"]
    arguments = ModelArguments(
        **{key: recipe[key] for key in ("config_name", "model_type") if key in recipe},
        config_overrides=merge_overrides(overrides, None),
    )
    try:
        config = load_config(arguments)
        with torch.device(device):
            if kept == []:
                return StaticEmbeddings(config)
            return build_model(arguments, config, getattr(transformers, AUTO_CLASSES[task.command]))
    except UserError as error:
        raise UserError(f"{name}: {str(error).removeprefix('error: ')}") from error


def _vocabulary(study: Study, task: Task) -> int | None:
    return task.tokenizer if task.starts_from is None else _vocabulary(study, study.tasks[task.starts_from])


def describe_models(study: Study) -> dict[str, dict[str, dict[str, int]]]:
    """Task -> model -> `parameters`, `flops` (of a forward pass of one example) and `bytes` (in float32).

    All parameters count, those of embeddings too; tied ones count once. The vocabulary has the requested size.
    """
    return {name: _describe_task(study, task) for name, task in study.tasks.items()}


def _describe_task(study: Study, task: Task) -> dict[str, dict[str, int]]:
    found = {}
    check_measures(task)
    for name in task.models:
        model = new_model(study, task, name).eval()
        saved = model.state_dict().keys()  # also fixed weights, e.g. those of Fixed Random attention
        stored = [*model.parameters(), *(buffer for key, buffer in model.named_buffers() if key in saved)]
        parameters = sum(tensor.numel() for tensor in {id(tensor): tensor for tensor in stored}.values())
        flops = count_flops(model, [_example(task)])
        found[name] = {"parameters": parameters, "flops": int(flops), "bytes": 4 * parameters}
    check_parameters(task, {name: facts["parameters"] for name, facts in found.items()})
    return found


def _example(task: Task) -> dict[str, torch.Tensor]:
    """A batch of one example of the task's shapes."""
    return {
        name: torch.zeros(1, *shape, dtype=torch.float if name == "pixel_values" else torch.long, device="meta")
        for name, shape in task.example.items()
    }


def check_parameters(task: Task, parameters: Mapping[str, int]) -> None:
    """Check that all models have as many parameters as the baseline, or as the baseline of their size."""
    if task.baseline is None:
        return
    for name, count in parameters.items():
        size = size_of(name)
        reference = f"{task.baseline}/{size}" if size else task.baseline
        if reference not in parameters:
            raise UserError(f"{task.name}: {name} has no baseline of its size, {reference!r}.")
        difference = count / parameters[reference] - 1
        if abs(difference) > TOLERANCE:
            raise UserError(
                f"{task.name}: {name} has {count:,} parameters, the baseline {reference} has "
                f"{parameters[reference]:,}: {difference:+.1%} is beyond the tolerance of "
                f"{TOLERANCE:.0%}. Change its sizes (embeddings count, tied ones once)."
            )
