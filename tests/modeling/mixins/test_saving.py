import importlib
import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

import tokenmixers
from tokenmixers import GMLPForMaskedLM, GMLPPreTrainedModel
from tokenmixers.configuration.checkpoint_files import copy_code
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


SCRIPT = Path(__file__).with_name("load_every_head.py")
#: Name of a folder -> class, and what else is set in its configuration.
CHECKPOINTS = {
    "gmlp": ("GMLPForMaskedLM", {}),
    "gmlp-images": ("GMLPForImageClassification", {}),
    "amlp": ("AMLPForQuestionAnswering", {}),
    "amlp-images": ("AMLPForImageClassification", {}),
    "gmlp-decoder": ("GMLPForCausalLM", {}),
    "amlp-decoder": ("AMLPForCausalLM", {}),
    "mlp_mixer": ("MLPMixerForMaskedLM", {}),
    "mlp_mixer-images": ("MLPMixerForImageClassification", {}),
    "synthesizer": ("SynthesizerForMaskedLM", {"attention_components": ["random", "dense", "vanilla"]}),
    "synthesizer-images": ("SynthesizerForImageClassification", {}),
    "synthesizer-decoder": ("SynthesizerForCausalLM", {}),
    "synthesizer-seq2seq": ("SynthesizerForConditionalGeneration", {}),
    "hybrid_bert": ("HybridBertForMaskedLM", {"token_mixers": get_args(TokenMixer)}),
}
# What each loads as, through `AutoModel...`: the heads of its kind, whichever of them it was saved with.
TEXT_HEADS = {
    *("", "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForMultipleChoice", "ForQuestionAnswering"),
}
HEADS = {"images": {"ForImageClassification"}, "decoder": {"", "ForCausalLM"}, "seq2seq": {"", "ForSeq2SeqLM"}}


@pytest.fixture
def build(tiny_model):
    return lambda name: tiny_model(CHECKPOINTS[name][0], **CHECKPOINTS[name][1])


@pytest.fixture
def gmlp(build):
    return build("gmlp")


# Each family once and each kind once: of text, decoder, images, text to text. The process costs more than they do.
SOME = ["gmlp", "amlp-decoder", "mlp_mixer-images", "synthesizer-seq2seq", "hybrid_bert"]


