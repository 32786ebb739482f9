"""The launch configurations: accelerate reads them, and knows every key."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

from tokenmixers import run_scripts


CONFIGS = sorted((Path(run_scripts.__file__).parent / "accelerate").glob("*.yaml"))
TYPES = {
    "one_gpu": DistributedType.NO,
    "ddp": DistributedType.MULTI_GPU,
    "two_nodes": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_them(path):
    config = load_config_from_file(str(path))  # refuses unknown keys
    assert config.distributed_type == TYPES[path.stem]
    assert config.mixed_precision == "bf16"
    if path.stem == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
    assert config.num_machines == (2 if path.stem == "two_nodes" else 1)


def test_every_kind_is_there():
    assert {path.stem for path in CONFIGS} == set(TYPES)
