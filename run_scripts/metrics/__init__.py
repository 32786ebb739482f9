"""Metrics of the tasks as `evaluate.Metric`s that are defined here: nothing is downloaded, no cache file is written.

```python
import evaluate
from tokenmixers.run_scripts.metrics import load_metric

f1 = load_metric("f1")
f1.compute(predictions=[0, 1, 1], references=[0, 1, 0])  # {"f1": 0.66...}
for batch in batches:
    f1.add_batch(predictions=batch.predictions, references=batch.labels)
f1.compute(average="macro")
evaluate.combine([load_metric("accuracy"), f1]).compute(predictions=[0, 1, 1], references=[0, 1, 0])
print(f1.inputs_description)  # the arguments and results of a metric
```

| Metric | Of | Needs extra |
| --- | --- | --- |
| `accuracy` | classes; configuration `multilabel` | |
| `f1`, `matthews_correlation` | classes; configuration `multilabel` | `glue` |
| `pearsonr`, `spearmanr` | numbers | `glue` |
| `glue` | the tasks of GLUE: `load_metric("glue", "mrpc")` | `glue` |
| `top_k_accuracy` | classes, best first: top-5 accuracy of images | |
| `seqeval` | entities, from tags | |
| `squad`, `squad_v2` | answers to questions | |
| `exact_match` | texts | |
| `sacrebleu`, `rouge` | generated texts | `seq2seq` |
| `token_perplexity` | summed losses of texts | |

All but `top_k_accuracy` and `token_perplexity` have the names, arguments and results of `evaluate.load`. Differences:
what is not defined, such as the correlation with a constant, is 0; ROUGE is a mean, without bootstrap; sacreBLEU takes
another number of references for every text, and also returns its signature.

Not here, because each needs data or programs that no well-kept package brings:

- METEOR: WordNet, which `evaluate.load("meteor")` downloads.
- CIDEr: pycocoevalcap 1.2 has it in 100 MB, with Java programs that split texts into words.
  `pycocoevalcap.cider.cider.Cider().compute_score(references, predictions)` runs without Java on texts that are
  already words with spaces between them.
- Embedding averages: word vectors, whose choice changes the result.

They can be computed from `predictions.txt` and `references.txt`, which `run_seq2seq` writes.

Every process of a distributed run can compute with an instance of its own from the gathered predictions, as the
commands do. With `num_process` and `process_id` processes share files instead, as `evaluate` describes.
"""

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.optional_packages import import_optional


if TYPE_CHECKING:  # `evaluate` takes a second to import, most of it for scipy
    from .local_metric import LocalMetric


class _Definition(NamedTuple):
    """Where a metric is defined, and what it needs that not every installation has."""

    module: str
    class_name: str
    extra: str = ""
    packages: tuple[str, ...] = ()


#: Name of a metric -> where it is.
METRICS = {
    "accuracy": _Definition("classification", "Accuracy"),
    "exact_match": _Definition("generation", "ExactMatch"),
    "f1": _Definition("classification", "F1", "glue", ("sklearn",)),
    "glue": _Definition("classification", "Glue", "glue", ("sklearn", "scipy")),
    "matthews_correlation": _Definition("classification", "MatthewsCorrelation", "glue", ("sklearn",)),
    "pearsonr": _Definition("classification", "Pearsonr", "glue", ("scipy",)),
    "rouge": _Definition("generation", "Rouge", "seq2seq", ("rouge_score",)),
    "sacrebleu": _Definition("generation", "Sacrebleu", "seq2seq", ("sacrebleu",)),
    "seqeval": _Definition("entities", "Seqeval"),
    "spearmanr": _Definition("classification", "Spearmanr", "glue", ("scipy",)),
    "squad": _Definition("squad", "Squad"),
    "squad_v2": _Definition("squad", "SquadV2"),
    "token_perplexity": _Definition("language_modeling", "TokenPerplexity"),
    "top_k_accuracy": _Definition("images", "TopKAccuracy"),
}


def check_packages(*names: str) -> None:
    """Fail before a run, rather than at its first evaluation.

    Args:
        names: Keys of `METRICS`.

    Raises:
        UserError: If a package that one of them needs is missing.
        ValueError: If there is no such metric.
    """
    for name in names:
        if name not in METRICS:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(METRICS)}.")
        for package in METRICS[name].packages:
            import_optional(package, METRICS[name].extra, f"the metric {name}")


def load_metric(name: str, config_name: str | None = None, **options: Any) -> "LocalMetric":
    """A metric, without network.

    Args:
        name: A key of `METRICS`.
        config_name: Its configuration, e.g. `"mrpc"` of `glue`.
        options: Arguments of `evaluate.Metric`, e.g. `num_process`, `process_id`, `experiment_id` and `cache_dir`.

    Raises:
        UserError: If a package that it needs is missing.
        ValueError: If there is no such metric or configuration.
    """
    check_packages(name)
    module = importlib.import_module(f".{METRICS[name].module}", __name__)
    return getattr(module, METRICS[name].class_name)(config_name, **options)
