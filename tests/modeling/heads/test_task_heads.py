import functools
import inspect
import re

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.modeling.heads.pooling import pool


WEIGHT_TYPES = pytest.mark.parametrize("weight_type", ["toeplitz", "full"])
POOLINGS = pytest.mark.parametrize("pooling", ["cls", "mean", "normalized_mean"])
TOKEN_HEADS = ["GMLPForMaskedLM", "GMLPForTokenClassification", "GMLPForQuestionAnswering"]
SEQUENCE_HEADS = ["GMLPForSequenceClassification", "GMLPForMultipleChoice"]


@pytest.fixture(scope="module")
def build(tiny_model):
    return functools.cache(functools.partial(tiny_model, num_labels=3))


def _logits(model, outputs):
    if "QuestionAnswering" in type(model).__name__:
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    return outputs.logits


def _head(model):
    (head,) = (getattr(model, name) for name in ("lm_head", "classifier", "qa_outputs") if hasattr(model, name))
    return head.weight, head.bias


def _pooled(tokens, pooling):
    if pooling == "cls":
        return tokens[0]
    mean = sum(tokens) / len(tokens)
    return mean if pooling == "mean" else mean / (mean**2).mean().sqrt()


# --- logits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_name", TOKEN_HEADS)
def test_token_heads_are_a_linear_map_of_every_token(class_name, build):
    model = build(class_name).float()
    input_ids = torch.randint(37, (2, 5))
    weight, bias = _head(model)
    expected = torch.einsum("btd,kd->btk", model.model(input_ids).last_hidden_state, weight) + bias
    torch.testing.assert_close(_logits(model, model(input_ids)), expected)


@POOLINGS
@given(data=st.data())
def test_pooling_reads_real_tokens_alone(pooling, pad, padded_layouts, data):
    lengths, padded, offsets = data.draw(padded_layouts())
    _, mask = pad([torch.zeros(length, dtype=torch.long) for length in lengths], padded, offsets)
    states = torch.randn(*mask.shape, 3)
    expected = []
    for row, length, offset in zip(states, lengths, offsets, strict=True):
        expected.append(_pooled(row[offset : offset + length], pooling))
    torch.testing.assert_close(pool(states, mask, pooling), torch.stack(expected))


@POOLINGS
def test_pooling_without_a_mask_reads_every_token(pooling):
    states = torch.randn(2, 5, 3)
    expected = torch.stack([_pooled(row, pooling) for row in states])
    torch.testing.assert_close(pool(states, None, pooling), expected)


@POOLINGS
def test_pooling_padding_alone_is_finite(pooling):
    for dtype in (torch.float32, torch.float16):
        assert pool(torch.randn(1, 4, 3, dtype=dtype), torch.zeros(1, 4), pooling).isfinite().all()


@POOLINGS
def test_sequence_classification_is_a_linear_map_of_the_pooled_output(pooling, build):
    model = build("GMLPForSequenceClassification", classifier_pooling=pooling).float()
    input_ids, mask = torch.randint(37, (2, 5)), torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    states = model.model(input_ids, mask).last_hidden_state
    tokens = [states[0, :3], states[1, 1:]]
    pooled = torch.stack([_pooled(row, pooling) for row in tokens])
    torch.testing.assert_close(
        model(input_ids, mask).logits, pooled @ model.classifier.weight.T + model.classifier.bias
    )


@POOLINGS
def test_multiple_choice_scores_each_choice_as_a_sequence_of_its_own(pooling, build):
    model = build("GMLPForMultipleChoice", classifier_pooling=pooling, type_vocab_size=2).float()
    input_ids, segments = torch.randint(37, (2, 3, 5)), torch.randint(2, (2, 3, 5))
    mask = (torch.arange(5) < torch.tensor([[5, 3, 4], [2, 5, 1]])[:, :, None]).long()
    logits = model(input_ids, mask, segments).logits
    assert logits.shape == (2, 3)
    for row in range(2):
        for choice in range(3):
            one = (tensor[row, choice][None] for tensor in (input_ids, mask, segments))
            kept = int(mask[row, choice].sum())
            states = model.model(*one).last_hidden_state[0, :kept]
            expected = model.classifier.weight[0] @ _pooled(states, pooling) + model.classifier.bias[0]
            torch.testing.assert_close(logits[row, choice], expected)


