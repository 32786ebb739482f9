"""Experiments with real sentences: embeddings of many, of one at a time, and finetuning."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...tokenization.tokenizer_training import train_unigram_tokenizer
from ..exports import formats
from ..small_data.python_docs_corpus import documents
from .arguments import BenchmarkArguments
from .floors import Floor
from .model_comparisons import built_on_device, randomise_gates, shipped_config
from .timing import Candidate, Case, Group, Inputs, count_parameters, model_candidate, number_of_threads


#: The shape of MiniLM (all-MiniLM-L6), of all models here; their weights are random.
SHAPE = {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
HEADS = 12
OURS, PEER = "gMLP", "BERT of equal shape"
#: Of half the layers: about as many parameters, without embeddings, and operations as gMLP.
HALF_PEER = "BERT, 3 layers"
#: Most tokens of a sentence, sentences in a batch, and what is measured of one sentence at a time and of finetuning.
LENGTH, BATCH, SINGLE, STEPS = 128, 32, 32, 4
#: Sentences that a tokenizer is trained on and that are encoded, fewer with `--quick`; and the tokenizer's size.
SENTENCES, FEW, VOCABULARY = 10_000, 40, 8192


def documentation() -> Iterator[str]:
    """The distinct sentences of more than 20 characters of the documentation of Python's standard library."""
    seen = set()
    for _, text in documents():
        for paragraph in re.split(r"\n\s*\n", text):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                if len(sentence) > 20 and sentence[-1] in ".!?" and sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def _texts(sizes: BenchmarkArguments) -> tuple[list[str], PreTrainedTokenizerBase]:
    """The sentences, and a tokenizer trained on them."""
    sentences = list(islice(documentation(), SENTENCES))
    tokenizer = train_unigram_tokenizer(sentences, VOCABULARY, LENGTH, show_progress=False)
    return sentences[: FEW if sizes.quick else SENTENCES], tokenizer


def models_of_equal_shape(
    vocab_size: int, sizes: BenchmarkArguments, classifiers: bool = False
) -> dict[str, PreTrainedModel]:
    """gMLP and BERT with MiniLM's layers, widths and heads, and a BERT with half the layers."""
    shape = {**SHAPE, "vocab_size": vocab_size, "max_position_embeddings": LENGTH}
    shape |= {"num_hidden_layers": sizes.shrunk.get("num_hidden_layers", SHAPE["num_hidden_layers"])}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    half = {**shape, "num_hidden_layers": shape["num_hidden_layers"] // 2}
    configs: dict[str, PreTrainedConfig] = {OURS: shipped_config("gmlp-base", **shape)}
    for name, theirs in ((PEER, shape), (HALF_PEER, half)):
        configs[name] = BertConfig(**theirs, **dropout, num_attention_heads=HEADS)

    def build(config: PreTrainedConfig) -> PreTrainedModel:
        if classifiers:
            return AutoModelForSequenceClassification.from_config(config)
        return AutoModel.from_config(config, **({} if config is configs[OURS] else {"add_pooling_layer": False}))

    return {name: randomise_gates(build(config)) for name, config in configs.items()}


def sentence_embeddings(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """10: sentence embeddings with sentence-transformers: gMLP and BERTs of MiniLM's shape, on one thread and all."""
    if case.training or case.compiled:
        return
    sentences, tokenizer = _texts(sizes)
    for threads in sorted({1, torch.get_num_threads()}):
        with number_of_threads(threads):  # while the caller measures too: kernels are chosen for a number of threads
            models = models_of_equal_shape(len(tokenizer), sizes)
            candidates = [_encoding(*item, tokenizer, sentences, case) for item in models.items()]
            name = f"{len(sentences):,} sentences, {'1 thread' if threads == 1 else 'all threads'}"
            yield Group(name, candidates, {"batch": BATCH, "unit": "sentences"})


def _encoding(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str], case: Case
) -> Candidate:
    """Encode all sentences, including tokenization."""
    from ..training.sentence_embeddings import as_sentence_transformer

    encoder = as_sentence_transformer(model.eval(), tokenizer).to(case.device, case.dtype)

    def encode() -> torch.Tensor:
        return encoder.encode(sentences, batch_size=BATCH, show_progress_bar=False, convert_to_tensor=True)

    with Floor(encoder, case.device) as floor:
        encode()
    facts = {"parameters": count_parameters(model)}
    return Candidate(name, encode, items=len(sentences), is_profiled=False, floor=floor, facts=facts)


def _tokenized(tokenizer: PreTrainedTokenizerBase, sentences: list[str], rows: int) -> list[dict[str, torch.Tensor]]:
    """Batches of sentences, padded to the longest of each batch."""
    starts = range(0, len(sentences), rows)
    encoded = [
        tokenizer(
            sentences[start : start + rows], padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        for start in starts
    ]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in encoded]


@built_on_device
def one_sentence_at_a_time(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """11: latency: sentences one at a time, in eager mode or compiled, and in float32 by ONNX Runtime."""
    if case.training:
        return
    sentences, tokenizer = _texts(sizes)
    inputs = _tokenized(tokenizer, sentences[:SINGLE], 1)
    models = models_of_equal_shape(len(tokenizer), sizes)
    common = {"items": len(inputs)}
    candidates = []
    with TemporaryDirectory() as folder:
        for name, model in models.items():
            candidates.append(model_candidate(name, model, inputs, case, weights=name, **common))
            if case.dtype == torch.float32 and not case.compiled and case.device.type == "cpu":
                candidates.append(_with_onnx_runtime(name, model, inputs, Path(folder) / name / "model.onnx"))
        # The first is the reference of all others.
        yield Group("one sentence at a time", candidates, {"batch": 1, "unit": "sentences"})


def _with_onnx_runtime(name: str, model: PreTrainedModel, inputs: Inputs, path: Path) -> Candidate:
    ids = torch.randint(5, model.config.vocab_size, (2, 8))
    graph = formats.trace(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    formats.write(graph, "onnx", path)
    program = formats.Program(path)

    def infer() -> list[torch.Tensor]:
        return [program(batch)["last_hidden_state"] for batch in inputs]

    return Candidate(f"{name}, ONNX Runtime", infer, infer, name, items=len(inputs), is_profiled=False)


@built_on_device
def finetuning(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """12: finetuning: rows per second of classifiers in training, gMLP and BERTs of MiniLM's shape."""
    if not case.training:
        return
    sentences, tokenizer = _texts(sizes)
    rows = 2 if sizes.shrunk else BATCH
    inputs = _tokenized(tokenizer, sentences[: STEPS * rows], rows)
    inputs = [{**batch, "labels": torch.randint(2, (len(batch["input_ids"]),))} for batch in inputs]
    models = models_of_equal_shape(len(tokenizer), sizes, classifiers=True)
    count = sum(len(batch["labels"]) for batch in inputs)
    candidates = [model_candidate(name, model, inputs, case, items=count) for name, model in models.items()]
    yield Group("finetuning on sentences", candidates, {"batch": rows, "unit": "rows"})
