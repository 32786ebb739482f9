"""Bi-encoders of Sentence Transformers: model, loss, evaluation and Trainer.

Imports sentence-transformers (extra `embeddings`), so a command imports this module only after it has checked that.
"""

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.sentence_transformer.training_args import BatchSamplers, MultiDatasetBatchSamplers
from sentence_transformers.util import is_sentence_transformer_model, pairwise_cos_sim
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.modeling_outputs import BaseModelOutput
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput

from ...configuration.auto_classes import FAMILIES
from ..base.arguments import ModelArguments
from ..base.config_overrides import parse_overrides
from ..base.errors import UserError, report_unreadable
from ..base.trained_model import default_prompt, load_sentence_transformer
from .model_loading import build_model
from .trainer import ScriptTrainerMixin, forget_truncation


def has_modules(model_args: ModelArguments) -> bool:
    """Whether the checkpoint to start from is one of Sentence Transformers, with a pooling of its own.

    Raises:
        UserError: If the Hub does not answer.
    """
    name = model_args.model_name_or_path
    if name is None:
        return False
    with report_unreadable(name):
        return is_sentence_transformer_model(name, token=model_args.token, revision=model_args.model_revision)


def load_bi_encoder(model_args: ModelArguments) -> SentenceTransformer:
    """A checkpoint of Sentence Transformers, with its own modules and tokenizer.

    Weights are float32, see `build_model`.

    Args:
        model_args: Names the checkpoint; `config_overrides` changes its configuration.

    Raises:
        UserError: If it cannot be loaded, or another tokenizer is named.
    """
    name = model_args.model_name_or_path
    if model_args.tokenizer_name is not None or model_args.train_tokenizer is not None:
        raise UserError(f"{name!r} is a checkpoint of Sentence Transformers, which has its own tokenizer: name none.")
    return load_sentence_transformer(
        name,
        **model_args.hub_arguments(),
        model_kwargs={"dtype": torch.float32},
        config_kwargs=parse_overrides(model_args.config_overrides or ""),
        device="cpu",  # the Trainer moves it
    )


def check_encoder(config: PreTrainedConfig) -> None:
    """Check that a model reads texts and has no decoder behind its encoder.

    Raises:
        UserError: If not.
    """
    if config.model_type in FAMILIES and getattr(config, "image_size", None) is not None:
        raise UserError(f"the model reads images (image_size={config.image_size}): sentence embeddings need texts.")
    if config.is_encoder_decoder:
        raise UserError(
            "the model is an encoder-decoder (is_encoder_decoder=true): sentence embeddings need an encoder alone, "
            "such as one that run_mlm has trained."
        )


def _as_module(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, trust_remote_code: bool) -> Transformer:
    """The module of Sentence Transformers with this model.

    The library makes modules from folders alone. This one has everything but weights: of several processes
    Transformers lets only one save weights.
    """

    class WithModel(Transformer):
        def _load_model(self, *args: Any, **kwargs: Any) -> PreTrainedModel:
            return model

    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # as Sentence Transformers does
    remote = {"trust_remote_code": trust_remote_code}
    with TemporaryDirectory() as folder, report_unreadable(model.config.model_type):
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        module = WithModel(folder, config_kwargs={**remote}, processor_kwargs={**remote})
    module.__class__ = Transformer  # whose name is saved
    return module


def build_sentence_transformer(
    model_args: ModelArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, pooling: str | None
) -> SentenceTransformer:
    """A checkpoint of Transformers, or a model from scratch, with pooling.

    Args:
        model_args: Names the checkpoint, if any.
        config: The model's configuration.
        tokenizer: Its tokenizer.
        pooling: `"mean"` (default), `"cls"` or `"max"`, or another mode of `Pooling`.

    Raises:
        UserError: If the model cannot be built, see `build_model`, or has no states of tokens.
    """
    check_encoder(config)
    if model_args.fsdp_size is not None:
        raise UserError("--fsdp_size is not possible here: every process needs the whole bi-encoder.")
    model = build_model(model_args, config, AutoModel)
    return as_sentence_transformer(model, tokenizer, pooling, model_args.trust_remote_code)


