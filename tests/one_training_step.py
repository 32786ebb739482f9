"""One step of plain gradient descent with a Trainer: minus the gradient of its loss."""

from transformers import Trainer, TrainingArguments


def train_one_step(model, examples, folder, trainer_class=Trainer, **arguments):
    """The weights after one step of plain gradient descent at rate 1, minus those before: minus the gradient."""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    settings = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=1,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **arguments,
    )
    result = trainer_class(model=model, args=settings, train_dataset=examples).train()
    assert result.global_step == 1
    return {name: before[name] - tensor.detach() for name, tensor in model.named_parameters()}, result.training_loss
