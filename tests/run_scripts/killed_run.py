"""Run run_mlm until it kills itself at a given point: see test_training.py.

`python killed_run.py POINT ARGUMENTS...`: POINT is `step:N`, or the end of a path, such as `checkpoint-4/optimizer.pt`:
that file is half written when the process dies.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerState

from tokenmixers.run_scripts import run_mlm


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Entry point."""
    torch.set_num_threads(1)
    point, arguments = sys.argv[1], sys.argv[2:]

    def half(path: Path | str) -> None:
        if str(path).endswith(point):
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    save, replace = torch.save, os.replace
    save_to_json, training_step = TrainerState.save_to_json, Trainer.training_step

    def save_and_die(obj, path, *args, **kwargs):
        save(obj, path, *args, **kwargs)
        half(path)

    def replace_and_die(source, target, *args, **kwargs):
        replace(source, target, *args, **kwargs)
        half(target)

    def save_to_json_and_die(self, path):
        save_to_json(self, path)
        half(path)

    def step_or_die(self, *args, **kwargs):
        if point == f"step:{self.state.global_step}":
            die()
        return training_step(self, *args, **kwargs)

    torch.save, os.replace = save_and_die, replace_and_die
    TrainerState.save_to_json, Trainer.training_step = save_to_json_and_die, step_or_die
    run_mlm.main(arguments)


if __name__ == "__main__":
    main()