@pytest.mark.parametrize("names", [SOME, pytest.param(list(CHECKPOINTS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_checkpoint_loads_without_the_package_through_every_class(names, tmp_path, build, alone):
    for name in names:
        build(name).save_pretrained(tmp_path / name)
    alone(SCRIPT.read_text(), [tmp_path / "alone.safetensors", *(tmp_path / name for name in names)])
    theirs = load_file(tmp_path / "alone.safetensors")

    outputs_of = runpy.run_path(str(SCRIPT))["outputs_of"]
    ours = {}
    for name in names:
        ours |= outputs_of(tmp_path / name)
    assert set(theirs) == set(ours)
    heads = {name: {key.split("/")[1] for key in ours if key.startswith(f"{name}/")} for name in names}
    for name in names:
        assert saved_code(tmp_path / f"{name}-config") == saved_code(tmp_path / name)
        kinds = HEADS.get(name.rpartition("-")[2], TEXT_HEADS)
        backbone = {"AutoBackbone"} if name.endswith("images") else set()
        assert heads[name] == {f"AutoModel{kind}" for kind in kinds} | backbone, name
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


def test_with_the_package_nothing_of_the_checkpoint_runs(gmlp, tmp_path):
    gmlp.save_pretrained(tmp_path)
    for path in tmp_path.glob("*.py"):
        path.write_text("raise AssertionError('executed')")
    for trust in (True, False, None):
        model = AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=trust)
        assert type(model) is tokenmixers.GMLPForMaskedLM


INSTALLED = """
import sys
from transformers import AutoModelForMaskedLM
assert "tokenmixers" not in sys.modules
print(type(AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)).__module__)
import tokenmixers
print(type(AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)).__module__)
"""


@pytest.mark.slow
def test_a_package_that_is_installed_but_not_imported_is_not_used(gmlp, tmp_path):
    gmlp.save_pretrained(tmp_path / "model")
    process = subprocess.run(
        [sys.executable, "-c", INSTALLED, tmp_path / "model"],
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    before, after = process.stdout.split()
    assert before.startswith("transformers_modules.") and after == "tokenmixers.modeling.modeling_gmlp"


def saved_code(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}


def test_a_masked_language_model_has_its_equations_and_nothing_else(gmlp, tmp_path):
    gmlp.save_pretrained(tmp_path)
    code = saved_code(tmp_path)
    assert sum(len(text.splitlines()) for text in code.values()) <= 1535
    for text in code.values():
        assert not re.search("kernel(?!_size)|mkldnn|pipeline|flops|auto_classes|toeplitzness", text, re.IGNORECASE)


def test_question_answering_is_where_a_head_answers_questions(build, tmp_path):
    for name in ("gmlp", "gmlp-images", "amlp"):
        build(name).save_pretrained(tmp_path / name)
    assert "question_answering.py" in saved_code(tmp_path / "amlp")
    assert "question_answering.py" not in saved_code(tmp_path / "gmlp")
    assert not any("questionanswering" in text.lower() for text in saved_code(tmp_path / "gmlp-images").values())
    assert "custom_pipelines" not in json.loads((tmp_path / "gmlp-images" / "config.json").read_text())


def test_code_of_another_head_does_not_stay_behind(build, tmp_path):
    answering = build("amlp")
    answering.save_pretrained(tmp_path)
    (tmp_path / "mine.py").write_text("mine = True\n")
    (tmp_path / "generation_config.json").write_text("{}")  # of a decoder
    tokenmixers.AMLPForMaskedLM(answering.config).save_pretrained(tmp_path)
    assert not (tmp_path / "generation_config.json").exists()
    assert set(saved_code(tmp_path)) == {"configuration_amlp.py", "modeling_amlp.py", "mine.py"}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_failed_save_leaves_the_older_checkpoint_alone(gmlp, tmp_path, monkeypatch):
    gmlp.save_pretrained(tmp_path)
    before = files(tmp_path)

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", fail)
    gmlp.config.num_labels = 7
    with pytest.raises(OSError, match="No space left"):
        gmlp.save_pretrained(tmp_path)
    assert files(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.parametrize("moment", ["weights", *range(5), "configuration", "end"])
def test_a_process_killed_while_saving_leaves_the_old_checkpoint_or_none(gmlp, build, randomise, tmp_path, moment):
    """The worst case: one file follows the other, and the names of the old weights would win over the new ones'."""
    gmlp.save_pretrained(tmp_path)
    other = randomise(build("gmlp"), seed=1)
    if (child := os.fork()) == 0:  # nothing can be tidied up after SIGKILL
        replace, calls = os.replace, []

        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)

        def replace_or_die(source, target):
            if Path(target).parent == tmp_path:
                if len(calls) == moment or (moment == "configuration" and Path(target).name == "config.json"):
                    die()
                calls.append(target)
            replace(source, target)

        os.replace = replace_or_die
        if moment == "weights":
            transformers.modeling_utils.safe_save_file = die
        other.save_pretrained(tmp_path, max_shard_size="3KB")
        die()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if moment in ("weights", "end"):
        expected = gmlp if moment == "weights" else other
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
        assert all(torch.equal(one, two) for one, two in zip(loaded.parameters(), expected.parameters(), strict=True))
    else:
        with pytest.raises((OSError, ValueError)):
            AutoModelForMaskedLM.from_pretrained(tmp_path)
    other.save_pretrained(tmp_path, max_shard_size="3KB")
    assert not list(tmp_path.glob(".*")) and len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(loaded.parameters(), other.parameters(), strict=True))


TOKENIZERS = """
import json, sys
from transformers import AutoTokenizer
for folder in sys.argv[1:]:
    asked = [AutoTokenizer.from_pretrained(folder, **options) for options in ({}, {"trust_remote_code": False})]
    print(json.dumps([tokenizer("the gate")["input_ids"] for tokenizer in asked]))
"""


def test_tokenizers_load_without_the_package_and_without_trust(tmp_path, build, alone):
    tokenizer = tokenmixers.train_unigram_tokenizer(["the gate mixes tokens"] * 9, 29, 16, show_progress=False)
    names = ["gmlp", "amlp", "mlp_mixer", "synthesizer", "synthesizer-seq2seq"]
    for name in names:
        build(name).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        for path in (tmp_path / name).glob("*.py"):
            path.write_text("raise SystemExit('executed')")
    shown = alone(TOKENIZERS, [tmp_path / name for name in names]).splitlines()
    lines = [line[line.index("[[") :] for line in shown if "[[" in line]  # after a question for trust
    assert [json.loads(line) for line in lines] == [[tokenizer("the gate")["input_ids"]] * 2] * len(names)


def test_weights_of_another_form_do_not_stay_behind(gmlp, build, randomise, tmp_path):
    gmlp.save_pretrained(tmp_path, max_shard_size="3KB")
    gmlp.save_pretrained(tmp_path, variant="other")
    (tmp_path / "notes.txt").write_text("mine")
    other = randomise(build("gmlp"), seed=1)
    other.save_pretrained(tmp_path)
    left = {path.name for path in tmp_path.glob("*.safetensors*")}
    assert left == {"model.safetensors", "model.other.safetensors"}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_a_file_is_no_folder(gmlp, tmp_path):
    (tmp_path / "taken").write_text("text")
    with pytest.raises(NotADirectoryError, match="taken is a file"):
        gmlp.save_pretrained(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "text"


def test_a_users_own_family_is_saved_without_a_map(tiny_config, tmp_path):
    class OtherConfig(tokenmixers.GMLPConfig):
        model_type = "other"

    class OtherModel(tokenmixers.GMLPForMaskedLM):
        config: OtherConfig

    OtherModel(tiny_config(OtherConfig)).save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert not list(tmp_path.glob("*.py"))


class OwnGMLP(GMLPForMaskedLM):
    """A user's class of the same family."""


def test_a_users_own_class_has_the_code_of_its_base_class_and_this_is_said(tiny_config, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # to caplog
    model = OwnGMLP(tiny_config())
    model.save_pretrained(tmp_path)
    assert re.search(r"OwnGMLP is .* load this checkpoint as GMLPForMaskedLM.*OwnGMLP\.register_for", caplog.text)
    assert "OwnGMLP" not in "".join(saved_code(tmp_path).values())
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path)) is GMLPForMaskedLM
    caplog.clear()
    bare = type("Bare", (GMLPPreTrainedModel,), {"__module__": __name__})(model.config)
    bare.head = torch.nn.Linear(2, 2)
    bare.save_pretrained(tmp_path / "bare")
    assert "load this checkpoint as GMLPModel," in caplog.text
    caplog.clear()
    sharded = type("FSDPGMLPForMaskedLM", (GMLPForMaskedLM,), {"__module__": "torch.distributed.fsdp"})
    for other in (GMLPForMaskedLM, sharded):
        other(model.config).save_pretrained(tmp_path)
    assert "is a class of your own" not in caplog.text


def test_a_users_own_registered_class_is_saved_with_its_code_and_ours(tiny_config, tmp_path, monkeypatch, caplog):
    (tmp_path / "users_own.py").write_text("import tokenmixers\n\nclass Own(tokenmixers.GMLPForMaskedLM):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("users_own").Own
    own.register_for_auto_class("AutoModelForMaskedLM")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    own(tiny_config()).save_pretrained(tmp_path / "saved")
    assert "is a class of your own" not in caplog.text
    assert set(saved_code(tmp_path / "saved")) == {"configuration_gmlp.py", "modeling_gmlp.py", "users_own.py"}
    auto_map = json.loads((tmp_path / "saved" / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForMaskedLM"] == "users_own.Own" and auto_map["AutoModel"] == "modeling_gmlp.GMLPModel"


def test_a_failed_push_leaves_what_was_saved(tiny_config, tmp_path, monkeypatch):
    model = GMLPForMaskedLM(tiny_config())

    def refuse(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr("tokenmixers.modeling.mixins.saving.create_repo", refuse)
    with pytest.raises(ConnectionError):
        model.save_pretrained(tmp_path / "mine", push_to_hub=True, commit_message="first")
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path / "mine")
    assert all(torch.equal(one, other) for one, other in zip(loaded.parameters(), model.parameters(), strict=True))


def test_a_merged_model_replaces_its_adapter(tiny_config, tmp_path):
    peft = pytest.importorskip("peft")
    model = GMLPForMaskedLM(tiny_config()).eval()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=2, init_lora_weights=False))
    adapted.save_pretrained(tmp_path)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path)
    loaded, ids = AutoModelForMaskedLM.from_pretrained(tmp_path).eval(), torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded.state_dict(), merged.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(loaded(ids).logits, merged(ids).logits)


def test_a_checkpoint_of_a_trainer_is_written_where_it_was_named(tiny_config, tmp_path):
    GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path / "checkpoint-500")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-500"]
    assert set(saved_code(tmp_path / "checkpoint-500")) == {"configuration_gmlp.py", "modeling_gmlp.py"}


def test_copied_code_replaces_its_older_self_alone(tiny_config, tmp_path):
    GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-5" / "mine.py").write_text("mine = True\n")
    (tmp_path / "configuration_gmlp.py").write_text("mine = True\n")
    (tmp_path / "modeling_gmlp.py").write_text("# Part of tokenmixers 0.0.1, older\n")
    copy_code(tmp_path / "checkpoint-5", tmp_path)
    modeling = (tmp_path / "checkpoint-5" / "modeling_gmlp.py").read_text()
    assert saved_code(tmp_path) == {"configuration_gmlp.py": "mine = True\n", "modeling_gmlp.py": modeling}


def test_folders_of_others_stay(tiny_config, tmp_path):
    (tmp_path / ".incomplete").mkdir()
    (tmp_path / ".incomplete" / "mine.txt").write_text("mine")
    GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path)
    assert (tmp_path / ".incomplete" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("distributed", [False, True])
def test_code_is_the_old_or_the_new_whenever_a_save_is_interrupted(distributed, tiny_config, tmp_path, monkeypatch):
    """Every write is cut off in turn, as a kill would, until a save needs no further one."""
    model = GMLPForMaskedLM(tiny_config())
    model.save_pretrained(tmp_path / "whole")
    expected, write = saved_code(tmp_path / "whole"), Path.write_bytes
    for count in range(9):
        folder, calls = tmp_path / str(count), []

        def write_half(path, content, count=count, calls=calls):
            calls.append(path)
            if len(calls) <= count:
                return write(path, content)
            write(path, content[: len(content) // 2])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", write_half)
            patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
            patch.setattr(GMLPForMaskedLM, "save_distributed_checkpoint", lambda *args, **kwargs: None)
            try:
                model.save_pretrained(folder, **({"distributed_checkpoint": True} if distributed else {}))
            except KeyboardInterrupt:
                complete = False
            else:
                complete = True
        assert saved_code(folder).items() <= expected.items()
        if complete:
            break
        model.save_pretrained(folder)
        assert saved_code(folder) == expected and not list(folder.glob(".*"))
    assert complete and count == len(expected) and saved_code(folder) == expected


def test_files_of_others_are_not_replaced(tiny_config, tmp_path):
    (tmp_path / "configuration_gmlp.py").write_text("mine = True\n")
    (tmp_path / "modeling_gmlp.py").symlink_to("nowhere.py")
    before = files(tmp_path)
    names = r"configuration_gmlp\.py, modeling_gmlp\.py"
    with pytest.raises(FileExistsError, match=rf"its own {names}.*another folder.*Nothing was written"):
        GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path)
    assert files(tmp_path) == before and len(list(tmp_path.iterdir())) == 2


def test_a_pipeline_is_saved_with_its_code(tiny_config, tmp_path):
    tokenizer = tokenmixers.train_unigram_tokenizer(["the gate mixes tokens"] * 9, 29, 16, show_progress=False)
    model = tokenmixers.GMLPForQuestionAnswering(tiny_config(vocab_size=len(tokenizer))).eval()
    answer = transformers.pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)
    for _ in range(2):
        answer.save_pretrained(tmp_path)
    assert all(text.startswith("# Part of tokenmixers") for text in saved_code(tmp_path).values())
    saved = transformers.pipeline("question-answering", model=str(tmp_path), trust_remote_code=True)
    asked = {"question": "what mixes?", "context": "the gate mixes tokens"}
    assert saved(**asked) == answer(**asked)
    model.save_pretrained(tmp_path)


def test_a_distributed_checkpoint_is_not_pushed(gmlp, tmp_path):
    with pytest.raises(ValueError, match="leave `state_dict` and `distributed_checkpoint` out"):
        gmlp.save_pretrained(tmp_path / "model", push_to_hub=True, distributed_checkpoint=True)
    assert not (tmp_path / "model").exists()
