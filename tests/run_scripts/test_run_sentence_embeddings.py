"""The command that trains bi-encoders. Runs need the extra `embeddings`; errors of the user are found without it."""

import importlib.util
import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import tokenmixers
from tokenmixers import GMLPConfig
from tokenmixers.run_scripts import push_to_hub, run_sentence_embeddings
from tokenmixers.run_scripts.base import optional_packages
from tokenmixers.run_scripts.data.sentence_pairs import SentencePairArguments
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


INSTALLED = importlib.util.find_spec("sentence_transformers") is not None
library = pytest.mark.skipif(not INSTALLED, reason="needs sentence-transformers (extra embeddings)")
PEOPLE, PLACES = ("Ada", "Kurt", "Emmy", "Alan", "Grace"), ("Rome", "Oslo", "Lima", "Bonn", "Cairo")
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 24}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Journeys in two wordings, with a third text about another place; how many words two journeys share; a gMLP."""
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    rows = []
    for year in range(1900, 1940):
        person, place = draw.choice(PEOPLE), draw.choice(PLACES)
        texts = f"{person} went to {place} in {year}.", f"In {year} {person} travelled to {place}."
        rows.append({"anchor": texts[0], "positive": texts[1], "negative": f"{person} left Rome in {year}."})
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(20):
        one, other = draw.choice(rows)["anchor"], draw.choice(rows)["positive"]
        shared = {*one.rstrip(".").split()} & {*other.rstrip(".").split()}
        lines.append(f"{one}\t{other}\t{len(shared)}")
    (folder / "dev.tsv").write_text("\n".join(lines))
    tokenizer = train_unigram_tokenizer([text for row in rows for text in row.values()], 120, 24, show_progress=False)
    tokenizer.save_pretrained(folder / "gmlp")
    torch.manual_seed(0)
    config = tokenmixers.GMLPConfig(vocab_size=len(tokenizer), **SIZES)
    tokenmixers.GMLPForMaskedLM(config).save_pretrained(folder / "gmlp")
    return folder


@pytest.fixture
def command(data, as_words, tmp_path):
    settings = {
        "model_name_or_path": data / "gmlp",
        "train_file": data / "pairs.jsonl",
        "validation_file": data / "dev.tsv",
        "output_dir": tmp_path / "run",
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_strategy": "no",
    }
    return lambda **changes: as_words(settings | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_file": "nope.tsv"}, "there is no file 'nope.tsv'"),
        ({"per_device_train_batch_size": 1}, "in-batch negatives need --per_device_train_batch_size of at least 2"),
        ({"per_device_train_batch_size": 41}, "there are 40 training pairs, and a step takes 41: lower --per_device"),
        ({"scale": 0}, "--scale must be a finite number above 0, got 0.0"),
        ({"matryoshka_dims": 0}, "--matryoshka_dims must be at least 1, got 0"),
        ({"max_tokens_per_batch": 0}, "--max_tokens_per_batch must be at least 1, got 0"),
        ({"pooling_mode": "sum"}, "invalid choice: 'sum' (choose from 'mean', 'cls', 'max')"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_written(changes, message, command, refuses):
    refuses(run_sentence_embeddings.main, command(**changes), message)


def test_what_to_install_is_said(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    hint = optional_packages.install_hint("embeddings")
    with pytest.raises(SystemExit) as caught:
        run_sentence_embeddings.main(command())
    assert "run_sentence_embeddings needs sentence_transformers" in str(caught.value)
    assert hint in str(caught.value) and "[embeddings]" in hint
    assert not (tmp_path / "run").exists()


@library
def test_learns_which_texts_mean_the_same(command, data, tmp_path, capsys, table_of):
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    options = {"negative_columns": "negative", "matryoshka_dims": [8, 4], "test_file": data / "dev.tsv"}
    results = run_sentence_embeddings.main(command(max_steps=30, do_predict=True, **options))
    assert results["eval_spearman_cosine"] > max(0.6, results["before_spearman_cosine"] + 0.2)
    assert results["test_spearman_cosine"] == pytest.approx(results["eval_spearman_cosine"])
    assert results["eval_dim_8_spearman_cosine"] > 0.3
    pairs = len((data / "dev.tsv").read_text().splitlines()) - 1
    figures = json.loads((tmp_path / "run" / "all_results.json").read_text())
    seconds = figures["eval_runtime"]
    assert figures["eval_samples_per_second"] == pytest.approx(pairs / seconds, rel=0.01, abs=1e-3)
    assert results["eval_dim_8_pearson_cosine"] != results["eval_pearson_cosine"]
    printed = capsys.readouterr().out
    assert "| before training | after training |" in printed and "| spearman_cosine " in printed
    model = SentenceTransformer(str(tmp_path / "run"))
    lines = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    one, other = (torch.tensor(model.encode(list(texts))) for texts in list(zip(*lines, strict=True))[:2])
    assert torch.allclose(one.norm(dim=1), torch.ones(len(one)), atol=1e-5)
    found = spearmanr((one * other).sum(1), [float(line[2]) for line in lines]).statistic
    assert results["eval_spearman_cosine"] == pytest.approx(found, abs=1e-4)
    for split in ("validation", "test"):
        rows = table_of(tmp_path / "run" / f"predictions_{split}.csv")
        assert [row["index"] for row in rows] == [str(index) for index in range(len(lines))]
        assert [[row["sentence1"], row["sentence2"]] for row in rows] == [line[:2] for line in lines]
        assert [float(row["label"]) for row in rows] == [float(line[2]) for line in lines]
        assert [float(row["prediction"]) for row in rows] == pytest.approx((one * other).sum(1).tolist(), abs=1e-4)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "pipeline_tag: sentence-similarity" in card
    assert f"Texts longer than {model.max_seq_length} tokens are truncated." in card
    assert not (tmp_path / "run" / "eval").exists()
    tokenizer = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is tokenizer["padding"] is None


@library
def test_the_loss_is_that_of_in_batch_negatives(command, data, tmp_path):
    run_sentence_embeddings.main(
        command(max_steps=1, logging_steps=1, per_device_train_batch_size=40, negative_columns="negative")
    )
    (loss,) = (
        entry["loss"]
        for entry in json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        if "loss" in entry
    )
    model, tokenizer = AutoModel.from_pretrained(data / "gmlp").eval(), AutoTokenizer.from_pretrained(data / "gmlp")
    rows = [json.loads(line) for line in (data / "pairs.jsonl").read_text().splitlines()]

    def embed(column: str) -> torch.Tensor:
        texts = (tokenizer(row[column], return_tensors="pt", truncation=True) for row in rows)
        states = [model(**inputs).last_hidden_state.mean(1) for inputs in texts]
        return torch.nn.functional.normalize(torch.cat(states), dim=-1)

    with torch.no_grad():
        anchors, positives, negatives = map(embed, ("anchor", "positive", "negative"))
        similarities = 20 * anchors @ torch.cat([positives, negatives]).T
        expected = torch.nn.functional.cross_entropy(similarities, torch.arange(len(rows)))
    assert loss == pytest.approx(expected.item(), rel=1e-4)


@library
def test_a_run_goes_on_in_parts_as_it_would_with_whole_batches(command, tmp_path):
    options = {"optim": "sgd", "lr_scheduler_type": "constant", "precision": "fp32", "save_strategy": "steps"}
    for name, steps, tokens in (("run", 4, None), ("parts", 2, 24), ("parts", 4, 30)):
        run_sentence_embeddings.main(
            command(**options, save_steps=2, max_steps=steps, max_tokens_per_batch=tokens, output_dir=tmp_path / name)
        )
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "parts"))
    start = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    assert not all(torch.allclose(start[name], whole[name], atol=1e-4) for name in whole)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=1e-5)


@library
def test_hard_negatives_that_are_the_anchor_or_the_positive_are_counted(command, data, tmp_path, capsys):
    rows = [json.loads(line) for line in (data / "pairs.jsonl").read_text().splitlines()]
    rows[3]["negative"], rows[5]["negative"] = rows[3]["anchor"], rows[5]["positive"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"train_file": tmp_path / "rows.jsonl", "negative_columns": "negative", "max_steps": 1, "do_eval": None}
    run_sentence_embeddings.main(command(**options))
    shown = capsys.readouterr().out
    assert "2 of 40 training pairs left out: a hard negative reads like the anchor or the positive" in shown
    assert "training set: 38 rows" in shown
    options |= {"negative_columns": "positive", "output_dir": tmp_path / "other"}
    with pytest.raises(SystemExit, match="--negative_columns positive: in all 40 training pairs a hard negative"):
        run_sentence_embeddings.main(command(**options))


@library
@pytest.mark.parametrize("name", ["AMLP", "Synthesizer", "MLPMixer", "bert"])
@pytest.mark.parametrize("pooling", ["cls", "max"])
@pytest.mark.fast_cases
def test_other_models_and_poolings(name, pooling, data, command, tmp_path):
    from sentence_transformers import SentenceTransformer

    source, tokenizer = tmp_path / "source", AutoTokenizer.from_pretrained(data / "gmlp")
    if name == "bert":
        BertModel(BertConfig(vocab_size=len(tokenizer), num_attention_heads=2, **SIZES)).save_pretrained(source)
    else:
        config = getattr(tokenmixers, f"{name}Config")(vocab_size=len(tokenizer), **SIZES)
        getattr(tokenmixers, f"{name}ForMaskedLM")(config).save_pretrained(source)
    tokenizer.save_pretrained(source)
    results = run_sentence_embeddings.main(
        command(model_name_or_path=source, pooling_mode=pooling, normalize=False, max_seq_length=12)
    )
    assert -1 <= results["eval_spearman_cosine"] <= 1
    model = SentenceTransformer(str(tmp_path / "run"))
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    assert model[1].pooling_mode == pooling and model.max_seq_length == 12
    text = "Ada went to Rome in 1900."
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=12)
    with torch.no_grad():
        states = AutoModel.from_pretrained(tmp_path / "run").eval()(**ids).last_hidden_state[0]
    expected = states[0] if pooling == "cls" else states.max(dim=0).values
    assert torch.allclose(torch.tensor(model.encode(text)), expected, atol=1e-5)


@library
def test_a_model_from_scratch_finds_held_out_pairs(command, data, tmp_path, capsys):
    sizes = ",".join(f"{name}={value}" for name, value in SIZES.items())
    results = run_sentence_embeddings.main(
        command(
            model_name_or_path=None,
            config_name="gmlp-base",
            config_overrides=sizes,
            train_tokenizer=120,
            validation_file=data / "pairs.jsonl",
            max_steps=20,
        )
    )
    assert results["eval_cosine_ndcg@10"] > results["before_cosine_ndcg@10"]
    assert 0 <= results["eval_cosine_accuracy@1"] <= 1
    assert not list((tmp_path / "run").glob("predictions*"))
    capsys.readouterr()
    again = run_sentence_embeddings.main(
        command(
            model_name_or_path=tmp_path / "run",
            validation_file=data / "pairs.jsonl",
            do_train=None,
            output_dir=tmp_path / "evaluation",
        )
    )
    assert "parameters\nvalidation set: 40 rows\n" in capsys.readouterr().out
    assert again["eval_cosine_ndcg@10"] == pytest.approx(results["eval_cosine_ndcg@10"])


@library
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matryoshka_dims": [8, 99]}, "--matryoshka_dims 99 is more than the 16 dimensions of the embeddings"),
        (
            {"max_tokens_per_batch": 23},
            "--max_tokens_per_batch 23 is less than a text can have, which is 24 tokens: giv",
        ),
        ({"fsdp_size": 2}, "--fsdp_size is not possible here"),
        (
            {"model_name_or_path": None, "config_name": "synthesizer-random", "train_tokenizer": 90},
            "the model is an encoder-decoder",
        ),
        ({"model_name_or_path": None, "config_name": "gmlp-ti16-224"}, "the model reads images (image_size=224)"),
    ],
)
def test_models_that_do_not_fit(changes, message, command, refuses):
    refuses(run_sentence_embeddings.main, command(**changes), message)


@library
def test_a_checkpoint_with_modules_keeps_them(command, tmp_path):
    run_sentence_embeddings.main(command(pooling_mode="cls", normalize=False))
    again = {"model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "again"}
    for wrong, message in (
        ({"pooling_mode": "mean"}, "has its own pooling (cls): leave --pooling_mode out"),
        ({"train_tokenizer": 90}, "has its own tokenizer: name none"),
    ):
        with pytest.raises(SystemExit, match=re.escape(message)):
            run_sentence_embeddings.main(command(**again, **wrong))
    run_sentence_embeddings.main(command(**again))
    assert json.loads((tmp_path / "again" / "1_Pooling" / "config.json").read_text())["pooling_mode"] == "cls"
    assert not (tmp_path / "again" / "2_Normalize").exists()
    assert "finetuned from run" in (tmp_path / "again" / "README.md").read_text()


@library
def test_modules_in_half_precision_train_as_their_copies_in_float32(command, data, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    def files(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
        return {str(file.relative_to(folder)): load_file(file) for file in folder.rglob("*.safetensors")}

    states, model = {}, SentenceTransformer(str(data / "gmlp"), device="cpu")
    model.append(Dense(16, 12))
    model.half()
    for name in ("half", "whole"):
        model.to(torch.float16 if name == "half" else torch.float32)
        model.save_pretrained(str(tmp_path / name))
        run_sentence_embeddings.main(command(model_name_or_path=tmp_path / name, output_dir=tmp_path / "next"))
        states[name] = files(tmp_path / "next")
        assert json.loads((tmp_path / "next" / "config.json").read_text())["dtype"] == "float32"
        shutil.rmtree(tmp_path / "next")
    before = files(tmp_path / "half")
    assert before.keys() == states["half"].keys() == states["whole"].keys()
    assert {value.dtype for found in before.values() for value in found.values()} == {torch.float16}
    for file, found in states["whole"].items():
        for name, value in found.items():
            assert value.dtype == torch.float32
            torch.testing.assert_close(states["half"][file][name], value, rtol=0, atol=0)
            assert value.isfinite().all()


@library
def test_a_checkpoint_that_normalizes_cannot_stop(command, tmp_path):
    run_sentence_embeddings.main(command(normalize=False, max_steps=1))
    added = {"model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "added", "max_steps": 1}
    run_sentence_embeddings.main(command(normalize=True, **added))
    assert (tmp_path / "added" / "2_Normalize").is_dir()
    kept = {"model_name_or_path": tmp_path / "added", "output_dir": tmp_path / "kept", "max_steps": 1}
    with pytest.raises(SystemExit, match=r"added' normalizes .*: leave --normalize false out\.$") as caught:
        run_sentence_embeddings.main(command(normalize=False, **kept))
    assert "\n" not in str(caught.value) and not (tmp_path / "kept").exists()
    run_sentence_embeddings.main(command(**kept))
    modules = [module["path"] for module in json.loads((tmp_path / "kept" / "modules.json").read_text())]
    assert modules == ["", "1_Pooling", "2_Normalize"]


#: The encoder alone: Sentence Transformers would have to be imported, in seconds.
ALONE = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules")
inputs = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)("Ada went to Rome.", return_tensors="pt")
with torch.no_grad():
    print(json.dumps(torch.nn.functional.normalize(model(**inputs)[0].mean(1))[0].tolist()))
"""


