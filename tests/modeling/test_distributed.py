"""Tensor parallelism and FSDP2 through Transformers' own `DistributedConfig`, on two processes without GPUs."""

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.multiprocessing import start_processes

import tokenmixers
from tokenmixers.configuration.checkpoint_code import checkpoint_code


pytest.importorskip("transformers.distributed")
SCRIPT = str(Path(__file__).with_name("two_processes.py"))
# The class, how it is built, and the layers whose matrices two processes share.
MODELS = {
    "GMLPForMaskedLM": ({}, ["proj_in", "proj_out"]),
    "AMLPForSequenceClassification": ({}, ["proj_in", "proj_out"]),
    "MLPMixerForTokenClassification": ({}, ["proj_in", "proj_out"]),
    "GMLPForImageClassification": ({"image_size": 8, "patch_size": 4}, ["proj_in", "proj_out"]),
    "SynthesizerForMaskedLM": ({"feed_forward_type": "geglu"}, ["gate_proj", "up_proj", "down_proj"]),
    "SynthesizerForConditionalGeneration": ({"is_encoder_decoder": True}, ["up_proj", "down_proj"]),
    "HybridBertForTokenClassification": ({"token_mixers": ["full_attention", "gmlp"]}, ["proj_in", "proj_out"]),
}


def save_models(names, folder, tiny_config):
    """The models of these names and their inputs, which lie in `folder` then."""
    models = {}
    for name in names:
        changes, _ = MODELS[name]
        torch.manual_seed(0)
        config_class = getattr(tokenmixers, name.split("For")[0] + "Config")
        if "Synthesizer" in name:
            changes = {**changes, "num_attention_heads": 2, "head_dim": 4, "attention_dropout": 0.0}
        sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 38, "hidden_dropout_prob": 0.0}
        model = getattr(tokenmixers, name)(tiny_config(config_class, **{**sizes, **changes})).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        if "Image" in name:
            inputs = {"pixel_values": torch.randn(4, 3, 8, 8)}
        else:
            inputs = {"input_ids": torch.randint(3, 38, (4, 9))}
        if "MaskedLM" in name or "Conditional" in name:
            inputs["labels"] = inputs["input_ids"].clone()
        model.save_pretrained(folder / name / "model")
        save_file(inputs, folder / name / "inputs.safetensors")
        models[name] = model, inputs
    return models


@pytest.fixture(scope="module")
def run(tiny_config, tmp_path_factory):
    """Folder and results of `two_processes.py` on every model, with the models themselves."""
    folder = tmp_path_factory.mktemp("distributed")
    models = save_models(MODELS, folder, tiny_config)
    hub, server = runpy.run_path(str(Path(__file__).parents[1] / "run_scripts" / "hub_stand_in.py"))["start"]()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "good"}
    process = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", SCRIPT, str(folder)],
        env={**environment, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder.parent), "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    server.shutdown()
    server.server_close()
    assert process.returncode == 0, process.stderr[-4000:]
    return folder, json.loads(process.stdout.splitlines()[-1]), models, hub


def first_output(model, inputs):
    with torch.no_grad():
        outputs = model(**inputs)
    return outputs[1] if "labels" in inputs else outputs[0]


def check_split_model(name, kind, folder, split, model, inputs):
    with torch.no_grad():
        expected = model(**inputs)[0]
    found = load_file(folder / name / f"{kind}.safetensors")["outputs"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if kind == "fsdp":
        assert split == sorted(name for name, _ in model.named_parameters())
    else:
        layers = {parameter.split(".")[-2] for parameter in split if ".layers." in parameter}
        assert layers == set(MODELS[name][1])
        assert all(
            "embed" in other or "head" in other or "shared" in other for other in split if ".layers." not in other
        )
    loaded = type(model).from_pretrained(folder / name / kind).eval()
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(first_output(loaded, inputs), first_output(model, inputs))


def run_forked(rank, folder, store):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    _, split = runpy.run_path(SCRIPT)["run_split"](folder, "tp")
    dist.barrier()
    if rank == 0:
        (folder / "split.json").write_text(json.dumps(split))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="processes cannot be forked safely")
def test_tensor_parallelism_in_forked_processes(tiny_config, tmp_path):
    """The fast case: processes that are forked need not import PyTorch and Transformers, which takes seconds."""
    name = "GMLPForMaskedLM"
    folder = tmp_path / "models" / name
    (model, inputs) = save_models([name], folder.parent, tiny_config)[name]
    both = start_processes(run_forked, (folder, tmp_path / "store"), nprocs=2, join=False, start_method="fork")
    try:
        end = time.monotonic() + 120
        while not both.join(timeout=5):
            assert time.monotonic() < end, "the processes hang"
    finally:
        for process in both.processes:
            process.kill()
    check_split_model(name, "tp", folder.parent, json.loads((folder / "split.json").read_text()), model, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_computes_the_same_and_saves_a_whole_one(name, kind, run):
    folder, results, models, hub = run
    check_split_model(name, kind, folder, results[name][kind], *models[name])
    commits = [hub.commits[commit] for commit in hub.branches[f"me/{name}-{kind}"].values()]
    saved = {path.name: path.read_bytes() for path in (folder / name / kind).iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= saved.keys()
    assert [{k: v for k, v in files.items() if k in saved} for files in commits] == [saved]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_distributed_checkpoint_has_the_code_too(name, run):
    parts = run[0] / name / "parts"
    assert "auto_map" in json.loads((parts / "config.json").read_text())
    config = run[2][name][0].config
    assert {path.name: path.read_text() for path in parts.glob("*.py")} == checkpoint_code(config)
    assert list(parts.rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if "MaskedLM" in name or "Conditional" in name])
def test_fsdp_training_gives_the_weights_of_one_process(name, run, tmp_path):
    from transformers import Trainer, TrainingArguments

    folder, results, models, _ = run
    model, inputs = models[name]
    assert results[name]["trained"] == sorted(name for name, _ in model.named_parameters())
    alone = type(model).from_pretrained(folder / name / "model")
    rows = [{key: tensor[index] for key, tensor in inputs.items()} for index in range(4)]
    arguments = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(alone, arguments, train_dataset=rows).train()
    trained = type(model).from_pretrained(folder / name / "trained")
    for key, parameter in alone.named_parameters():
        torch.testing.assert_close(trained.get_parameter(key), parameter, rtol=1e-3, atol=1e-5)
        assert not torch.equal(parameter, model.get_parameter(key)), key
