"""Finetune a token classifier, and report precision, recall and F1 of entities.

    tokenmixers run_token_classification --train_file train.conll --validation_file dev.conll \
        --model_name_or_path ... --output_dir outputs/ner --do_train --do_eval
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_token_classification ...

Works for every checkpoint that `AutoModelForTokenClassification` loads. Sentences that are too long for the model are
cut into pieces. No word is lost, and the metrics are those of whole sentences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    EvalPrediction,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.losses import IGNORED_LABEL
from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.reporting import print_plan, print_table
from .base.trained_model import label_names
from .base.training_arguments import ScriptTrainingArguments, check_has_work, wanted_splits
from .data.loading import limited
from .data.token_classification import (
    TokenClassificationArguments,
    found_tags,
    load_sentences,
    marks_entities,
    tag_names,
    tokenize,
    write_conll,
)
from .metrics import load_metric
from .training.class_names import build_classifier, set_label_names
from .training.classification import ClassificationTrainer, unseen_labels
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import fitting_tokenizer, load_config, sequence_length
from .training.run_folder import checkpoint_to_resume
from .training.trainer import ScriptTrainer
from .training.training_run import predict_test, train_and_evaluate


#: What is reported of entities, the most important first. Other tags have an accuracy alone.
METRICS = ("f1", "precision", "recall", "accuracy")


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


def _metrics_for(rows: datasets.Dataset, names: Sequence[str]) -> Callable[[EvalPrediction], dict[str, float]]:
    """`tag_metrics` for the rows of one split."""
    return partial(tag_metrics, names=names, sentences=rows["sentence"])


@dataclass
class TaggedData:
    """Sentences and tokenized rows of each split, and the names of the tags, the unseen ones at the end."""

    sentences: dict[str, datasets.Dataset]
    rows: dict[str, datasets.Dataset]
    names: list[str]


def build(
    model_args: ModelArguments,
    data_args: TokenClassificationArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> tuple[ScriptTrainer, TaggedData]:
    """Load data, tokenizer and model, and build the Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    config = load_config(model_args)
    sentences = load_sentences(data_args, wanted_splits(args), model_args.token)
    for split, limit in (("train", data_args.max_train_samples), ("validation", data_args.max_eval_samples)):
        if split in sentences:
            sentences[split] = limited(sentences[split], limit, shuffle=True)
    names = data_args.tag_names or (tag_names(sentences["train"]) if args.do_train else label_names(config))
    all_names = [*names, *_unseen_tags(sentences, names)]
    set_label_names(config, names, args.do_train)
    texts = (" ".join(row["tokens"]) for row in sentences.get("train", ()))
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from)
    tokenizer.padding_side = "right"  # so that predictions are at the positions of the tokens
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    rows = {
        split: tokenize(found, tokenizer, length, all_names, data_args.label_all_tokens and split == "train")
        for split, found in sentences.items()
    }
    trainer = ClassificationTrainer(
        model=build_classifier(model_args, config, AutoModelForTokenClassification, args.do_train),
        args=args,
        train_dataset=rows.get("train"),
        eval_dataset=rows.get("validation"),
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=_metrics_for(rows["validation"], all_names) if "validation" in rows else None,
        preprocess_logits_for_metrics=best_tags,
    )
    return trainer, TaggedData(sentences, rows, all_names)


def _unseen_tags(sentences: dict[str, datasets.Dataset], names: Sequence[str]) -> list[str]:
    """Tags of evaluation data that are not among the names, see `unseen_labels`."""
    found = {split: found_tags(rows) for split, rows in sentences.items()}
    unseen = unseen_labels("tags", names, found)
    if marks_entities(set(names)) and not marks_entities(set(unseen)):
        shown = ", ".join(map(repr, unseen))
        raise UserError(f"the model's tags are O and those of entities, but evaluation data have {shown}.")
    return unseen


def best_tags(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """Predicted tag indices, shape `(batch, length)`, which evaluation gathers instead of the logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def run_once(
    model_args: ModelArguments,
    data_args: TokenClassificationArguments,
    card_args: CardArguments,
    args: TrainingArguments,
) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say.

    Returns:
        The metrics, under names that start with `eval_` or, for a tagged test set, `test_`.
    """
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer, data = build(model_args, data_args, args, resume_from)
    print_plan(trainer, resume_from)
    reported = METRICS if marks_entities(set(data.names)) else ("accuracy",)
    card = CardFacts(
        "token-classification",
        **describe_data(data_args),
        metrics={name: name for name in reported},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters={"label_all_tokens": data_args.label_all_tokens},
    )

    def write(output: PredictionOutput, split: str = "validation") -> Path:
        path = Path(args.output_dir) / f"predictions_{split}.conll"
        write_conll(path, data.sentences[split], data.rows[split], output.predictions, data.names)
        return path

    def predict() -> dict[str, float]:
        trainer.compute_metrics = _metrics_for(data.rows["test"], data.names)
        metrics = predict_test(trainer, data.rows["test"], partial(write, split="test"))
        return {name: value for name, value in metrics.items() if name[5:] in reported}

    results = train_and_evaluate(trainer, card, resume_from, write, predict=predict if args.do_predict else None)
    if trainer.is_world_process_zero():
        for split, rows in (("eval", "validation"), ("test", "test")):
            if f"{split}_accuracy" in results:
                cells = [(name, f"{100 * results[f'{split}_{name}']:.2f}") for name in reported]
                print_table((f"on the {rows} sentences, x 100", trainer.model.config.model_type), cells)
    return results


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or for a grid those of `hyperparameter_grid.run_all`."""
    model_args, data_args, grid_args, card_args, args = parse_arguments(
        (ModelArguments, TokenClassificationArguments, GridArguments, CardArguments, ScriptTrainingArguments), argv
    )
    check_has_work(args, "do_train", "do_eval", "do_predict")
    run = partial(run_once, model_args, data_args, card_args)
    return run_command(run, grid_args, args, (model_args, data_args), Comparison(METRICS, scale=100))


if __name__ == "__main__":
    main()
