import json
import pickle
import random
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from tokenmixers import AMLPForMaskedLM, AMLPForQuestionAnswering, AMLPForSequenceClassification
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.convert_amlp_japanese import _check_archive, _read_torch, main


TESTS = Path(__file__).parents[1]
MODEL = runpy.run_path(str(TESTS / "modeling" / "conversion" / "test_amlp_japanese.py"))
TOKENIZER = runpy.run_path(str(TESTS / "tokenization" / "test_amlp_japanese.py"))
VOCABULARY = TOKENIZER["VOCABULARY"]
SETTINGS = {"num_ctx": 13, "num_vocab": len(VOCABULARY), "num_hidden": 10, "num_soft_att": 4, "num_layer": 2}


def tensors(head=None):
    return MODEL["random_tensors"](MODEL["expected_shapes"](**SETTINGS, head=head))


def write_source(folder, head=None):
    """A checkpoint as their tfmodel2torch.py writes it, in the folder where their emoji.json is."""
    torch.save(tensors(head), folder / "amlp.pt")
    (folder / "amlp.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    (folder / "amlp.json").write_text(json.dumps({**SETTINGS, "type": "mlp", "dropout_prob": 0.03}))
    (folder / "emoji.json").write_text(json.dumps(TOKENIZER["EMOJI"]), encoding="utf-8")
    return folder / "amlp.pt"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "theirs").mkdir()
    return write_source(tmp_path / "theirs")


def convert(source, output, *arguments):
    main(["--source", str(source), "--output_dir", str(output), *map(str, arguments)])


def test_a_masked_language_model_fills_masks(source, tmp_path, capsys):
    convert(source, tmp_path / "out")
    assert "AMLPForMaskedLM" in capsys.readouterr().out
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    assert type(model) is AMLPForMaskedLM and model.config.hidden_dropout_prob == 0.03
    inputs = tokenizer("あ<|nottoken|>会社", return_tensors="pt")
    _, expected = MODEL["reference"](tensors(), inputs.input_ids[0])
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits[0], expected, rtol=1e-5, atol=2e-5)
    found = pipeline("fill-mask", model=str(tmp_path / "out"), top_k=5)("あ<|nottoken|>会社")
    best = expected[2].softmax(-1).topk(5)
    assert [entry["token"] for entry in found] == best.indices.tolist()
    np.testing.assert_allclose([entry["score"] for entry in found], best.values, rtol=1e-4)


def test_question_answering(tmp_path):
    convert(write_source(tmp_path, "squad_output"), tmp_path / "out")
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")
    assert type(model) is AMLPForQuestionAnswering
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")("会社", "あいう", return_tensors="pt")
    _, expected = MODEL["reference"](tensors("squad_output"), inputs.input_ids[0], "squad_output")
    with torch.no_grad():
        outputs = model(**inputs)
    torch.testing.assert_close(torch.stack([outputs.start_logits[0], outputs.end_logits[0]], -1), expected)
    answering = pipeline("extractive-question-answering", model=str(tmp_path / "out"))
    answer = answering(question="会社", context="あ会社か")
    assert answer["answer"] == "あ会社か"[answer["start"] : answer["end"]] != ""


