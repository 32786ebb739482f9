"""Device and precision of a run: chosen, asked for, and told; every shipped recipe starts on every kind of machine."""

import copy
import dataclasses
import logging
import os
import pickle
import re
from types import SimpleNamespace

import pytest
import torch
import transformers

from tokenmixers.run_scripts.base import reporting, training_arguments
from tokenmixers.run_scripts.base.arguments import parse_arguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import RECIPES
from tokenmixers.run_scripts.base.training_arguments import GenerationTrainingArguments, ScriptTrainingArguments
from tokenmixers.run_scripts.training import model_card


#: Machine -> what PyTorch says of its processor, and whether its GPU computes bfloat16; `None` without a GPU.
MACHINES = {
    "plain": ({"architecture": "x86_64"}, None),
    "bf16": ({"architecture": "x86_64", "avx512_bf16": True}, None),
    "arm": ({"architecture": "aarch64", "bf16": True}, None),
    "old arm": ({"architecture": "aarch64"}, None),
    "gpu": ({"architecture": "x86_64"}, True),
    "old gpu": ({"architecture": "x86_64", "avx512_bf16": True}, False),
}
IN_BF16 = {"bf16", "arm", "gpu"}


@pytest.fixture
def machine(monkeypatch):
    """`machine(name)`: from here on this is one of `MACHINES`."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def become(name: str) -> None:
        capabilities, gpu = MACHINES[name]

        def set_up(args):
            args.distributed_state, args._n_gpu = None, int(gpu is not None and not args.use_cpu)
            return torch.device("cuda:0" if args._n_gpu else "cpu")

        monkeypatch.setattr(transformers.TrainingArguments, "_setup_devices", property(set_up))
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu is not None)
        monkeypatch.setattr(
            torch.accelerator,
            "current_accelerator",
            lambda check_available=False: None if gpu is None else torch.device("cuda"),
        )
        monkeypatch.setattr(torch.version, "hip", None)
        cuda = {
            "is_available": lambda: gpu is not None,
            "is_bf16_supported": lambda including_emulation=True: bool(gpu or (including_emulation and gpu is False)),
            "get_device_capability": lambda device: (9, 0) if gpu else (7, 5),
            "get_device_name": lambda device: "A GPU",
        }
        for attribute, value in cuda.items():
            monkeypatch.setattr(torch.cuda, attribute, value)

    return become


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """`parse(*arguments)`: the training arguments of this command line. Nothing is measured, it would be 12 times."""
    monkeypatch.setattr(training_arguments, "bfloat16_slowdown", lambda device: 12.0)

    def build(*argv: str, cls: type = ScriptTrainingArguments) -> ScriptTrainingArguments:
        return parse_arguments((cls,), ["--output_dir", str(tmp_path / "run"), *argv])[0]

    return build


def print_plan(args, training, evaluation=None, held_out=None):
    model = SimpleNamespace(config=SimpleNamespace(model_type="gmlp"), num_parameters=lambda: 1)
    trainer = SimpleNamespace(args=args, model=model, train_dataset=training, eval_dataset=evaluation)
    trainer.is_world_process_zero = lambda: True
    reporting.print_plan(trainer, None, held_out)


def test_no_recipe_asks_for_a_machine():
    texts = [path.read_text() for path in RECIPES.glob("*.yaml")]
    assert texts and not [text for text in texts if re.search("^(bf16|fp16|use_cpu)", text, re.MULTILINE)]


@pytest.mark.parametrize("name", MACHINES)
def test_what_every_machine_chooses(name, machine, parse):
    machine(name)
    args, has_gpu = parse(), MACHINES[name][1] is not None
    assert args.device.type == ("cuda" if has_gpu else "cpu")
    assert (args.bf16, args.fp16) == (name in IN_BF16, False)
    assert args.mixed_precision == ("bf16" if name in IN_BF16 else "no")
    assert args.dataloader_pin_memory is has_gpu


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain", ["CPU", "no GPU found", "float32", "lacks AVX512-BF16 and AMX"]),
        ("bf16", ["CPU", "no GPU found", "bfloat16", "has AVX512-BF16"]),
        ("gpu", ["cuda:0, A GPU", "bfloat16", "compute capability 9.0"]),
        ("old gpu", ["cuda:0, A GPU", "float32", "compute capability 7.5 only emulates"]),
    ],
)
def test_the_plan_says_device_precision_and_why(name, words, machine, parse, capsys):
    machine(name)
    args = parse("--do_train", "--max_steps", "3")
    print_plan(args, [1])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "precision" in line]
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    ("training", "evaluation", "held_out", "line"),
    [
        ([1] * 1200, [1] * 3, None, "training set: 1,200 rows; evaluation set: 3 rows"),
        (None, {"matched": [1], "mismatched": [1] * 2}, None, "matched set: 1 rows; mismatched set: 2 rows"),
        (iter(()), None, None, "training set: streamed"),
        ([1], None, {"validation": [1] * 20}, "training set: 1 rows; validation set: 20 rows"),
        ([1], None, {}, "training set: 1 rows"),
        (None, None, None, None),
    ],
)
def test_the_plan_says_how_many_rows_there_are(training, evaluation, held_out, line, machine, parse, capsys):
    machine("plain")
    args = parse()
    print_plan(args, training, evaluation, held_out)
    lines = ["SimpleNamespace (gmlp), 1 parameters", *([line] if line else []), args.decision]
    assert capsys.readouterr().out.splitlines()[-len(lines) :] == lines


@pytest.mark.parametrize("argument", ["--bf16", "--precision"])
@pytest.mark.parametrize("name", MACHINES)
def test_bfloat16_that_is_asked_for(name, argument, machine, parse, caplog):
    """It runs, with one warning where it is slow, and that from the main process alone."""
    machine(name)
    with caplog.at_level(logging.WARNING):
        args = parse(argument, "bf16" if argument == "--precision" else "true")
    assert (args.bf16, args.mixed_precision) == (True, "bf16")
    assert "bfloat16 (asked for)" in args.decision
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == (name not in IN_BF16)
    assert all("12.0 times as long" in warning for warning in warnings)


def test_other_processes_do_not_warn(machine, parse, monkeypatch, caplog):
    machine("plain")
    monkeypatch.setattr(transformers.TrainingArguments, "process_index", property(lambda self: 1))
    assert parse("--bf16").bf16
    assert not caplog.records


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--bf16"], "bf16"),
        (["--bf16", "false"], "no"),
        (["--fp16", "true"], "fp16"),
        (["--fp16", "false"], "bf16"),
        (["--bf16", "false", "--fp16"], "fp16"),
        (["--precision", "fp16"], "fp16"),
        (["--precision", "fp32"], "no"),
        (["--precision", "fp32", "--bf16", "false"], "no"),
        (["--precision", "bf16", "--fp16", "false"], "bf16"),
        (["--precision", "auto"], "bf16"),
        (["--use_cpu"], "no"),
    ],
)
def test_what_is_asked_for_wins(argv, expected, machine, parse):
    machine("gpu")
    args = parse(*argv)
    assert args.mixed_precision == expected
    assert (args.bf16, args.fp16) == (expected == "bf16", expected == "fp16")
    assert ("device: CPU" in args.decision) is ("--use_cpu" in argv)
    assert ("asked for" in args.decision) is (argv not in (["--fp16", "false"], ["--precision", "auto"]))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--precision", "fp32", "--bf16", "true"], "--precision fp32 and --bf16 true contradict"),
        (["--precision", "bf16", "--bf16", "false"], "--precision bf16 and --bf16 false contradict"),
        (["--precision", "bf16", "--fp16"], "--precision bf16 and --fp16 true contradict"),
        (["--bf16", "--fp16"], "--bf16 true and --fp16 true contradict"),
        (["--precision", "fp64"], "fp64 is not possible; there are auto, bf16, fp16, fp32"),
        (["--fp16", "--use_cpu"], r"float16 needs a GPU.*\(asked for\)"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(argv, words, machine, parse):
    machine("gpu")
    with pytest.raises(UserError, match=words):
        parse(*argv)


@pytest.mark.parametrize("launched", ["no", "bf16", "fp16", "fp8"])
def test_accelerates_launcher_is_heard(launched, machine, parse, monkeypatch):
    """Its "no" is also what nobody asked for, and leaves the choice to us; what the script is told comes first."""
    machine("gpu")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    args = parse()
    assert args.mixed_precision == ("bf16" if launched == "no" else launched)
    assert (args.bf16, args.fp16) == (args.mixed_precision == "bf16", args.mixed_precision == "fp16")
    assert ("asked for by accelerate launch" in args.decision) is (launched != "no")
    assert parse("--precision", "fp32").mixed_precision == "no"
    assert parse("--bf16", "false").mixed_precision == "no"
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == launched
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    if launched != "fp16":
        assert parse().device.type == "cpu"


@pytest.mark.parametrize("cls", [ScriptTrainingArguments, GenerationTrainingArguments])
@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_saved_and_copied_arguments_say_what_was_done(name, cls, machine, parse):
    machine(name)
    args = parse(cls=cls)
    read = pickle.loads(pickle.dumps(args))  # as training_args.bin
    for version in (args, read, copy.copy(args), dataclasses.replace(args, seed=7)):
        assert version.bf16 is version.to_dict()["bf16"] is (name in IN_BF16)
        assert version.to_dict()["precision"] == "auto"
    assert cls(**args.to_dict()).mixed_precision == args.mixed_precision
    assert dataclasses.replace(args, bf16=False).mixed_precision == "no"
    assert getattr(args, "predict_with_generate", True) is True
    facts = model_card.CardFacts("fill-mask", data="", metrics={})
    assert ("`bf16`" in model_card.training(args, 3, facts)) is (name in IN_BF16)


@pytest.mark.parametrize(
    ("recipe", "argv", "expected"),
    [
        ("precision: fp32", ("--bf16", "true"), "bf16"),
        ("bf16: true", ("--precision", "fp32"), "fp32"),
        ("bf16: true", ("--bf16=false",), "fp32"),
        ("precision: fp32", ("--learning_rate", "1"), "fp32"),
    ],
)
def test_the_command_line_overrides_a_recipes_precision(machine, parse, tmp_path, recipe, argv, expected):
    machine("bf16")
    (tmp_path / "recipe.yaml").write_text(f"{recipe}\n")
    (args,) = parse_arguments(
        (ScriptTrainingArguments,), [str(tmp_path / "recipe.yaml"), "--output_dir", str(tmp_path / "run"), *argv]
    )
    assert args.bf16 == (expected == "bf16")


def test_evaluation_in_bfloat16_is_warned_of_too(machine, parse, caplog):
    machine("plain")
    with caplog.at_level(logging.WARNING):
        parse("--bf16_full_eval", "true")
    assert caplog.text.count("12.0 times as long in bfloat16") == 1


def test_a_process_uses_one_gpu(machine, parse, monkeypatch, caplog):
    """With several, the Trainer's DataParallel would multiply losses of whole batches by their number."""
    machine("gpu")
    monkeypatch.setattr(transformers.TrainingArguments, "n_gpu", property(lambda args: 4))
    args = parse("--per_device_train_batch_size", "3")
    assert (args.n_gpu, args.train_batch_size) == (1, 3)
    assert "of 4 GPUs this process uses one; `tokenmixers launch ddp.yaml` uses all." in caplog.text
