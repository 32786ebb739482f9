import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)
from transformers.utils import cached_file

from tokenmixers import GMLPConfig, GMLPForMaskedLM, GMLPModel
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.trained_model import (
    check_complete,
    check_folder,
    check_vocabulary,
    load_sentence_transformer,
    load_trained,
    load_trained_tokenizer,
    model_fingerprint,
)
from tokenmixers.run_scripts.demos.checkpoints import load_checkpoint
from tokenmixers.run_scripts.plot_spatial_weights import main as plot
from tokenmixers.run_scripts.pseudo_perplexity import PseudoPerplexityArguments, Scorer
from tokenmixers.run_scripts.push_to_hub import collect_files
from tokenmixers.run_scripts.training.model_loading import build_model, load_config
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_trained(AutoModelForMaskedLM, name),
        lambda name: load_config(ModelArguments(model_name_or_path=name)),
        load_checkpoint,
        lambda name: plot(["--model", name, "--output_dir", "pictures"]),
    ],
    ids=["load_trained", "load_config", "demo", "plot_spatial_weights"],
)
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "gmlp").mkdir(parents=True)
    (tmp_path / "outputs" / "gmlp" / "config.json").touch()
    with pytest.raises(SystemExit, match=r"error: there is no 'gmpl' in the folder 'outputs': correct 'outputs/gmpl'"):
        load("outputs/gmpl")
    with pytest.raises(SystemExit, match=r"error: there is no folder 'outputs/gmlp/seed_1'"):  # no Hub id
        load("outputs/gmlp/seed_1")


def test_what_cannot_be_a_hub_id_is_left_to_the_loading():
    for name in ("bad name!/x", "foo\\bar", "a" * 120):
        check_folder(name)


@pytest.mark.parametrize("name", ["outputs/gmlp", "user/gmpl", "google/gmpl", "gmpl"])
def test_folders_and_hub_ids_are_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "gmlp").mkdir(parents=True)
    (tmp_path / "outputs" / "gmlp" / "config.json").touch()
    (tmp_path / "google" / "notes").mkdir(parents=True)  # no model
    check_folder(name)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"path": "1_Pooling"}]', '[{"path": 1, "type": "a"}]'])
def test_a_damaged_list_of_modules_is_named(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(UserError, match=r"error: the modules\.json of '.*' cannot be read \(.*\): copy it again\."):
        check_folder(str(tmp_path))


def test_the_mark_of_a_words_start_is_no_vocabulary():
    with pytest.raises(UserError, match=r"'me/t5' has no tokenizer\.json, nor .* or one with special tokens alone"):
        check_vocabulary("me/t5", T5Tokenizer())  # from no file


def test_a_pooler_is_missed_by_who_reads_it():
    check_complete("me/bert", ["pooler.dense.bias"])
    with pytest.raises(UserError, match=r"'me/bert' has no weights for pooler\.dense\.bias"):
        check_complete("me/bert", ["pooler.dense.bias"], poolers=True)


FILES = {"LSTM": "lstm_config.json", "CNN": "cnn_config.json", "WordEmbeddings": "wordembedding_config.json"}
FILES |= {"StaticEmbedding": "tokenizer.json", "Pooling": "config.json", "LayerNorm": "config.json"}


@pytest.mark.parametrize("kind", [*FILES, "Router", "Asym", "Normalize", None])
def test_files_of_modules(kind, tmp_path):
    """None of a module that is not the library's, or keeps nothing."""
    of = "mine.Module" if kind is None else f"sentence_transformers.models.{kind}"
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "1_Part", "type": of}]))
    if kind not in FILES:
        check_folder(str(tmp_path))
        return
    with pytest.raises(UserError, match=rf"has no 1_Part/{FILES[kind]}, the file of a module"):
        check_folder(str(tmp_path))
    (tmp_path / "1_Part").mkdir()
    (tmp_path / "1_Part" / FILES[kind]).touch()
    if kind == "Pooling":
        check_folder(str(tmp_path))
        return
    with pytest.raises(UserError, match=r"has no 1_Part/model\.safetensors"):
        check_folder(str(tmp_path))