def test_classification_with_their_names_of_classes(tmp_path):
    source = write_source(tmp_path, "output")
    (tmp_path / "amlp-idmap.json").write_text(json.dumps({"news": 2, "sport": 0, "film": 1}))
    convert(source, tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert type(model) is AMLPForSequenceClassification
    assert model.config.id2label == {0: "sport", 1: "film", 2: "news"}


def test_card_and_files(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    convert(source, "models/out")
    (tmp_path / "models" / "out").rename("out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.language, card.data.pipeline_tag) == ("mit", ["ja"], "fill-mask")
    assert "github.com/tanreinama/aMLP-japanese" in card.text and "What differs from the paper" in card.text
    assert str(tmp_path) not in card.text and "{{" not in card.text
    assert "\n# out\n" in card.text and 'model="models/out", trust_remote_code=True)' in card.text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"model.safetensors", "config.json", "tokenizer.json", "modeling_amlp.py"}
    assert not any("conversion" in name or "japanese" in name for name in names)


@pytest.mark.parametrize(
    "content", [{"a": 0, "b": [1], "c": 2}, {"a": 0, "b": "1", "c": 2}, {"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 3}, {}]
)
def test_wrong_names_of_classes(content, tmp_path):
    source = write_source(tmp_path, "output")
    (tmp_path / "amlp-idmap.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"does not name the model's 3 classes: .* integer from 0 to 2\.$"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_card_of_a_classifier_that_a_user_has_trained(tmp_path, capsys):
    source = write_source(tmp_path, "output")
    convert(source, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license is None and "states no licence" in capsys.readouterr().out
    assert "a model trained with the code of [aMLP-japanese](" in card.text
    assert "by the author" not in card.text and "MIT" not in card.content and "license" not in card.content
    convert(source, tmp_path / "licensed", "--source_license", "apache-2.0")
    assert ModelCard.load(tmp_path / "licensed" / "README.md").data.license == "apache-2.0"
    assert "licence" not in capsys.readouterr().out


@pytest.mark.parametrize("head", [None, "squad_output"])
def test_the_licence_of_published_models(head, tmp_path, capsys):
    source = write_source(tmp_path, head)
    convert(source, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license == "mit" and "the weights of [aMLP-japanese](" in card.text
    assert "by the author of aMLP-japanese, who publishes them under the MIT licence." in card.text
    convert(source, tmp_path / "licensed", "--source_license", "cc-by-4.0")
    card = ModelCard.load(tmp_path / "licensed" / "README.md")
    assert card.data.license == "cc-by-4.0" and "MIT" not in card.text and "by the author" not in card.text
    assert "states no licence" not in capsys.readouterr().out


def test_other_places_of_vocabulary_and_emoji(source, tmp_path):
    for name in ("amlp.txt", "emoji.json"):
        (source.parent / name).rename(tmp_path / name)
    convert(source, tmp_path / "out", "--vocabulary", tmp_path / "amlp.txt", "--emoji", tmp_path / "emoji.json")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == len(VOCABULARY)


def flip(path):
    """Change one bit of a weight."""
    content, weights = bytearray(path.read_bytes()), tensors()["layer.1.b.proj.w"].numpy().tobytes()
    content[content.index(weights) + 8] ^= 1
    path.write_bytes(content)


def write_integers(folder):
    torch.save({name: tensor.int() for name, tensor in tensors().items()}, folder / "amlp.pt")


def test_any_changed_byte_is_found_or_changes_nothing(source, tmp_path):
    content = source.read_bytes()
    expected = torch.load(source, weights_only=True)
    draw, found = random.Random(0), 0
    for _ in range(60):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        source.write_bytes(changed)
        try:
            _check_archive(source)
            tensors = _read_torch(source)
        except UserError:
            found += 1
        else:
            assert tensors.keys() == expected.keys()
            assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert found > 10  # other bytes are padding


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "amlp.pt").write_bytes(b""),
            "not a .pt file of aMLP-japanese: it is not a file that torch",
        ),
        (lambda folder: flip(folder / "amlp.pt"), r"amlp.pt' is damaged \(in 'amlp/data/\d+'\): copy or download it"),
        (write_integers, "amlp.pt' cannot be converted: '.*' is a tensor of torch.int32"),
        (lambda folder: torch.save({"fc.w": torch.ones(1)}, folder / "amlp.pt"), "'fc.w' is not a tensor of an aMLP"),
        (
            lambda folder: torch.save({"a": Trap()}, folder / "amlp.pt"),
            "not a .pt file of aMLP-japanese: Weights only",
        ),
        (lambda folder: (folder / "amlp.pt").write_bytes(pickle.dumps(Trap())), "not a .pt file of aMLP-japanese"),
        (lambda folder: (folder / "amlp.txt").unlink(), r"there is no '.*amlp.txt', .*: give --vocabulary"),
        (lambda folder: (folder / "emoji.json").unlink(), r"there is no '.*emoji.json', .*: give --emoji"),
        (lambda folder: (folder / "emoji.json").write_text('{"emoji": {"x": 3}}'), "'emoji_inv' must map texts to"),
        (lambda folder: (folder / "amlp.txt").write_text("a\nb"), r"\d+ tokens, but the vocabulary .* has 2 lines"),
        (
            lambda folder: (folder / "amlp.txt").write_text("\n".join(map(str, range(len(VOCABULARY))))),
            "amlp.txt' cannot be converted: The vocabulary lacks",
        ),
        (lambda folder: (folder / "amlp.json").write_text("{"), "amlp.json' cannot be read"),
        (lambda folder: (folder / "amlp.json").write_text('{"type": "transformer"}'), "of the type 'transformer'"),
    ],
)
def test_wrong_sources(source, tmp_path, change, message):
    change(source.parent)
    with pytest.raises(SystemExit, match=message) as raised:
        convert(source, tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"] and not Trap.sprung


class Trap:
    """What unpickling must not run."""

    sprung = False

    def __reduce__(self):
        return spring, ()


def spring():
    Trap.sprung = True


def test_nothing_is_overwritten(source, overwrites_nothing):
    overwrites_nothing(lambda output: convert(source, output))


# --- TensorFlow ----------------------------------------------------------------------------------------------------


def tensorflow_folder(folder, head=None):
    """What goes with a SavedModel of theirs, but for the variables."""
    (folder / "variables").mkdir(parents=True)
    (folder / "variables" / "variables.index").write_bytes(b"")
    (folder / "vocabulary.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    (folder / "hparams.json").write_text(json.dumps({**SETTINGS, "type": "mlp"}))
    (folder.parent / "emoji.json").write_text(json.dumps(TOKENIZER["EMOJI"]), encoding="utf-8")
    return folder


@pytest.fixture
def stand_in(monkeypatch):
    """TensorFlow's reader of checkpoints, with the tensors of a model under numbered keys, and a graph of names."""
    named = {name.replace(".", "_"): tensor.numpy() for name, tensor in tensors("squad_output").items()}
    named |= {"Adam/m/embed_w": np.ones(3), "iteration": np.ones(()), "embed_w/velocity": np.ones(2)}
    keys = {name: f"variables/{index}/.ATTRIBUTES/VARIABLE_VALUE" for index, name in enumerate(named)}
    entries = [types.SimpleNamespace(full_name=name, checkpoint_key=key) for name, key in keys.items()]
    graph = types.SimpleNamespace(nodes=[types.SimpleNamespace(attributes=[entry]) for entry in entries])
    stored = {keys[name]: value for name, value in named.items()} | {"_CHECKPOINTABLE_OBJECT_GRAPH": b"graph"}
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.errors = types.SimpleNamespace(OpError=type("OpError", (Exception,), {}))
    reader = types.SimpleNamespace(get_tensor=stored.__getitem__)
    tensorflow.train = types.SimpleNamespace(load_checkpoint=lambda path: reader)
    graphs = types.ModuleType("tensorflow.core.protobuf.trackable_object_graph_pb2")
    graphs.TrackableObjectGraph = types.SimpleNamespace(FromString=lambda data: graph)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, graphs.__name__, graphs)
    return tensorflow


def test_a_model_in_tensorflow(stand_in, tmp_path):
    convert(tensorflow_folder(tmp_path / "theirs" / "aMLP-SQuAD"), tmp_path / "out")
    convert(write_source(tmp_path, "squad_output"), tmp_path / "same")
    models = [AutoModelForQuestionAnswering.from_pretrained(tmp_path / name) for name in ("out", "same")]
    states = [model.state_dict() for model in models]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_folder_that_tensorflow_cannot_read(stand_in, tmp_path):
    folder = tensorflow_folder(tmp_path / "theirs" / "model")

    def fail(path):
        raise stand_in.errors.OpError("Unable to open table file\nmore")

    stand_in.train.load_checkpoint = fail
    with pytest.raises(SystemExit, match=r"is not a model of aMLP-japanese: Unable to open table file\.$"):
        convert(folder, tmp_path / "out")
    (folder / "variables" / "variables.index").unlink()
    with pytest.raises(SystemExit, match=r"it has no variables/variables\.index"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tensorflow_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(SystemExit, match="needs tensorflow, which cannot be imported"):
        convert(tensorflow_folder(tmp_path / "theirs" / "model"), tmp_path / "out")


@pytest.mark.slow  # TensorFlow takes seconds to import
def test_a_checkpoint_that_tensorflow_has_written(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    folder = tensorflow_folder(tmp_path / "theirs" / "model")
    module = tensorflow.Module()
    module.list = [
        tensorflow.Variable(tensor.numpy(), name=name.replace(".", "_")) for name, tensor in tensors().items()
    ]
    module.step = tensorflow.Variable(3, name="iteration")
    tensorflow.train.Checkpoint(root=module).write(str(folder / "variables" / "variables"))
    convert(folder, tmp_path / "out")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.lm_head.bias, tensors()["vocabrary_embed"])
    assert torch.equal(model.model.layers[1].proj_in.weight, tensors()["layer.1.b.proj.w"].T)
