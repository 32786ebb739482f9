"""Transformers' pipelines on saved checkpoints, by folder name alone."""

import pytest
from transformers import pipeline

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


HEADS = {
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "zero-shot-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
}


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["the gate mixes tokens", "this example is about channels"] * 9
    return tokenmixers.train_unigram_tokenizer(texts, 60, model_max_length=32, show_progress=False)


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_pipeline(family, task, tokenizer, tmp_path):
    labels = {0: "contradiction", 1: "entailment", 2: "neutral"}
    config = getattr(tokenmixers, family.config)(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        max_position_embeddings=64,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
    )
    getattr(tokenmixers, family.models[HEADS[task]])(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = pipeline(task, model=str(tmp_path))
    if task == "fill-mask":
        assert [len(answer["token_str"]) > 0 for answer in run("the [MASK] mixes", top_k=3)] == [True] * 3
    elif task == "zero-shot-classification":
        answer = run("the gate", candidate_labels=["tokens", "channels"])
        assert sorted(answer["labels"]) == ["channels", "tokens"]
        assert sum(answer["scores"]) == pytest.approx(1)
    elif task == "feature-extraction":
        assert len(run("the gate")[0][0]) == 16
    else:
        answers = run(["the gate", "channels"])
        found = [answer if isinstance(answer, dict) else answer[0] for answer in answers]
        assert all((answer.get("label") or answer.get("entity")) in labels.values() for answer in found)
