"""Finetune a model on SQuAD 1.1 or 2.0, report exact match and F1, and answer other questions.

    tokenmixers run_qa recipe.yaml --model_name_or_path outputs/mlm --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_qa ...

Works for every checkpoint that `AutoModelForQuestionAnswering` loads, with a fast tokenizer. The output folder also
gets `predictions.json`, which SQuAD's official script reads, `nbest_predictions.json` and, of SQuAD 2.0,
`null_odds.json`.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, EvalPrediction, TrainingArguments, set_seed
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.pipelines.question_answering import Window, null_odds, select_spans
from .base.arguments import ModelArguments, parse_arguments
from .base.errors import UserError
from .base.reporting import print_plan, print_table
from .base.training_arguments import ScriptTrainingArguments, check_has_work, wanted_splits
from .data.squad import QuestionDataArguments, answers_in_no_window, load_questions, make_windows, question_texts
from .metrics import load_metric
from .training.distillation import AnswerDistillation, DistillationArguments
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import build_model, fitting_tokenizer, load_config, sequence_length
from .training.run_folder import checkpoint_to_resume
from .training.teacher import find_teacher
from .training.trainer import ScriptTrainer
from .training.training_run import predict_test, train_and_evaluate


#: Metric in the table -> its type on the Hub. The others are in `eval_results.json` only.
V1_METRICS = {"exact_match": "exact_match", "f1": "f1"}
V2_METRICS = {"exact": "exact_match", "f1": "f1", "best_exact": "exact_match", "best_f1": "f1"}


class SquadEvaluation:
    """Turns the scores of all windows into answers, and compares those with the right ones.

    Args:
        questions: From `load_questions`.
        windows: From `make_windows` of these questions.
        arguments: How to choose answers.
    """

    def __init__(self, questions: datasets.Dataset, windows: datasets.Dataset, arguments: QuestionDataArguments):
        self.questions = questions
        self.windows = windows
        self.arguments = arguments

    def answers(
        self, start_logits: np.ndarray, end_logits: np.ndarray
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
        """The best answers to every question, and how likely it has none.

        Args:
            start_logits: Shape `(windows, length)`, in the order of the windows, with anything behind their tokens.
            end_logits: The same.

        Returns:
            Question id -> up to `n_best_size` answers, best first, with `text`, `start` and `end` (characters),
            `score` and `probability`; one with an empty text if no token can be an answer.
            Question id -> `null_odds`.
        """
        if len(start_logits) != len(self.windows):
            raise ValueError(f"there are {len(self.windows)} windows, but scores of {len(start_logits)}.")
        scored: list[list[Window]] = [[] for _ in self.questions]
        for index, row in enumerate(self.windows.select_columns(["offsets", "null_position", "example"])):
            logits = (scores[index, : len(row["offsets"])] for scores in (start_logits, end_logits))
            scored[row["example"]].append(Window(*logits, np.asarray(row["offsets"]), row["null_position"]))
        best, odds = {}, {}
        for question, windows in zip(self.questions, scored, strict=True):
            spans, null = select_spans(windows, self.arguments.n_best_size, self.arguments.max_answer_length)
            odds[question["id"]] = null_odds(spans, null)
            best[question["id"]] = [
                {"text": question["context"][span.start : span.end], **span._asdict()} for span in spans or [null]
            ]
        return best, odds

    def metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Exact match and F1 in percent, see the metrics `squad` and `squad_v2`."""
        best, odds = self.answers(*prediction.predictions)
        right = [{"id": question["id"], "answers": question["answers"]} for question in self.questions]
        texts = [{"id": key, "prediction_text": answers[0]["text"]} for key, answers in best.items()]
        if not self.arguments.version_2_with_negative:
            return load_metric("squad").compute(predictions=texts, references=right)
        texts = [{**row, "no_answer_probability": odds[row["id"]]} for row in texts]
        threshold = self.arguments.null_score_diff_threshold
        metrics = load_metric("squad_v2").compute(predictions=texts, references=right, no_answer_threshold=threshold)
        return {key: value for key, value in metrics.items() if not key.endswith("total")}  # they never change

    def write(self, output: PredictionOutput, folder: str, suffix: str = "") -> Path:
        """Write `predictions.json`, `nbest_predictions.json` and, of SQuAD 2.0, `null_odds.json`.

        Args:
            output: The scores of all windows.
            folder: Where to.
            suffix: Follows the names of the files.

        Returns:
            The path of the predictions.
        """
        best, odds = self.answers(*output.predictions)
        files = {"predictions": {key: answers[0]["text"] for key, answers in best.items()}, "nbest_predictions": best}
        if self.arguments.version_2_with_negative:
            threshold = self.arguments.null_score_diff_threshold
            files["null_odds"] = odds
            files["predictions"] |= {key: "" for key in odds if odds[key] > threshold}
        for name, content in files.items():
            text = json.dumps(content, indent=1, ensure_ascii=False)
            (Path(folder) / f"{name}{suffix}.json").write_text(text + "\n", encoding="utf-8")
        return Path(folder) / f"predictions{suffix}.json"


