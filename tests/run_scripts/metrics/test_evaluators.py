"""Pipelines on data sets: with `evaluate`'s own evaluators, as far as these work, and with ours."""

import re
import socket
from contextlib import contextmanager

import datasets
import evaluate
import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPImageProcessorPil, PreTrainedTokenizerFast, pipeline

import tokenmixers
from tokenmixers.run_scripts.data.token_classification import tokenize
from tokenmixers.run_scripts.metrics import load_metric
from tokenmixers.run_scripts.metrics.evaluators import evaluator


pytest.importorskip("scipy")
pytest.importorskip("sklearn")

TEXTS = ["the gate mixes tokens", "this example is about channels", "the gate", "channels mix tokens in the example"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
TAGS = ("O", "B-A", "I-A")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def connect(*args):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="module")
def tokenizer():
    """This package's tokenizer with fixed ids: training gives others in each process, and models other answers."""
    trained = tokenmixers.train_unigram_tokenizer(TEXTS * 9, 60, model_max_length=64, show_progress=False)
    whole = trained.backend_tokenizer
    special = sorted(trained.all_special_ids)
    assert special == list(range(5))
    pieces = {f"▁{word}" for text in TEXTS for word in text.split()} | {letter for text in TEXTS for letter in text}
    vocab = [(trained.convert_ids_to_tokens(id), 0.0) for id in special]
    vocab += [(piece, -1.0 if len(piece) > 1 else -9.0) for piece in sorted(pieces | {"▁"})]
    whole.model = models.Unigram(vocab, unk_id=trained.unk_token_id)
    return trained


@pytest.fixture(scope="module")
def word_tokenizer():
    """Every word is a token, which begins with the word."""
    words = ["[PAD]", "[UNK]", *sorted({word for text in TEXTS for word in text.split()})]
    whole = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64)


@pytest.fixture(params=["ours", "evaluate's own"])
def make(request):
    return evaluator if request.param == "ours" else _of_evaluate


class _of_evaluate:  # noqa: N801  (it stands for a function)
    """`evaluate.evaluator(task)`; what is wrong with it, and not with what it is given, skips the test."""

    def __init__(self, task: str):
        with self._known_faults():
            self.evaluator = evaluate.evaluator(task)

    def compute(self, *args, **kwargs):
        with self._known_faults():
            return self.evaluator.compute(*args, **kwargs)

    @contextmanager
    def _known_faults(self):
        try:
            yield
        except AttributeError as error:
            if "TFPreTrainedModel" not in str(error):
                raise
            pytest.skip("evaluate 0.4.6 wants transformers.TFPreTrainedModel before it takes a pipeline")
        except KeyError as error:
            if not re.search("question-answering has been removed|Unknown task question-answering", str(error)):
                raise
            pytest.skip("evaluate 0.4.6 has no other name for the task than one that Transformers 5 refuses")


def scores_of(results: dict) -> dict:
    times = {"total_time_in_seconds", "samples_per_second", "latency_in_seconds"}
    assert times <= results.keys()
    return {name: value for name, value in results.items() if name not in times}


# --- text classification -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tokenizer, randomise):
    config = tokenmixers.GMLPConfig(vocab_size=len(tokenizer), num_labels=2, **SIZES)
    return randomise(tokenmixers.GMLPForSequenceClassification(config)).eval()


@pytest.fixture(scope="module")
def labelled():
    texts = [f"{first} {second}" for first in TEXTS for second in TEXTS]
    return datasets.Dataset.from_dict({"text": texts, "label": [i % 3 % 2 for i in range(16)]})


@pytest.fixture(scope="module")
def right(classifier, tokenizer, labelled):
    """Whether each prediction is right, by the model alone."""
    with torch.no_grad():
        logits = [classifier(**tokenizer(text, return_tensors="pt")).logits[0] for text in labelled["text"]]
    return [int(row.argmax()) == label for row, label in zip(logits, labelled["label"], strict=True)]


MAPPING = {"LABEL_0": 0, "LABEL_1": 1}


def test_text_classification(make, classifier, tokenizer, labelled, right):
    pipe = pipeline("text-classification", model=classifier, tokenizer=tokenizer)
    results = make("text-classification").compute(
        model_or_pipeline=pipe, data=labelled, metric=load_metric("accuracy"), label_mapping=MAPPING
    )
    assert 0 < sum(right) < 16
    assert scores_of(results) == {"accuracy": sum(right) / 16}


