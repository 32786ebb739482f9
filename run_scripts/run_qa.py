"""Finetune a model on SQuAD 1.1 or 2.0, report exact match and F1, and answer questions.

    tokenmixers run_qa recipe.yaml --model_name_or_path outputs/mlm --output_dir outputs/run
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_qa ...

Works for every checkpoint that `AutoModelForQuestionAnswering` loads, with a fast tokenizer. The output folder also
gets `predictions_validation.json`, which SQuAD's official script reads, `nbest_predictions_validation.json` and, for
SQuAD 2.0, `null_odds_validation.json`.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, EvalPrediction, PreTrainedModel
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.pipelines.question_answering import Window, null_odds, select_spans
from .base.errors import UserError
from .base.training_arguments import wanted_splits
from .data.squad import QuestionDataArguments, answers_in_no_window, load_questions, make_windows, question_texts
from .metrics import load_metric
from .training.distillation import AnswerDistillation, DistillationArguments
from .training.hyperparameter_grid import Comparison
from .training.run import Run, Task


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
        self._latest: tuple[Any, Any] = (None, None)  # metrics and files are about the same scores

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
        scores, found = self._latest
        if scores is start_logits:
            return found
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
        self._latest = start_logits, (best, odds)
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

    def write(self, output: PredictionOutput, path: Path) -> None:
        """Write `predictions_<split>.json` and, next to it, `nbest_...` and for SQuAD 2.0 `null_odds_<split>.json`.

        Args:
            output: The scores of all windows.
            path: The file of the predictions.
        """
        best, odds = self.answers(*output.predictions)
        files = {"predictions": {key: answers[0]["text"] for key, answers in best.items()}, "nbest_predictions": best}
        if self.arguments.version_2_with_negative:
            threshold = self.arguments.null_score_diff_threshold
            files["null_odds"] = odds
            files["predictions"] |= {key: "" for key in odds if odds[key] > threshold}
        for name, content in files.items():
            text = json.dumps(content, indent=1, ensure_ascii=False)
            path.with_name(path.name.replace("predictions", name)).write_text(text + "\n", encoding="utf-8")


class QuestionAnswering(Task):
    """The answer to a question as a span of a context, which is read in windows.

    Attributes:
        evaluations: Split -> what makes and compares answers.
    """

    evaluations: dict[str, SquadEvaluation]
    arguments = (QuestionDataArguments, DistillationArguments)
    pipeline_tag = "question-answering"
    auto_class = AutoModelForQuestionAnswering
    distillation = AnswerDistillation
    unit = "questions"

    def comparison(self, run: Run) -> Comparison:
        """By F1, as in the papers."""
        return Comparison(sorted(self.metric_types(run), key="f1".__ne__))

    def load(self, run: Run) -> dict[str, datasets.Dataset]:
        return load_questions(run.data_args, wanted_splits(run.args), run.model_args.token)

    def texts(self, run: Run) -> Iterable[str]:
        return question_texts(run.data["train"])

    def load_tokenizer(self, run: Run, resume_from: str | None) -> Any:
        """The tokenizer, which must be able to pad."""
        tokenizer = super().load_tokenizer(run, resume_from)
        if tokenizer.pad_token_id is None:
            raise UserError("the tokenizer has no padding token, which batches need: set one and save it again.")
        return tokenizer

    def encode(self, run: Run) -> dict[str, datasets.Dataset]:
        questions, length = run.data, run.max_seq_length
        windows = {name: make_windows(rows, run.tokenizer, length, run.data_args) for name, rows in questions.items()}
        self.evaluations = {name: SquadEvaluation(questions[name], windows[name], run.data_args) for name in windows}
        lost = answers_in_no_window(questions["train"], windows["train"]) if "train" in windows else 0
        if lost and run.args.process_index == 0:
            print(
                f"{lost:,} of {len(questions['train']):,} training answers are whole in no window and count as no "
                "answer: a larger --doc_stride or --max_seq_length would help."
            )
        return windows

    def collator(self, run: Run, model: PreTrainedModel) -> Callable[..., Any]:
        """Pads on the right even if the tokenizer pads on the left, so that positions stay valid."""
        return partial(run.tokenizer.pad, padding_side="right", return_tensors="pt")

    @staticmethod
    def gathered(logits: tuple[torch.Tensor, ...], labels: Any) -> tuple[torch.Tensor, ...]:
        """Start and end logits in full precision, without a model's further outputs."""
        return tuple(scores.float() for scores in logits[:2])

    def metric_types(self, run: Run) -> dict[str, str]:
        return V2_METRICS if run.data_args.version_2_with_negative else V1_METRICS

    def card_facts(self, run: Run, model: PreTrainedModel) -> dict[str, Any]:
        names = ("max_seq_length", "doc_stride", "max_question_length", "max_answer_length")
        return {"hyper_parameters": {name: getattr(run.data_args, name) for name in names}}

    def metrics(self, run: Run, split: str, prediction: EvalPrediction) -> dict[str, float]:
        return self.evaluations[split].metrics(prediction)

    def write(self, run: Run, split: str, part: str, output: PredictionOutput) -> Path:
        """SQuAD's format: an answer for each question's id."""
        path = run.prediction_file(split, part, "json")
        self.evaluations[split].write(output, path)
        return path


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    return Run(QuestionAnswering(), argv).command()


if __name__ == "__main__":
    main()
