r"""Finetune a token classifier, and report precision, recall and F1 of entities.

    tokenmixers run_token_classification --train_file train.conll --validation_file dev.conll \
        --model_name_or_path ... --output_dir outputs/ner --do_train --do_eval
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_token_classification ...

Works for every checkpoint that `AutoModelForTokenClassification` loads. Sentences that are too long for the model are
cut into pieces. No word is lost, and the metrics are those of whole sentences. Predictions are written as a table and
as CoNLL text, which `conlleval` reads.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import PartialState
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedModel,
)
from transformers.trainer_utils import PredictionOutput
from transformers.utils import logging

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.losses import IGNORED_LABEL
from .base.errors import UserError
from .base.trained_model import label_names
from .base.training_arguments import wanted_splits
from .data.conll import write_conll
from .data.loading import INDEX
from .data.token_classification import (
    TokenClassificationArguments,
    found_tags,
    load_sentences,
    marks_entities,
    predicted_tags,
    tag_names,
    tokenize,
)
from .metrics import load_metric
from .training.classification import ClassificationTrainer, unseen_labels
from .training.hyperparameter_grid import Comparison
from .training.run import Run, Task


#: What is reported of entities, the most important first. Other tags have an accuracy alone.
METRICS = ("f1", "precision", "recall", "accuracy")

logger = logging.get_logger(__name__)


def tag_metrics(prediction: EvalPrediction, names: Sequence[str], sentences: Sequence[int]) -> dict[str, float]:
    """Scores of entities, or the accuracy where tags mark no entities.

    Args:
        prediction: Indices of tags, predictions and labels of shape `(rows, length)`. Labels may be `IGNORED_LABEL`.
        names: The tags.
        sentences: The sentence of each row. Long sentences have several rows; their entities may go on in the next.

    Returns:
        `precision`, `recall` and `f1` over all entities, `f1_TYPE` of every type among the labels, and the `accuracy`
        of the tags. Scores without any entities are 0.
    """
    labelled = prediction.label_ids != IGNORED_LABEL
    if not marks_entities(set(names)):
        tags = {"predictions": prediction.predictions[labelled], "references": prediction.label_ids[labelled]}
        return load_metric("accuracy").compute(**tags)

    def joined(tags: np.ndarray) -> list[list[str]]:
        whole: dict[int, list[str]] = {}
        for sentence, row, mask in zip(sentences, tags, labelled, strict=True):
            whole.setdefault(sentence, []).extend(names[tag] for tag in row[mask])
        return list(whole.values())

    predicted, labels = joined(prediction.predictions), joined(prediction.label_ids)
    found = load_metric("seqeval").compute(predictions=predicted, references=labels)
    overall = {name: found.pop(f"overall_{name}") for name in ("precision", "recall", "f1", "accuracy")}
    return overall | {f"f1_{kind}": scores["f1"] for kind, scores in found.items() if scores["number"]}


class TokenClassification(Task):
    """A tag for each word.

    Attributes:
        names: The tags of the model, and behind them those that evaluation data alone have.
    """

    arguments = (TokenClassificationArguments,)
    pipeline_tag = "token-classification"
    auto_class = AutoModelForTokenClassification
    is_classifier = True
    unit, scale = "sentences", 100
    trainer_class = ClassificationTrainer
    names: list[str]

    def comparison(self, run: Run) -> Comparison:
        """By the F1 of entities; by the accuracy of other tags."""
        return Comparison(METRICS, scale=100)

    def load(self, run: Run) -> dict[str, datasets.Dataset]:
        return load_sentences(run.data_args, wanted_splits(run.args), run.model_args.token)

    def labels(self, run: Run) -> list[str]:
        known = tag_names(run.data["train"]) if run.args.do_train else label_names(run.config)
        unseen = unseen_labels("tags", known, {split: found_tags(rows) for split, rows in run.data.items()})
        if marks_entities(set(known)) and not marks_entities(set(unseen)):
            shown = ", ".join(map(repr, unseen))
            raise UserError(f"the model's tags are O and those of entities, but evaluation data have {shown}.")
        for split, rows in run.data.items():
            if (found := found_tags(rows)) and not found - {"O", "o"} and PartialState().is_main_process:
                logger.warning(
                    f"the {split} data have the tag O alone: without entities precision, recall and F1 are 0, and a "
                    "model learns to find none. Are tags missing, or is --label_column_name another column?"
                )
        self.names = [*known, *unseen]
        return list(known)

    def texts(self, run: Run) -> Iterator[str]:
        return (" ".join(row["tokens"]) for row in run.data["train"])

    def encode(self, run: Run) -> dict[str, datasets.Dataset]:
        """Tokens of sentences, or of their pieces; predictions are at the positions of the tokens."""
        run.tokenizer.padding_side = "right"
        label_all = run.data_args.label_all_tokens
        return {
            split: tokenize(found, run.tokenizer, run.max_seq_length, self.names, label_all and split == "train")
            for split, found in run.data.items()
        }

    def collator(self, run: Run, model: PreTrainedModel) -> DataCollatorForTokenClassification:
        return DataCollatorForTokenClassification(run.tokenizer)

    @staticmethod
    def gathered(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
        """Predicted tag indices, shape `(batch, length)`."""
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)

    def metric_types(self, run: Run) -> dict[str, str]:
        return {name: name for name in (METRICS if marks_entities(set(self.names)) else ("accuracy",))}

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        return {"hyper_parameters": {"label_all_tokens": run.data_args.label_all_tokens}}

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        return tag_metrics(prediction, self.names, run.rows[split]["sentence"])

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path:
        sentences, names = run.data[split], {INDEX: INDEX, "tokens": "tokens", "tags": "label"}
        columns = {names[name]: list(sentences[name]) for name in names if name in sentences.column_names}
        columns["prediction"] = predicted_tags(sentences, run.rows[split], output.predictions, self.names)
        write_conll(run.prediction_file(split, part, "conll"), [columns[name] for name in columns if name != INDEX])
        return run.write_predictions(split, part, columns)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(TokenClassification(), argv).command()


if __name__ == "__main__":
    main()
