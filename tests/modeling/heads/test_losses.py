"""Losses of every head of every family: of split batches, of labels to ignore, and without any label."""

import functools

import pytest
import torch
from torch.nn import functional as F
from transformers.loss.loss_utils import ForQuestionAnsweringLoss, ForSequenceClassificationLoss

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.modeling.heads.losses import (
    answer_loss,
    classification_loss,
    label_cross_entropy,
    loss_divisor,
    position_labels,
)


HEADS = sorted({name for family in FAMILIES.values() for name in family.models.values() if "For" in name})
PER_TOKEN = ("ForMaskedLM", "ForCausalLM", "ForTokenClassification", "ForConditionalGeneration")
ROWS, LENGTH = 7, 6
SPLITS = [[3, 3, 1], [1, 4, 2]]  # rows of each part: uneven
LABELLED = [1, 6, 2, 0, 3, 5, 4]  # labelled tokens of each row


@pytest.fixture
def build(tiny_model):
    return lambda name, **changes: tiny_model(name, num_labels=3, **changes).double()


@functools.cache
def batch_of(name):
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, 3, LENGTH) if "MultipleChoice" in name else (ROWS, LENGTH)
    batch = {"input_ids": torch.randint(37, shape, generator=generator)}
    if "Image" in name:
        batch = {"pixel_values": torch.randn(ROWS, 3, 8, 8, generator=generator).double()}
    if "QuestionAnswering" in name:  # of one answer the end is outside, of one both
        batch["start_positions"] = torch.tensor([0, 1, 2, 5, 4, 7, -100])
        batch["end_positions"] = torch.tensor([0, 3, 2, 6, 5, 9, -100])
    elif name.endswith(PER_TOKEN):
        labels = torch.randint(3, shape, generator=generator)
        batch["labels"] = torch.where(torch.arange(LENGTH) < torch.tensor(LABELLED)[:, None], labels, -100)
    else:
        batch["labels"] = torch.tensor([0, 2, -100, 1, -100, -100, 2])
    return batch


def number_of_items(name, batch):
    """What counts in a batch, as the Trainers of Transformers and of the scripts count it."""
    if "QuestionAnswering" in name:
        counts = [(batch[key] >= 0) & (batch[key] < LENGTH) for key in ("start_positions", "end_positions")]
        return torch.stack(counts).sum(1)
    labels = batch["labels"][:, 1:] if "CausalLM" in name else batch["labels"]
    return (labels != -100).sum()


def gradients(model, loss):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def assert_parts_add_up(model, batch, items, split):
    whole, parts = model(**batch).loss, 0.0
    for start, rows in zip([0, *torch.tensor(split).cumsum(0)[:-1]], split, strict=True):
        part = {name: tensor[start : start + rows] for name, tensor in batch.items()}
        parts = parts + model(**part, num_items_in_batch=items).loss
    torch.testing.assert_close(parts, whole)
    expected = gradients(model, whole)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected)
    torch.testing.assert_close(gradients(model, parts), expected, rtol=1e-5, atol=1e-6)  # some losses are in float32


@pytest.mark.fast_cases
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_parts_of_a_batch_add_up_to_the_whole(name, split, build):
    batch = batch_of(name)
    assert_parts_add_up(build(name), batch, number_of_items(name, batch), split)


@pytest.mark.fast_cases
@pytest.mark.parametrize("name", [name for name in HEADS if "SequenceClass" in name or "ImageClass" in name])
@pytest.mark.parametrize("kind", ["regression", "multi_label_classification", "soft labels"])
def test_parts_add_up_for_numbers_several_labels_and_soft_labels(name, kind, build):
    model = build(name, problem_type="single_label_classification" if kind == "soft labels" else kind)
    labels = torch.rand(ROWS, 3).double()
    if kind == "soft labels":
        labels /= labels.sum(1, keepdim=True)
    if kind == "multi_label_classification":
        labels = labels.round()
        labels[[0, 2, 2, 2, 5], [1, 0, 1, 2, 0]] = -100
    batch = {**batch_of(name), "labels": labels}
    assert_parts_add_up(model, batch, (labels != -100).sum(), SPLITS[0])


