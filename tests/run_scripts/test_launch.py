"""The launcher: shipped configurations by name, and accelerate's own launcher with what they say."""

import signal

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from tokenmixers.run_scripts import launch
from tokenmixers.run_scripts.base import precision
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import ACCELERATE


NAMES = sorted(path.name for path in ACCELERATE.glob("*.yaml"))


@pytest.fixture
def launched(monkeypatch):
    """`launched(*argv, gpus=0)`: the options that accelerate's launcher would get on a machine with so many."""
    for name in ("OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)

    def run(*argv: str, gpus: int = 0):
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus > 0)
        found = []
        monkeypatch.setattr(launch, "launch_command", found.append)
        launch.main(list(argv))
        return found[0]

    return run


@pytest.mark.parametrize("name", NAMES)
def test_shipped_configurations_by_name(name, launched, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    machine = ["--main_process_ip", "10.0.0.1"] if name == "two_nodes.yaml" else []
    options = launched(name, *machine, "run_mlm", "quickstart.yaml", "--max_steps", "3", gpus=4)
    assert options.config_file == str(ACCELERATE / name)
    assert options.module
    assert options.training_script == "tokenmixers.run_scripts.run_mlm"
    assert options.training_script_args == ["quickstart.yaml", "--max_steps", "3"]
    assert options.num_processes == (8 if name == "two_nodes.yaml" else 4)
    assert not getattr(options, "use_cpu", False)
    assert options.mixed_precision is load_config_from_file(options.config_file).mixed_precision is None


def test_configurations_and_options_of_ones_own(launched, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump({"distributed_type": "MULTI_GPU", "num_processes": 3}))
    assert launched(str(own), "run_glue", gpus=4).num_processes is None  # what the file says
    options = launched(
        "ddp.yaml", "--num_processes", "2", "--gpu_ids", "0,3", "run_glue", "--num_processes", "9", gpus=4
    )
    assert (options.num_processes, options.gpu_ids) == (2, "0,3")
    assert options.training_script_args == ["--num_processes", "9"]


@pytest.mark.parametrize(("processes", "threads"), [(2, 3), (1, 6)])
def test_processes_share_a_cpu(processes, threads, launched, monkeypatch):
    call = ["ddp.yaml", "--num_processes", str(processes), "run_mlm"]
    options = launched(*call)
    assert options.use_cpu
    assert options.num_cpu_threads_per_process == threads
    assert options.num_processes == processes
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launched(*call).num_cpu_threads_per_process is None  # accelerate reads it


def test_without_gpus_nothing_is_sharded(launched, caplog):
    launched("fsdp2.yaml", "--num_processes", "2", "run_mlm")
    assert "--fsdp_size" in caplog.text


@pytest.mark.parametrize(("mixed", "expected"), [("no", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_mixed_precision_is_the_scripts_precision(mixed, expected, launched):
    options = launched(
        "ddp.yaml", "--num_processes", "1", "--mixed_precision", mixed, "run_mlm", "recipe.yaml", "--seed", "1"
    )
    assert options.training_script_args == ["recipe.yaml", "--precision", expected, "--seed", "1"]
    assert expected in precision.FORMATS
    options = launched("ddp.yaml", "--num_processes", "1", "--mixed_precision", mixed, "run_mlm", "--seed", "1")
    assert options.training_script_args == ["--precision", expected, "--seed", "1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], NAMES),
        (["nothing.yaml", "run_mlm"], ["'nothing.yaml'", *NAMES]),
        (["ddp.yaml", "run_foo", "recipe.yaml"], ["'run_foo'", *TRAINING_COMMANDS]),
        (["ddp.yaml", "--num_procs", "run_mlm"], ["--num_procs", *TRAINING_COMMANDS]),
        (["ddp.yaml", "run_mlm"], ["no GPU", "--num_processes"]),
        (["two_nodes.yaml", "--num_processes", "2", "run_mlm"], ["2 machines", "--main_process_ip"]),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_sentence(argv, words, launched):
    with pytest.raises(UserError) as error:
        launched(*argv)
    assert all(word in str(error.value) for word in words)


def test_a_damaged_configuration_is_named(launched, tmp_path):
    broken = tmp_path / "broken.yaml"
    for text in ("distributed_type: MULTI_GPU\nunknown_key: 3\n", "num_processes: [", "num_processes: 3\n", "words"):
        broken.write_text(text)
        with pytest.raises(UserError, match=r"broken.yaml cannot be read"):
            launched(str(broken), "run_mlm")


def test_a_failed_process_ends_it(launched, monkeypatch, tmp_path):
    failure = ProcessFailure(local_rank=1, pid=3, exitcode=7, error_file=str(tmp_path / "none"))

    def fail(options):
        raise ChildFailedError("run_mlm", {1: failure})

    launched("ddp.yaml", "--num_processes", "1", "run_mlm")
    monkeypatch.setattr(launch, "launch_command", fail)
    with pytest.raises(UserError, match="process 1 of run_mlm failed with exit status 7"):
        launch.main(["ddp.yaml", "--num_processes", "1", "run_mlm"])


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SignalException)])
def test_ctrl_c_is_an_interruption(number, error, launched, monkeypatch):
    def end(options):
        raise SignalException("received a signal", number)

    launched("ddp.yaml", "--num_processes", "1", "run_mlm")
    monkeypatch.setattr(launch, "launch_command", end)
    with pytest.raises(error):
        launch.main(["ddp.yaml", "--num_processes", "1", "run_mlm"])