needs_embeddings = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="needs the extra embeddings"
)
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 16}
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 8}


def remove_weights(folder, *beginnings):
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.startswith(beginnings)}
    save_file(kept, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram_tokenizer(["the gate mixes tokens"] * 9, 40, 16, show_progress=False)


@pytest.fixture
def embedder(tokenizer, tmp_path):
    """A whole folder of Sentence Transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    GMLPModel(GMLPConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    modules = [Transformer(str(tmp_path / "encoder")), Pooling(16, "mean"), Dense(16, 8), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "model"))
    shutil.rmtree(tmp_path / "model" / "3_Normalize")  # older versions saved none
    return tmp_path / "model"


def open_as(command, name):
    """What a command does first with a sentence transformer."""
    from tokenmixers.run_scripts.embeddings.models import load_embedder
    from tokenmixers.run_scripts.exports.tasks import Checkpoint
    from tokenmixers.run_scripts.training.embedding_distillation import EmbeddingTeacher
    from tokenmixers.run_scripts.training.sentence_embeddings import load_bi_encoder

    return {
        "evaluate_embeddings": load_embedder,
        "export": lambda name: Checkpoint(name, "sentence-similarity"),
        "--teacher": lambda name: EmbeddingTeacher(name, ModelArguments()),
        "run_sentence_embeddings": lambda name: load_bi_encoder(ModelArguments(name)),
        "push_to_hub": lambda name: collect_files(name, "me/model"),
    }[command](str(name))


COMMANDS = ["evaluate_embeddings", "export", "--teacher", "run_sentence_embeddings", "push_to_hub"]
LACKS = {
    "norm.weight": (lambda folder: remove_weights(folder, "norm.weight"), r"has no weights for norm\.weight"),
    "1_Pooling/config.json": (None, r"has no 1_Pooling/config\.json, the file of a module"),
    "2_Dense/model.safetensors": (None, r"has no 2_Dense/model\.safetensors"),
    "modules.json": (None, r"has no modules\.json"),
    "tokenizer.json": (None, r"has no tokenizer\.json"),
}


@needs_embeddings
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_sentence_transformers_must_be_whole(command, embedder, tmp_path):
    assert open_as(command, embedder)
    for lack, (remove, message) in LACKS.items():
        folder = tmp_path / "broken"
        shutil.copytree(embedder, folder)
        remove(folder) if remove else (folder / lack).unlink()
        with pytest.raises(UserError, match=f"error: '.*broken' {message}"):
            open_as(command, folder)
        shutil.rmtree(folder)


@needs_embeddings
def test_a_module_must_have_all_its_weights(embedder):
    save_file({"linear.weight": torch.zeros(8, 16)}, embedder / "2_Dense" / "model.safetensors")  # no bias
    for command in COMMANDS[:-1]:
        with pytest.raises(UserError, match=r"model' cannot be loaded: a module's files do not fit it .*linear\.bias"):
            open_as(command, embedder)


@needs_embeddings
def test_batches_need_a_padding_token(embedder):
    (embedder / "tokenizer_config.json").unlink()
    for command in COMMANDS[:-1]:
        with pytest.raises(UserError, match=r"the tokenizer of '.*model' has no padding token, which batches"):
            open_as(command, embedder)


@needs_embeddings
def test_every_id_of_a_tokenizer_needs_an_embedding(embedder, tokenizer):
    more = load_trained_tokenizer(str(embedder))
    more.add_tokens(["zebra"])
    more.save_pretrained(embedder)
    message = f"has {len(tokenizer) + 1} ids, its model {len(tokenizer)} embeddings: resize them"
    for command in COMMANDS[:-1]:
        with pytest.raises(UserError, match=message):
            open_as(command, embedder)


@needs_embeddings
def test_lower_case_stays_when_a_model_is_saved(tmp_path):
    """Sentence Transformers reads `do_lower_case`, and does not save it."""
    from sentence_transformers import SentenceTransformer

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "gate", "a"]))
    BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False).save_pretrained(tmp_path)
    BertModel(BertConfig(**BERT)).save_pretrained(tmp_path)
    SentenceTransformer(str(tmp_path), device="cpu").save_pretrained(str(tmp_path / "saved"))
    (tmp_path / "saved" / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    model = load_sentence_transformer(str(tmp_path / "saved"), device="cpu")
    model.save_pretrained(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert (again.encode("THE gate") == model.encode("the gate")).all() and again.max_seq_length == 9
    (tmp_path / "export").mkdir()
    with pytest.raises(UserError, match="changes texts before its tokenizer, as by do_lower_case, which"):
        open_as("export", tmp_path / "saved").save(tmp_path / "export", "export")


@needs_embeddings
def test_what_is_left_behind_is_not_pushed_as_whole(embedder):
    weights = embedder / "2_Dense" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    open_as("evaluate_embeddings", embedder)
    with pytest.raises(UserError, match=r"has no 2_Dense/model\.safetensors"):
        open_as("push_to_hub", embedder)


@needs_embeddings
def test_a_bert_without_pooler_embeds_texts_with_mean_pooling(tmp_path):
    model = BertModel(BertConfig(**BERT))
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    remove_weights(tmp_path / "bert", "pooler.")
    expected = model.eval()(torch.tensor([[2, 5, 3]])).last_hidden_state.mean(1)[0]
    for command in ("--teacher", "evaluate_embeddings"):
        found = open_as(command, tmp_path / "bert")
        found = getattr(found, "model", found).encode("a", convert_to_tensor=True)
        torch.testing.assert_close(found.cpu(), expected.detach(), atol=1e-5, rtol=0)
    remove_weights(tmp_path / "bert", "encoder.layer.0.output.LayerNorm.bias")
    (tmp_path / "bert" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no weights for encoder\.layer\.0\.output\.LayerNorm\.bias"):
        load_trained(AutoModel, str(tmp_path / "bert"))
    with pytest.raises(UserError, match=r"has no tokenizer\.json, nor vocab\.txt"):  # Transformers makes an empty one
        load_trained_tokenizer(str(tmp_path / "bert"))


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_trained(AutoModelForMaskedLM, name) and load_trained_tokenizer(name),
        load_checkpoint,
        lambda name: Scorer(PseudoPerplexityArguments(model=name, text=["a"])),
        lambda name: collect_files(name, "me/model"),
    ],
    ids=["fill_mask", "demo", "pseudo_perplexity", "push_to_hub"],
)
def test_a_folder_of_a_head_must_be_whole(load, tokenizer, tmp_path):
    folder = tmp_path / "model"
    GMLPForMaskedLM(GMLPConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert load(str(folder))
    (folder / "tokenizer.json").rename(tmp_path / "kept")
    with pytest.raises(UserError, match=r"model' has no tokenizer\.json"):
        load(str(folder))
    (tmp_path / "kept").rename(folder / "tokenizer.json")
    remove_weights(folder, "model.norm.weight")
    with pytest.raises(UserError, match=r"model' has no weights for model\.norm\.weight"):
        load(str(folder))


def test_only_a_new_head_may_be_missing_before_training(tmp_path):
    folder, arguments = tmp_path / "model", ModelArguments(str(tmp_path / "model"))

    def load(auto_class=AutoModelForMaskedLM, trained=True):
        return build_model(arguments, load_config(arguments), auto_class, trained)

    GMLPModel(GMLPConfig(vocab_size=8, **SIZES)).save_pretrained(folder)
    load()
    load(AutoModelForSequenceClassification)
    with pytest.raises(UserError, match=r"has no weights for lm_head\."):
        load(trained=False)
    remove_weights(folder, "norm.weight")
    with pytest.raises(UserError, match=r"has no weights for model\.norm\.weight"):
        load(AutoModelForSequenceClassification)
    BertForMaskedLM(BertConfig(**BERT)).save_pretrained(folder)
    remove_weights(folder, "cls.predictions.transform.dense.bias")
    with pytest.raises(UserError, match=r"has no weights for cls\.predictions\.transform\.dense\.bias"):
        load()  # a part of a head
    BertModel(BertConfig(**BERT), add_pooling_layer=False).save_pretrained(folder)
    load()  # its head shares the token embeddings
    load(AutoModelForSequenceClassification)  # whose pooler is new
    with pytest.raises(UserError, match=r"has no weights for bert\.pooler\.dense\.bias"):
        load(AutoModelForSequenceClassification, trained=False)


def test_an_encoder_decoder_may_miss_its_head_alone(tmp_path):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 8}
    T5ForConditionalGeneration(T5Config(**sizes, tie_word_embeddings=False)).save_pretrained(tmp_path / "model")
    arguments = ModelArguments(str(tmp_path / "model"))
    remove_weights(tmp_path / "model", "lm_head.")
    build_model(arguments, load_config(arguments), AutoModelForSeq2SeqLM, trained=True)
    remove_weights(tmp_path / "model", "encoder.final_layer_norm")
    with pytest.raises(UserError, match=r"has no weights for encoder\.final_layer_norm\.weight"):
        build_model(arguments, load_config(arguments), AutoModelForSeq2SeqLM, trained=True)


def test_a_fingerprint_is_of_the_files_of_a_model(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "1_Pooling").mkdir(parents=True)
        (folder / "1_Pooling" / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")
    expected = model_fingerprint(str(one))
    assert len(expected) == 32 and model_fingerprint(str(other)) == expected
    (other / "checkpoint-2").mkdir()
    (other / "_teacher_embeddings").mkdir()
    left = ("README.md", "all_results.json", "trainer_state.json", "training_args.bin", "checkpoint-2/config.json")
    for name in (*left, "predictions_test.txt", "results.unfinished.json", "_teacher_embeddings/cache.json"):
        (other / name).write_text("of a run")
    assert model_fingerprint(str(other)) == expected
    found = {expected}
    for name in ("model.safetensors", "1_Pooling/config.json", "tokenizer.json", "modeling.py", "onnx/model.onnx"):
        path = other / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"WEIGHTS")  # of the same length
        found.add(model_fingerprint(str(other)))
    assert len(found) == 6


def test_a_fingerprint_of_a_hub_id_is_that_of_its_commit_in_the_cache(hub, online):
    """Whichever of its files are there: another command may download more."""
    found = []
    for content in (b"{}", b'{"hidden_size": 8}'):
        hub[0].add_commit("me/model", "main", {"config.json": content, "onnx/model.onnx": content})
        cached_file("me/model", "config.json")
        found.append(model_fingerprint("me/model"))
        cached_file("me/model", "onnx/model.onnx")
        assert model_fingerprint("me/model") == found[-1]
    others = (model_fingerprint("me/other"), model_fingerprint("me/other", "v2"))  # not in the cache
    assert len({*found, *others}) == 4


@pytest.mark.parametrize("config", [{}, {"config.json": b'{"model_type": "model2vec"}'}], ids=["bare", "model2vec"])
def test_a_static_model_on_the_hub_is_named_as_such(config, hub, online, monkeypatch):
    """Also in a private repository, with `--token`."""
    online(token=None)
    modules = [{"path": "0_Static", "type": "sentence_transformers.models.StaticEmbedding"}]
    name = f"me/static-{len(config)}"
    hub[0].add_commit(name, "main", {"modules.json": json.dumps(modules).encode(), **config})
    hub[0].private.add(name)
    for offline in (False, True):  # then it is in the cache
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        with pytest.raises(SystemExit, match=f"'{name}' is a static model: .* Give a model with layers here"):
            load_config(ModelArguments(name, token="good"))
        check_folder(name, may_be_static=True)


def test_models_with_layers_and_unknown_names_on_the_hub_pass(hub, online):
    hub[0].add_commit("me/layers", "main", {"config.json": b"{}"})
    hub[0].add_commit(
        "me/pooled", "main", {"modules.json": b'[{"path": "", "type": "sentence_transformers.models.A"}]'}
    )
    for name in ("me/layers", "me/pooled", "me/nothing"):
        check_folder(name)
