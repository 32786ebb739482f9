"""Run run_mlm until it kills itself at a step: `python killed_run.py STEP ARGUMENTS...`; "never" does not."""

import os
import signal
import sys

import torch
from transformers import Trainer

from tokenmixers.run_scripts import run_mlm


def main() -> None:
    torch.set_num_threads(1)
    last, arguments = sys.argv[1], sys.argv[2:]
    training_step = Trainer.training_step

    def step_or_die(self, *args, **kwargs):
        if str(self.state.global_step) == last:
            os.kill(os.getpid(), signal.SIGKILL)  # as a power cut would
        return training_step(self, *args, **kwargs)

    Trainer.training_step = step_or_die
    run_mlm.main(arguments)


if __name__ == "__main__":
    main()