def position_logits(logits: tuple[torch.Tensor, ...], labels: Any) -> tuple[torch.Tensor, ...]:
    """Start and end logits in full precision, without a model's further outputs: what evaluation gathers."""
    return tuple(scores.float() for scores in logits[:2])


def build(
    model_args: ModelArguments,
    data_args: QuestionDataArguments,
    distillation_args: DistillationArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> tuple[ScriptTrainer, dict[str, SquadEvaluation]]:
    """Load questions, tokenizer and model, and build the Trainer.

    Returns:
        The Trainer, and what evaluates the validation and test questions, by split.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    teacher = find_teacher(distillation_args, model_args, args)
    if teacher is not None:
        model_args = teacher.student_arguments(model_args)
    config = load_config(model_args)
    with args.main_process_first(local=False, desc="loading the questions"):
        splits = load_questions(data_args, wanted_splits(args), model_args.token)
    texts = question_texts(splits["train"]) if model_args.train_tokenizer is not None else ()
    tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from)
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no padding token, which batches need: set one and save it again.")
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    if teacher is not None:
        teacher.check_texts(tokenizer, {"--max_seq_length": length})
    with args.main_process_first(local=False, desc="cutting contexts into windows"):
        windows = {name: make_windows(split, tokenizer, length, data_args) for name, split in splits.items()}
    lost = answers_in_no_window(splits["train"], windows["train"]) if args.do_train else 0
    if lost and args.process_index == 0:
        print(
            f"{lost:,} of {len(splits['train']):,} training answers are whole in no window and count as no answer: a "
            "larger --doc_stride or --max_seq_length would help."
        )
    evaluations = {name: SquadEvaluation(splits[name], windows[name], data_args) for name in splits if name != "train"}
    if teacher is not None:
        teacher.load(AutoModelForQuestionAnswering, windows["train"])
    trainer = ScriptTrainer(
        model=build_model(model_args, config, AutoModelForQuestionAnswering),
        args=args,
        train_dataset=windows.get("train"),
        eval_dataset=windows.get("validation"),
        # On the right even if the tokenizer pads on the left, so that positions stay valid.
        data_collator=partial(tokenizer.pad, padding_side="right", return_tensors="pt"),
        processing_class=tokenizer,
        compute_metrics=evaluations["validation"].metrics if args.do_eval else None,
        preprocess_logits_for_metrics=position_logits,
    )
    if teacher is not None:
        teacher.teach(trainer, AnswerDistillation, {})
    return trainer, evaluations


def run_once(
    model_args: ModelArguments,
    data_args: QuestionDataArguments,
    distillation_args: DistillationArguments,
    card_args: CardArguments,
    args: TrainingArguments,
) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say. Returns the metrics of evaluation and test."""
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer, evaluations = build(model_args, data_args, distillation_args, args, resume_from)
    print_plan(trainer, resume_from)
    names = V2_METRICS if data_args.version_2_with_negative else V1_METRICS
    settings = ("max_seq_length", "doc_stride", "max_question_length", "max_answer_length", "align_to_words")
    card = CardFacts(
        "question-answering",
        **describe_data(data_args),
        metrics=names,
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters={name: getattr(data_args, name) for name in settings} | distillation_args.in_use(),
    )
    write = partial(evaluations["validation"].write, folder=args.output_dir) if args.do_eval else None

    def predict() -> dict[str, float]:
        test = evaluations["test"]
        trainer.compute_metrics = test.metrics if "answers" in test.questions.column_names else None
        found = predict_test(trainer, test.windows, partial(test.write, folder=args.output_dir, suffix="_test"))
        return {key: found[key] for key in (f"test_{name}" for name in (*names, "loss")) if key in found}

    metrics = train_and_evaluate(trainer, card, resume_from, write, predict=predict if args.do_predict else None)
    if trainer.is_world_process_zero():
        for split, prefix in (("validation", "eval"), ("test", "test")):
            if f"{prefix}_f1" in metrics:
                rows = [(name.replace("_", " "), f"{metrics[f'{prefix}_{name}']:.2f}") for name in names]
                rows.append(("loss", f"{metrics[f'{prefix}_loss']:.4f}"))
                head = f"{len(evaluations[split].questions):,} {split} questions"
                print_table((head, trainer.model.config.model_type), rows)
    return metrics


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the evaluation metrics, or for a grid the results of `hyperparameter_grid.run_all`."""
    types = (ModelArguments, QuestionDataArguments, DistillationArguments, CardArguments)
    *arguments, grid_args, args = parse_arguments((*types, GridArguments, ScriptTrainingArguments), argv)
    check_has_work(args, "do_train", "do_eval", "do_predict")
    names = V2_METRICS if arguments[1].version_2_with_negative else V1_METRICS
    comparison = Comparison(sorted(names, key="f1".__ne__))  # F1 first, as in the papers
    return run_command(partial(run_once, *arguments), grid_args, args, arguments[:3], comparison)


if __name__ == "__main__":
    main()
