"""Students of a teacher's sentence embeddings: the cache, and whole runs of the command."""

import gzip
import json
import random
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer, ViTConfig, ViTModel


pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer

from tokenmixers import HybridBertModel
from tokenmixers.modeling.conversion.bert import mean_attention
from tokenmixers.run_scripts import run_sentence_embeddings
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import BadDataError
from tokenmixers.run_scripts.training import static_embeddings, teacher_embeddings
from tokenmixers.run_scripts.training.embedding_distillation import (
    EmbeddingDistillationTrainer,
    EmbeddingTeacher,
    TeacherLoss,
)
from tokenmixers.run_scripts.training.sentence_embeddings import AllEvaluators
from tokenmixers.run_scripts.training.teacher_embeddings import TeacherEmbeddings, teacher_fingerprint


ANIMALS, PLACES = ("cat", "dog", "owl", "hen", "fox"), ("house", "wood", "field", "barn", "tree")
WORDS = ["a", "the", "in", "is", "old", "young", "and", "?", ".", "where", *ANIMALS, *PLACES]
NO_CONFIG = {"config_name": None, "config_overrides": None}
SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=24"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts, pairs, pairs with a similarity, and a teacher whose tokenizer file pads and truncates."""
    folder, draw = tmp_path_factory.mktemp("teacher"), random.Random(0)
    lines = [f"the {draw.choice(ANIMALS)} is in the {draw.choice(PLACES)} ." for _ in range(60)]
    lines += [f"a young {draw.choice(ANIMALS)} and a {draw.choice(ANIMALS)} " * draw.randint(1, 5) for _ in range(40)]
    with gzip.open(folder / "texts.txt.gz", "wt") as file:
        file.write("\n".join([*lines, "", "  ", ""]))
    pairs = [
        f"where is the {animal} ?\tthe {animal} is in the {draw.choice(PLACES)}" for animal in ANIMALS for _ in "xx"
    ]
    (folder / "pairs.tsv").write_text("anchor\tpositive\n" + "\n".join(pairs) + "\nan empty one\t \n")
    rows = [f"the {draw.choice(ANIMALS)}\tthe {draw.choice(ANIMALS)} .\t{draw.random():.3f}" for _ in range(20)]
    (folder / "dev.tsv").write_text("sentence1\tsentence2\tscore\n" + "\n".join(rows))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    model = BertModel(BertConfig(vocab_size=len(special) + len(WORDS), initializer_range=0.5, **sizes))
    model.save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder / "bert")
    BertConfig(vocab_size=model.config.vocab_size, type_vocab_size=1, **sizes).save_pretrained(folder / "one_type")
    teacher = SentenceTransformer(modules=[Transformer(str(folder / "bert")), Pooling(32, "mean"), Normalize()])
    teacher.max_seq_length = 20
    teacher.save_pretrained(str(folder / "teacher"))
    file = folder / "teacher" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    padding = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    tokenizer["padding"] = {**padding, "pad_type_id": 0, "pad_token": "[PAD]"}
    tokenizer["truncation"] = {"max_length": 20, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    file.write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture
def command(data, as_words, tmp_path):
    settings = {
        "config_name": "gmlp-base",
        "config_overrides": SIZES,
        "teacher": data / "teacher",
        "train_file": [data / "*.txt.gz", data / "pairs.tsv"],
        "validation_file": data / "dev.tsv",
        "output_dir": tmp_path / "run",
        "cache_teacher": tmp_path / "cache",
        "precision": "fp32",
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_strategy": "no",
    }
    return lambda **changes: as_words(settings | changes)


@pytest.fixture
def teacher(data):
    return SentenceTransformer(str(data / "teacher"), device="cpu")


TEXTS = [f"the {animal} in the {place}" for animal in ANIMALS for place in PLACES]


def test_teacher_reads_each_text_once(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_embeddings, "TEXTS_PER_FILE", 7)
    cache = TeacherEmbeddings(tmp_path, teacher, "t")
    assert cache.add(iter(TEXTS[:10])) == 10
    assert cache.add(iter(TEXTS)) == len(TEXTS) - 10
    again = TeacherEmbeddings(tmp_path, teacher, "t")
    monkeypatch.setattr(teacher, "encode", None)  # which is not called
    assert again.add(iter(TEXTS[::-1])) == 0
    monkeypatch.undo()
    places = torch.tensor(again.places(TEXTS[5:20]))
    expected = teacher.encode(TEXTS[5:20], convert_to_tensor=True)
    torch.testing.assert_close(again[places], expected, atol=1e-3, rtol=0)  # half precision
    assert again[places].dtype == torch.float32
    assert all(load_file(path)["embeddings"].dtype == torch.float16 for path in again.files)


def test_two_processes_divide_the_texts(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_embeddings, "TEXTS_PER_FILE", 4)
    first, second = (TeacherEmbeddings(tmp_path / name, teacher, "t") for name in "ab")
    assert first.add(iter(TEXTS), rank=0, processes=2) == second.add(iter(TEXTS), rank=1, processes=2) == len(TEXTS)
    keys = [set(cache.keys.tolist()) for cache in (first, second)]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == len(TEXTS)


def test_interrupted_teacher_goes_on(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_embeddings, "TEXTS_PER_FILE", 5)
    cache = TeacherEmbeddings(tmp_path, teacher, "t")
    cache.add(iter(TEXTS))
    cache.files[2].unlink()
    (cache.folder / "_0-5.safetensors.123").write_bytes(b"half of a file")
    assert TeacherEmbeddings(tmp_path, teacher, "t").add(iter(TEXTS)) == 5


def test_another_teacher_has_another_cache(teacher, tmp_path):
    folders = [TeacherEmbeddings(tmp_path, teacher, "t").folder]
    with torch.no_grad():
        teacher[0].auto_model.embeddings.word_embeddings.weight[3, 0] += 1e-3
    folders.append(TeacherEmbeddings(tmp_path, teacher, "t").folder)
    teacher.max_seq_length = 6
    folders.append(TeacherEmbeddings(tmp_path, teacher, "t").folder)
    folders.append(TeacherEmbeddings(tmp_path, teacher.bfloat16(), "t").folder)
    assert len({*folders}) == 4


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


CHANGES = {
    "activation": lambda folder: edit(folder / "config.json", hidden_act="relu"),
    "epsilon": lambda folder: edit(folder / "config.json", layer_norm_eps=0.1),
    "truncate_dim": lambda folder: edit(folder / "config_sentence_transformers.json", truncate_dim=8),
    "prompt": lambda folder: edit(
        folder / "config_sentence_transformers.json", prompts={"query": "an old"}, default_prompt_name="query"
    ),
    "pooling": lambda folder: edit(folder / "1_Pooling" / "config.json", pooling_mode="max"),
    "padding side": lambda folder: edit(folder / "tokenizer_config.json", padding_side="left"),
    "normalization": lambda folder: (folder / "modules.json").write_text(
        json.dumps(json.loads((folder / "modules.json").read_text())[:2])
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_embeddings_changes_the_cache(change, data, teacher, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "changed")
    CHANGES[change](tmp_path / "changed")
    other = SentenceTransformer(str(tmp_path / "changed"), device="cpu")
    one, two = (model.encode([*TEXTS, "a"]) for model in (teacher, other))
    assert one.shape != two.shape or not np.allclose(one, two, atol=1e-4)
    assert teacher_fingerprint(other) != teacher_fingerprint(teacher)


def test_static_teachers_differ_by_their_tokenizers():
    vocabulary = {word: place for place, word in enumerate(["[UNK]", *WORDS])}
    teachers = []
    for pre_tokenizer in (pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit()):
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizer
        weights = np.eye(len(vocabulary), dtype=np.float32)
        teachers.append(SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu"))
    assert not np.allclose(*(model.encode("cat.") for model in teachers))
    assert len({*map(teacher_fingerprint, teachers)}) == 2


def test_static_teachers_have_neither_layers_nor_a_models_embeddings(data, tmp_path):
    tokenizer = Tokenizer.from_file(str(data / "bert" / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu").save(str(tmp_path))
    arguments = ModelArguments(config_name="gmlp-tiny")
    with pytest.raises(SystemExit, match="has no token embeddings of a model of Transformers"):
        EmbeddingTeacher(str(tmp_path), arguments).student_arguments(arguments)
    with pytest.raises(SystemExit, match="is a static model: an embedding for each token, and no layers to train,"):
        EmbeddingTeacher(str(tmp_path), arguments, kept_layers=[0]).student_arguments(ModelArguments())


def test_static_embeddings_need_a_fast_tokenizer(teacher):
    with pytest.raises(SystemExit, match="needs a teacher with a fast tokenizer"):
        static_embeddings.static_embeddings(teacher, SimpleNamespace(is_fast=False), TEXTS)


def test_the_lengths_of_a_teachers_embeddings_do_not_count(teacher):
    bare = SentenceTransformer(modules=[*teacher][:-1], device="cpu")
    found = [static_embeddings.static_embeddings(model, teacher.tokenizer, TEXTS) for model in (teacher, bare)]
    torch.testing.assert_close(*(static.embedding.weight for static in found))


def test_the_same_teacher_elsewhere_has_the_same_cache(data, teacher, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "moved")
    moved = EmbeddingTeacher(str(tmp_path / "moved"), ModelArguments())
    assert moved.tokenizer.backend_tokenizer.truncation is None  # unlike its file
    assert teacher_fingerprint(moved.model) == teacher_fingerprint(teacher)


def test_little_room_and_damaged_files(teacher, tmp_path, monkeypatch):
    cache = TeacherEmbeddings(tmp_path, teacher, "t")
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(teacher_embeddings.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(SystemExit, match=r"--cache_teacher needs 0\.0 GB in .* make room, or give another folder\."):
        cache.add(iter(TEXTS))
    assert not cache.folder.exists()
    monkeypatch.undo()
    cache.add(iter(TEXTS))
    cache.files[0].write_bytes(b"nothing")
    with pytest.raises(BadDataError, match=r"cannot be read .* remove that file, and the teacher reads its texts"):
        TeacherEmbeddings(tmp_path, teacher, "t").places(TEXTS)


def test_student_learns_the_teachers_embeddings(command, data, tmp_path, capsys):
    run_sentence_embeddings.main(command(max_steps=60, copy_token_embeddings=False))
    output = capsys.readouterr().out
    with gzip.open(data / "texts.txt.gz", "rt") as file:
        lines = file.read().splitlines()
    long = sum(len(line.split()) + 2 > 24 for line in lines)
    assert f"100 texts and 10 pairs; 3 empty rows skipped, {long} texts truncated" in output
    assert "training set" not in output and "texts set: 100 rows; pairs set: 10 rows" in output
    student, teacher = (SentenceTransformer(str(path), device="cpu") for path in (tmp_path / "run", data / "teacher"))
    assert student.get_embedding_dimension() == 32  # a linear layer makes 32 of 16
    assert type(student[2]).__name__ == "Dense" and student[2].linear.bias is None
    one, other = (torch.tensor(model.encode(TEXTS)) for model in (student, teacher))
    assert torch.nn.functional.cosine_similarity(one, other).mean() > 0.9
    tokenizer = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is tokenizer["padding"] is None
    assert AutoTokenizer.from_pretrained(tmp_path / "run").model_max_length == 24
    card = (tmp_path / "run" / "README.md").read_text()
    assert "joined_weight" in card and "TeacherLoss" in card
    assert not (tmp_path / "run" / "_teacher_embeddings").exists()


def test_token_embeddings_are_the_teachers(command, data, tmp_path):
    sizes = SIZES.replace("hidden_size=16", "hidden_size=32")
    run_sentence_embeddings.main(
        command(copy_token_embeddings=True, config_overrides=sizes, learning_rate=0, cache_teacher=None)
    )
    bert = BertModel.from_pretrained(data / "bert").embeddings
    expected = bert.word_embeddings.weight + bert.token_type_embeddings.weight[0]
    found = load_file(tmp_path / "run" / "model.safetensors")["embed_tokens.weight"]
    torch.testing.assert_close(found, expected.detach(), atol=1e-6, rtol=0)
    assert (tmp_path / "run" / "_teacher_embeddings").is_dir()
    modules = [
        module["type"].rpartition(".")[2] for module in json.loads((tmp_path / "run" / "modules.json").read_text())
    ]
    assert modules == ["Transformer", "Pooling", "Normalize"]


@pytest.mark.parametrize(("kept", "name"), [([1], "teacher"), ([1, 0], "bert")])  # with modules, and without
def test_student_of_the_teachers_layers(kept, name, command, data, tmp_path):
    arguments = command(**NO_CONFIG, teacher=data / name, keep_layers=kept, learning_rate=0)
    run_sentence_embeddings.main(arguments)
    teacher, folder = BertModel.from_pretrained(data / "teacher"), tmp_path / "run"
    student = BertModel.from_pretrained(folder)
    assert len(student.encoder.layer) == len(kept)
    for place, index in enumerate(kept):
        found, expected = student.encoder.layer[place].state_dict(), teacher.encoder.layer[index].state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(student.embeddings.word_embeddings.weight, teacher.embeddings.word_embeddings.weight)
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.1  # for finetuning
    assert re.search(rf"`keep_layers` +\| +{re.escape(str(kept))}", (folder / "README.md").read_text())


def test_student_with_scores_in_place_of_attention(command, data, tmp_path):
    fields = {**NO_CONFIG, "config_overrides": "num_mean_queries=2,aft_gate=true,intermediate_size=8"}
    run_sentence_embeddings.main(command(**fields, keep_layers=[1], token_mixers=["aft"], learning_rate=0))
    teacher, student = BertModel.from_pretrained(data / "teacher"), HybridBertModel.from_pretrained(tmp_path / "run")
    mixer, attention = student.layers[0].self_attn, teacher.encoder.layer[1].attention.self
    assert (student.config.num_mean_queries, student.config.intermediate_size) == (2, 8)
    assert torch.equal(mixer.v_proj.weight, attention.value.weight)
    assert not mixer.gate_proj.weight.any()
    # A score is a product with a combination of the rows of the head's key projection.
    for rows, scores in zip(attention.key.weight.chunk(2), mixer.score_proj.weight.chunk(2), strict=True):
        inside = scores @ torch.linalg.pinv(rows) @ rows
        torch.testing.assert_close(inside, scores, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("change", "kept"), [("prompt", []), ("truncate_dim", [0, 1])])
def test_student_is_trained_as_encode_of_its_folder(change, kept, command, data, tmp_path, table_of):
    """Prompt and number of dimensions are settings of the folder, outside of the modules."""
    shutil.copytree(data / "teacher", tmp_path / "changed")
    CHANGES[change](tmp_path / "changed")
    settings = {**NO_CONFIG, "teacher": tmp_path / "changed", "keep_layers": kept, "learning_rate": 0}
    run_sentence_embeddings.main(command(**settings, max_steps=1))
    teacher, student = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("changed", "run"))
    (entry,) = [entry for entry in state_of(tmp_path / "run")["log_history"] if "embedding" in entry]
    if kept:
        assert entry["loss"] < 1e-4
        np.testing.assert_allclose(student.encode(TEXTS), teacher.encode(TEXTS), atol=1e-5)
    assert student.encode("a").shape == ((8,) if change == "truncate_dim" else (32,))
    rows = table_of(tmp_path / "run" / "predictions_validation.csv")
    one, two = (torch.tensor(student.encode([row[name] for row in rows])) for name in ("sentence1", "sentence2"))
    found = torch.tensor([float(row["prediction"]) for row in rows])
    torch.testing.assert_close(found, torch.cosine_similarity(one, two), atol=1e-5, rtol=0)


def test_a_finished_run_is_not_extended_with_another_model_of_the_same_name(command, data, tmp_path):
    names = {"teacher": "teacher", "model_name_or_path": "bert", "tokenizer_name": "teacher"}
    one, moved, others = ({role: tmp_path / place / role / names[role] for role in names} for place in "abc")
    for roles in (one, moved, others):
        for role, folder in roles.items():
            shutil.copytree(data / names[role], folder)
    # A tokenizer's folder may be a model's, with any weights.
    for folder in (others["teacher"], others["model_name_or_path"], moved["tokenizer_name"]):
        weights = load_file(folder / "model.safetensors")
        weights["embeddings.word_embeddings.weight"][3, 0] += 1
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit(others["tokenizer_name"] / "tokenizer_config.json", mask_token="the")
    settings = {**NO_CONFIG, "save_strategy": "steps", "save_steps": 2}
    run_sentence_embeddings.main(command(**settings, **one))
    files = sorted((tmp_path / "run").rglob("*"))
    settings["max_steps"] = 4
    for role, other in others.items():
        kind = "tokenizer" if role == "tokenizer_name" else "model"
        with pytest.raises(SystemExit, match=f"was written with another {kind} as --{role}: a run goes on with"):
            run_sentence_embeddings.main(command(**settings, **one | {role: other}))
        assert sorted((tmp_path / "run").rglob("*")) == files
    run_sentence_embeddings.main(command(**settings, **moved))
    assert state_of(tmp_path / "run")["global_step"] == 4


def test_a_grid_is_not_continued_with_another_teacher_of_the_same_name(command, data, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "teacher")
    settings = {"teacher": tmp_path / "teacher", "max_steps": 1}
    run_sentence_embeddings.main(command(**settings, seeds=[1]))
    CHANGES["epsilon"](tmp_path / "teacher")
    with pytest.raises(SystemExit, match=r"were made with files of --teacher='.*', now it is '.*': they could not be"):
        run_sentence_embeddings.main(command(**settings, seeds=[1, 2]))


def test_student_that_cuts_its_embeddings_to_fewer_than_the_teachers_is_refused(command, data, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "changed")
    CHANGES["truncate_dim"](tmp_path / "changed")
    with pytest.raises(SystemExit, match=r"truncate_dim=8, the teacher's have 32 dimensions: remove truncate_dim"):
        run_sentence_embeddings.main(command(**NO_CONFIG, model_name_or_path=tmp_path / "changed"))
    assert not (tmp_path / "run").exists()


def state_of(folder):
    return json.loads((folder / "trainer_state.json").read_text())


def test_student_with_other_token_mixing(command, data, tmp_path):
    types = ["random_synthesizer", "full_attention"]
    run_sentence_embeddings.main(command(**NO_CONFIG, keep_layers=[1, 0], token_mixers=types, learning_rate=0))
    teacher, folder = BertModel.from_pretrained(data / "teacher"), tmp_path / "run"
    student = HybridBertModel.from_pretrained(folder)
    assert student.config.token_mixers == types
    assert student.config.hidden_dropout_prob == student.config.attention_probs_dropout_prob == 0.1  # for finetuning
    expected = teacher.encoder.layer[1].intermediate.dense.weight
    assert torch.equal(student.layers[0].proj_in.weight, expected)
    with gzip.open(data / "texts.txt.gz", "rt") as file:
        texts = [line.strip() for line in file if line.strip()]
    texts += [text for line in (data / "pairs.tsv").read_text().splitlines()[1:-1] for text in line.split("\t")]
    tokenizer = BertTokenizer.from_pretrained(data / "bert")
    batch = tokenizer(texts, padding=True, truncation=True, max_length=20, return_tensors="pt")
    _, first = mean_attention(teacher, [1], [batch])[1]
    torch.testing.assert_close(student.layers[0].self_attn.logits.first.exp().double(), first)
    assert len(SentenceTransformer(str(folder), device="cpu").encode("the cat")) == 32


@pytest.mark.parametrize("kept", [[0, 1], [1]])
def test_states_are_the_teachers_also_of_two_texts_in_one_input(kept, command, monkeypatch, tmp_path):
    pairs = []
    forward = TeacherLoss.forward
    monkeypatch.setattr(TeacherLoss, "forward", lambda self, *args: pairs.append(args[0][-1]) or forward(self, *args))
    settings = {"learning_rate": 0, "max_steps": 20, "logging_steps": 1, "states_weight": 2, "joined_weight": 3}
    run_sentence_embeddings.main(command(**NO_CONFIG, max_seq_length=20, keep_layers=kept, **settings))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    for name in ("states", "joined_states"):
        losses = [entry[name] for entry in state["log_history"] if name in entry]
        assert len(losses) == 20
        if kept == [0, 1]:  # all of the teacher
            assert max(losses) < 1e-3
        else:
            assert min(losses) > 0.01
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = {tokenizer.decode(row, skip_special_tokens=False) for batch in pairs for row in batch["input_ids"]}
    assert any(re.search(r"where is the (\w+)\? \[SEP\] the \1 is in the", text) for text in texts)
    assert all(batch["token_type_ids"].max() == 1 and batch["input_ids"].shape[1] <= 20 for batch in pairs)
    assert "token_type_ids" in tokenizer.model_input_names


def test_a_student_without_token_types_learns_from_a_teacher_with_some(command, monkeypatch, tmp_path):
    pairs = []
    forward = TeacherLoss.forward
    monkeypatch.setattr(TeacherLoss, "forward", lambda self, *args: pairs.append(args[0][-1]) or forward(self, *args))
    sizes = SIZES.replace("hidden_size=16", "hidden_size=32")
    run_sentence_embeddings.main(command(config_overrides=sizes, joined_weight=1, max_steps=2))
    assert all(batch["token_type_ids"].max() == 1 for batch in pairs) and pairs
    student = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert {*student.tokenizer("the cat", "the dog")} == {"input_ids", "attention_mask"}
    assert "token_type_ids" not in student.preprocess([["the cat", "the dog"]])


def test_student_without_layers_is_static(command, data, teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(static_embeddings, "_TOGETHER", 7)
    settings = {"config_name": None, "config_overrides": None, "keep_layers": [], "max_steps": 4, "save_steps": 2}
    run_sentence_embeddings.main(command(**settings, learning_rate=0, save_strategy="steps"))
    student = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert [type(module).__name__ for module in student] == ["StaticEmbedding", "Normalize"]
    names = ["the", "cat", "?"]
    alone = torch.tensor(teacher.encode(list(teacher.tokenizer.get_vocab())))
    with gzip.open(data / "texts.txt.gz", "rt") as file:
        words = [*file.read().split(), *" ".join((data / "pairs.tsv").read_text().splitlines()[1:-1]).split()]
    size = len(alone) + len(words)
    weights = [1e-4 / (1e-4 + (words.count(name) + 1) / size) for name in names]
    expected = (torch.tensor(teacher.encode(names)) - alone.mean(0)) * torch.tensor(weights)[:, None]
    found = torch.tensor(student.encode(["the cat ?"]))[0]
    torch.testing.assert_close(found, torch.nn.functional.normalize(expected.sum(0), dim=0), atol=1e-4, rtol=0)
    assert student[0].embedding.weight.norm(dim=-1).mean().item() == pytest.approx(5)
    run_sentence_embeddings.main(command(**settings | {"max_steps": 6}, learning_rate=0, save_strategy="steps"))
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == 6  # resumed
    card = (tmp_path / "run" / "README.md").read_text()
    size = student[0].embedding.weight.numel()
    assert f"A `StaticEmbedding` with {size:,} parameters" in card and "trust_remote_code" not in card
    assert "tokens are truncated" not in card


def test_static_student_is_evaluated_as_the_saved_model(command, tmp_path, table_of):
    """The teacher's `encode` lets the teacher's tokenizer pad and truncate; with a full cache it does not read."""
    settings = {**NO_CONFIG, "keep_layers": [], "max_steps": 3}
    results = [run_sentence_embeddings.main(command(**settings, output_dir=tmp_path / name)) for name in "ab"]
    assert results[0]["eval_spearman_cosine"] == results[1]["eval_spearman_cosine"]
    files = [(tmp_path / name / "tokenizer.json").read_text() for name in "ab"]
    assert files[0] == files[1] and json.loads(files[0])["truncation"] is None
    rows = table_of(tmp_path / "a" / "predictions_validation.csv")
    saved = SentenceTransformer(str(tmp_path / "a"), device="cpu")
    one, two = (torch.tensor(saved.encode([row[name] for row in rows])) for name in ("sentence1", "sentence2"))
    found = torch.tensor([float(row["prediction"]) for row in rows])
    torch.testing.assert_close(found, (one * two).sum(dim=-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("overrides", "rates"), [(None, {0.0}), ("hidden_dropout_prob=0.2", {0.0, 0.2})])
def test_student_of_layers_trains_without_dropout(overrides, rates, command, monkeypatch, capsys):
    found, train = set(), EmbeddingDistillationTrainer.train

    def record(self, *args, **kwargs):
        found.update(module.p for module in self.model.modules() if isinstance(module, torch.nn.Dropout))
        return train(self, *args, **kwargs)

    monkeypatch.setattr(EmbeddingDistillationTrainer, "train", record)
    arguments = command(config_name=None, config_overrides=overrides, keep_layers=[0], learning_rate=None)
    run_sentence_embeddings.main(arguments)
    assert found == rates
    assert "learning rate 0.0005 (default for layers of a teacher)" in capsys.readouterr().out


def test_narrow_student_gets_principal_components(command, data, tmp_path):
    from sklearn.decomposition import PCA

    run_sentence_embeddings.main(command(copy_token_embeddings=True, learning_rate=0))
    bert = BertModel.from_pretrained(data / "bert").embeddings
    given = (bert.word_embeddings.weight + bert.token_type_embeddings.weight[0]).detach().numpy()
    expected = PCA(n_components=16).fit_transform(given)
    found = load_file(tmp_path / "run" / "model.safetensors")["embed_tokens.weight"].numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-3)  # the signs are arbitrary


def test_seeds_share_the_teachers_embeddings_and_scores(command, data, teacher, tmp_path, monkeypatch, capsys):
    from scipy.stats import spearmanr

    kinds, scores = [], AllEvaluators.__call__

    def record(self, model, *args, **kwargs):
        kinds.append(model.transformers_model.config.model_type)
        return scores(self, model, *args, **kwargs)

    monkeypatch.setattr(AllEvaluators, "__call__", record)
    run_sentence_embeddings.main(command(seeds=[1, 2], cache_teacher=None))
    output = capsys.readouterr().out
    assert output.count("were missing") == output.count(", complete") == 1
    *texts, wanted = zip(*(row.split("\t") for row in (data / "dev.tsv").read_text().splitlines()[1:]), strict=True)
    one, two = map(teacher.encode, map(list, texts))
    expected = 100 * spearmanr((one * two).sum(axis=1), [*map(float, wanted)]).statistic
    rows = re.findall(r"\| spearman_cosine +\| +(-?[\d.]+) \|", output)
    assert rows == [f"{expected:.2f}"] * 2 and kinds.count("bert") == 1 < kinds.count("gmlp")
    assert (tmp_path / "run" / "_teacher_embeddings").is_dir()


def test_recipe_runs_with_other_files_and_a_small_student(command, tmp_path):
    arguments = command(copy_token_embeddings=None, config_overrides=SIZES, warmup_steps=1)
    run_sentence_embeddings.main(["embedding_student.yaml", *arguments])
    assert len(load_file(tmp_path / "run" / "model.safetensors")) > 10
    layers = command(**NO_CONFIG, keep_layers=[1], warmup_steps=1, output_dir=tmp_path / "layers")
    run_sentence_embeddings.main(["embedding_student.yaml", *layers])  # in place of the recipe's model
    assert json.loads((tmp_path / "layers" / "config.json").read_text())["num_hidden_layers"] == 1


@pytest.mark.slow  # two processes that import everything
def test_two_processes_train_on_texts_and_pairs(command, in_two_processes, tmp_path):
    settings = {"per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1, "max_seq_length": 20}
    settings |= {"states_weight": 1, "joined_weight": 1, "max_tokens_per_batch": 20}
    in_two_processes("run_sentence_embeddings", command(**NO_CONFIG, keep_layers=[1], **settings))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    ranked = [entry["ranking"] for entry in state["log_history"] if "ranking" in entry]
    assert len(ranked) == 6 and max(ranked) > 0  # one process may have texts where the other has pairs
    assert sum("joined_similarity" in entry for entry in state["log_history"]) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": None}, "--cache_teacher is for distillation: name a --teacher"),
        ({"do_train": None}, "--teacher is for training"),
        ({"teacher": "nowhere/at-all"}, "nowhere/at-all"),
        ({"matryoshka_dims": 8}, "--matryoshka_dims is for pairs without a --teacher"),
        ({"joined_weight": -1}, "--joined_weight must be a finite number of at least 0"),
        ({"train_file": "dev.tsv"}, "of pairs (--anchor_column, --positive_column and --negative_columns) nor one"),
        ({"copy_token_embeddings": True, "config_overrides": SIZES.replace("16", "48")}, "hidden_size=32 or less"),
        ({"copy_token_embeddings": True, "train_tokenizer": 60}, "has another vocabulary than the student's"),
        ({"max_seq_length": 25}, "--max_seq_length 25 does not fit the model"),
        ({"keep_layers": [0]}, "--keep_layers makes the student of the teacher's parts: leave --config_name out"),
        ({"keep_layers": [0], "teacher": None}, "--keep_layers is for distillation: name a --teacher"),
        ({"keep_layers": [2], **NO_CONFIG}, "--keep_layers 2: the teacher has the layers 0 to 1"),
        ({"keep_layers": [2], "token_mixers": ["gmlp"], **NO_CONFIG}, "--keep_layers 2: the teacher has the layers 0"),
        ({"keep_layers": [0, 1], "token_mixers": ["gmlp"], **NO_CONFIG}, "--token_mixers names 1 types for the 2"),
        ({"keep_layers": [0], "copy_token_embeddings": True, **NO_CONFIG}, "--keep_layers keeps the teacher's token"),
        (
            {"copy_token_embeddings": True, **NO_CONFIG, "model_name_or_path": "bert"},
            "--copy_token_embeddings is for a student from scratch",
        ),
        ({"joined_weight": 1, "teacher": None, "cache_teacher": None}, "--joined_weight is for distillation: name a"),
        ({"joined_weight": 1}, "the student's width is 16, the teacher's 32: give a student with hidden_size=32"),
        ({"states_weight": 1, "keep_layers": [], **NO_CONFIG}, "static embeddings have none: leave it out"),
        (
            {"max_tokens_per_batch": 99, "keep_layers": [], **NO_CONFIG},
            "with layers, not for static embeddings: leave",
        ),
        (
            {"states_weight": 1, "keep_layers": [0], **NO_CONFIG, "max_seq_length": 24},
            "--states_weight compares states of tokens: the student reads 24 tokens of a text, the teacher 20: give",
        ),
        (
            {"joined_weight": 1, "config_overrides": SIZES.replace("16", "32"), "train_tokenizer": 60},
            "the student's tokenizer gives others than that of the teacher",
        ),
        ({"joined_weight": 1, **NO_CONFIG, "config_name": "one_type"}, "which have 2 token types: the student has"),
        ({"token_mixers": ["gmlp"]}, "--token_mixers names 1 types for the 0 layers of --keep_layers"),
        ({"keep_layers": [0], "token_mixers": ["mean"], **NO_CONFIG}, "--token_mixers: `token_mixers` must be names"),
        (
            {"keep_layers": [0], "token_mixers": ["aft"], **NO_CONFIG, "config_overrides": "num_mean_queries=0"},
            "--token_mixers: `num_mean_queries` must be at least 1, got 0",
        ),
    ],
)
def test_mistakes_are_one_sentence(changes, message, command, data, tmp_path, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit, match="error: ") as caught:
        run_sentence_embeddings.main(command(**changes))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


def test_teacher_with_damaged_weights(teacher, tmp_path):
    teacher[0].auto_model.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    teacher.save(str(tmp_path))
    with pytest.raises(SystemExit, match="gives no embeddings of texts: give a Sentence Transformer or encoder"):
        EmbeddingTeacher(str(tmp_path), ModelArguments())


def test_teacher_without_embeddings_of_texts(command, tmp_path):
    ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32)).save_pretrained(
        tmp_path / "vit"
    )
    with pytest.raises(SystemExit, match="error: "):
        run_sentence_embeddings.main(command(teacher=tmp_path / "vit"))
    assert not (tmp_path / "run").exists()
    shutil.rmtree(tmp_path / "vit")
