"""setfit: a classifier from eight examples of each class, on a shipped folder."""

import json
import sys

from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments


def accuracy(predictions, labels):
    return {"accuracy": sum(map(int.__eq__, map(int, predictions), map(int, labels))) / len(labels)}


source, output = sys.argv[1:]
good = [f"I {verb} this {thing}." for verb in ("love", "enjoy") for thing in ("film", "book", "song", "meal")]
bad = [f"I {verb} this {thing}." for verb in ("hate", "dislike") for thing in ("film", "book", "song", "meal")]
model = SetFitModel.from_pretrained(source, labels=["bad", "good"], trust_remote_code=True, device="cpu")
arguments = TrainingArguments(
    output_dir=f"{output}/run", batch_size=8, max_steps=4, num_epochs=1, report_to="none", show_progress_bar=False
)
rows = Dataset.from_dict({"text": good + bad, "label": [1] * len(good) + [0] * len(bad)})
trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, metric=accuracy)
trainer.train()
model.save_pretrained(f"{output}/model")
again = SetFitModel.from_pretrained(f"{output}/model", trust_remote_code=True, device="cpu")
unseen = ["I love this city.", "We hate this noise."]
print(
    json.dumps(
        {
            "accuracy": trainer.evaluate()["accuracy"],
            "answers": model.predict(unseen),
            "probabilities": [each.predict_proba(unseen).tolist() for each in (model, again)],
        }
    )
)
