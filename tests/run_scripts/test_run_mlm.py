import functools
import gzip
import json
import math
import random
import re
import shutil
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    pipeline,
)

from tokenmixers.run_scripts import run_clm, run_mlm, run_span_corruption
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data.collators import precompute_labels
from tokenmixers.run_scripts.training import language_modeling
from tokenmixers.run_scripts.training.trainer import ScriptTrainer
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


def test_without_an_evaluation_nothing_is_said_about_the_validation_text(command, capsys):
    results = run_mlm.main(command(max_steps=1, do_eval=None))
    printed = capsys.readouterr().out
    assert set(results) == {"tokens_per_second"}
    assert "validation text" not in printed and "unigram" not in printed
    assert re.search(r"\| training +\| +speed \|", printed)


def test_trains_saves_and_reports(command, tmp_path, capsys):
    results = run_mlm.main(command(max_steps=60))
    printed = capsys.readouterr().out
    assert "GMLPForMaskedLM (gmlp)" in printed
    assert f"| unigram model              | {results['unigram']:>10,.1f} |" in printed
    assert results["trained"] < 0.7 * results["untrained"]
    assert results["tokens_per_second"] > 0
    saved = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert saved["eval_perplexity"] == results["trained"]

    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert model.config.vocab_size == len(tokenizer)
    fillings = pipeline("fill-mask", model=model, tokenizer=tokenizer)("gate [MASK] channel")
    assert len(fillings) == 5

    # The reported perplexity, computed over again in the plainest way from what was saved.
    evaluated = run_mlm.main(
        command(
            do_train=None,
            train_file=None,
            model_name_or_path=tmp_path / "run",
            output_dir=tmp_path / "evaluation",
            per_device_eval_batch_size=3,
        )
    )
    assert evaluated["trained"] == pytest.approx(results["trained"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": None}, "--do_train needs training data"),
        ({"max_seq_length": 17}, "--max_seq_length 17 does not fit the model, whose sequences have at most 16"),
        ({"max_seq_length": 2}, "leaves no room for text"),
        ({"train_tokenizer": None}, "--tokenizer_name"),
        ({"train_tokenizer": 3}, "got 3"),
        ({"streaming": True, "max_eval_samples": 5, "max_steps": None}, "--streaming needs --max_steps"),
        ({"resume_from_checkpoint": True}, "no complete checkpoint"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_written(command, refuses, changes, message):
    refuses(run_mlm.main, command(**changes), message)


def test_refuses_a_tokenizer_larger_than_the_model(command, tmp_path):
    run_mlm.main(command(max_steps=1))
    with pytest.raises(SystemExit, match=r"the tokenizer has \d+ ids, the model only vocab_size=20"):
        run_mlm.main(
            command(
                tokenizer_name=tmp_path / "run",
                config_overrides="vocab_size=20,hidden_size=8,intermediate_size=8,max_position_embeddings=16",
                output_dir=tmp_path / "other",
            )
        )
    assert not (tmp_path / "other").exists()


@pytest.fixture
def resumes(same_weights, tmp_path):
    """`resumes(command, **changes)`: resumed at step 2, a run ends with the weights of a whole one."""

    def check(command, **changes):
        options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **changes}
        run_mlm.main(command(**options))
        interrupted = tmp_path / "interrupted"
        shutil.copytree(tmp_path / "run" / "checkpoint-2", interrupted / "checkpoint-2")
        run_mlm.main(command(**options, output_dir=interrupted))
        assert same_weights(tmp_path / "run", interrupted)

    return check


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"per_device_train_batch_size": 120},
        {"streaming": True, "max_eval_samples": 10},
        {"isolate_documents": True},
    ],
    ids=["loaded", "in the third epoch", "streamed", "isolated"],
)
def test_an_interrupted_run_goes_on_where_it_was(data, resumes, command):
    resumes(command, **data)


def test_whole_words_of_lines_are_masked(command):
    results = run_mlm.main(command(whole_word_mask=True, line_by_line=True))
    assert math.isfinite(results["trained"])


@pytest.mark.parametrize("model", ["gmlp-base", pytest.param("amlp-base", marks=pytest.mark.slow)])
def test_isolated_documents_are_learned_as_well_as_separate_rows(model, command, tmp_path):
    options = {"config_name": model, "max_steps": 40, "per_device_train_batch_size": 4}
    sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=64"
    packed = run_mlm.main(command(**options, config_overrides=sizes, isolate_documents=True))
    assert packed["trained"] < 0.6 * packed["untrained"]
    # The same questions, row by row: a packed document answers as it does alone.
    rows = {}

    def keep(split, collator):
        rows["validation"] = precompute_labels(split, collator)
        return rows["validation"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_modeling, "precompute_labels", keep)
        evaluation = {"do_train": None, "isolate_documents": True, "output_dir": tmp_path / "e"}
        evaluated = run_mlm.main(command(**evaluation, model_name_or_path=tmp_path / "run"))
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").eval()
    total, asked = 0.0, 0
    for row in rows["validation"]:
        for number in set(row["seq_idx"]):
            piece = [index for index, other in enumerate(row["seq_idx"]) if other == number]
            ids, labels = (torch.tensor([[row[name][index] for index in piece]]) for name in ("input_ids", "labels"))
            if (labels != -100).any():
                with torch.no_grad():
                    logits = model(ids).logits
                total += torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum").item()
                asked += int((labels != -100).sum())
    assert evaluated["trained"] == pytest.approx(math.exp(total / asked), rel=1e-4)


