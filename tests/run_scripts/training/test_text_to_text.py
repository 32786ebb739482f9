"""Scores of generated texts, averages of benchmarks, bests of runs, embeddings that do not train."""

from statistics import fmean

import numpy as np
import pytest
import torch
from transformers import EvalPrediction, T5Config, T5ForConditionalGeneration
from transformers.trainer_utils import PredictionOutput

from tokenmixers.configuration.configuration_synthesizer import SynthesizerConfig
from tokenmixers.modeling.modeling_synthesizer import SynthesizerForConditionalGeneration
from tokenmixers.run_scripts.data.text_to_text import GROUPS, TEXT_TASKS, Example
from tokenmixers.run_scripts.training.model_loading import freeze_embeddings
from tokenmixers.run_scripts.training.text_to_text import (
    EvaluationSet,
    MixtureEvaluation,
    constant_scores,
    score_texts,
)


pytest.importorskip("sklearn")


def classes(name, labels, groups=None):
    names = TEXT_TASKS[name].benchmark_task.labels
    groups = groups or [None] * len(labels)
    return [
        Example(f"{name} {i}", (names[label],), label, group)
        for i, (label, group) in enumerate(zip(labels, groups, strict=True))
    ]


def test_scores_of_classes_and_the_count_of_texts_that_name_none():
    texts = ["entailment", "neutral", "nothing", "contradiction", ""]
    scores = score_texts(TEXT_TASKS["cb"], texts, classes("cb", [0, 2, 0, 1, 2]))
    assert scores["unparseable"] == 2
    assert scores["accuracy"] == pytest.approx(60)
    assert scores["macro_f1"] == pytest.approx(100 * (2 / 3 + 1 + 2 / 3) / 3)


def test_scores_of_multirc_are_over_answers_and_over_questions():
    groups = [(0, 0), (0, 0), (0, 1), (0, 1)]
    scores = score_texts(
        TEXT_TASKS["multirc"], ["True", "False", "True", "?"], classes("multirc", [1, 0, 1, 1], groups)
    )
    assert scores == {"f1": pytest.approx(100 * 2 * 2 / (2 * 2 + 1)), "exact_match": 50.0, "unparseable": 1}


def test_scores_of_numbers():
    stats = pytest.importorskip("scipy.stats")
    labels, texts = [0.0, 2.5, 5.0, 4.0], ["0.2", "2.6", "five", "3.0"]
    examples = [Example("", (str(label),), label) for label in labels]
    scores = score_texts(TEXT_TASKS["stsb"], texts, examples)
    guesses = [0.2, 2.6, -1.0, 3.0]
    assert scores["pearson"] == pytest.approx(100 * stats.pearsonr(guesses, labels)[0])
    assert scores["spearman"] == pytest.approx(100 * stats.spearmanr(guesses, labels)[0])
    assert scores["unparseable"] == 1


@pytest.mark.parametrize("name", ["record", "squad"])
def test_scores_of_answers(name):
    examples = [Example("", ("the red dog", "a cat")), Example("", ("x",))]
    scores = score_texts(TEXT_TASKS[name], ["red", ""], examples)
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2), "unparseable": 1}


def test_scores_of_nouns():
    examples = [Example("", ("the dog",), 1), Example("", ("the cat",), 0), Example("", ("Bo",), 1)]
    scores = score_texts(TEXT_TASKS["wsc"], ["Dog", "a dog", "the"], examples)
    assert scores == {"accuracy": pytest.approx(200 / 3), "unparseable": 1}


def test_the_most_frequent_text_as_the_answer_to_everything():
    sets = [
        EvaluationSet(TEXT_TASKS["rte"], "", classes("rte", [0, 1, 1])),
        EvaluationSet(TEXT_TASKS["cola"], "", classes("cola", [0, 1])),
    ]
    targets = {"rte": ["not_entailment", "entailment", "not_entailment"]}
    assert constant_scores(sets, targets) == {"majority_rte_accuracy": pytest.approx(200 / 3)}


class Words:
    pad_token_id = 0
    words = ["", "entailment", "not_entailment", "acceptable", "unacceptable", "?"]

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(self.words[i] for i in row) for row in ids]


def predicted(kind, numbers, words):
    """What a `GenerationTrainer` returns, in another order and with one example twice."""
    order = [*reversed(range(len(numbers))), 0]
    ids = np.array([[Words.words.index(words[i]), -100] for i in order])
    examples, losses, labels = np.array(numbers)[order], np.zeros(len(order)), np.zeros((len(order), 1))
    return kind((examples, losses, ids), labels) if kind is EvalPrediction else kind(
        (examples, losses, ids), labels, {}
    )  # fmt: skip


@pytest.fixture
def evaluation():
    sets = [
        EvaluationSet(TEXT_TASKS["rte"], "", classes("rte", [0, 1, 1])),
        EvaluationSet(TEXT_TASKS["cola"], "", classes("cola", [1, 0])),
    ]
    return MixtureEvaluation(sets, Words())


def test_predictions_are_scored_with_their_own_task(evaluation):
    found = evaluation.metrics(predicted(EvalPrediction, [0, 1, 2], ["entailment", "?", "not_entailment"]))
    assert found == {"accuracy": pytest.approx(200 / 3), "unparseable": 1}
    found = evaluation.metrics(predicted(EvalPrediction, [3, 4], ["acceptable", "unacceptable"]))
    assert found == {"matthews_correlation": pytest.approx(100), "unparseable": 0}
    without_texts = EvalPrediction((np.arange(3), np.zeros(3)), np.zeros((3, 1)))
    assert evaluation.metrics(without_texts) == {}
    with pytest.raises(ValueError, match="there are 3 examples, but predictions for 2"):
        evaluation.metrics(predicted(EvalPrediction, [0, 1], ["?", "?"]))


