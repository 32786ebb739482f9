"""Training on the GPU: the `Trainer` in every precision, resumed runs, optimizers, checkpointed layers, FSDP2."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments


TRAINED = [
    "GMLPForMaskedLM",
    "AMLPForSequenceClassification",
    "MLPMixerForTokenClassification",
    "SynthesizerForConditionalGeneration",
    "GMLPForImageClassification",
]


@pytest.fixture
def examples(labelled):
    """`examples(model)`: sixteen rows with labels that can be learnt by heart."""

    def rows(model):
        batch = labelled(model, 16, 9)
        return [{name: tensor[row] for name, tensor in batch.items()} for row in range(16)]

    return rows


@pytest.fixture
def train(device, tmp_path):
    """`train(model, rows, resume=None, **arguments)`: the `Trainer` after a run."""

    def run(model, rows, resume=None, **arguments):
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "use_cpu": device.type == "cpu",
            "max_steps": 20,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        trainer = Trainer(model, TrainingArguments(**{**defaults, **arguments}), train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16, compiled"])
@pytest.mark.parametrize("class_name", TRAINED)
def test_the_trainer_learns(class_name, precision, build, examples, train, device):
    if device.type == "cpu" and precision in ("fp16", "bf16, compiled"):
        pytest.skip("float16 training needs a GPU; compiled steps are tested in tests/modeling")
    if "compiled" in precision and class_name not in TRAINED[:2]:
        pytest.skip("compiling takes half a minute: two classes are enough")
    arguments = {"bf16": precision.startswith("bf16"), "fp16": precision == "fp16"}
    arguments["torch_compile"] = "compiled" in precision
    model = build(class_name)
    trainer = train(model, examples(model), **arguments)
    losses = losses_of(trainer)
    assert {parameter.device.type for parameter in model.parameters()} == {device.type}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_are_those_of_the_cpu(precision, build, examples, train, device, tmp_path):
    model = build("GMLPForMaskedLM")
    rows, twin = examples(model), copy.deepcopy(model)
    arguments = {"bf16": precision == "bf16", "max_steps": 5}
    found = losses_of(train(model, rows, **arguments))
    expected = losses_of(train(twin, rows, max_steps=5, use_cpu=True, output_dir=str(tmp_path / "cpu")))
    assert found == pytest.approx(expected, rel=1e-3 if precision == "fp32" else 3e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_run_goes_on(precision, build, examples, train, device, tmp_path):
    """With dropout, whose random numbers of the GPU the checkpoint keeps."""
    if device.type == "cpu" and precision == "fp16":
        pytest.skip("float16 training needs a GPU")
    model = build("GMLPForMaskedLM", hidden_dropout_prob=0.1)
    rows, twin = examples(model), copy.deepcopy(model)
    arguments = {"bf16": precision == "bf16", "fp16": precision == "fp16", "max_steps": 6, "save_strategy": "steps"}
    arguments["save_steps"] = 3
    whole = losses_of(train(model, rows, **arguments, output_dir=str(tmp_path / "whole")))
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    assert (checkpoint / "scaler.pt").is_file() == (precision == "fp16")
    resumed = losses_of(train(twin, rows, resume=str(checkpoint), **arguments, output_dir=str(tmp_path / "resumed")))
    assert resumed == pytest.approx(whole, rel=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "adafactor", "adamw_torch"])
def test_optimizers(optimizer, build, examples, train):
    model = build("SynthesizerForMaskedLM")
    losses = losses_of(train(model, examples(model), optim=optimizer))
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


@pytest.mark.parametrize("class_name", [*TRAINED, "GMLPForCausalLM", "SynthesizerForMaskedLM"])
def test_checkpointed_layers(class_name, build, labelled, device, placed):
    """The same gradients with dropout, because the random numbers are drawn again."""
    model = build(class_name, hidden_dropout_prob=0.1).to(device).train()
    inputs, found = placed(labelled(model), device), []
    for checkpointed in (False, True):
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_checkpointed_layers_need_less_memory(build, labelled, cuda, placed):
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "max_position_embeddings": 256}
    model = build("GMLPForMaskedLM", **sizes).to(cuda).train()
    inputs, peaks = placed(labelled(model, 16, 256), cuda), []
    for checkpointed in (False, True):
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model(**inputs).loss.backward()
        torch.cuda.reset_peak_memory_stats()
        model(**inputs).loss.backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.6 * peaks[0]


# The commands as a user starts them, in processes of their own.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    words = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm"]
    for name, count in (("train", 120), ("validation", 20)):
        lines = [" ".join((words * 3)[row % 8 : row % 8 + 5 + row % 10]) for row in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def command(corpus, device, tmp_path):
    """`command(script, *before, **changes)`: run a training script, after the words `before`; its output folder."""
    pytest.importorskip("datasets")
    pytest.importorskip("evaluate")

    def run(script, *before, **changes):
        output = tmp_path / changes.pop("name", "run")
        settings = {
            "output_dir": output,
            "train_file": corpus / "train.txt",
            "validation_file": corpus / "validation.txt",
            "config_name": "gmlp-base",
            "config_overrides": "hidden_size=32,intermediate_size=64,num_hidden_layers=2,max_position_embeddings=16",
            "train_tokenizer": 60,
            "do_train": True,
            "do_eval": True,
            "max_steps": 6,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "disable_tqdm": True,
            **({"use_cpu": True} if device.type == "cpu" and not before else {}),
            **changes,
        }
        words = [word for name, value in settings.items() if value is not None for word in (f"--{name}", str(value))]
        start = [*before, script] if before else [f"tokenmixers.run_scripts.{script}"]
        process = subprocess.run(
            [sys.executable, "-m", *start, *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        assert ("cuda" in process.stdout + process.stderr) == (device.type == "cuda")
        return output

    return run


DECODER = {"config_overrides": "is_decoder=True,hidden_size=32,intermediate_size=64,num_hidden_layers=2"}
DECODER["config_overrides"] += ",max_position_embeddings=16"
SEQ2SEQ = {"config_name": "synthesizer-random", "train_tokenizer": 150}
SEQ2SEQ["config_overrides"] = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_decoder_layers=2"


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        ("run_mlm", {}),
        ("run_mlm", {"precision": "fp32"}),
        ("run_mlm", {"precision": "fp16"}),
        ("run_mlm", {"config_name": "amlp-base", "gradient_checkpointing": True}),
        ("run_mlm", {"torch_compile": True}),
        ("run_clm", DECODER),
        ("run_span_corruption", SEQ2SEQ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(f"{key}={value[key]}" for key in value)[:40],
)
def test_commands(script, changes, command, device):
    if device.type == "cpu" and (changes.get("precision") == "fp16" or "torch_compile" in changes):
        pytest.skip("is about GPUs")
    output = command(script, **changes)
    weights = load_file(output / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert (output / "all_results.json").is_file()


@pytest.mark.parametrize("configuration", ["ddp", "fsdp2"])
def test_launch_configurations_with_one_process(configuration, command, device):
    """What one GPU can show of them: NCCL's process group, and parameters that FSDP2 splits in one part."""
    if device.type == "cpu" and configuration == "fsdp2":
        pytest.skip("without a GPU accelerate does not split")
    launch = ["tokenmixers.run_scripts.launch", f"{configuration}.yaml", "--num_processes", "1"]
    start = command("run_mlm", name="start", max_steps=1)
    options = dict.fromkeys(("config_name", "config_overrides", "train_tokenizer")) | {"model_name_or_path": start}
    options |= {"precision": "fp32", "optim": "sgd", "learning_rate": 0.1}  # Adam makes large steps of rounding
    runs = [command("run_mlm", name="plain", **options), command("run_mlm", *launch, **options)]
    found, expected = (json.loads((run / "all_results.json").read_text())["eval_perplexity"] for run in runs[::-1])
    assert found == pytest.approx(expected, rel=1e-3)
    plain, launched = (load_file(run / "model.safetensors") for run in runs)
    for name, tensor in plain.items():
        torch.testing.assert_close(launched[name], tensor, rtol=1e-3, atol=1e-4)


def test_the_checkout_is_what_is_tested():
    import tokenmixers

    assert Path(tokenmixers.__file__).resolve().parent == Path(__file__).resolve().parents[2]
