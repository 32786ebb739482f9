"""Evaluation of a model that does several tasks as text in, text out: scores of generated texts, averages, bests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import datasets
import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

from ..data.loading import INDEX
from ..data.text_to_text import GROUPS, Example, TextToTextTask
from ..metrics.task_scores import UNPARSEABLE, answer_scores, compute_scores_with_unparseable, metric_type
from .generation import GenerationTrainer, generated_texts, in_order


#: Name of the average of all tasks, without `eval_`.
MEAN_OF_TASKS = "mean_of_tasks"


class EvaluationSet(NamedTuple):
    """One of a task's evaluation sets."""

    task: TextToTextTask
    part: str
    examples: list[Example]

    @property
    def name(self) -> str:
        """Name in results: the task's, and the set's if there are several."""
        return "_".join(filter(None, (self.task.name, self.part)))

    @property
    def metric_names(self) -> list[str]:
        """Names of its metrics in results, without `eval_`."""
        return [f"{self.name}_{metric}" for metric in self.task.metrics]


def parse_texts(task: TextToTextTask, texts: Sequence[str], examples: Sequence[Example]) -> tuple[list[Any], int]:
    """What generated texts stand for, and how many stand for nothing.

    Returns:
        Classes, numbers or texts, and in place of what cannot be parsed `UNPARSEABLE`, or an empty text.
    """
    parsed = [task.parse(text, example) for text, example in zip(texts, examples, strict=True)]
    nothing = "" if task.compares_texts else UNPARSEABLE
    return [nothing if answer is None else answer for answer in parsed], sum(answer is None for answer in parsed)