# --- padding -----------------------------------------------------------------------------------------------------


@pytest.mark.fast_cases
@WEIGHT_TYPES
@POOLINGS
@pytest.mark.parametrize(
    "class_name",
    [
        "GMLPForMaskedLM",
        "GMLPForTokenClassification",
        "GMLPForSequenceClassification",
        "GMLPForMultipleChoice",
        "GMLPForQuestionAnswering",
    ],
)
@given(data=st.data())
def test_losses_and_their_gradients_do_not_depend_on_padding(
    weight_type, pooling, class_name, build, pad, padded_layouts, data
):
    model = build(class_name, spatial_weight_type=weight_type, classifier_pooling=pooling).double()
    lengths, padded, offsets = data.draw(padded_layouts())
    sentences = [torch.randint(37, (length,)) for length in lengths]
    input_ids, mask = pad(sentences, padded, offsets)
    choices = "MultipleChoice" in class_name
    together, alone = {"input_ids": input_ids, "attention_mask": mask}, []
    if class_name == "GMLPForQuestionAnswering":
        spans = torch.tensor([sorted(torch.randint(length, (2,)).tolist()) for length in lengths])
        shifted = spans + torch.tensor(offsets)[:, None]
        together |= {"start_positions": shifted[:, 0], "end_positions": shifted[:, 1]}
        alone = [{"start_positions": span[:1], "end_positions": span[1:]} for span in spans]
    elif class_name in TOKEN_HEADS:
        labels = torch.where(mask.bool(), torch.randint(3, mask.shape), -100)
        together["labels"] = labels
        alone = [{"labels": row[row != -100][None]} for row in labels]
    else:
        together["labels"] = torch.randint(3, (len(lengths),))
        alone = [{"labels": label[None]} for label in together["labels"]]
    if choices:  # three choices, of which two are the first sentence
        together = {name: tensor[:, None].repeat_interleave(3, 1) for name, tensor in together.items()}
        together["labels"] = together["labels"][:, 0]
        together["input_ids"][:, 1] = together["input_ids"][:, 1].roll(1, 0)
        together["attention_mask"][:, 1] = together["attention_mask"][:, 1].roll(1, 0)

    def gradients(loss):
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return [torch.zeros(()) if gradient is None else gradient for gradient in found]

    loss = model(**together).loss
    if choices:
        scores = torch.cat([model(input_ids=sentence[None, None]).logits[0] for sentence in sentences])
        scores = torch.stack([scores, scores.roll(1), scores], dim=1)
        expected = F.cross_entropy(scores, together["labels"])
    else:
        losses = [model(input_ids=row[None], **labels).loss for row, labels in zip(sentences, alone, strict=True)]
        shares = lengths if class_name in ("GMLPForMaskedLM", "GMLPForTokenClassification") else [1] * len(lengths)
        expected = sum(one * share for one, share in zip(losses, shares, strict=True)) / sum(shares)
    torch.testing.assert_close(loss, expected)
    for (name, _), ours, theirs in zip(model.named_parameters(), gradients(loss), gradients(expected), strict=True):
        # Transformers computes losses in float32
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@WEIGHT_TYPES
def test_choices_of_padding_alone_do_no_harm(weight_type, build):
    """Questions with differing numbers of choices are filled up with empty ones."""
    model = build("GMLPForMultipleChoice", spatial_weight_type=weight_type).float()
    input_ids, mask = torch.randint(37, (1, 3, 5)), torch.tensor([[[1] * 5, [1] * 4 + [0], [0] * 5]])
    outputs = model(input_ids, mask, labels=torch.tensor([1]))
    assert outputs.loss.isfinite()
    assert outputs.logits.isfinite().all()
    torch.testing.assert_close(outputs.logits[:, :2], model(input_ids[:, :2], mask[:, :2]).logits)


