"""Our checkpoints in Sentence Transformers and MTEB themselves, without the command."""

import copy

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


pytest.importorskip("sentence_transformers")
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training.sentence_embeddings import (
    AllEvaluators,
    build_evaluator,
    ranking_loss,
    without_false_negatives,
)


TEXTS = ["the gate", "the gate mixes tokens and channels of this example", "channels", "this is about tokens"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer([*TEXTS] * 9, 60, model_max_length=64, show_progress=False)


@pytest.fixture
def checkpoint(tokenizer, randomise, tmp_path):
    """`checkpoint(head, prefix)`: a folder with a model with random weights, and the tokenizer."""

    def build(head: str, prefix: str = "GMLP", **changes) -> str:
        folder = tmp_path / f"{prefix}{head}"
        sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
        config = getattr(tokenmixers, f"{prefix}Config")(vocab_size=len(tokenizer), **sizes, **changes)
        randomise(getattr(tokenmixers, f"{prefix}{head}")(config)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return build


@pytest.mark.parametrize("prefix", [family.config.removesuffix("Config") for family in FAMILIES.values()])
def test_saved_and_loaded_embeddings_are_equal(prefix, checkpoint, tmp_path):
    model = SentenceTransformer(checkpoint("ForMaskedLM", prefix), device="cpu")  # mean pooling, of AutoModel
    model.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS), model.encode(TEXTS)
    )
    states = [
        model[0].model(**AutoTokenizer.from_pretrained(tmp_path / "saved")(text, return_tensors="pt"))
        for text in TEXTS
    ]
    expected = torch.cat([state.last_hidden_state.mean(1) for state in states]).detach()
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("labels", [1, 3])
def test_cross_encoders_score_pairs(labels, checkpoint):
    folder = checkpoint("ForSequenceClassification", num_labels=labels)
    pairs = [TEXTS[:2], TEXTS[2:]]
    scores = CrossEncoder(folder, device="cpu").predict(pairs)
    model = tokenmixers.GMLPForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(*pair, return_tensors="pt")).logits for pair in pairs])
    expected = logits.sigmoid()[:, 0] if labels == 1 else logits
    np.testing.assert_allclose(scores, expected, atol=2e-6)


def test_evaluators_of_both_kinds_of_pairs(checkpoint):
    from scipy.stats import spearmanr

    model = SentenceTransformer(checkpoint("Model"), device="cpu")
    rows = SIMILARITY
    found = build_evaluator(datasets.Dataset.from_dict(rows), 2, [5])(model)
    for prefix, size in (("", 16), ("dim_5_", 5)):
        one, other = (torch.tensor(model.encode(rows[name]))[:, :size] for name in ("sentence1", "sentence2"))
        expected = spearmanr(rows["score"], torch.cosine_similarity(one, other)).statistic
        assert found[f"{prefix}spearman_cosine"] == pytest.approx(expected)
    # Each text finds itself. "the gate" has two positives, and the second one, unlike it, may come last.
    pairs = {"anchor": [*TEXTS, TEXTS[0]], "positive": [*TEXTS, TEXTS[2]]}
    retrieval = build_evaluator(datasets.Dataset.from_dict(pairs), 2, None)(model)
    assert retrieval["cosine_accuracy@1"] == retrieval["cosine_mrr@10"] == 1
    assert 0.75 < retrieval["cosine_ndcg@10"] <= 1 == retrieval["cosine_recall@10"]


def test_an_anchor_among_the_documents_does_not_find_itself(checkpoint):
    """Of duplicates, each is the other's only answer. It would come second, after the anchor."""
    model = SentenceTransformer(checkpoint("Model"), device="cpu")
    pairs = {"anchor": [TEXTS[0], TEXTS[1]], "positive": [TEXTS[1], TEXTS[0]]}
    found = build_evaluator(datasets.Dataset.from_dict(pairs), 2, None)(model)
    assert found["cosine_ndcg@10"] == found["cosine_accuracy@1"] == found["cosine_map@100"] == 1


def test_pairs_whose_negative_is_the_anchor_or_the_positive_are_left_out(tokenizer):
    from tokenizers.normalizers import Lowercase

    class Model:
        max_seq_length = 12

    Model.tokenizer = copy.deepcopy(tokenizer)
    rows = {
        "anchor": ["the gate", "the gate", "the gate", "the gate", "the gate"],
        "positive": ["tokens", "tokens", "tokens", "tokens", "channels " * 12],
        "negative_1": ["channels", "tokens", "channels", "The Gate", "channels"],
        "negative_2": ["example", "example", "the gate", "example", "channels " * 13],
    }
    pairs = datasets.Dataset.from_dict(rows)
    assert without_false_negatives(pairs, Model).to_list() == [pairs[0], pairs[3]]
    Model.tokenizer.backend_tokenizer.normalizer = Lowercase()
    assert without_false_negatives(pairs, Model).to_list() == [pairs[0]]
    plain = pairs.select_columns(["anchor", "positive"])
    assert without_false_negatives(plain, Model) is plain