@library
def test_a_pushed_model_is_loaded_without_the_package(hub, online, alone, command, tmp_path):
    from sentence_transformers import SentenceTransformer

    run_sentence_embeddings.main(command(save_strategy="steps", save_steps=2))
    push_to_hub.main(["--source", str(tmp_path / "run"), "--repo_id", "me/embeddings"])
    state, _ = hub
    files = state.commits[state.branches["me/embeddings"]["main"]]
    assert {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"} <= files.keys()
    assert {
        "1_Pooling/config.json",
        "2_Normalize/config.json",
        "modeling_gmlp.py",
        "model.safetensors",
    } <= files.keys()
    assert not any(name.startswith("checkpoint-") or name.endswith((".bin", ".pt")) for name in files)
    assert 'SentenceTransformer("me/embeddings", trust_remote_code=True)' in files["README.md"].decode()
    for name, content in files.items():
        (tmp_path / "pulled" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pulled" / name).write_bytes(content)
    found = json.loads(alone(ALONE, [tmp_path / "pulled"]).splitlines()[-1])
    for folder in ("run", "pulled"):
        expected = SentenceTransformer(str(tmp_path / folder), device="cpu").encode("Ada went to Rome.")
        assert found == pytest.approx(expected.tolist(), abs=1e-6)


@library
def test_a_run_pushes_what_it_saves(hub, online, command, tmp_path):
    run_sentence_embeddings.main(
        command(push_to_hub=True, hub_model_id="me/trained", save_strategy="steps", save_steps=2)
    )
    state, _ = hub
    files = state.commits[state.branches["me/trained"]["main"]]
    for name in ("modules.json", "1_Pooling/config.json", "model.safetensors", "README.md", "modeling_gmlp.py"):
        assert files[name] == (tmp_path / "run" / name).read_bytes(), name


@library
@pytest.mark.slow
def test_two_processes_train_as_one_with_twice_the_batch(command, in_two_processes, tmp_path):
    options = {"max_steps": 2, "logging_steps": 1, "optim": "sgd", "max_grad_norm": 1e9, "learning_rate": 0.01}
    options["precision"] = "fp32"  # the other process's choice may be another than that of tests
    run_sentence_embeddings.main(command(**options))
    options |= {"per_device_train_batch_size": 4, "output_dir": tmp_path / "launched", "max_tokens_per_batch": 24}
    arguments = command(**options)
    in_two_processes("run_sentence_embeddings", arguments)
    single, launched = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "launched"))
    for name in single:
        assert torch.allclose(single[name], launched[name], atol=1e-4), name