def as_sentence_transformer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooling: str | None = None,
    trust_remote_code: bool = False,
) -> SentenceTransformer:
    """A model with pooling.

    Raises:
        UserError: If it has no states of tokens.
    """
    encoder = _as_module(model, tokenizer, trust_remote_code)
    if encoder.module_output_name != "token_embeddings":
        raise UserError(
            f"a model of type {model.config.model_type!r} has no states of tokens to pool: use an encoder."
        )
    size = encoder.get_embedding_dimension()
    return SentenceTransformer(modules=[encoder, Pooling(size, pooling_mode=pooling or "mean")], device="cpu")


def pooling_of(model: SentenceTransformer) -> str | None:
    """The pooling mode of a model, several joined by "+"; `None` if it has a module of another kind for that."""
    for module in model:
        if isinstance(module, Pooling):
            return module.pooling_mode if isinstance(module.pooling_mode, str) else "+".join(module.pooling_mode)
    return None


def normalizes(model: SentenceTransformer) -> bool:
    """Whether embeddings have length 1."""
    return any(isinstance(module, Normalize) for module in model)


def add_normalization(model: SentenceTransformer) -> None:
    """Let embeddings have length 1, if they have not."""
    if not normalizes(model):
        model.append(Normalize())


def check_dimensions(dimensions: Sequence[int], model: SentenceTransformer) -> None:
    """Check the dimensions of a Matryoshka loss.

    Raises:
        UserError: If one is larger than the embeddings.
    """
    size = model.get_embedding_dimension()
    for dimension in dimensions:
        if dimension > size:
            raise UserError(f"--matryoshka_dims {dimension} is more than the {size} dimensions of the embeddings.")


