"""accelerate's training loop: batches split over processes, accumulated gradients, a saved and restored state.

FOLDER has a folder per model, with a checkpoint in `start`; the trained one is saved in OUTPUT of it.
"""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup


TEXTS = ["the gate", "a token or the norm", "norm", "a layer mixes the channel"] * 6
ROWS = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]


def train(source: Path, output: Path) -> list[int]:
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=3,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True)
    model = AutoModelForSequenceClassification.from_pretrained(source, trust_remote_code=True)

    def collate(rows):
        batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        return {**batch, "labels": torch.tensor([row["label"] for row in rows])}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, 4)
    loaders = (
        DataLoader(ROWS, batch_size=4, collate_fn=collate),
        DataLoader(ROWS[:10], batch_size=4, collate_fn=collate),
    )
    model, optimizer, scheduler, loader, held_out = accelerator.prepare(model, optimizer, scheduler, *loaders)
    for epoch in range(2):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if epoch == 0:  # as after an interruption
            accelerator.save_state(output / "state")
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            accelerator.wait_for_everyone()
            accelerator.load_state(output / "state")
    model.eval()
    answers = []
    for batch in held_out:
        with torch.no_grad():
            found = model(**batch).logits.argmax(-1)
        answers += accelerator.gather_for_metrics(found).tolist()
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(
        output, is_main_process=accelerator.is_main_process, save_function=accelerator.save
    )
    accelerator.free_memory()
    return answers


torch.set_num_threads(1)
found = {folder.name: train(folder / "start", folder / sys.argv[2]) for folder in sorted(Path(sys.argv[1]).iterdir())}
accelerator = Accelerator(cpu=True)
if accelerator.is_main_process:
    print(json.dumps(found))
accelerator.end_training()