@library
def test_pairs_that_fill_no_batch_without_a_repeated_text_are_an_error(command, tmp_path):
    rows = [{"anchor": f"question {index}", "positive": ("yes", "no", "maybe")[index % 3]} for index in range(12)]
    (tmp_path / "few.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"train_file": tmp_path / "few.jsonl", "per_device_train_batch_size": 4, "save_strategy": "epoch"}
    with pytest.raises(SystemExit, match="the 12 training rows give no batch of 4 without the same text twice"):
        run_sentence_embeddings.main(command(**options, max_steps=None, num_train_epochs=1))
    assert not (tmp_path / "run").exists()


GUIDE = (Path(run_sentence_embeddings.__file__).parent / "guides" / "sentence_embeddings.md").read_text("utf-8")


@library
def test_the_python_of_the_guide_runs(capsys):
    pytest.importorskip("sklearn")
    search, _, classify, of_mteb = re.findall(r"^```python\n(.+?)^```", GUIDE, flags=re.DOTALL | re.MULTILINE)
    assert "mteb.evaluate(model, mteb.get_tasks(" in of_mteb  # tests/.../test_sentence_embeddings.py calls it
    exec(compile(search + classify, "sentence_embeddings.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("A man plays a guitar.") and lines[-1] == "['good']"


@pytest.mark.parametrize(("rates", "same"), [(["hidden"], True), ([], False), (["classifier"], True), ([], True)])
def test_two_views_of_a_text_need_dropout(rates, same):
    """Without it they are equal, and the loss falls to 0 at once. That of a classifier's head is not in use."""
    fields = {"hidden": "hidden_dropout_prob", "classifier": "classifier_dropout"}
    config = GMLPConfig(**{"hidden_dropout_prob": 0.0} | {fields[name]: 0.1 for name in rates})
    columns = SentencePairArguments(anchor_column="a", positive_column="a" if same else "b")
    if same and "hidden" not in rates:
        with pytest.raises(SystemExit, match=r"both 'a': dropout alone .* --config_overrides hidden_dropout_prob"):
            run_sentence_embeddings.check_views(columns, config)
    else:
        run_sentence_embeddings.check_views(columns, config)
