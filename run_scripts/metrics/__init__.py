"""Metrics of the tasks: functions, and `evaluate.Metric`s of them that need no download and write no cache file.

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

| metric | scores | needs extra |
| --- | --- | --- |
| `accuracy` | classes; configuration `multilabel` | |
| `f1`, `matthews_correlation` | classes; configuration `multilabel` | `glue` |
| `pearsonr`, `spearmanr` | numbers | `glue` |
| `seqeval` | entities, from tags | |
| `squad`, `squad_v2` | answers to questions | |
| `sacrebleu`, `rouge` | generated texts | `seq2seq` |
| `token_perplexity` | summed losses of texts | |

All but `token_perplexity` have the names and results of `evaluate.load`. Differences: an undefined score, such as the
correlation with a constant, is 0; ROUGE is a mean, without bootstrap; sacreBLEU takes another number of references for
every text, and also returns its signature.

Metrics that need data or programs which no well-kept package brings are left out:

- METEOR: WordNet, which `evaluate.load("meteor")` downloads.
- CIDEr: pycocoevalcap 1.2 has it in 100 MB, with Java programs that split texts into words.
  `pycocoevalcap.cider.cider.Cider().compute_score(references, predictions)` runs without Java on texts that are
  already words with spaces between them.
- Embedding averages: word vectors, whose choice changes the result.

They can be computed from the predictions and references in the tables that `run_seq2seq` writes.

In a distributed run every process computes with an instance of its own from the gathered predictions.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.optional_packages import import_optional
from .classification import accuracy, f1, matthews_correlation, pearsonr, spearmanr
from .entities import seqeval
from .generation import rouge, sacrebleu, token_perplexity
from .squad import squad, squad_v2


if TYPE_CHECKING:  # `evaluate` takes a second to import, most of it for scipy
    from .local_metric import LocalMetric


class Definition(NamedTuple):
    """A metric.

    Attributes:
        compute: The function; its docstring is the metric's description.
        predictions: Type of a prediction: a name of `datasets.Value`, a list of one type, or types by name.
        references: Type of a reference, `(first, second)` if there are two to choose from.
        extra: The extra of this package that installs `packages`.
        packages: What the function imports that not every installation has.
    """

    compute: Callable[..., dict[str, Any]]
    predictions: Any
    references: Any
    extra: str = ""
    packages: tuple[str, ...] = ()


_QUESTION = {"id": "string", "prediction_text": "string"}
_ANSWERS = {"id": "string", "answers": [{"text": "string", "answer_start": "int32"}]}
_TEXTS = (["string"], "string")

#: Name of a metric -> its definition. Those of class indices have a configuration "multilabel" for lists of 0 and 1.
METRICS = {
    "accuracy": Definition(accuracy, "int64", "int64"),
    "f1": Definition(f1, "int64", "int64", "glue", ("sklearn",)),
    "matthews_correlation": Definition(matthews_correlation, "int64", "int64", "glue", ("sklearn",)),
    "pearsonr": Definition(pearsonr, "float64", "float64", "glue", ("scipy",)),
    "rouge": Definition(rouge, "string", _TEXTS, "seq2seq", ("rouge_score",)),
    "sacrebleu": Definition(sacrebleu, "string", _TEXTS, "seq2seq", ("sacrebleu",)),
    "seqeval": Definition(seqeval, ["string"], ["string"]),
    "spearmanr": Definition(spearmanr, "float64", "float64", "glue", ("scipy",)),
    "squad": Definition(squad, _QUESTION, _ANSWERS),
    "squad_v2": Definition(squad_v2, {**_QUESTION, "no_answer_probability": "float64"}, _ANSWERS),
    "token_perplexity": Definition(token_perplexity, "float64", "int64"),
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


def load_metric(name: str, config_name: str | None = None) -> "LocalMetric":
    """A metric, without network.

    Args:
        name: A key of `METRICS`.
        config_name: `"multilabel"` for class indices of several labels in each example.

    Raises:
        UserError: If a package that it needs is missing.
        ValueError: If there is no such metric or configuration.
    """
    check_packages(name)
    from .local_metric import LocalMetric

    class_name = name.title().replace("_", "")  # from which `evaluate` takes the metric's name
    return type(class_name, (LocalMetric,), {"definition": METRICS[name]})(config_name)
