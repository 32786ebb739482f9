"""The Trainer of the scripts: steps that do not depend on accumulation where Transformers' Trainer cannot count."""

import runpy
from pathlib import Path

import datasets
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, TrainingArguments

import tokenmixers
from tokenmixers.run_scripts.data.masking import MaskingCollator
from tokenmixers.run_scripts.data.packing import row_encoder, tokenize
from tokenmixers.run_scripts.data.row_seeds import SeededCollator
from tokenmixers.run_scripts.data.span_corruption import DataCollatorForSpanCorruption
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


train_one_step = runpy.run_path(str(Path(__file__).parents[2] / "one_training_step.py"))["train_one_step"]
STARTS, ENDS = [0, 1, 2, 5, 4, 7, 3, 1], [0, 3, 9, 6, 5, 9, 3, 8]  # in sequences of 6 tokens, some outside


@pytest.fixture
def step(tmp_path):
    """`step(model, rows, batch_size)`: minus the gradient of one step over all rows, and its loss."""

    def train(model, rows, batch_size, **arguments):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": -(-len(rows) // batch_size)}
        return train_one_step(model, rows, tmp_path, ScriptTrainer, **sizes, **arguments)

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
    found, reported = step(model, rows, 2, label_smoothing_factor=label_smoothing)
    assert reported == 0
    assert not any(change.any() for change in found.values())


# --- masks -------------------------------------------------------------------------------------------------------

LINES = [f"line {number} has some words{' and more' * (number % 3)}" for number in range(12)]


@pytest.fixture(scope="module")
def tokenizer():
    kind = {"kind": "encoder-decoder"}  # with sentinels
    return tokenmixers.train_unigram_tokenizer(LINES * 4, 160, 32, show_progress=False, **kind)


@pytest.fixture
def rows(tokenizer):
    return tokenize(datasets.Dataset.from_dict({"text": LINES}), row_encoder(tokenizer, 32, pack=False))


@pytest.fixture
def collators(tokenizer):
    tokenizer.mask_token = "<extra_id_0>"
    return {
        "masking": lambda: SeededCollator(MaskingCollator(tokenizer, mlm_probability=0.4), 1),
        "span corruption": lambda: SeededCollator(DataCollatorForSpanCorruption(tokenizer, 0.4, 2.0), 1),
    }


@pytest.mark.parametrize("kind", ["masking", "span corruption"])
def test_two_processes_train_on_the_masks_of_one(kind, rows, collators, tiny_config, randomise, tokenizer):
    """And the gradients of their losses add up to that of one process with twice the batch."""
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 32, "hidden_dropout_prob": 0.0}
    if kind == "masking":
        model = tokenmixers.GMLPForMaskedLM(tiny_config(sparse_prediction=True, **sizes))
    else:
        sizes |= {"num_attention_heads": 2, "head_dim": 4, "is_encoder_decoder": True, "decoder_start_token_id": 0}
        config = tiny_config(tokenmixers.SynthesizerConfig, attention_dropout=0.0, pad_token_id=0, **sizes)
        model = tokenmixers.SynthesizerForConditionalGeneration(config)
    model = randomise(model).train()
    collate = collators[kind]()
    loader = DataLoader(rows, batch_size=3, collate_fn=collate)
    shards = [
        prepare_data_loader(loader, num_processes=2, process_index=index, put_on_device=False) for index in range(2)
    ]
    for whole, *parts in zip(DataLoader(rows, batch_size=6, collate_fn=collate), *shards, strict=True):
        for name in ("input_ids", "labels"):
            found = [row[: whole[name].shape[1]] for part in parts for row in part[name]]
            for one, other in zip(found, whole[name], strict=True):
                assert torch.equal(one, other[: len(one)])
        items = (whole["labels"] != -100).sum()
        gradients = [
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            for loss in (model(**whole).loss, sum(model(**part, num_items_in_batch=items).loss for part in parts))
        ]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_masks_change_from_epoch_to_epoch(rows, collators, tiny_config, tokenizer, workers, tmp_path):
    collate, seen = collators["masking"](), []

    class Recorder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
            self.model = tokenmixers.GMLPForMaskedLM(tiny_config(**sizes))
            self.config = self.model.config

        def forward(self, input_ids, attention_mask, labels):
            seen.append(labels)
            return self.model(input_ids, attention_mask, labels=labels)

    arguments = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        num_train_epochs=3,
        per_device_train_batch_size=12,
        train_sampling_strategy="sequential",
        dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0,
        remove_unused_columns=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    options = {"data_collator": collate, "train_dataset": rows, "callbacks": [collate]}
    ScriptTrainer(model=Recorder(), args=arguments, **options).train()
    assert len(seen) == 3
    for epoch, labels in enumerate(seen):
        collate.epoch.fill_(epoch)
        assert torch.equal(collate(list(rows))["labels"], labels)
    assert not any(torch.equal(seen[one], seen[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
