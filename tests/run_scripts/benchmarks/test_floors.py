import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from tokenmixers import AMLPConfig, AMLPModel, GMLPConfig, GMLPForMaskedLM, SynthesizerConfig, SynthesizerModel
from tokenmixers.run_scripts.benchmarks.floors import Floor
from tokenmixers.run_scripts.benchmarks.timing import Case, count_flops, model_candidate


CPU = torch.device("cpu")
SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


def floor_of(model, inputs, mode="inference"):
    return model_candidate("model", model, inputs, Case(mode, torch.float32, False, CPU)).floor


@pytest.mark.parametrize(
    "model",
    [
        GMLPForMaskedLM(GMLPConfig(**SIZES, max_position_embeddings=8)),
        AMLPModel(AMLPConfig(**SIZES)),
        SynthesizerModel(SynthesizerConfig(**SIZES)),
        BertModel(BertConfig(**SIZES, num_attention_heads=2), add_pooling_layer=False),  # with fused attention
    ],
    ids=lambda model: model.config.model_type,
)
def test_products_are_those_of_the_formula(model):
    inputs = [{"input_ids": torch.randint(1, 50, (2, 8))}]
    floor = floor_of(model, inputs)
    assert floor.flops == count_flops(model, inputs) > 0
    if hasattr(model, "forward_flops"):
        assert floor.flops == model.forward_flops(2, 8)
    with FlopCounterMode(display=False) as counter:
        floor.products()
    if model.config.model_type == "gmlp":  # PyTorch's counter does not know fused attention of CPUs
        assert counter.get_total_flops() == floor.flops
    assert floor.fastest > 0


ROWS, WIDTH, HIDDEN = 5, 8, 32


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))


def test_inference_by_hand():
    floor = floor_of(perceptron(), [{"input": torch.randn(ROWS, WIDTH)}])
    # The input and what GELU returns are read, two results are written; weights are read by the products alone.
    assert floor.tensors == {4 * ROWS * WIDTH: 2, 4 * ROWS * HIDDEN: 2}
    assert floor.bytes == 4 * 2 * (ROWS * WIDTH + ROWS * HIDDEN)
    assert floor.flops == 2 * 2 * ROWS * WIDTH * HIDDEN


def test_training_by_hand():
    floor = floor_of(perceptron(), [{"input": torch.randn(ROWS, WIDTH)}], "training")
    # Also: the gradients of the output, of GELU's result and of its input, and of both matrices.
    assert floor.tensors == {4 * ROWS * WIDTH: 3, 4 * ROWS * HIDDEN: 4, 4 * WIDTH * HIDDEN: 2}
    assert floor.flops == 5 * 2 * ROWS * WIDTH * HIDDEN  # the input needs no gradient


def test_memory_that_is_used_again_counts_again():
    weight = nn.Linear(64, 64, bias=False)
    with torch.no_grad(), Floor(weight, CPU) as floor:
        for _ in range(10):  # each result is freed, and its memory given to the next
            weight(torch.ones(64, 64))
    assert floor.tensors == {4 * 64 * 64: 20}


def test_views_of_one_result_count_once():
    weight = nn.Linear(8, 24, bias=False)
    with torch.no_grad(), Floor(weight, CPU) as floor:
        query, key, _ = weight(torch.ones(4, 8)).chunk(3, dim=-1)
        query @ key.T
    assert floor.tensors == {4 * 4 * 8: 1, 4 * 4 * 24: 1, 4 * 4 * 4: 1}


def test_recording_leaves_no_gradients_and_no_graph():
    model = perceptron()
    floor = floor_of(model, [{"input": torch.randn(ROWS, WIDTH)}], "training")
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(tensor.grad_fn is None for tensor in floor.kept.values())
