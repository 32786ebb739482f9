"""The Trainer of the scripts: steps that do not depend on accumulation where Transformers' Trainer cannot count."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, TrainingArguments

import tokenmixers
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


STARTS, ENDS = [0, 1, 2, 5, 4, 7, 3, 1], [0, 3, 9, 6, 5, 9, 3, 8]  # in sequences of 6 tokens, some outside


@pytest.fixture
def step(tmp_path):
    """`step(model, rows, batch_size)`: minus the gradient of one step over all rows, and its loss."""

    def train(model, rows, batch_size, **arguments):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        settings = TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            disable_tqdm=True,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=-(-len(rows) // batch_size),
            **arguments,
        )
        loss = ScriptTrainer(model, settings, train_dataset=rows).train().training_loss
        return {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}, loss

    return train


@pytest.mark.parametrize("batch_size", [3, 1])
def test_answers_are_counted(step, tiny_config, randomise, batch_size):
    model = randomise(tokenmixers.GMLPForQuestionAnswering(tiny_config(hidden_dropout_prob=0.0)))
    ids = torch.randint(37, (8, 6))
    loss = model(ids, start_positions=torch.tensor(STARTS), end_positions=torch.tensor(ENDS)).loss
    expected = torch.autograd.grad(loss, list(model.parameters()))
    rows = [
        {"input_ids": row, "start_positions": start, "end_positions": end}
        for row, start, end in zip(ids, STARTS, ENDS, strict=True)
    ]
    found, reported = step(model, rows, batch_size)
    torch.testing.assert_close(list(found.values()), list(expected), rtol=1e-4, atol=2e-6)
    assert reported == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(("kind", "label_smoothing"), [("ours", 0.0), ("ours", 0.1), ("of Transformers", 0.1)])
def test_a_step_without_labels_changes_nothing(step, tiny_config, kind, label_smoothing):
    model = tokenmixers.GMLPForMaskedLM(tiny_config(sparse_prediction=True))
    if kind == "of Transformers":
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
        model = BertForMaskedLM(BertConfig(vocab_size=37, **sizes))
    rows = [{"input_ids": torch.randint(37, (6,)), "labels": torch.full((6,), -100)}] * 4
    found, reported = step(model, rows, 2, label_smoothing_factor=label_smoothing, weight_decay=0.0)
    assert reported == 0
    assert not any(change.any() for change in found.values())
