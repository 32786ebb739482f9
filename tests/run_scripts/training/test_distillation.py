"""Distillation losses: against their formulas, and steps that do not depend on accumulation."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification

import tokenmixers
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.image_augmentation import classification_loss
from tokenmixers.run_scripts.training.distillation import (
    AnswerDistillation,
    Distillation,
    DistillationArguments,
    ImageDistillationArguments,
    TokenDistillation,
    hard_losses,
    soft_losses,
)
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


train_one_step = runpy.run_path(str(Path(__file__).parents[2] / "one_training_step.py"))["train_one_step"]
ALPHA, TEMPERATURE = 0.3, 2.5
VOCABULARY, LENGTH, ROWS = 37, 6, 8


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_soft_losses_are_the_formula(temperature):
    student, teacher = torch.randn(2, 5, 7, dtype=torch.float64) * 3
    for row, found in enumerate(soft_losses(student, teacher, temperature)):
        weights = [[math.exp(value / temperature) for value in logits[row].tolist()] for logits in (student, teacher)]
        q, p = ([w / sum(ws) for w in ws] for ws in weights)
        divergence = sum(pi * (math.log(pi) - math.log(qi)) for pi, qi in zip(p, q, strict=True))
        assert found.item() == pytest.approx(temperature**2 * divergence, rel=1e-9)


def test_hard_losses_are_the_formula():
    student, teacher = torch.randn(2, 5, 7)
    expected = [-student[row].softmax(0)[teacher[row].argmax()].log() for row in range(5)]
    torch.testing.assert_close(hard_losses(student, teacher), torch.stack(expected))


# --- steps -------------------------------------------------------------------------------------------------------


def divergence(student, teacher, temperature=TEMPERATURE):
    """Of each row, written out: sum p (log p - log q), times the temperature squared."""
    q, p = (torch.log_softmax(logits / temperature, dim=-1) for logits in (student, teacher))
    return temperature**2 * torch.einsum("...c,...c->...", p.exp(), p - q)


def bert(model_class, **sizes):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1, **sizes}
    return model_class(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes)).eval()


@pytest.fixture
def pair(tiny_config, randomise):
    """`pair(name, **changes)`: a student of ours without dropout, and a teacher: a BERT, or a second one of ours."""

    def build(name, **changes):
        family = tokenmixers.SynthesizerConfig if name.startswith("Synthesizer") else tokenmixers.GMLPConfig
        config = tiny_config(family, hidden_dropout_prob=0.0, vocab_size=VOCABULARY, **changes)
        model_class = getattr(tokenmixers, name)
        student, other = (randomise(model_class(config)) for _ in range(2))
        of_transformers = {
            "GMLPForMaskedLM": BertForMaskedLM,
            "GMLPForQuestionAnswering": BertForQuestionAnswering,
            "GMLPForSequenceClassification": BertForSequenceClassification,
        }
        if name in of_transformers:
            other = randomise(bert(of_transformers[name], num_labels=config.num_labels))
        return student, other.eval().requires_grad_(False)

    return build


def text_rows(**columns):
    """Rows with padding at the end of some; `columns` are tensors with an entry for each row."""
    lengths = [6, 4, 6, 3, 5, 6, 6, 2]
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    batch = {"input_ids": torch.randint(2, VOCABULARY, (ROWS, LENGTH)) * mask, "attention_mask": mask, **columns}
    return batch, [{name: tensor[row] for name, tensor in batch.items()} for row in range(ROWS)]


def masked_labels(mask):
    """A different number of labels in each row, none in one."""
    labels = torch.randint(2, VOCABULARY, (ROWS, LENGTH))
    kept = (torch.arange(LENGTH) % 3 != torch.arange(ROWS)[:, None] % 3) & mask.bool()
    kept[2] = False
    return labels.where(kept, -100)


def mlm_case(pair):
    student, teacher = pair("GMLPForMaskedLM", sparse_prediction=True)
    batch, _ = text_rows()
    labels = masked_labels(batch["attention_mask"])
    batch["labels"] = labels

    def expected():
        logits = [
            model.eval()(**{k: v for k, v in batch.items() if k != "labels"}).logits for model in (student, teacher)
        ]
        task = torch.nn.functional.cross_entropy(logits[0].flatten(0, 1), labels.flatten())
        return task, divergence(*logits)[labels != -100].mean()

    return student, teacher, TokenDistillation, batch, expected, {}


def seq2seq_case(pair):
    sizes = {"num_attention_heads": 2, "head_dim": 4, "is_encoder_decoder": True, "decoder_start_token_id": 0}
    sizes |= {"pad_token_id": 0, "attention_dropout": 0.0}
    student, teacher = pair("SynthesizerForConditionalGeneration", **sizes)
    batch, _ = text_rows()
    batch["labels"] = labels = masked_labels(torch.ones(ROWS, LENGTH))

    def expected():
        outputs = [model.eval()(**batch) for model in (student, teacher)]
        return outputs[0].loss, divergence(*(out.logits for out in outputs))[labels != -100].mean()

    return student, teacher, TokenDistillation, batch, expected, {}


def answer_case(pair):
    student, teacher = pair("GMLPForQuestionAnswering")
    batch, _ = text_rows(
        start_positions=torch.tensor([0, 1, 2, 5, 4, 7, 3, 1]), end_positions=torch.tensor([0, 3, 9, 6, 5, 9, 3, 1])
    )

    def expected():
        answers = [model.eval()(**batch) for model in (student, teacher)]
        total = 0.0
        for kind in ("start", "end"):
            losses = []
            for row, tokens in enumerate(batch["attention_mask"].sum(1)):
                if batch[f"{kind}_positions"][row] < LENGTH:
                    losses.append(divergence(*(out[f"{kind}_logits"][row, :tokens] for out in answers)))
            total = total + torch.stack(losses).mean() / 2
        return answers[0].loss, total

    return student, teacher, AnswerDistillation, batch, expected, {}


def class_case(pair):
    student, teacher = pair("GMLPForSequenceClassification", num_labels=3)
    batch, _ = text_rows(labels=torch.tensor([0, 2, 1, 1, -100, 0, 2, 2]))

    def expected():
        outputs = [model.eval()(**batch) for model in (student, teacher)]
        losses = divergence(*(out.logits for out in outputs))
        return outputs[0].loss, losses[batch["labels"] != -100].mean()

    return student, teacher, Distillation, batch, expected, {}


def regression_case(pair):
    student, teacher = pair("GMLPForSequenceClassification", num_labels=1)
    batch, _ = text_rows(labels=torch.randn(ROWS))

    def expected():
        outputs = [model.eval()(**batch) for model in (student, teacher)]
        return outputs[0].loss, (outputs[0].logits - outputs[1].logits).square().mean()

    return student, teacher, Distillation, batch, expected, {"regression": True}


def image_case(pair, kind):
    sizes = {"image_size": 8, "patch_size": 4, "num_labels": 3}
    student, teacher = pair("GMLPForImageClassification", **sizes)
    batch = {"pixel_values": torch.randn(ROWS, 3, 8, 8), "labels": torch.randn(ROWS, 3).softmax(1)}

    def expected():
        logits = [model.eval()(batch["pixel_values"]).logits for model in (student, teacher)]
        task = -(batch["labels"] * logits[0].log_softmax(1)).sum(1).mean()
        if kind == "soft":
            return task, divergence(*logits).mean()
        return task, torch.stack([-q.log_softmax(0)[p.argmax()] for q, p in zip(*logits, strict=True)]).mean()

    arguments = ImageDistillationArguments("x", ALPHA, TEMPERATURE if kind == "soft" else None, distillation_type=kind)
    return student, teacher, Distillation, batch, expected, {"arguments": arguments}


CASES = {
    "masked language model": mlm_case,
    "encoder-decoder": seq2seq_case,
    "answers": answer_case,
    "classes": class_case,
    "scores": regression_case,
    "images, soft": lambda pair: image_case(pair, "soft"),
    "images, hard": lambda pair: image_case(pair, "hard"),
}


@pytest.mark.parametrize("batch_size", [3, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_written_out_loss(case, batch_size, pair, tmp_path):
    """However the rows are divided into batches, whatever the number of labels and the padding in each."""
    student, teacher, kind, batch, expected, options = CASES[case](pair)
    arguments = options.pop("arguments", DistillationArguments("x", ALPHA, TEMPERATURE))
    task, distilled = expected()
    loss = (1 - ALPHA) * task + ALPHA * distilled
    gradients = torch.autograd.grad(loss, list(student.parameters()), allow_unused=True, materialize_grads=True)
    rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(ROWS)]
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}

    def build(**settings):
        if case.startswith("images"):
            settings["compute_loss_func"] = classification_loss
        trainer = ScriptTrainer(**settings)
        trainer.distillation = kind(teacher, student, arguments, **options)
        return trainer

    sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": -(-ROWS // batch_size)}
    found, reported = train_one_step(student, rows, tmp_path, build, **sizes)
    torch.testing.assert_close(list(found.values()), list(gradients), rtol=1e-4, atol=4e-6)
    assert reported == pytest.approx(loss.item(), rel=1e-4)
    assert not teacher.training
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_without_labels_changes_nothing(smoothing, pair, tmp_path):
    student, teacher, kind, batch, *_ = mlm_case(pair)
    rows = [{"input_ids": row, "labels": torch.full((LENGTH,), -100)} for row in batch["input_ids"]]

    def build(**settings):
        trainer = ScriptTrainer(**settings)
        trainer.distillation = kind(teacher, student, DistillationArguments("x"))
        return trainer

    options = {"label_smoothing_factor": smoothing, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    found, reported = train_one_step(student, rows, tmp_path, build, **options)
    assert reported == 0
    assert not any(change.any() for change in found.values())


def test_label_smoothing_belongs_to_the_labels_alone(pair, tmp_path):
    """The distillation loss is the same, where the model computes no loss and returns all logits."""
    student, teacher, kind, batch, expected, _ = mlm_case(pair)
    labels = batch["labels"]
    logits = student.eval()(batch["input_ids"], batch["attention_mask"]).logits[labels != -100]
    q = logits.log_softmax(1)
    task = -(0.9 * q.gather(1, labels[labels != -100][:, None])[:, 0] + 0.1 * q.mean(1)).mean()
    loss = (1 - ALPHA) * task + ALPHA * expected()[1]
    rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(ROWS)]

    def build(**settings):
        trainer = ScriptTrainer(**settings)
        trainer.distillation = kind(teacher, student, DistillationArguments("x", ALPHA, TEMPERATURE))
        return trainer

    options = {"label_smoothing_factor": 0.1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    _, reported = train_one_step(student, rows, tmp_path, build, **options)
    assert reported == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluation_is_the_loss_of_the_labels(precision, pair, tmp_path):
    student, teacher, kind, batch, expected, _ = mlm_case(pair)
    task, _ = expected()
    rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(ROWS)]
    settings = tokenmixers.run_scripts.base.training_arguments.ScriptTrainingArguments(
        str(tmp_path), use_cpu=True, precision=precision, per_device_eval_batch_size=8, report_to="none"
    )
    trainer = ScriptTrainer(model=student, args=settings, train_dataset=rows, eval_dataset=rows)
    trainer.distillation = kind(teacher, student, DistillationArguments("x", 1.0, TEMPERATURE))
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    assert trainer.evaluate()["eval_loss"] == pytest.approx(task.item(), rel=tolerance)
    with trainer.compute_loss_context_manager():  # and a training step in this precision
        loss = trainer.compute_loss(student.train(), dict(batch))
    assert loss.item() == pytest.approx(expected()[1].item(), rel=tolerance)


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distillation_type": "firm"}, "there are soft and hard"),
        ({"teacher": None, "distillation_type": "hard"}, "name a --teacher"),
    ],
)
def test_wrong_arguments_are_one_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        ImageDistillationArguments(**{"teacher": "x", **settings})


def test_settings_for_the_card(tmp_path):
    assert ImageDistillationArguments().in_use() == {}
    local = ImageDistillationArguments(str(tmp_path), distillation_type="hard").in_use()
    assert local == {"teacher": tmp_path.name, "distillation_alpha": 0.5, "distillation_type": "hard"}
    hub = DistillationArguments("me/teacher", 0.9, 3.0).in_use()
    assert hub == {"teacher": "me/teacher", "distillation_alpha": 0.9, "distillation_temperature": 3.0}
