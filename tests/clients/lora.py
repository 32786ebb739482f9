"""PEFT: LoRA on a classifier and, by sentence-transformers, on an encoder.

SOURCE is a folder with a checkpoint. With the word `package`, this package is imported and PEFT's table knows its
models; without, `target_modules="all-linear"` does.
"""

import json
import sys

import torch
from peft import AutoPeftModelForSequenceClassification, LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer


source, output, *package = sys.argv[1:]
trust = {} if package else {"trust_remote_code": True}
chosen = {} if package else {"target_modules": "all-linear"}
if package:
    import tokenmixers  # noqa: F401

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(source, **trust)
model = AutoModelForSequenceClassification.from_pretrained(source, **trust)
adapted = get_peft_model(model, LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=16, **chosen))
batch = tokenizer(["the gate", "a norm or a token"], padding=True, return_tensors="pt")
optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.02)
losses = []
for _ in range(12):
    loss = adapted(**batch, labels=torch.tensor([0, 1])).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
adapted.save_pretrained(f"{output}/adapter")
reloaded = AutoPeftModelForSequenceClassification.from_pretrained(f"{output}/adapter", **trust).eval()
reloaded.merge_and_unload().save_pretrained(f"{output}/merged")
merged = AutoModelForSequenceClassification.from_pretrained(f"{output}/merged", **trust).eval()
with torch.no_grad():
    answers = [each.eval()(**batch).logits.tolist() for each in (adapted, merged)]
trained, every = adapted.get_nb_trainable_parameters()
shown = {"losses": losses, "logits": answers, "share": trained / every}

if package:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(source, device="cpu")
    encoder.add_adapter(LoraConfig(task_type=TaskType.FEATURE_EXTRACTION, r=2, init_lora_weights=False))
    encoder.save_pretrained(f"{output}/encoder")
    again = SentenceTransformer(f"{output}/encoder", device="cpu")
    shown["embeddings"] = [each.encode("the gate").tolist() for each in (SentenceTransformer(source), encoder, again)]
print(json.dumps(shown))
