"""Transformers' `Trainer` goes on with a hybrid where the package is not installed."""

from tokenmixers import HybridBertConfig, HybridBertForSequenceClassification, shipped_model
from tokenmixers.configuration.shipped_models import shipped_models


SCRIPT = """
import sys
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_utils import set_seed

source, output, *checkpoint = sys.argv[1:]
set_seed(1)
model = AutoModelForSequenceClassification.from_pretrained(source, trust_remote_code=True)
rows = [{"input_ids": [i % 23 + 1] * 5, "labels": i % 2} for i in range(16)]
args = TrainingArguments(output, max_steps=4, save_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True)
trainer = Trainer(model, args, train_dataset=Dataset.from_list(rows))
trainer.train(resume_from_checkpoint=checkpoint[0] if checkpoint else None)
trainer.save_model(output)
"""


def test_a_resumed_hybrid_ends_with_the_same_weights(alone, tmp_path):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 25}
    config = HybridBertConfig(token_mixers=["random_synthesizer", "full_attention"], **sizes)
    HybridBertForSequenceClassification(config).save_pretrained(tmp_path / "start")
    for output, checkpoint in (("whole", ()), ("resumed", [tmp_path / "whole" / "checkpoint-2"])):
        alone(SCRIPT, [tmp_path / "start", tmp_path / output, *checkpoint])
    whole, resumed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed"))
    assert whole == resumed


TOKENIZERS = """
import sys
from transformers import AutoTokenizer
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    assert tokenizer("a text").input_ids[0] == tokenizer.cls_token_id, folder
"""


def test_shipped_tokenizers_need_no_trust(alone):
    alone(TOKENIZERS, map(shipped_model, shipped_models()))