def test_what_is_not_defined_is_zero():
    evaluate = AllEvaluators([lambda model: {"a": float("nan"), "b": np.float64(0.5)}, lambda model: {"c": 1}])
    assert evaluate(torch.nn.Identity()) == {"a": 0.0, "b": 0.5, "c": 1.0}


SIMILARITY = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [1.0, 0.5, 0.0, 0.2]}
RETRIEVAL = {"anchor": TEXTS, "positive": TEXTS}


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_a_constant_similarity_is_no_correlation(checkpoint):
    model = SentenceTransformer(checkpoint("Model"), device="cpu")
    same = SIMILARITY | {"sentence1": TEXTS[:1] * 4, "sentence2": TEXTS[:1] * 4}
    evaluate = build_evaluator(datasets.Dataset.from_dict(same), 2, None)
    assert evaluate(model) == {"spearman_cosine": 0.0, "pearson_cosine": 0.0}


@pytest.mark.parametrize("rows", [SIMILARITY, RETRIEVAL], ids=["similarity", "retrieval"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_model_has_no_metrics(rows, value, checkpoint):
    model = SentenceTransformer(checkpoint("Model"), device="cpu")
    evaluate = build_evaluator(datasets.Dataset.from_dict(rows), 2, [5])
    whole = evaluate(model)
    parameter = next(model.parameters())
    kept = parameter.detach().clone()
    parameter.data.fill_(value)
    with pytest.raises(UserError, match=r"^error: the model's embeddings have infinite values or NaN: [^\n]*$"):
        evaluate(model)
    parameter.data.copy_(kept)
    assert evaluate(model) == whole and not model._forward_hooks


def test_matryoshka_adds_the_loss_of_first_dimensions(checkpoint):
    model = SentenceTransformer(checkpoint("Model"), device="cpu").eval()
    columns = [model.preprocess(TEXTS[:2]), model.preprocess(TEXTS[2:])]
    with torch.no_grad():
        found = ranking_loss(model, 20.0, [4, 16], 1)([dict(column) for column in columns], None)
        one, other = (torch.tensor(model.encode(texts)) for texts in (TEXTS[:2], TEXTS[2:]))
    expected = sum(
        torch.nn.functional.cross_entropy(
            20 * torch.cosine_similarity(one[:, None, :size], other[None, :, :size], dim=-1), torch.arange(2)
        )
        for size in (4, 16, 24)
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.slow
def test_mteb_takes_the_model(checkpoint, tmp_path):
    """A task of MTEB with rows of its own, through its own wrapper and evaluation."""
    mteb = pytest.importorskip("mteb")
    from mteb.abstasks import AbsTaskSTS
    from scipy.stats import spearmanr

    rows = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [1.0, 0.5, 0.0, 0.2]}

    class TinySTS(AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="TinySTS",
            description="Four pairs.",
            dataset={"path": "none/none", "revision": "1"},
            type="STS",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )
        min_score, max_score = 0, 1

        def load_data(self, *args, **kwargs):
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows)})
            self.data_loaded = True

    model = SentenceTransformer(checkpoint("Model"), device="cpu")
    result = mteb.evaluate(model, TinySTS(), cache=None)
    (scores,) = result.task_results[0].scores["test"]
    one, other = (torch.tensor(model.encode(rows[name])) for name in ("sentence1", "sentence2"))
    expected = spearmanr(rows["score"], torch.cosine_similarity(one, other)).statistic
    assert scores["cosine_spearman"] == pytest.approx(expected)


@pytest.mark.parametrize(("name", "accuracy"), [("back", 1.0), (None, 0.0)])
def test_held_out_pairs_are_read_as_encode_does(name, accuracy):
    """With the default prompt and nothing else: the library has own prompts, empty ones, for queries and documents."""
    vectors = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (0.7, 0.7), "back": (-2.0, 0.0)}
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vectors)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    module = StaticEmbedding(tokenizer, np.array([*vectors.values()], dtype=np.float32))
    prompts = {"back": "back ", "query": "b ", "document": "c "}
    model = SentenceTransformer(modules=[module], prompts=prompts, default_prompt_name=name, device="cpu")
    pairs = datasets.Dataset.from_dict({"anchor": ["a", "c"], "positive": ["b", "c"]})
    found = build_evaluator(pairs, 2, None).evaluators[0]
    found.queries, found.queries_ids = ["a"], ["a"]
    assert found(model)["cosine_accuracy@1"] == accuracy
