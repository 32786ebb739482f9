"""Scores of sentence embeddings on a set: evaluators of Sentence Transformers, and for labels those of scikit-learn.

Imports sentence-transformers (extra `embeddings`), so a command imports this module only after it has checked that.
"""

from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    RerankingEvaluator,
)
from sentence_transformers.util import cos_sim
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, v_measure_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from ..training.sentence_embeddings import AllEvaluators, RetrievalEvaluator
from .tasks import FOLDS, METRICS, EmbeddingTask


#: Seed of the folds, and of the first centres of clusters.
SEED = 0

#: Starts of k-means; the one with the least distances counts.
STARTS = 10

#: Most iterations of the logistic regression.
ITERATIONS = 1000


class PairClassificationEvaluator(BinaryClassificationEvaluator):
    """Theirs, which encodes a Python set of the texts: their order, and with it the rounding, differs between runs."""

    def embed_inputs(self, model: SentenceTransformer, sentences: list[str], **kwargs: Any) -> np.ndarray:
        """Embeddings, shape `(texts, dimensions)`, computed in alphabetical order."""
        ordered = np.argsort(np.array(sentences, dtype=object), kind="stable")
        embeddings = super().embed_inputs(model, [sentences[index] for index in ordered], **kwargs)
        return embeddings[np.argsort(ordered)]


class ClassificationEvaluator(BaseEvaluator):
    """Accuracy of a logistic regression on embeddings: of the texts, or without training texts the mean of ten folds.

    The folds are stratified and shuffled with a fixed seed. The regression is scikit-learn's with its regularisation
    (C = 1), on embeddings as they are.
    """

    def __init__(self, data: dict[str, list[str]], batch_size: int):
        super().__init__()
        self.data, self.batch_size = data, batch_size

    def __call__(self, model: SentenceTransformer, *args: Any, **kwargs: Any) -> dict[str, float]:
        """`accuracy`, a share."""
        texts, labels = _embed(model, self.data["texts"], self.batch_size), np.array(self.data["labels"])
        if "train_texts" in self.data:
            training = _embed(model, self.data["train_texts"], self.batch_size)
            return {"accuracy": self._accuracy(training, np.array(self.data["train_labels"]), texts, labels)}
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(texts, labels)
        values = [self._accuracy(texts[fit], labels[fit], texts[held], labels[held]) for fit, held in folds]
        return {"accuracy": float(np.mean(values))}

    @staticmethod
    def _accuracy(training: np.ndarray, classes: np.ndarray, texts: np.ndarray, labels: np.ndarray) -> float:
        regression = LogisticRegression(max_iter=ITERATIONS, random_state=SEED).fit(training, classes)
        return float(accuracy_score(labels, regression.predict(texts)))


class ClusteringEvaluator(BaseEvaluator):
    """V-measure of k-means on embeddings, with as many clusters as labels."""

    def __init__(self, data: dict[str, list[str]], batch_size: int):
        super().__init__()
        self.data, self.batch_size = data, batch_size

    def __call__(self, model: SentenceTransformer, *args: Any, **kwargs: Any) -> dict[str, float]:
        """`v_measure`, from 0 to 1."""
        embeddings = _embed(model, self.data["texts"], self.batch_size)
        clusters = KMeans(len({*self.data["labels"]}), n_init=STARTS, random_state=SEED)
        with threadpool_limits(1, user_api="openmp"):  # threads add up their parts in the order in which they finish
            found = clusters.fit_predict(embeddings)
        return {"v_measure": float(v_measure_score(self.data["labels"], found))}


def _embed(model: SentenceTransformer, texts: list[str], batch_size: int) -> np.ndarray:
    """Embeddings in double precision, shape `(texts, dimensions)`."""
    embeddings = model.encode(texts, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
    return np.asarray(embeddings, dtype=np.float64)


def build_evaluator(task: EmbeddingTask, batch_size: int) -> BaseEvaluator:
    """What computes the figures of a set. Texts are compared by the cosine, whatever similarity the model prefers."""
    data, options = task.data, {"batch_size": batch_size, "write_csv": False}
    if task.kind == "similarity":
        texts = [data[column] for column in ("sentence1", "sentence2", "score")]
        return EmbeddingSimilarityEvaluator(*texts, similarity_fn_names=["cosine"], **options)
    if task.kind == "pair_classification":
        texts = [data[column] for column in ("sentence1", "sentence2", "label")]
        return PairClassificationEvaluator(*texts, similarity_fn_names=["cosine"], **options)
    if task.kind == "reranking":
        return RerankingEvaluator(data["samples"], **options)
    if task.kind == "retrieval":
        content = data["queries"], data["corpus"], data["relevant"]
        return RetrievalEvaluator(*content, own=data["own"], score_functions={"cosine": cos_sim}, **options)
    labels = {"classification": ClassificationEvaluator, "clustering": ClusteringEvaluator}
    return labels[task.kind](data, batch_size)


def evaluate(model: SentenceTransformer, task: EmbeddingTask, batch_size: int) -> dict[str, Any]:
    """Evaluate a model on a set.

    Returns:
        The main figure, see `METRICS`, as `score`; all `figures`, without the prefix `cosine_` of Sentence
        Transformers' names; and of retrieval the main figure `by_query`.
    """
    evaluator = build_evaluator(task, batch_size)
    found, main = AllEvaluators([evaluator])(model), METRICS[task.kind]
    figures = {name if name == main else name.removeprefix("cosine_"): value for name, value in found.items()}
    by_query = {"by_query": evaluator.by_query} if isinstance(evaluator, RetrievalEvaluator) else {}
    return {"score": figures[main], "figures": figures, **by_query}
