"""`evaluate`'s evaluators for pipelines of Transformers 5.

```python
from tokenmixers.run_scripts.metrics.evaluators import evaluator

pipe = pipeline("text-classification", model=folder)
evaluator("text-classification").compute(pipe, data, metric="f1", label_mapping=pipe.model.config.label2id)
```

`evaluate.evaluator` 0.4.6 itself asks for `transformers.TFPreTrainedModel`, which Transformers 5 does not have, before
it takes a pipeline; it does not start where Transformers knows no task "question-answering"; and to the words of most
Unigram tokenizers it finds no tag. With `squad_v2_format` it hands the probability of an answer to the metric as
`no_answer_probability`: of the results of `squad_v2` the best thresholds mean nothing then.
"""

from collections.abc import Callable, Sequence
from typing import Any

import evaluate
from evaluate.evaluator import Evaluator
from transformers import Pipeline, PreTrainedModel, pipeline

from ..base.optional_packages import import_optional
from . import load_metric


class _PipelineEvaluator(Evaluator):
    """Takes pipelines, and metrics of this package by name."""

    def prepare_pipeline(
        self,
        model_or_pipeline: str | PreTrainedModel | Pipeline | Callable,
        tokenizer: Any = None,
        feature_extractor: Any = None,
        device: int | None = None,
    ) -> Pipeline | Callable:
        """The pipeline, or a new one of the model, whose image processor is the `feature_extractor`."""
        if isinstance(model_or_pipeline, str | PreTrainedModel):
            return pipeline(
                self.task,
                model=model_or_pipeline,
                tokenizer=tokenizer,
                image_processor=feature_extractor,
                device=self._infer_device() if device is None else device,
            )
        task = getattr(model_or_pipeline, "task", None)
        if not callable(model_or_pipeline) or task not in self._names():
            raise ValueError(
                f"`model_or_pipeline` must be a model or a pipeline for {self.task}, got "
                f"{type(model_or_pipeline).__name__} for {task}."
            )
        return model_or_pipeline

    def _names(self) -> tuple[str, ...]:
        """What a pipeline may call the task."""
        return (self.task,)

    def prepare_metric(self, metric: str | evaluate.EvaluationModule | None) -> evaluate.EvaluationModule:
        """The metric, or that of `load_metric`."""
        metric = self.default_metric_name if metric is None else metric
        return load_metric(metric) if isinstance(metric, str) else metric


class _TextClassification(evaluate.TextClassificationEvaluator, _PipelineEvaluator):
    pass


class _ImageClassification(evaluate.ImageClassificationEvaluator, _PipelineEvaluator):
    pass


class _TokenClassification(evaluate.TokenClassificationEvaluator, _PipelineEvaluator):
    def predictions_processor(
        self, predictions: list[list[dict]], words: Sequence[list[str]], join_by: str
    ) -> dict[str, list[list[str]]]:
        """The tag of each word's first token, as in `run_token_classification.py`; "O" if it has none.

        `evaluate` itself finds no token of a word where tokens begin with the space before it, as Unigram's do.
        """
        pairs = zip(predictions, words, strict=True)
        return {"predictions": [self._tags(tokens, row, join_by) for tokens, row in pairs]}

    def _tags(self, tokens: list[dict], words: list[str], join_by: str) -> list[str]:
        tags, behind = [], 0  # the last word
        for _, last in self.words_to_offsets(words, join_by):
            own = (token["entity"] for token in tokens if token["end"] > behind and token["start"] <= last)
            tags.append(next(own, "O"))
            behind = last + 1
        return tags


class _QuestionAnswering(evaluate.QuestionAnsweringEvaluator, _PipelineEvaluator):
    def _names(self) -> tuple[str, ...]:
        # The second is what a saved pipeline calls itself; one that was made without `pipeline` has no name.
        return (self.task, "question-answering", "")


#: Task -> evaluator, what Transformers calls the task, default metric.
_EVALUATORS = {
    "text-classification": (_TextClassification, "text-classification", "accuracy"),
    "image-classification": (_ImageClassification, "image-classification", "accuracy"),
    "token-classification": (_TokenClassification, "token-classification", "seqeval"),
    "question-answering": (_QuestionAnswering, "extractive-question-answering", "squad"),
}


def evaluator(task: str) -> Evaluator:
    """What applies a pipeline to a data set, and a metric to the predictions.

    Args:
        task: "text-classification", "image-classification", "token-classification" or "question-answering".

    Returns:
        Its `compute` has the arguments and results of that of `evaluate.evaluator(task)`. A `metric` that is a name,
        or not given, is loaded by `load_metric`, without network.

    Raises:
        UserError: If scipy is missing.
        ValueError: If there is no such task.
    """
    if task not in _EVALUATORS:
        raise ValueError(f"there is no evaluator for {task!r}; there are {', '.join(_EVALUATORS)}.")
    import_optional("scipy", "glue", "an evaluator")
    evaluator_class, name, metric = _EVALUATORS[task]
    return evaluator_class(task=name, default_metric_name=metric)
