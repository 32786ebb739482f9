"""The experiments of the benchmark, by their numbers in `--cells`."""

from collections.abc import Callable, Iterator

from .arguments import BenchmarkArguments
from .model_comparisons import (
    encoders_against_transformers,
    growth,
    images_against_timm,
    sequence_to_sequence,
    text_against_g_mlp_pytorch,
)
from .sentences import finetuning, one_sentence_at_a_time, sentence_embeddings
from .timing import Case, Group
from .workloads import real_lengths


#: Number in `--cells` -> the function that yields the groups of the experiment for one case.
EXPERIMENTS: dict[int, Callable[[Case, BenchmarkArguments], Iterator[Group]]] = {
    1: images_against_timm,
    2: text_against_g_mlp_pytorch,
    3: encoders_against_transformers,
    4: sequence_to_sequence,
    5: real_lengths,
    6: growth,
    10: sentence_embeddings,
    11: one_sentence_at_a_time,
    12: finetuning,
}

#: Number of an experiment -> the distribution that it needs beyond our dependencies.
PEERS = {1: "timm", 2: "g-mlp-pytorch"}
#: Number of an experiment -> a distribution that it needs besides models to compare with.
TOOLS = {10: "sentence-transformers", 11: "onnxruntime"}