@pytest.mark.fast_cases
@pytest.mark.parametrize("items", [None, 0, torch.tensor(0), torch.tensor(5)], ids=["none", "zero", "tensor", "5"])
@pytest.mark.parametrize("name", HEADS)
def test_a_batch_without_labels_has_loss_zero_and_no_gradient(name, items, build):
    batch = dict(batch_of(name))
    if "QuestionAnswering" in name:
        batch |= dict.fromkeys(("start_positions", "end_positions"), torch.full((ROWS,), LENGTH))
    else:
        batch["labels"] = torch.full_like(batch["labels"], -100)
    for sparse in (False, True) if "MaskedLM" in name else (False,):
        model = build(name, hidden_dropout_prob=0.0, **({"sparse_prediction": True} if sparse else {})).train()
        loss = model(**batch, num_items_in_batch=items).loss
        loss.backward()
        assert loss == 0
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
        assert any(p.grad is not None for p in model.parameters())


def test_several_labels_without_any():
    config = tokenmixers.GMLPConfig(problem_type="multi_label_classification", num_labels=3)
    logits = torch.randn(2, 3, requires_grad=True)
    loss = classification_loss(torch.full((2, 3), -100.0), logits, config)
    loss.backward()
    assert loss == 0 and not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("regression", torch.randn(5, 4)),
        ("regression", torch.randint(9, (5, 4))),
        ("single_label_classification", torch.tensor([0, 3, 1, -100, 2])),
        ("single_label_classification", torch.tensor([[0], [3], [1], [-100], [2]])),
        ("multi_label_classification", torch.rand(5, 4).round()),
        (None, torch.rand(5, 4).round()),
        (None, torch.tensor([0, 3, 1, 1, 2])),
    ],
)
def test_classification_loss_is_that_of_transformers(problem_type, labels, dtype):
    logits = torch.randn(5, 4).to(dtype)
    ours, theirs = (tokenmixers.GMLPConfig(problem_type=problem_type, num_labels=4) for _ in range(2))
    loss = classification_loss(labels, logits, ours)
    labels = labels.float() if labels.shape == logits.shape else labels
    torch.testing.assert_close(loss, ForSequenceClassificationLoss(labels, logits.float(), theirs))
    assert ours.problem_type == theirs.problem_type


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_one_label_is_a_number(shape):
    logits, labels, config = torch.randn(5, 1), torch.randn(shape), tokenmixers.GMLPConfig(num_labels=1)
    expected = (logits.flatten() - labels.flatten()).square().mean()
    torch.testing.assert_close(classification_loss(labels, logits, config), expected)
    assert config.problem_type == "regression"


def test_labels_can_be_integers_of_32_bits():
    logits, labels = torch.randn(4, 3), torch.tensor([2, 0, -100, 1])
    config = tokenmixers.GMLPConfig(num_labels=3)
    assert classification_loss(labels.int(), logits, config) == classification_loss(labels, logits, config)
    assert config.problem_type == "single_label_classification"


def test_multi_label_ignores_single_labels():
    config = tokenmixers.GMLPConfig(problem_type="multi_label_classification", num_labels=2)
    logits, labels = torch.randn(2, 2), torch.tensor([[1, -100], [0, 1]])
    terms = [-F.logsigmoid(logits[0, 0]), -F.logsigmoid(-logits[1, 0]), -F.logsigmoid(logits[1, 1])]
    torch.testing.assert_close(classification_loss(labels, logits, config), sum(terms) / 3)


def test_soft_labels_are_counted_by_element():
    logits, labels = torch.randn(4, 3), torch.rand(4, 3)
    rows = -(labels * logits.log_softmax(1)).sum(1)
    torch.testing.assert_close(label_cross_entropy(logits, labels), rows.mean())
    torch.testing.assert_close(label_cross_entropy(logits, labels, torch.tensor(30)), rows.sum() / 10)
    hard = torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(label_cross_entropy(logits, F.one_hot(hard, 3).float()), F.cross_entropy(logits, hard))


@pytest.mark.parametrize("items", [None, torch.tensor(9)])
def test_answer_loss_is_that_of_transformers(items):
    start, end = torch.randn(2, 4, 5)
    positions = torch.tensor([0, 4, 2, 7]), torch.tensor([1, 5, 4, 9])
    expected = ForQuestionAnsweringLoss(start, end, *positions, num_items_in_batch=items)
    torch.testing.assert_close(answer_loss(start, end, *positions, num_items_in_batch=items), expected)


def test_positions_outside_are_ignored():
    assert position_labels(torch.tensor([[-1], [0], [4], [5], [-100]]), 5).tolist() == [-100, 0, 4, -100, -100]


@pytest.mark.parametrize("count", [4, torch.tensor(4, device="meta")], ids=["number", "tensor"])
def test_the_trainers_count_is_moved_to_the_loss(count):
    """A `device_map` may leave it on another GPU."""
    assert loss_divisor(count, torch.tensor(3), torch.device("meta")).device.type == "meta"