def test_models_that_cannot_isolate_documents_say_so(command):
    sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=16,token_mixing_size=8"
    with pytest.raises(UserError, match="MLPMixerForMaskedLM cannot keep the documents of a row apart"):
        run_mlm.main(command(config_name="mlp-mixer-table3", config_overrides=sizes, isolate_documents=True))


#: Encoder-decoders do not keep documents apart.
SENT = [(script, kind) for script in (run_mlm, run_clm) for kind in ("packed", "isolate_documents", "streaming")]
SENT += [(run_span_corruption, "line_by_line"), (run_span_corruption, "streaming")]


@pytest.mark.fast_cases
@pytest.mark.parametrize(("script", "kind"), SENT, ids=lambda value: getattr(value, "__name__", value))
def test_data_and_collators_reach_workers_that_are_not_forked(script, kind, command, monkeypatch):
    """Python 3.14, macOS and Windows start them anew, and send pickled objects."""

    class SentError(Exception):
        pass

    def train(self, *args, **kwargs):
        for loader in (self.get_train_dataloader(), self.get_eval_dataloader()):
            ForkingPickler.dumps((loader.dataset, loader.collate_fn))
        raise SentError

    monkeypatch.setattr(ScriptTrainer, "train", train)
    changes = {} if kind == "packed" else {kind: True, "max_eval_samples": 4}
    if kind == "streaming":  # documents are held out while reading
        changes["validation_file"] = None
    if script is run_clm:
        sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=16,is_decoder=true"
        changes["config_overrides"] = sizes
    if script is run_span_corruption:
        sizes = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_decoder_layers=1,num_attention_heads=2"
        changes |= {"config_name": "synthesizer-vanilla", "config_overrides": f"{sizes},head_dim=8"}
        changes |= {"train_tokenizer": 170, "max_seq_length": 16}
    with pytest.raises(SentError):
        script.main(command(**changes))


def test_damaged_weights_are_named(command, tmp_path):
    run_mlm.main(command(max_steps=1, output_dir=tmp_path / "start"))
    weights = tmp_path / "start" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"weights of .*start.* are damaged"):
        run_mlm.main(command(model_name_or_path=tmp_path / "start"))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def damaged(folder, kind):
    """A file of text that cannot be read to its end."""
    text = "\n".join(f"gate token number {index}" for index in range(2000))
    if kind == "txt":
        content = text.encode().replace(b"1999", b"\xff\xfe")
    elif kind == "txt.gz":
        content = gzip.compress(random.Random(0).randbytes(2000).hex().encode() + text.encode())[:-3000]
    elif kind == "jsonl":
        content = b"".join(b'{"text": "%b"}\n' % line for line in text.encode().split(b"\n")) + b'{"text": "'
    else:
        datasets.Dataset.from_dict({"text": text.split("\n")}).to_parquet(folder / "whole.parquet")
        content = (folder / "whole.parquet").read_bytes()[:-100]
    (folder / f"damaged.{kind}").write_bytes(content)
    return folder / f"damaged.{kind}"