def test_models_with_tokenizers(make, classifier, tokenizer, labelled, right):
    results = make("text-classification").compute(
        classifier, labelled, metric=load_metric("accuracy"), tokenizer=tokenizer, label_mapping=MAPPING
    )
    assert scores_of(results) == {"accuracy": sum(right) / 16}


def test_metrics_by_name_combined_and_with_intervals(classifier, tokenizer, labelled, right):
    pipe = pipeline("text-classification", model=classifier, tokenizer=tokenizer)
    arguments = {"data": labelled, "label_mapping": MAPPING}
    ours = evaluator("text-classification")
    assert scores_of(ours.compute(pipe, **arguments)) == {"accuracy": sum(right) / 16}
    assert scores_of(ours.compute(pipe, metric="f1", **arguments)).keys() == {"f1"}
    both = evaluate.combine([load_metric("accuracy"), load_metric("f1")])
    assert scores_of(ours.compute(pipe, metric=both, **arguments)).keys() == {"accuracy", "f1"}
    interval = ours.compute(pipe, strategy="bootstrap", n_resamples=20, random_state=0, **arguments)["accuracy"]
    low, high = interval["confidence_interval"]
    assert low <= interval["score"] == sum(right) / 16 <= high


# --- image classification ----------------------------------------------------------------------------------------


def test_image_classification(make, randomise):
    config = tokenmixers.GMLPConfig(image_size=8, patch_size=4, num_labels=2, **SIZES)
    model = randomise(tokenmixers.GMLPForImageClassification(config)).eval()
    processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    noise = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    images = [Image.fromarray(pixels) for pixels in noise]
    with torch.no_grad():
        found = model(**processor(images, return_tensors="pt")).logits.argmax(dim=-1).tolist()
    labels = [1 - label if i % 3 == 0 else label for i, label in enumerate(found)]
    columns = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"image": images, "label": labels}, features=columns)
    pipe = pipeline("image-classification", model=model, image_processor=processor)
    arguments = {"data": data, "metric": load_metric("accuracy"), "label_mapping": MAPPING}
    assert scores_of(make("image-classification").compute(pipe, **arguments)) == {"accuracy": 8 / 12}
    if make is evaluator:
        results = evaluator("image-classification").compute(model, feature_extractor=processor, **arguments)
        assert scores_of(results) == {"accuracy": 8 / 12}


# --- token classification ----------------------------------------------------------------------------------------


def tagger_of(tokenizer, randomise):
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: index for index, tag in enumerate(TAGS)}}
    config = tokenmixers.GMLPConfig(vocab_size=len(tokenizer), **names, **SIZES)
    return randomise(tokenmixers.GMLPForTokenClassification(config)).eval()


@pytest.fixture(scope="module")
def tagged():
    words = [text.split() for text in TEXTS]
    tags = [[(i + len(row)) % 3 for i in range(len(row))] for row in words]
    features = {
        "tokens": datasets.Sequence(datasets.Value("string")),
        "ner_tags": datasets.Sequence(datasets.ClassLabel(names=list(TAGS))),
    }
    return datasets.Dataset.from_dict({"tokens": words, "ner_tags": tags}, features=datasets.Features(features))


def scores_of_words(model, tokenizer, tagged) -> dict:
    """From the model's tags at the first token of each word, as `run_token_classification.py` finds them."""
    rows = tokenize(tagged.select_columns(["tokens"]), tokenizer, 64, TAGS)
    predictions = []
    for row in rows:
        with torch.no_grad():
            best = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].argmax(dim=-1)
        predictions.append([TAGS[best[start]] for start in row["starts"]])
    references = [[TAGS[tag] for tag in row] for row in tagged["ner_tags"]]
    assert {tag for row in predictions for tag in row} > {"O"}
    return load_metric("seqeval").compute(predictions=predictions, references=references)


def test_token_classification(make, word_tokenizer, randomise, tagged):
    model = tagger_of(word_tokenizer, randomise)
    pipe = pipeline("token-classification", model=model, tokenizer=word_tokenizer)
    results = make("token-classification").compute(pipe, tagged, metric=load_metric("seqeval"))
    assert scores_of(results) == scores_of_words(model, word_tokenizer, tagged)