# --- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_name", ["GMLPForMaskedLM", "GMLPForTokenClassification"])
def test_token_losses_are_the_mean_over_labelled_tokens(class_name, build):
    model = build(class_name).float()
    input_ids = torch.randint(37, (2, 5))
    labels = torch.tensor([[1, -100, 2, -100, -100], [0, 1, -100, 2, 2]])
    outputs = model(input_ids, labels=labels)
    log_probabilities = outputs.logits.log_softmax(-1)
    losses = [-log_probabilities[i, j, labels[i, j]] for i in range(2) for j in range(5) if labels[i, j] != -100]
    torch.testing.assert_close(outputs.loss, sum(losses) / 6)
    # What Trainer passes: the number of labelled tokens over all devices and accumulation steps.
    torch.testing.assert_close(
        model(input_ids, labels=labels, num_items_in_batch=torch.tensor(24)).loss, sum(losses) / 24
    )


class OwnMaskedLM(tokenmixers.GMLPForMaskedLM):
    """A user's class, from whose name Transformers would choose another loss."""


class OwnTagger(tokenmixers.GMLPForTokenClassification):
    """The same."""


@pytest.mark.parametrize("own_class", [OwnMaskedLM, OwnTagger])
def test_a_users_class_has_the_loss_of_its_base_class(own_class, build):
    model = build(own_class.__base__.__name__).float()
    own = own_class(model.config).eval()
    own.load_state_dict(model.state_dict())
    inputs = {"input_ids": torch.randint(37, (2, 5)), "labels": torch.randint(3, (2, 5))}
    assert own(**inputs).loss == model(**inputs).loss


@pytest.mark.parametrize(("sparse", "training"), [(False, False), (False, True), (True, True)])
def test_another_ignored_label(sparse, training, tiny_config, randomise):
    config = tiny_config(sparse_prediction=sparse, hidden_dropout_prob=0.0)
    model = randomise(tokenmixers.GMLPForMaskedLM(config)).train(training)
    ids, labels = torch.randint(37, (2, 6)), torch.tensor([[0, 3, 0, 0, 9, 1], [0, 0, 0, 7, 0, 0]])
    expected = F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten(), ignore_index=0)
    torch.testing.assert_close(model(ids, labels=labels, ignore_index=0).loss, expected)


@pytest.mark.parametrize("class_name", [*TOKEN_HEADS, *SEQUENCE_HEADS])
def test_tuples_by_configuration(class_name, build):
    model = build(class_name).float()
    ids = torch.randint(37, (2, 3, 5) if "Choice" in class_name else (2, 5))
    expected = model(ids).to_tuple()
    model.config.return_dict = False
    try:
        found = model(ids)
    finally:
        model.config.return_dict = True
    assert type(found) is tuple
    torch.testing.assert_close(found, expected)


def test_an_answer_head_may_be_on_another_device_than_the_mask(tiny_config):
    model = tokenmixers.GMLPForQuestionAnswering(tiny_config()).eval()
    model.qa_outputs.to("meta")
    model.qa_outputs.register_forward_pre_hook(lambda module, args: (args[0].to("meta"),))
    ids = torch.randint(37, (2, 5))
    assert model(ids, torch.ones_like(ids)).start_logits.is_meta


def test_question_answering_loss_is_the_mean_of_start_and_end(build):
    model = build("GMLPForQuestionAnswering").float()
    input_ids, start, end = torch.randint(37, (3, 5)), torch.tensor([1, 0, 2]), torch.tensor([3, 0, 99])
    outputs = model(input_ids, start_positions=start, end_positions=end)
    starts = outputs.start_logits.log_softmax(-1)
    ends = outputs.end_logits.log_softmax(-1)
    # The last answer ends past the sequence: its end is left out.
    expected = -(starts[0, 1] + starts[1, 0] + starts[2, 2]) / 3 / 2 - (ends[0, 3] + ends[1, 0]) / 2 / 2
    torch.testing.assert_close(outputs.loss, expected)
    assert model(input_ids, start_positions=start).loss is None


def test_question_answering_loss_is_finite_when_every_answer_was_cut_off(build):
    model = build("GMLPForQuestionAnswering").float()
    past_the_end = torch.tensor([5])
    assert model(torch.randint(37, (1, 5)), start_positions=past_the_end, end_positions=past_the_end).loss.isfinite()


def test_multiple_choice_loss(build):
    model = build("GMLPForMultipleChoice").float()
    outputs = model(torch.randint(37, (2, 4, 5)), labels=torch.tensor([3, 1]))
    probabilities = outputs.logits.exp() / outputs.logits.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(outputs.loss, -(probabilities[0, 3] * probabilities[1, 1]).log() / 2)