@pytest.mark.fast_cases
@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "parquet"])
@pytest.mark.parametrize("streaming", [None, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("role", ["train_file", "validation_file"])
def test_damaged_files_are_refused_before_anything_is_written(command, tmp_path, kind, streaming, role):
    file = damaged(tmp_path, kind)
    with pytest.raises(SystemExit) as caught:
        run_mlm.main(command(**{role: file}, streaming=streaming, max_eval_samples=3000 if streaming else None))
    message = str(caught.value)
    assert str(file) in message and ("cannot be read" in message or "not valid" in message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_found_while_streaming_ends_the_run(command, corpus, tokenizer_of, tmp_path, workers):
    for index in range(3):
        shutil.copy(corpus / "train.txt", tmp_path / f"{index}.txt")
    run_mlm.main(command(max_steps=1, output_dir=tmp_path / "start"))  # a tokenizer, for which nothing is to be read
    with (tmp_path / "2.txt").open("ab") as file:
        file.write(b"\n\xff\xfe\n")
    options = {"streaming": True, "max_eval_samples": 5, "shuffle_buffer_size": 1, "dataloader_num_workers": workers}
    options |= {"train_file": tmp_path / "[0-9].txt", **tokenizer_of(tmp_path / "start")}
    options |= {"max_steps": 500, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    with pytest.raises(SystemExit) as caught:
        run_mlm.main(command(**options))
    message = str(caught.value)
    assert message.startswith(f"error: {tmp_path / '2.txt'}, line ") and "not valid UTF-8 (byte 0xff)" in message
    assert "\n" not in message
    for checkpoint in (tmp_path / "run").glob("checkpoint-*"):
        load_file(checkpoint / "model.safetensors")


# --- distillation ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher(corpus, tmp_path_factory):
    """`teacher(**sizes)`: the folder of a BERT with random weights, and a tokenizer of the corpus."""
    lines = (corpus / "train.txt").read_text().splitlines()
    tokenizer = train_unigram_tokenizer(lines, 60, 16, show_progress=False)

    def build(**changes):
        folder = tmp_path_factory.mktemp("teacher")
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
        sizes |= {"vocab_size": 64, "max_position_embeddings": 16, **changes}
        torch.manual_seed(5)
        model = BertForMaskedLM(BertConfig(**sizes))
        for parameter in model.parameters():  # with initial weights it would say nothing
            parameter.data.normal_(std=0.3)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return build


@pytest.fixture
def distilling(command, teacher):
    """`distilling(...)`: the command of a student from scratch, whose tokenizer and vocabulary are the teacher's."""
    folder = teacher()
    overrides = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=16"
    defaults = {"teacher": folder, "train_tokenizer": None, "config_overrides": overrides, "logging_steps": 1}
    return functools.partial(command, defaults)


def losses(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def test_a_student_learns_from_a_teacher(distilling, tmp_path, capsys):
    options = {"max_steps": 40, "distillation_alpha": 1.0, "distillation_temperature": 3.0}
    run_mlm.main(distilling(**options))
    assert "BertForMaskedLM, " in capsys.readouterr().out
    found = losses(tmp_path / "run")
    assert sum(found[-5:]) < 0.5 * sum(found[:5])
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert student.config.vocab_size == 64
    vocabulary = AutoTokenizer.from_pretrained(tmp_path / "run").get_vocab()
    folder = distilling()[distilling().index("--teacher") + 1]
    assert vocabulary == AutoTokenizer.from_pretrained(folder).get_vocab()
    card = (tmp_path / "run" / "README.md").read_text()
    rows = {name.strip("` "): value.strip() for name, value in re.findall(r"^\| (.+?)\| (.+?)\|$", card, re.MULTILINE)}
    assert rows["teacher"] == folder.rpartition("/")[2]
    assert (rows["distillation_alpha"], rows["distillation_temperature"]) == ("1.0", "3.0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": None}, "--teacher is for training"),
        ({"train_tokenizer": 60}, "--train_tokenizer makes another vocabulary"),
        ({"tokenizer_name": "other"}, "has another vocabulary than the student's tokenizer"),
        ({"teacher": "short"}, "--max_seq_length 16 is too long for the teacher"),
        (
            {
                "teacher": "few embeddings",
                "config_overrides": "hidden_size=16,intermediate_size=32,max_position_embeddings=16,vocab_size=64",
            },
            "has 20 embeddings, and its tokenizer the id",
        ),
        ({"teacher": "other case"}, "have the same ids, and give the same text different ones"),
        ({"teacher": "other task"}, "has no weights for cls."),
        ({"isolate_documents": True}, "--isolate_documents: the teacher"),
    ],
)
def test_teachers_that_do_not_fit(distilling, teacher, corpus, changes, message, tmp_path, refuses):
    changes = dict(changes)

    def folder(name):
        if name == "short":
            return teacher(max_position_embeddings=8)
        if name == "few embeddings":
            return teacher(vocab_size=20)
        if name == "other case":
            found = teacher()
            changes["tokenizer_name"] = shutil.copytree(found, tmp_path / "student")
            file = Path(found) / "tokenizer.json"
            content = json.loads(file.read_text())
            content["normalizer"] = {"type": "Lowercase"}
            file.write_text(json.dumps(content))
            return found
        if name == "other task":
            found = teacher()
            BertForSequenceClassification(BertConfig.from_pretrained(found)).save_pretrained(found)
            return found
        lines = (corpus / "train.txt").read_text().splitlines()[:5]
        train_unigram_tokenizer(lines, 40, 16, show_progress=False).save_pretrained(tmp_path / "tokenizer")
        return tmp_path / "tokenizer"

    named = ("short", "few embeddings", "other case", "other task", "other")
    made = {name: folder(value) for name, value in [*changes.items()] if value in named}
    refuses(run_mlm.main, distilling(**{**changes, **made}), message)


@pytest.mark.slow
def test_two_processes_distil_as_one_with_twice_the_batch(distilling, in_two_processes, tmp_path):
    options = {"optim": "sgd", "max_grad_norm": 1e9, "max_steps": 6}
    run_mlm.main(distilling(**options))
    halves = {**options, "per_device_train_batch_size": 4}
    in_two_processes("run_mlm", distilling(**halves, output_dir=tmp_path / "two"))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "run"), abs=2e-4)