def test_tokens_that_begin_with_the_space_before_a_word(tokenizer, randomise, tagged):
    model = tagger_of(tokenizer, randomise)
    pipe = pipeline("token-classification", model=model, tokenizer=tokenizer)
    assert pipe("the gate", ignore_labels=[])[-1]["word"] != "gate"
    assert scores_of(evaluator("token-classification").compute(pipe, tagged)) == scores_of_words(
        model, tokenizer, tagged
    )


def test_words_without_a_token_are_outside():
    tokens = [{"start": 0, "end": 3, "entity": "B-A"}, {"start": 3, "end": 5, "entity": "I-A"}]
    words = [["the", "x", "\u200b", "end"]]
    predictions = evaluator("token-classification").predictions_processor([tokens], words, " ")
    assert predictions == {"predictions": [["B-A", "I-A", "O", "O"]]}
    tokens = [{"start": 0, "end": 3, "entity": "B-A"}, {"start": 5, "end": 9, "entity": "I-A"}]  # " end"
    words = [["the", "\u200b", "end"]]
    predictions = evaluator("token-classification").predictions_processor([tokens], words, " ")
    assert predictions == {"predictions": [["B-A", "O", "I-A"]]}


# --- question answering ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tokenizer, randomise):
    return randomise(
        tokenmixers.GMLPForQuestionAnswering(tokenmixers.GMLPConfig(vocab_size=len(tokenizer), **SIZES))
    ).eval()


def questions(unanswerable: bool) -> datasets.Dataset:
    return datasets.Dataset.from_list(
        [
            {
                "id": str(i),
                "question": "what mixes",
                "context": text,
                "answers": {"text": [], "answer_start": []}
                if unanswerable and i % 2
                else {"text": [text.split()[1]], "answer_start": [text.index(" ") + 1]},
            }
            for i, text in enumerate(TEXTS)
        ]
    )


def expected_scores(pipe, data, metric: str, **options) -> dict:
    """Question by question."""
    answers = [pipe(question=row["question"], context=row["context"], **options) for row in data]
    rows = [{"id": str(i), "prediction_text": answer["answer"]} for i, answer in enumerate(answers)]
    if metric == "squad_v2":
        rows = [{**row, "no_answer_probability": a["score"]} for row, a in zip(rows, answers, strict=True)]
    references = [{"id": row["id"], "answers": row["answers"]} for row in data]
    return load_metric(metric).compute(predictions=rows, references=references)


@pytest.mark.parametrize("metric", ["squad", "squad_v2"])
def test_question_answering(make, reader, tokenizer, metric):
    data = questions(unanswerable=metric == "squad_v2")
    pipe = pipeline("extractive-question-answering", model=reader, tokenizer=tokenizer)
    results = make("question-answering").compute(pipe, data, metric=load_metric(metric))
    expected = expected_scores(pipe, data, metric, handle_impossible_answer=metric == "squad_v2")
    assert scores_of(results) == pytest.approx(expected)
    assert results["f1"] > 0


def test_question_answering_pipelines_by_other_names(reader, tokenizer, tmp_path):
    """One that was made directly, one that was saved with its code, and a model."""
    data = questions(unanswerable=False)
    direct = tokenmixers.QuestionAnsweringPipeline(model=reader, tokenizer=tokenizer)
    expected = expected_scores(direct, data, "squad")
    reader.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = pipeline("question-answering", model=str(tmp_path), trust_remote_code=True)
    for pipe in (direct, loaded):
        assert scores_of(evaluator("question-answering").compute(pipe, data)) == pytest.approx(expected)
    results = evaluator("question-answering").compute(reader, data, tokenizer=tokenizer)
    assert scores_of(results) == pytest.approx(expected)


def test_mistakes_say_what_is_allowed(classifier, tokenizer, labelled):
    with pytest.raises(
        ValueError, match="there is no evaluator for 'fill-mask'; there are text-classification, image"
    ):
        evaluator("fill-mask")
    pipe = pipeline("text-classification", model=classifier, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="must be a model or a pipeline for token-classification, got TextClassifi"):
        evaluator("token-classification").prepare_pipeline(pipe)
    with pytest.raises(
        ValueError, match="must be a model or a pipeline for text-classification, got NoneType for None"
    ):
        evaluator("text-classification").compute(None, labelled)