def read_in_parts(model: SentenceTransformer, tokens: int) -> None:
    """Let a model train with the memory of so many tokens: it reads a longer batch in parts, and each part twice.

    Only the states of the last layer are kept of a part, which is read again in the backward pass (gradient caching,
    arXiv 2101.06983), with the same dropout. All texts of a batch are in the loss together: loss and gradients are
    those of the whole batch, up to rounding.

    Args:
        model: The bi-encoder.
        tokens: Tokens of a part, padding included; at least the longest text's.

    Raises:
        UserError: If a text can be longer, or the model has no layers.
    """
    encoder = model.transformers_model
    if encoder is None:
        raise UserError("--max_tokens_per_batch is for models with layers, not for static embeddings: leave it out.")
    if tokens < model.max_seq_length:
        raise UserError(
            f"--max_tokens_per_batch {tokens} is less than a text can have, which is {model.max_seq_length} tokens: "
            "give more, or a lower --max_seq_length."
        )
    if encoder.config.output_hidden_states or not any(isinstance(part, Pooling) for part in model):
        raise UserError(
            "--max_tokens_per_batch keeps the last layer's states alone, which a Pooling reads; this model has "
            "another module or output_hidden_states: leave it out."
        )
    read = encoder.forward

    def forward(**inputs: Any) -> Any:
        count, length = inputs["input_ids"].shape
        rows = max(1, tokens // length)
        if count <= rows or not torch.is_grad_enabled():
            return read(**inputs)

        def states(start: int) -> torch.Tensor:
            part = {
                name: value[start : start + rows] if isinstance(value, torch.Tensor) else value
                for name, value in inputs.items()
            }
            return read(**part).last_hidden_state

        parts = [checkpoint(states, start, use_reentrant=False) for start in range(0, count, rows)]
        return BaseModelOutput(last_hidden_state=torch.cat(parts))

    encoder.forward = forward


def ranking_loss(
    model: SentenceTransformer, scale: float, dimensions: Sequence[int] | None, processes: int
) -> torch.nn.Module:
    """In-batch negatives: each positive is to be more similar to its anchor than all other texts of the batch.

    `MultipleNegativesRankingLoss` (arXiv 1705.00652, section 4.4), with several processes over the texts of all of
    them. With `dimensions` it is the sum over whole embeddings and their first dimensions: `MatryoshkaLoss` (arXiv
    2205.13147).

    Args:
        model: The bi-encoder.
        scale: Factor of the cosine similarities, the inverse of the temperature.
        dimensions: Numbers of first dimensions, e.g. 256, 128, 64.
        processes: Number of processes that train.
    """
    loss = MultipleNegativesRankingLoss(model, scale=scale, gather_across_devices=processes > 1)
    if dimensions is None:
        return loss
    return MatryoshkaLoss(model, loss, sorted({model.get_embedding_dimension(), *dimensions}, reverse=True))


def without_false_negatives(pairs: datasets.Dataset, model: SentenceTransformer) -> datasets.Dataset:
    """Training pairs without those that have a hard negative equal to the anchor or the positive.

    Texts are equal if the model reads the same tokens: capitals, accents or what is cut may be all that differs.
    """
    if len(pairs.column_names) < 3:
        return pairs
    kept: list[bool] = []
    for batch in pairs.iter(1000):
        options = {"truncation": True, "max_length": model.max_seq_length}
        tokens = (model.tokenizer(texts, **options)["input_ids"] for texts in batch.values())
        for anchor, positive, *negatives in zip(*tokens, strict=True):
            kept.append(anchor not in negatives and positive not in negatives)
    return pairs if all(kept) else pairs.select(np.flatnonzero(kept))


class AllEvaluators(BaseEvaluator):
    """Several evaluators of the same `num_pairs` pairs as one, whose metrics have different names."""

    def __init__(self, evaluators: Sequence[BaseEvaluator], num_pairs: int = 0):
        super().__init__()
        self.evaluators, self.num_pairs = list(evaluators), num_pairs

    @property
    def similarities(self) -> list[float] | None:
        """The cosine similarity of each pair in the last evaluation; `None` if pairs have no score."""
        return getattr(self.evaluators[0], "similarities", None)

    def __call__(self, model: SentenceTransformer, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The metrics of all. What is not defined, the correlation with a constant, is 0.

        Raises:
            UserError: If embeddings have infinite values or NaN.
        """
        hook = model.register_forward_hook(_check_embeddings)
        try:
            found = [evaluator(model, *args, **kwargs) for evaluator in self.evaluators]
        finally:
            hook.remove()
        return {
            name: 0.0 if math.isnan(value) else float(value) for metrics in found for name, value in metrics.items()
        }


def _check_embeddings(model: SentenceTransformer, inputs: Any, outputs: dict[str, Any]) -> None:
    """Raise `UserError` for embeddings that are no finite numbers: metrics of them mean nothing."""
    if not outputs["sentence_embedding"].isfinite().all():
        raise UserError(
            "the model's embeddings have infinite values or NaN: if training did this, lower --learning_rate, "
            "otherwise the checkpoint is damaged."
        )


def build_evaluator(pairs: datasets.Dataset, batch_size: int, dimensions: Sequence[int] | None) -> AllEvaluators:
    """What evaluates a bi-encoder on pairs.

    Args:
        pairs: From `load_sentence_pairs`. Those with a score give `spearman_cosine` and `pearson_cosine`, others
            are for retrieval: every anchor looks for its positives among all positives (`cosine_ndcg@10`, ...).
        batch_size: Texts that are encoded together.
        dimensions: Metrics with the prefix `dim_<n>_` are those of the first n dimensions.
    """
    build = _similarity if "score" in pairs.column_names else _retrieval
    whole = build(pairs, batch_size=batch_size, write_csv=False)
    parts = [
        build(pairs, batch_size=batch_size, write_csv=False, truncate_dim=dimension, name=f"dim_{dimension}")
        for dimension in dimensions or ()
    ]
    return AllEvaluators([whole, *parts], len(pairs))


class CosineEvaluator(EmbeddingSimilarityEvaluator):
    """Correlates cosine similarities with scores, and keeps those of its last evaluation as `similarities`."""

    def __call__(self, model: SentenceTransformer, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The correlations."""
        self.embeddings: list[np.ndarray] = []
        metrics = super().__call__(model, *args, **kwargs)
        self.similarities = pairwise_cos_sim(*self.embeddings).tolist()
        del self.embeddings
        return metrics

    def embed_inputs(self, model: SentenceTransformer, sentences: Any, **kwargs: Any) -> np.ndarray:
        """Embeddings of the first texts, then of the second ones."""
        self.embeddings.append(super().embed_inputs(model, sentences, **kwargs))
        return self.embeddings[-1]


def _similarity(pairs: datasets.Dataset, **options: Any) -> CosineEvaluator:
    texts = [list(pairs[column]) for column in ("sentence1", "sentence2", "score")]
    return CosineEvaluator(*texts, similarity_fn_names=["cosine"], **options)


class RetrievalEvaluator(InformationRetrievalEvaluator):
    """Theirs, in which a query that is a document of the corpus does not find itself, as in MTEB.

    Args:
        own: The ids of these queries, which are those of their documents.
        kwargs: Arguments of `InformationRetrievalEvaluator`.

    Attributes:
        by_query: Id of a query -> its nDCG@10, for intervals.
    """

    def __init__(self, *args: Any, own: Collection[str], **kwargs: Any):
        super().__init__(*args, map_at_k=[100, 101], **kwargs)  # keeps a document more than MAP@100 needs
        self.own = own

    def compute_metrics(self, queries_result_list: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """The metrics of all queries together."""
        self.by_query = {}
        for query, hits in zip(self.queries_ids, queries_result_list, strict=True):
            if query in self.own:
                hits[:] = [hit for hit in hits if hit["corpus_id"] != query]
            best = sorted(hits, key=lambda hit: (-hit["score"], hit["corpus_id"]))[:10]
            relevant = self.relevant_docs[query]
            gain = self.compute_dcg_at_k([int(hit["corpus_id"] in relevant) for hit in best], 10)
            self.by_query[query] = float(gain / self.compute_dcg_at_k([1] * len(relevant), 10))
        metrics = super().compute_metrics(queries_result_list)
        del metrics["map@k"][101]
        return metrics


class PairsEvaluator(RetrievalEvaluator):
    """A `RetrievalEvaluator` of what was trained: `encode`, not prompts for queries and documents."""

    def embed_inputs(
        self, model: SentenceTransformer, sentences: Any, encode_fn_name: str | None = None, **kwargs: Any
    ) -> Any:
        """Embeddings of queries, or of documents."""
        return super().embed_inputs(model, sentences, **kwargs)


def _retrieval(pairs: datasets.Dataset, **options: Any) -> RetrievalEvaluator:
    relevant: dict[str, set[str]] = {}
    for row in pairs:
        relevant.setdefault(row["anchor"], set()).add(row["positive"])
    texts = {text: text for text in pairs["positive"]}
    own = {text for text in relevant if text not in relevant[text]}
    return PairsEvaluator({text: text for text in relevant}, texts, relevant, own=own, **options)


class SentenceEmbeddingTrainer(ScriptTrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with the commands' training arguments, cards and errors.

    No batch has the same text twice, which would be its own negative.
    """

    training_args_class = TrainingArguments
    batch_sampler: Any = BatchSamplers.NO_DUPLICATES

    def __init__(self, *args: Any, **kwargs: Any):
        _add_trainer_settings(kwargs["args"], self.batch_sampler, default_prompt(kwargs["model"]))
        super().__init__(*args, **kwargs)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """None: the card is that of the commands."""

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate. The folder for tables of the evaluators, which write none here, is removed.

        Speeds are those of the evaluator's pairs: Sentence Transformers counts rows of which there are none.
        """
        output = super().evaluation_loop(*args, **kwargs)
        folder = Path(self.args.output_dir) / "eval"
        if self.is_world_process_zero() and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        return output if self.evaluator is None else output._replace(num_samples=self.evaluator.num_pairs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Save all modules, without the card that Sentence Transformers would write."""
        folder = output_dir if output_dir is not None else self.args.output_dir
        os.makedirs(folder, exist_ok=True)
        forget_truncation(self.model.tokenizer)
        self.model.save_pretrained(folder, create_model_card=False)
        torch.save(self.args, os.path.join(folder, TRAINING_ARGS_NAME))


def _add_trainer_settings(args: TrainingArguments, batch_sampler: Any, prompt: str) -> None:
    """Set what `SentenceTransformerTrainingArguments` has beside Transformers' arguments, and what it changes."""
    args.batch_sampler, args.multi_dataset_batch_sampler = batch_sampler, MultiDatasetBatchSamplers.PROPORTIONAL
    args.prompts, args.router_mapping = prompt or None, {}
    args.prediction_loss_only, args.ddp_broadcast_buffers = True, False
    args.dataloader_drop_last = True  # an incomplete batch has fewer negatives, and processes gather equal ones