def test_predictions_stand_next_to_the_references(evaluation):
    columns = evaluation.columns(predicted(PredictionOutput, [3, 4], ["acceptable", "?"]), "cola")
    assert columns.pop("index") == [example.index for example in evaluation.sets["cola"].examples]
    assert [tuple(row) for row in zip(*columns.values(), strict=True)] == [
        ("cola 0", ("acceptable",), "acceptable", True),
        ("cola 1", ("unacceptable",), "?", False),
    ]


def whole_mixture():
    tasks = [TEXT_TASKS[name] for names in GROUPS.values() for name in names]
    return MixtureEvaluation(
        [EvaluationSet(task, part, []) for task in tasks for part in task.sets_of("validation")], Words()
    )


#: "Synthesizer", tables on GLUE and SuperGLUE: Random + Vanilla, in the order of the metrics here, and its averages.
PAPER = {
    "cola": [53.3],
    "sst2": [92.2],
    "mrpc": [87.7, 91.2],
    "stsb": [89.3, 88.9],
    "qqp": [91.4, 88.6],
    "mnli": [85.0, 84.6],
    "qnli": [92.3],
    "rte": [81.2],
    "boolq": [79.3],
    "cb": [91.1, 82.7],
    "copa": [64.0],
    "multirc": [74.3, 34.9],
    "record": [70.8, 69.9],
    "superglue_rte": [82.7],
    "wic": [64.6],
    "wsc": [75.0],
}


def papers_metrics():
    metrics = {}
    for name, values in PAPER.items():
        task = TEXT_TASKS[name]
        keys = [
            f"eval_{'_'.join(filter(None, (name, part)))}_{m}"
            for part in task.sets_of("validation")
            for m in task.metrics
        ]
        metrics |= dict(zip(keys, values, strict=True))
    return metrics


def test_averages_are_those_of_the_paper():
    found = whole_mixture().averages(papers_metrics())
    assert found == {
        "eval_mean_of_tasks": pytest.approx(fmean(map(fmean, PAPER.values()))),
        "eval_glue": pytest.approx(84.1, abs=0.07),
        "eval_super_glue": pytest.approx(72.2, abs=0.07),
    }


def test_no_average_of_a_part_of_a_benchmark(evaluation):
    metrics = {"eval_rte_accuracy": 50.0, "eval_cola_matthews_correlation": 1.0}
    assert evaluation.averages(metrics) == {"eval_mean_of_tasks": 25.5}
    metrics = papers_metrics()
    del metrics["eval_mnli_mismatched_accuracy"]
    assert whole_mixture().averages(metrics).keys() == {"eval_super_glue"}


def test_the_best_evaluation_of_each_task():
    sets = [EvaluationSet(TEXT_TASKS["cb"], "", []), EvaluationSet(TEXT_TASKS["mnli"], "matched", [])]
    sets.append(EvaluationSet(TEXT_TASKS["mnli"], "mismatched", []))
    history = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "eval_cb_accuracy": 50.0, "eval_cb_macro_f1": 60.0},
        {"step": 2, "eval_mnli_matched_accuracy": 10.0},
        {"step": 2, "eval_mnli_mismatched_accuracy": 30.0},
        {"step": 4, "eval_cb_accuracy": 70.0, "eval_cb_macro_f1": 30.0},
        {"step": 4, "eval_mnli_matched_accuracy": 20.0},
        {"step": 4, "eval_mnli_mismatched_accuracy": 20.0},
        {"step": 4, "eval_glue": 7.0},
        {"step": 6, "eval_cb_accuracy": 99.0},  # interrupted
    ]
    assert MixtureEvaluation(sets, Words()).best(history) == {
        "best_cb_accuracy": 50.0,
        "best_cb_macro_f1": 60.0,
        "best_cb_step": 2,
        "best_mnli_matched_accuracy": 10.0,
        "best_mnli_mismatched_accuracy": 30.0,
        "best_mnli_step": 2,  # as good as step 4, and before it
        "best_glue": 7.0,
        "best_glue_step": 4,
    }
    assert MixtureEvaluation(sets, Words()).best([]) == {}


SIZES = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_decoder_layers": 1}


@pytest.mark.parametrize(("family", "tied"), [("synthesizer", True), ("synthesizer", False), ("t5", True)])
def test_embeddings_are_frozen_and_nothing_else(family, tied):
    if family == "t5":
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        model = T5ForConditionalGeneration(T5Config(vocab_size=20, **sizes))
    else:
        sizes = {**SIZES, "num_attention_heads": 2, "head_dim": 4, "max_position_embeddings": 8}
        config = SynthesizerConfig(
            **sizes, is_encoder_decoder=True, tie_word_embeddings=tied, decoder_start_token_id=0
        )
        model = SynthesizerForConditionalGeneration(config)
    matrices = {model.get_input_embeddings().weight.data_ptr(), model.get_output_embeddings().weight.data_ptr()}
    assert len(matrices) == (1 if tied else 2)
    assert freeze_embeddings(model) == len(matrices) * 20 * 8
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    for parameter in model.parameters():
        assert (parameter.data_ptr() in matrices) == (parameter.grad is None) == (not parameter.requires_grad)