def score_texts(task: TextToTextTask, texts: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    """The task's metrics in percent, and `unparseable`, the number of texts that stand for no answer.

    These count as wrong, see `compute_scores_with_unparseable`.
    """
    answers, unparseable = parse_texts(task, texts, examples)
    if task.compares_texts:
        found = answer_scores(answers, [example.targets for example in examples])
    else:
        labels, groups = np.array([example.label for example in examples]), [example.group for example in examples]
        found = compute_scores_with_unparseable(task.metrics, np.array(answers), labels, task.num_classes, groups)
    return {**{name: 100.0 * found[name] for name in task.metrics}, "unparseable": unparseable}


def constant_scores(sets: Iterable[EvaluationSet], targets: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The metrics of the text that is most frequent in a task's training data, as the answer to everything.

    Args:
        sets: The evaluation sets.
        targets: The training texts of each task. Tasks without any are left out.

    Returns:
        The metrics under names that start with `majority_`.
    """
    results = {}
    for found in sets:
        if found.task.name in targets:
            ((text, _),) = Counter(targets[found.task.name]).most_common(1)
            scores = score_texts(found.task, [text] * len(found.examples), found.examples)
            results |= {f"majority_{found.name}_{metric}": scores[metric] for metric in found.task.metrics}
    return results


class MixtureEvaluation:
    """Turns what `GenerationTrainer` predicts for the sets of several tasks into texts and metrics."""

    def __init__(self, sets: Sequence[EvaluationSet], tokenizer: PreTrainedTokenizerBase):
        self.sets = {found.name: found for found in sets}
        self.tokenizer = tokenizer
        starts = np.cumsum([0, *(len(found.examples) for found in sets)]).tolist()
        self._starts = dict(zip(self.sets, starts[:-1], strict=True))

    def number_rows(self, name: str, rows: datasets.Dataset) -> datasets.Dataset:
        """Add the column `example`, which tells the examples of all sets apart."""
        start = self._starts[name]
        return rows.add_column("example", list(range(start, start + len(rows))))

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """The metrics of the set that a prediction is for; none if no texts were generated.

        Without right texts they are the number of those that stand for no answer, `unparseable`.
        """
        first = int(prediction.predictions[0].min())
        (found,) = (self.sets[name] for name, start in self._starts.items() if start == first)
        texts = self.texts(prediction, found)
        if texts is None:
            return {}
        if not any(example.targets for example in found.examples):
            return {"unparseable": parse_texts(found.task, texts, found.examples)[1]}
        return score_texts(found.task, texts, found.examples)

    def texts(self, output: EvalPrediction | PredictionOutput, found: EvaluationSet) -> list[str] | None:
        """The generated texts in the order of the examples; `None` if there are none."""
        (_, *generated), _ = in_order(output, len(found.examples))
        return generated_texts(generated[0], self.tokenizer) if generated else None

    def columns(self, output: PredictionOutput, name: str) -> dict[str, list[Any]] | None:
        """The generated texts of a set next to sources and references; `None` if no texts were generated.

        `parsed` is whether the prediction stands for an answer.
        """
        found = self.sets[name]
        texts = self.texts(output, found)
        if texts is None:
            return None
        return {
            INDEX: [example.index for example in found.examples],
            "source": [example.source for example in found.examples],
            "references": [example.targets for example in found.examples],
            "prediction": texts,
            "parsed": [found.task.parse(*pair) is not None for pair in zip(texts, found.examples, strict=True)],
        }

    def averages(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The mean of all tasks, and of a benchmark's tasks, of those benchmarks all of whose tasks are there.

        As in papers: several metrics of a task, and the two sets of MNLI, are averaged first.

        Returns:
            `eval_mean_of_tasks`, `eval_glue` and `eval_super_glue`.
        """
        by_task = self._metrics_by_task()
        results = {}
        for group, names in {MEAN_OF_TASKS: (*by_task,), **GROUPS}.items():
            if set(names) <= by_task.keys() and all(f"eval_{key}" in metrics for n in names for key in by_task[n]):
                results[f"eval_{group}"] = fmean(
                    fmean(metrics[f"eval_{key}"] for key in by_task[name]) for name in names
                )
        return results

    def best(self, history: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """The best of the evaluations of a run, for each task and each average.

        The best has the highest mean of the task's metrics; the first of several.

        Returns:
            `best_<metric>` for each metric of the task at that step, and `best_<task>_step`.
        """
        by_step: dict[int, dict[str, float]] = {}
        for entry in history:
            by_step.setdefault(int(entry["step"]), {}).update(entry)
        results: dict[str, float] = {}
        averages = {group: [group] for group in (MEAN_OF_TASKS, *GROUPS)}
        for name, keys in {**self._metrics_by_task(), **averages}.items():
            means = {
                step: fmean(entry[f"eval_{key}"] for key in keys)
                for step, entry in by_step.items()
                if all(f"eval_{key}" in entry for key in keys)
            }
            if means:
                step = max(means, key=lambda step: (means[step], -step))
                results |= {f"best_{key}": by_step[step][f"eval_{key}"] for key in keys}
                results[f"best_{name}_step"] = step
        return results

    def metric_types(self) -> dict[str, str]:
        """Name of a metric in results, without `eval_` -> what the Hub calls it."""
        types = {
            key: metric_type(metric)
            for found in self.sets.values()
            for key, metric in zip(found.metric_names, found.task.metrics, strict=True)
        }
        by_task = self._metrics_by_task()
        groups = [group for group, names in GROUPS.items() if {*names} <= by_task.keys()]
        return types | {group: group for group in (*([MEAN_OF_TASKS] if len(by_task) > 1 else []), *groups)}

    def _metrics_by_task(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for found in self.sets.values():
            names.setdefault(found.task.name, []).extend(found.metric_names)
        return names


class TextToTextTrainer(GenerationTrainer):
    """A `GenerationTrainer` with several evaluation sets, which also reports averages and bests.

    Attributes:
        evaluation: Computes them.
    """

    evaluation: MixtureEvaluation

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; the averages follow the metrics of all sets."""
        metrics = super().evaluate(eval_dataset, *args, **kwargs)
        averages = self.overall_metrics(metrics) if eval_dataset is None else {}
        if averages:
            self.log(averages)
        return metrics | averages

    def overall_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The averages of all tasks, of GLUE and of SuperGLUE."""
        return self.evaluation.averages(metrics)

    def best_metrics(self) -> dict[str, float]:
        """The best of the evaluations of the run."""
        return self.evaluation.best(self.state.log_history)
