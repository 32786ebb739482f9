"""What sentence embeddings lose against a teacher's, and the batches and partners that they are read in."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch


pytest.importorskip("sentence_transformers")
from datasets import Dataset
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig, BertModel, BertTokenizer

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training import embedding_distillation
from tokenmixers.run_scripts.training.embedding_distillation import LengthBatchSampler, TeacherLoss, find_partners
from tokenmixers.run_scripts.training.sentence_embeddings import as_sentence_transformer, read_in_parts


class Recorded(torch.nn.Module):
    """A student whose embeddings and states of tokens are given."""

    def __init__(self, pooling=None):
        super().__init__()
        config = SimpleNamespace() if pooling is None else SimpleNamespace(classifier_pooling=pooling)
        self.transformers_model = SimpleNamespace(config=config)

    def forward(self, features):
        return {"sentence_embedding": features["embeddings"], "token_embeddings": features.get("states")}


def test_loss_is_the_formula():
    draw = np.random.default_rng(0)
    students, teachers = draw.normal(size=(2, 5, 7)), draw.normal(size=(2, 5, 7))
    loss = TeacherLoss(Recorded(), scale=4.0)
    loss.embeddings = torch.tensor(teachers).float().reshape(10, 7)
    features = [{"embeddings": torch.tensor(student).float()} for student in students]
    found = loss(features, torch.tensor([[row, 5 + row] for row in range(5)]))
    unit = [array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (students, teachers)]
    assert found["embedding"].item() == pytest.approx((1 - (unit[0] * unit[1]).sum(-1)).mean(), abs=1e-5)
    all_texts = [array.reshape(10, 7) for array in unit]
    differences = all_texts[0] @ all_texts[0].T - all_texts[1] @ all_texts[1].T
    assert found["similarity"].item() == pytest.approx(20 * (differences**2).mean(), abs=1e-5)
    exponents = [np.exp(4 * array[0] @ array[1].T) for array in unit]
    student, teacher = (array / array.sum(1, keepdims=True) for array in exponents)
    divergence = (teacher * np.log(teacher / student)).sum(1).mean()
    assert found["ranking"].item() == pytest.approx(divergence, abs=1e-5)
    assert set(loss(features[:1], torch.arange(5))) == {"embedding", "similarity"}
    loss.has_pairs = True  # several processes gather the same parts at every step
    assert loss(features[:1], torch.arange(5))["ranking"] == 0


@pytest.fixture
def student(tmp_path):
    """`student(dropout)`: a BERT with mean pooling, the same each time, in training mode."""

    def build(dropout=0.0):
        torch.manual_seed(0)
        rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + "\n".join("abcdefghij"))
        tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=12)
        model = BertModel(BertConfig(vocab_size=15, initializer_range=0.5, **sizes, **rates))
        return as_sentence_transformer(model, tokenizer).train()

    return build


def _texts(columns, rows=15, length=9):
    """Features of texts of unequal length, the third for every fourth row, and the places of their embeddings."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 15, (columns, rows, length), generator=draw)
    real = torch.arange(length) < torch.randint(3, length + 1, (columns, rows, 1), generator=draw)
    features = [{"input_ids": i, "attention_mask": mask.long()} for i, mask in zip(ids, real, strict=True)]
    features[2:] = [{name: values[::4] for name, values in column.items()} for column in features[2:]]
    return features, torch.arange(rows * 2).view(2, rows).mT


def _teacher_loss(model):
    loss = TeacherLoss(model, scale=4.0, states_weight=1.0, joined_weight=1.0)
    loss.embeddings = torch.randn(30, 16, generator=torch.Generator().manual_seed(1))
    loss.read = lambda features: {"token_embeddings": features["input_ids"][..., None] + torch.arange(16.0).sin()}
    return loss


def _loss_and_gradients(loss, model, features, labels):
    torch.manual_seed(3)
    found = loss([{**column} for column in features], labels)
    found = sum(found.values()) if isinstance(found, dict) else found
    found.backward()
    return [found, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("build", "columns"), [(MultipleNegativesRankingLoss, 2), (_teacher_loss, 3)])
def test_a_batch_in_parts_has_the_loss_and_the_gradients_of_the_whole(build, columns, dropout, student):
    """With dropout, those of the same parts without reading any twice: the whole batch has other random numbers."""
    features, labels = _texts(columns)
    model = student(dropout)
    if dropout:
        read = model.transformers_model.forward

        def in_pairs(**inputs):
            split = {n: v.split(2) if torch.is_tensor(v) else itertools.repeat(v) for n, v in inputs.items()}
            parts = [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=False)]
            return {"last_hidden_state": torch.cat([read(**part).last_hidden_state for part in parts])}

        model.transformers_model.forward = in_pairs
    expected = _loss_and_gradients(build(model), model, features, labels)
    model = student(dropout)
    read_in_parts(model, 2 * 9 + 8)
    found = _loss_and_gradients(build(model), model, features, labels)
    assert len(found) == len(expected) > 20
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_batch_in_parts_needs_the_memory_of_a_part(student):
    sizes, kept = [], [0]

    def keep(tensor):
        kept[-1] += tensor.nbytes
        return tensor

    def run(rows, tokens=None):
        model = student()
        if tokens is not None:
            read_in_parts(model, tokens)
        layer = model.transformers_model.encoder.layer[0]
        layer.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].shape[:2].numel()))
        sizes.clear()
        kept.append(0)
        (features,), _ = _texts(1, rows, 12)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model({**features})["sentence_embedding"]
        output.sum().backward()
        return kept[-1]

    whole = run(40)
    assert sizes == [480]
    assert run(40, 60) < whole / 20  # the texts' last states, and what makes embeddings of them
    assert sizes == [60] * 16  # each part once more in the backward pass
    assert run(5, 60) > whole / 9 and sizes == [60]  # a batch that is no longer is read as it is


