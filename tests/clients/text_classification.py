"""Transformers' `Trainer` with the arguments that scripts on text classification usually give.

FOLDER has a folder per model, with a checkpoint in `start`. Each is trained whole, and once more from a checkpoint.
"""

import json
import random
import sys
from pathlib import Path

from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)


def dataset(count: int) -> Dataset:
    draw = random.Random(count)
    texts = [
        " ".join(draw.choices(["the", "gate", "token", "or", "norm"], k=draw.randint(1, 12))) for _ in range(count)
    ]
    return Dataset.from_dict({"text": texts, "label": [int("gate" in text) for text in texts]})


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer_of(source: Path, output: Path) -> Trainer:
    set_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True)
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(
        source, trust_remote_code=True, hidden_dropout_prob=0.1, **labels
    )
    train, held_out = (
        dataset(count).map(lambda batch: tokenizer(batch["text"], truncation=True), batched=True) for count in (48, 20)
    )
    arguments = TrainingArguments(
        str(output),
        max_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        activation_checkpointing=True,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        weight_decay=0.01,
        max_grad_norm=1.0,
        label_smoothing_factor=0.1,
        neftune_noise_alpha=1.0,
        train_sampling_strategy="group_by_length",
        dataloader_num_workers=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        save_total_limit=3,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=1,
        include_num_input_tokens_seen="non_padding",
        seed=1,
        data_seed=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=9)],
    )


accuracies = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    for name, checkpoint in (("whole", None), ("resumed", str(folder / "whole" / "checkpoint-2"))):
        trainer = trainer_of(folder / "start", folder / name)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
    classify, held_out = pipeline("text-classification", str(folder / "whole"), trust_remote_code=True), dataset(20)
    answers = classify(list(held_out["text"]), batch_size=3, truncation=True)
    right = [answer["label"] == ["no", "yes"][label] for answer, label in zip(answers, held_out["label"], strict=True)]
    accuracies[folder.name] = [trainer.evaluate()["eval_accuracy"], sum(right) / len(right)]
print(json.dumps(accuracies))
