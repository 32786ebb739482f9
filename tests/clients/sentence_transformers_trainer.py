"""sentence-transformers: embeddings of the shipped folders, its losses, and its trainer on one of them.

OUTPUT gets the embeddings of the texts in SENTENCES (JSON) and the trained model; then follow FOLDERs of models.
"""

import json
import sys

import torch
from datasets import Dataset
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.training_args import BatchSamplers


output, sentences, *folders = sys.argv[1:]
sentences, shown = json.loads(sentences), {"similarity": []}
embeddings = {}
for folder in folders:
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    embeddings[folder] = model.encode(sentences, batch_size=3, convert_to_tensor=True)
    shown["similarity"].append(model.similarity_fn_name)

people, places = ("Ada", "Kurt", "Emmy", "Alan"), ("Rome", "Oslo", "Lima", "Bonn")
rows = [
    {"anchor": f"{person} went to {place}.", "positive": f"{place} was visited by {person}."}
    for person in people
    for place in places
]
features = [model.preprocess([row[name] for row in rows]) for name in ("anchor", "positive")]
for name, loss in (
    ("plain", losses.MultipleNegativesRankingLoss(model)),
    ("cached", losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=3)),
):
    model.zero_grad()
    torch.manual_seed(0)
    model.eval()
    value = loss([{**part} for part in features], None)
    value.backward()
    shown[name] = value.item()
    shown[f"{name}_gradient"] = sum(
        p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None
    ).item()


def ranking_loss(model) -> float:
    """The loss from `encode` alone."""
    one, other = (model.encode([row[name] for row in rows], convert_to_tensor=True) for name in ("anchor", "positive"))
    return torch.nn.functional.cross_entropy(20 * one @ other.T, torch.arange(len(rows))).item()


shown["before"] = ranking_loss(model)
evaluator = EmbeddingSimilarityEvaluator(
    [row["anchor"] for row in rows] * 2,
    [row["positive"] for row in rows] + [row["positive"] for row in rows[5:] + rows[:5]],
    [1.0] * len(rows) + [0.0] * len(rows),
    name="pairs",
    write_csv=False,
)
arguments = SentenceTransformerTrainingArguments(
    f"{output}/run",
    max_steps=8,
    per_device_train_batch_size=8,
    learning_rate=5e-4,
    warmup_steps=1,
    batch_sampler=BatchSamplers.NO_DUPLICATES,
    prompts={"anchor": "query: "},
    eval_strategy="steps",
    eval_steps=8,
    save_steps=8,
    load_best_model_at_end=True,
    metric_for_best_model="eval_pairs_spearman_cosine",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
ranking = losses.MultipleNegativesRankingLoss(model)
trainer = SentenceTransformerTrainer(
    model,
    arguments,
    train_dataset=Dataset.from_list(rows),
    loss=losses.MatryoshkaLoss(model, ranking, matryoshka_dims=[384, 64]),
    evaluator=evaluator,
)
trainer.train()
model.save_pretrained(f"{output}/model")
again = SentenceTransformer(f"{output}/model", trust_remote_code=True, device="cpu")
shown["after"], shown["spearman"] = ranking_loss(again), evaluator(again)["pairs_spearman_cosine"]
shown["reported"] = trainer.evaluate()["eval_pairs_spearman_cosine"]
embeddings["trained"], embeddings["again"] = (
    each.encode(sentences, convert_to_tensor=True) for each in (model, again)
)
save_file(embeddings, f"{output}/embeddings.safetensors")
print(json.dumps(shown))