def test_parts_are_refused_where_more_is_read_than_the_last_states(student):
    model = student()
    model.transformers_model.config.output_hidden_states = True
    with pytest.raises(UserError, match="keeps the last layer's states alone"):
        read_in_parts(model, 60)
    pooled = student()
    del pooled[1]
    with pytest.raises(UserError, match="keeps the last layer's states alone"):
        read_in_parts(pooled, 60)


@pytest.mark.parametrize("pooling", [None, "cls", "mean", "normalized_mean"])
def test_loss_of_two_texts_in_one_input_is_the_formula(pooling):
    draw = np.random.default_rng(0)
    student, teacher = draw.normal(size=(2, 3, 4, 6))
    embeddings, real = draw.normal(size=(9, 6)), np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    loss = TeacherLoss(Recorded(pooling), scale=4.0, joined_weight=3.0)
    loss.embeddings = torch.tensor(embeddings).float()
    loss.read = lambda features: {"token_embeddings": torch.tensor(teacher)}
    joined = {"embeddings": None, "states": torch.tensor(student), "attention_mask": torch.tensor(real)}
    labels = torch.tensor([[row, 8 - row] for row in range(9)])  # rows 0, 4 and 8 are read with their partners
    found = loss([{"embeddings": loss.embeddings}, joined], labels)
    assert found["embedding"].item() == pytest.approx(0, abs=1e-5)
    unit = [array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (student, teacher, embeddings)]
    expected = (1 - (unit[0] * unit[1]).sum(-1))[real == 1].mean()
    assert found["joined_states"].item() == pytest.approx(3 * expected, abs=1e-5)
    read = student[:, 0]
    if pooling in ("mean", "normalized_mean"):
        read = np.stack([states[: mask.sum()].mean(0) for states, mask in zip(student, real, strict=True)])
    if pooling == "normalized_mean":
        read /= np.sqrt((read**2).mean(1, keepdims=True))
    said = read[:, [0, 2, 4]].mean(1) - read[:, [1, 3, 5]].mean(1)
    wanted = [unit[2][row] @ unit[2][8 - row] for row in (0, 4, 8)]
    assert found["joined_similarity"].item() == pytest.approx(3 * 2 * ((said - wanted) ** 2).mean(), abs=1e-5)


def test_loss_of_states_is_the_formula():
    """The mean over the columns of pairs, and in a column over the tokens of every fourth row."""
    draw = np.random.default_rng(0)
    students, teachers = draw.normal(size=(2, 2, 9, 4, 6))
    real = (np.arange(4) < draw.integers(1, 5, size=(2, 9, 1))).astype(int)
    loss = TeacherLoss(Recorded(), scale=4.0, states_weight=3.0)
    loss.embeddings = torch.randn(18, 6)
    loss.read = lambda features: {"token_embeddings": features["teacher"]}
    given = {"states": students, "teacher": teachers, "attention_mask": real}
    features = [
        {"embeddings": loss.embeddings[9 * i : 9 * i + 9]} | {name: torch.tensor(v[i]) for name, v in given.items()}
        for i in range(2)
    ]
    found = loss(features, torch.arange(18).view(2, 9).mT)
    lengths = np.linalg.norm(students, axis=-1) * np.linalg.norm(teachers, axis=-1)
    lost = 1 - (students * teachers).sum(-1) / lengths
    means = [one[[0, 4, 8]][mask[[0, 4, 8]] == 1].mean() for one, mask in zip(lost, real, strict=True)]
    expected = 3 * np.mean(means)
    assert found["states"].item() == pytest.approx(expected, abs=1e-5)


def test_partners_are_the_most_similar_texts(monkeypatch):
    monkeypatch.setattr(embedding_distillation, "PARTNERS", 5)
    angles = torch.tensor([0.0, 1.0, 0.4, 2.0, 2.9, 0.5, 0.0, 0.1, 0.45, 0.25])
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=-1)
    # The first text has the partner of the last one, the ninth that of the eighth.
    assert find_partners(embeddings, torch.arange(10)).tolist() == [7, 2, 0, 4, 3, 8, 7, 6, 6, 7]
    two = embeddings[:2]  # the partner of the text before is the first text itself
    assert find_partners(two, torch.arange(2)).tolist() == [1, 0]


def test_batches_have_texts_of_like_length():
    draw = np.random.default_rng(0)
    rows = Dataset.from_dict({"text": ["x"] * 1003, "length": draw.integers(3, 200, 1003).tolist()})
    sampler = LengthBatchSampler(rows, batch_size=10, drop_last=False, seed=3)
    first = list(sampler)
    assert sorted(number for batch in first for number in batch) == list(range(1003))
    assert len(first) == len(sampler) == 101
    spreads = [np.ptp([rows[number]["length"] for number in batch]) for batch in first]
    assert np.mean(spreads) < 10 < np.ptp(rows["length"][:])
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert [len(batch) for batch in LengthBatchSampler(rows, batch_size=10, drop_last=True)] == [10] * 100
