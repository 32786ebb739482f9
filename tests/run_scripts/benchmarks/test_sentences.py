import os
from dataclasses import replace
from itertools import islice

import pytest
import torch

from tokenmixers.run_scripts.benchmarks import sentences
from tokenmixers.run_scripts.benchmarks.arguments import BenchmarkArguments
from tokenmixers.run_scripts.benchmarks.sentences import HALF_PEER, OURS, PEER, documentation, models_of_equal_shape
from tokenmixers.run_scripts.benchmarks.timing import Case, check_agreement, count_flops


CPU, ONNX = torch.device("cpu"), ", ONNX Runtime"
TEXTS = [
    "The file is closed.",
    "An error is raised if the list is empty.",
    "Return the sum.",
    "It is a very long one.",
]


@pytest.fixture
def sizes(monkeypatch):
    """Four sentences, and a small tokenizer."""
    monkeypatch.setattr(sentences, "documentation", lambda: iter(TEXTS))
    monkeypatch.setattr(sentences, "VOCABULARY", 60)
    return BenchmarkArguments("", quick=True)


def test_sentences_of_the_documentation_are_there_in_thousands():
    found = list(islice(documentation(), 2000))
    assert len(found) == len(set(found)) == 2000
    assert all("\n" not in sentence and sentence[-1] in ".!?" for sentence in found)


def test_models_have_minilms_shape_or_gmlps_operations():
    models = models_of_equal_shape(100, BenchmarkArguments(""))
    for name in (OURS, PEER):
        config = models[name].config
        assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (6, 384, 1536)
    # All-MiniLM-L6-v2 has 22,713,216 parameters: 30,522 tokens, 512 positions, and a pooler of 384 x 384 + 384.
    bert = models[PEER]
    rest = (30522 - 100 + 512 - 128) * 384 + 384 * 384 + 384
    assert bert.num_parameters() + rest == 22_713_216
    assert bert.config.num_attention_heads == 12
    ours, half = models[OURS], models[HALF_PEER]
    inputs = [{"input_ids": torch.ones(1, 32, dtype=torch.long)}]
    assert count_flops(half, inputs) == pytest.approx(count_flops(ours, inputs), rel=0.05)
    tables = {model: sum(p.numel() for p in model.get_input_embeddings().parameters()) for model in (ours, half)}
    assert half.num_parameters() - tables[half] == pytest.approx(ours.num_parameters() - tables[ours], rel=0.05)


def test_onnx_runtime_is_compared_in_float32_alone(sizes, monkeypatch):
    """With what an export is in tests of its own: it takes seconds."""
    written = {}

    class Formats:
        trace = staticmethod(lambda model, inputs: lambda batch: {**model(**batch)} if inputs else None)
        write = staticmethod(lambda graph, kind, path: written.update({path: graph} if kind == "onnx" else {}))
        Program = staticmethod(lambda path: torch.no_grad()(written[path]))

    monkeypatch.setattr(sentences, "formats", Formats)
    case = Case("inference", torch.float32, False, CPU)
    (group,) = sentences.one_sentence_at_a_time(case, sizes)
    names = [OURS, PEER, HALF_PEER]
    assert [each.name for each in group.candidates] == [f"{name}{end}" for name in names for end in ("", ONNX)]
    assert set(check_agreement(group.candidates, 1e-4)) == {f"{name}{ONNX}" for name in names}
    assert {candidate.items for candidate in group.candidates} == {4}
    (group,) = sentences.one_sentence_at_a_time(replace(case, dtype=torch.bfloat16), sizes)
    assert [each.name for each in group.candidates] == names


def test_all_sentences_are_encoded_with_one_thread_and_with_all(sizes, monkeypatch):
    pytest.importorskip("sentence_transformers")
    threads = torch.get_num_threads()
    monkeypatch.setattr(sentences.torch, "get_num_threads", lambda: 2)
    set_to = []
    monkeypatch.setattr(sentences.torch, "set_num_threads", set_to.append)
    groups = []
    for group in sentences.sentence_embeddings(Case("inference", torch.float32, False, CPU), sizes):
        groups.append((group.name, set_to[-1], os.environ["TOKENIZERS_PARALLELISM"]))
        assert [candidate.name for candidate in group.candidates] == [OURS, PEER, HALF_PEER]
        for candidate in group.candidates:
            vectors = candidate.call()
            assert vectors.shape == (4, 384) and vectors.isfinite().all()
            assert candidate.floor.flops > 0
    assert groups == [("4 sentences, 1 thread", 1, "false"), ("4 sentences, all threads", 2, "true")]
    monkeypatch.undo()
    assert torch.get_num_threads() == threads


def test_finetuning_counts_rows(sizes):
    (group,) = sentences.finetuning(Case("training", torch.float32, False, CPU), sizes)
    assert [candidate.items for candidate in group.candidates] == [4, 4, 4]
    for candidate in group.candidates:
        assert candidate.floor.flops > 0
        candidate.call()
