import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.training import class_names
from tokenmixers.run_scripts.training.class_names import build_classifier, indices_of, set_label_names
from tokenmixers.run_scripts.training.model_loading import load_config


TEXT = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT |= {"max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PATCHES = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
IMAGES = {**PATCHES, "num_attention_heads": 2}
DISTILBERT = {"vocab_size": 20, "dim": 8, "hidden_dim": 16, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 16}
BART = {"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
BART |= {"bos_token_id": 1, "eos_token_id": 2}
BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
BART |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 8)
RESNET = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}

SEQUENCES, TOKENS = AutoModelForSequenceClassification, AutoModelForTokenClassification
CASES = [
    (SEQUENCES, "gmlp", {name: TEXT[name] for name in TEXT if name != "num_attention_heads"}),
    (SEQUENCES, "bert", TEXT),
    (SEQUENCES, "roberta", TEXT),
    (SEQUENCES, "distilbert", DISTILBERT),
    (SEQUENCES, "bart", BART),
    (TOKENS, "synthesizer", {**TEXT, "num_attention_heads": 2, "head_dim": 4}),
    (TOKENS, "bert", TEXT),
    (AutoModelForImageClassification, "mlp_mixer", PATCHES),
    (AutoModelForImageClassification, "vit", IMAGES),
    (AutoModelForImageClassification, "deit", IMAGES),
    (AutoModelForImageClassification, "resnet", RESNET),
]


@pytest.fixture
def notes(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(class_names.logger, "warning", found.append)
    return found


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(auto_class, model_type, fields, names)`: a model with random weights in `tmp_path`."""

    def build(auto_class, model_type, fields, names):
        architectures = ["DeiTForImageClassificationWithTeacher"] if model_type == "deit" else []
        config = AutoConfig.for_model(
            model_type, **fields, id2label=dict(enumerate(names)), architectures=architectures
        )
        torch.manual_seed(0)
        model = auto_class.from_config(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        model.save_pretrained(tmp_path)
        return model

    return build


def inputs_of(model):
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    return {"input_ids": torch.tensor([[1, 7, 8, 9, 2], [1, 9, 4, 3, 2]])}


def load(folder, auto_class, names, trained=True):
    arguments = ModelArguments(str(folder))
    config = load_config(arguments)
    set_label_names(config, names, trained)
    return build_classifier(arguments, config, auto_class, trained).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("auto_class", "model_type", "fields"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_every_output_follows_its_name(auto_class, model_type, fields, checkpoint, tmp_path, notes):
    """In heads of all kinds, with the same classes, fewer, and some of them new: logits of a name stay the same."""
    known = ["entailment", "contradiction", "neutral"]
    model = checkpoint(auto_class, model_type, fields, known)
    inputs = inputs_of(model)
    expected = model(**inputs).logits
    for names in (
        ["contradiction", "entailment", "neutral"],
        ["neutral", "entailment"],
        ["new", "neutral", "Contradiction"],
    ):
        found = load(tmp_path, auto_class, names)
        assert list(found.config.id2label.values()) == names
        logits = found(**inputs).logits
        assert logits.shape[-1] == len(names)
        for index, name in enumerate(names):
            if name != "new":
                assert torch.equal(logits[..., index], expected[..., known.index(name.lower())]), name
            else:
                assert not any(torch.allclose(logits[..., index], expected[..., other]) for other in range(3))
    assert [note.partition(": ")[2] for note in notes] == [
        "the rows of the output layer follow the names.",
        "the rows of the output layer follow the names; left out: 'contradiction'.",
        "the rows of the output layer follow the names; new rows, which start at random: 'new'; left out: 'entailment"
        "'.",
    ]


def test_names_and_classes_without_names():
    unnamed = ("LABEL_0", "LABEL_1")
    places = {("ab", "ab"): [0, 1], ("ba", "ab"): [1, 0], ("bxa", "ab"): [1, None, 0], ("xy", "ab"): [None, None]}
    places |= {(("No", "yes"), ("YES", "NO")): [1, 0], (("a", "A"), ("A", "b")): [None, 0], ("ab", unnamed): [0, 1]}
    places |= {("abc", unnamed): [0, 1, None], ("a", unnamed): [0], (unnamed[::-1], unnamed): [1, 0]}
    places |= {("01", "ab"): [0, 1], ("01", "abc"): [None, None], ("12", "0123"): [1, 2]}
    places |= {(("n01440764", "n01443537"), ("tench", "goldfish")): [0, 1]}
    assert {(names, known): indices_of([*names], [*known]) for names, known in places} == places


def test_what_is_kept_by_index_and_what_is_new_is_said(checkpoint, tmp_path, notes):
    model = checkpoint(SEQUENCES, "bert", TEXT, ["LABEL_0", "LABEL_1"])
    kept = load(tmp_path, SEQUENCES, ["no", "yes"])
    assert torch.equal(kept.classifier.weight, model.classifier.weight)
    assert "are 'LABEL_0', 'LABEL_1', those of the data 'no', 'yes': they are taken for the same, in this" in notes[0]
    checkpoint(SEQUENCES, "bert", TEXT, ["no", "yes"])
    new = load(tmp_path, SEQUENCES, ["cat", "dog"])
    assert new.classifier.weight.abs().max() < 0.2, "BERT's initialization has a standard deviation of 0.02"
    assert torch.equal(new.bert.pooler.dense.weight, model.bert.pooler.dense.weight)
    assert notes[1].endswith("'no', 'yes', those of the data 'cat', 'dog': the output layer starts at random.")


def test_new_rows_start_as_in_a_new_model(checkpoint, tmp_path, notes):
    """Also where the number of classes is that of the checkpoint: others would start with rows of left out ones."""
    checkpoint(SEQUENCES, "bert", TEXT, ["a", "b"])
    found = load(tmp_path, SEQUENCES, ["b", "c"])
    assert found.classifier.weight[0].abs().max() > 0.5 > 0.2 > found.classifier.weight[1].abs().max()
    assert found.classifier.bias[1] == 0 and len(notes) == 1


def test_without_an_output_layer_there_is_nothing_to_say(checkpoint, tmp_path, notes):
    checkpoint(AutoModelForMaskedLM, "bert", TEXT, ["LABEL_0", "LABEL_1"])
    plain = []
    for names in (["no", "yes"], ["a", "b", "c"]):
        torch.manual_seed(1)
        found = load(tmp_path, SEQUENCES, names)
        torch.manual_seed(1)
        same = SEQUENCES.from_pretrained(tmp_path, num_labels=len(names))
        assert torch.equal(found.classifier.weight, same.classifier.weight)
        plain.append(found)
    assert notes == []
    # A head of another shape is no classifier's.
    checkpoint(AutoModelForMultipleChoice, "bert", TEXT, ["LABEL_0", "LABEL_1"])
    for names in (["no", "yes"], ["a", "b", "c"]):
        assert load(tmp_path, SEQUENCES, names).classifier.weight.shape == (len(names), 8)
    assert notes == []


def test_a_single_output_has_no_name(checkpoint, tmp_path, notes):
    model = checkpoint(SEQUENCES, "bert", TEXT, ["LABEL_0"])
    assert torch.equal(load(tmp_path, SEQUENCES, ["score"]).classifier.weight, model.classifier.weight)
    assert notes == []


def test_weights_in_half_precision_become_float32(checkpoint, tmp_path, notes):
    checkpoint(SEQUENCES, "bert", TEXT, ["a", "b"]).to(torch.bfloat16).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert {p.dtype for p in load(tmp_path, SEQUENCES, ["c", "b"]).parameters()} == {torch.float32}
