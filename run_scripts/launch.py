"""Start a training command in several processes, with accelerate.

    tokenmixers launch ddp.yaml run_mlm recipe.yaml [arguments of run_mlm]
    tokenmixers launch ddp.yaml --num_processes 2 run_glue glue_tiny.yaml

Options of `accelerate launch` go between the configuration and the command. A shipped configuration starts a process
for each GPU, unless `--num_processes` is given. Without a GPU `--num_processes` is needed: these processes share the
CPU.
"""

import argparse
import os
import signal
import sys
from typing import NoReturn

import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command, launch_command_parser
from accelerate.utils import DistributedType
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from transformers.utils import logging

from .base.arguments import RECIPE_ENDINGS
from .base.commands import TRAINING_COMMANDS
from .base.errors import UserError
from .base.output import prepare_output
from .base.precision import has_accelerator
from .base.shipped_files import ACCELERATE, find_shipped


logger = logging.get_logger(__name__)

#: Accelerate's name of a precision -> ours. In accelerate's environment "no" is also the default.
PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}


def complete(options: argparse.Namespace, config: ClusterConfig, shipped: bool) -> None:
    """Set options that depend on the machine: the number of processes, and of threads per process on a CPU.

    Args:
        options: Options of `accelerate launch`; changed in place.
        config: The configuration.
        shipped: Whether it is a shipped configuration, whose number of processes is ignored.
    """
    machines = options.num_machines or config.num_machines
    if machines > 1 and not (options.main_process_ip or config.main_process_ip):
        raise UserError(f"{machines} machines need the address of the first of them: --main_process_ip.")
    if options.num_processes is None and shipped and config.distributed_type != DistributedType.NO:
        devices = torch.accelerator.device_count()
        if not devices:
            raise UserError("there is no GPU: give --num_processes, the number of processes that share the CPU.")
        options.num_processes = devices * machines
    if not has_accelerator():
        options.use_cpu = True
        if config.distributed_type == DistributedType.FSDP:
            logger.warning(
                "without a GPU accelerate does not split the model: every process has all of it. The commands' "
                "--fsdp_size splits on CPUs too."
            )
        if options.num_cpu_threads_per_process is None and "OMP_NUM_THREADS" not in os.environ:
            here = (options.num_processes or config.num_processes) // machines
            options.num_cpu_threads_per_process = max(1, torch.get_num_threads() // max(1, here))


def main(argv: list[str] | None = None) -> None:
    """Entry point; returns when all processes have ended."""
    prepare_output()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("configuration", help="File, or name of a shipped one.")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="Options of accelerate, a command, and its arguments.")
    arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    own = parser.parse_args(arguments)
    file = find_shipped(own.configuration, ACCELERATE, "configuration")
    try:
        config = load_config_from_file(str(file))
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:  # AttributeError: no mapping
        raise UserError(f"the configuration {file} cannot be read: {error}") from error

    def refuse(message: str) -> NoReturn:
        commands = ", ".join(TRAINING_COMMANDS)
        raise UserError(
            f"{message}. The order is: a configuration, options of accelerate, a command ({commands}), its arguments."
        )

    if not own.rest:
        refuse("there is nothing after the configuration")

    launcher = launch_command_parser()
    launcher.error = refuse
    options = launcher.parse_args(["--config_file", str(file), "--module", *own.rest])
    script = options.training_script
    if script not in TRAINING_COMMANDS:
        refuse(f"there is no training command {script!r}")
    complete(options, config, shipped=file.resolve().parent == ACCELERATE.resolve())
    options.training_script = f"{__package__}.{script}"
    if options.mixed_precision in PRECISIONS:
        given = options.training_script_args
        # Behind the recipe, before the command's own arguments, which override it.
        start = 1 if given and given[0].endswith(RECIPE_ENDINGS) else 0
        given[start:start] = ["--precision", PRECISIONS[options.mixed_precision]]
    options.quiet = True  # the command prints its errors itself
    try:
        launch_command(options)
    except SignalException as error:
        if error.sigval != signal.SIGINT:
            raise
        raise KeyboardInterrupt from error
    except ValueError as error:
        raise UserError(f"accelerate refuses: {error}") from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == -getattr(signal, "SIGPIPE", 0):  # nobody reads what it prints
            raise SystemExit(128 - failure.exitcode) from error
        raise UserError(
            f"process {rank} of {script} failed with exit status {failure.exitcode}, see above."
        ) from error


if __name__ == "__main__":
    main()