@pytest.mark.parametrize(
    "class_name", ["GMLPForSequenceClassification", "GMLPForTokenClassification", "GMLPForMultipleChoice"]
)
def test_classifier_dropout(class_name, tiny_config):
    model_class = getattr(tokenmixers, class_name)
    assert model_class(tiny_config(hidden_dropout_prob=0.25)).dropout.p == 0.25
    assert model_class(tiny_config(hidden_dropout_prob=0.25, classifier_dropout=0.0)).dropout.p == 0.0
    assert model_class(tiny_config(classifier_dropout=0.5)).dropout.p == 0.5


def test_every_head_is_tested_here():
    from tokenmixers.configuration.auto_classes import FAMILIES

    tested_elsewhere = {"GMLPModel", "GMLPForImageClassification", "GMLPBackbone", "GMLPForCausalLM"}
    heads = set(FAMILIES["gmlp"].models.values()) - tested_elsewhere
    assert heads == {*TOKEN_HEADS, *SEQUENCE_HEADS}


@pytest.mark.parametrize("num_items_in_batch", [None, 7])
def test_sparse_prediction_changes_neither_loss_nor_gradient(tiny_config, randomise, num_items_in_batch):
    labels = torch.where(torch.rand(3, 8) < 0.4, torch.randint(37, (3, 8)), -100)
    inputs = {"input_ids": torch.randint(37, (3, 8)), "labels": labels, "num_items_in_batch": num_items_in_batch}
    found = {}
    for sparse in (False, True):
        model = randomise(tokenmixers.GMLPForMaskedLM(tiny_config(sparse_prediction=sparse))).double().train()
        outputs = model(**inputs)
        outputs.loss.backward()
        found[sparse] = outputs.loss, {name: weight.grad for name, weight in model.named_parameters()}
        assert (outputs.logits is None) == sparse
        assert model(inputs["input_ids"]).logits.shape == (3, 8, 37)
        assert model.eval()(**inputs).logits.shape == (3, 8, 37)
    torch.testing.assert_close(found[True], found[False])


@pytest.mark.slow
@torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)
def test_sparse_prediction_compiles(tiny_config, randomise):
    """Whatever the number of tokens to predict, with a break of the graph before them."""
    config = tiny_config(sparse_prediction=True, hidden_dropout_prob=0.0)
    model = randomise(tokenmixers.GMLPForMaskedLM(config)).double().train()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for count in (5, 1, 16, 9):
        ids, labels = torch.randint(37, (2, 8)), torch.full((16,), -100)
        labels[torch.randperm(16)[:count]] = torch.randint(37, (count,))
        losses = [run(ids, labels=labels.view(2, 8)).loss for run in (compiled, model)]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses))


# --- documentation -----------------------------------------------------------------------------------------------

LABELS = {
    "MaskedLM": ["masked language modeling", "vocab_size", "(batch_size, sequence_length)"],
    "CausalLM": ["shifted by one", "(batch_size, sequence_length)"],
    "SequenceClassification": ["num_labels", "mean squared error", "(batch_size,)"],
    "TokenClassification": ["[0, num_labels)", "(batch_size, sequence_length)"],
    "MultipleChoice": ["[0, num_choices)", "(batch_size,)"],
    "QuestionAnswering": ["start", "(batch_size,)"],
    "ImageClassification": ["num_labels", "(batch_size,)"],
    "ConditionalGeneration": ["one per decoder token", "(batch_size, target_sequence_length)"],
}
HEADS = sorted({name for family in FAMILIES.values() for name in family.models.values() if "For" in name})


@pytest.mark.parametrize("class_name", HEADS)
def test_help_describes_the_labels_of_the_head(class_name):
    kind = class_name.partition("For")[2]
    text = inspect.getdoc(getattr(tokenmixers, class_name).forward)
    argument = "start_positions" if kind == "QuestionAnswering" else "labels"
    entries = re.findall(rf"^ *{argument} \(.*\n(?: .*\n)*?(?=^ *[\w*]+ \(|^ *$)", text, re.MULTILINE)
    assert len(entries) == 1
    for words in LABELS[kind]:
        assert words in entries[0]
    if kind not in ("MaskedLM", "ImageClassification"):
        assert "masked language modeling" not in text
