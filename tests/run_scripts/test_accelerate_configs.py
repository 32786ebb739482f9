"""The launch configurations train what one process does; what accelerate makes of them is in test_launch.py."""

import functools
import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tokenmixers.run_scripts import run_mlm


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "machines", "processes"), [("ddp", 1, 1), ("ddp", 1, 2), ("two_nodes", 2, 2)], ids=lambda value: value
)
def test_they_launch_what_one_process_learns(name, machines, processes, command, tmp_path):
    """With processors instead of GPUs, which nobody has to say, and this machine as both of two."""
    command = functools.partial(command, use_cpu=None, precision="fp32")  # or the gradients would differ by more
    run_mlm.main(command(max_steps=1, output_dir=tmp_path / "start"))
    options = {"model_name_or_path": tmp_path / "start", "mlm_probability": 1.0, "optim": "sgd", "max_grad_norm": 1e9}
    options |= {"whole_word_mask": True, "train_sampling_strategy": "sequential"}
    run_mlm.main(command(**options))
    launch = [sys.executable, "-m", "tokenmixers.run_scripts.launch", f"{name}.yaml"]
    launch += ["--num_processes", str(processes)]
    if machines > 1:
        launch += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    elif processes > 1:
        launch += ["--main_process_port", str(free_port())]
    options |= {"per_device_train_batch_size": 8 // processes, "output_dir": tmp_path / "launched"}
    runs = [
        subprocess.Popen(
            [*launch, "--machine_rank", str(rank), "run_mlm", *command(**options)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(machines)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors[-2000:]
    single, launched = (load_file(tmp_path / folder / "model.safetensors") for folder in ("run", "launched"))
    for tensor in single:
        torch.testing.assert_close(launched[tensor], single[tensor], rtol=1e-4, atol=1e-5)
