import importlib.util
from pathlib import Path

import pytest

from tokenmixers import run_scripts
from tokenmixers.run_scripts.base.commands import (
    COMMANDS,
    GROUPS,
    SMALL_DATA,
    TRAINING_COMMANDS,
    describe,
    file_of,
    module_of,
)


FOLDER = Path(run_scripts.__file__).parent


def test_every_command_is_in_one_group():
    runnable = {path.stem for path in FOLDER.glob("*.py") if _is_command(path)}
    assert sorted(COMMANDS) == sorted(runnable)
    assert len(set(COMMANDS)) == len(COMMANDS) == sum(map(len, GROUPS.values()))


def _is_command(path: Path) -> bool:
    return not path.stem.startswith("__") and "\ndef main(" in path.read_text()


def test_the_commands_that_train_are_those_with_the_prefix():
    assert set(TRAINING_COMMANDS) == {path.stem for path in FOLDER.glob("run_*.py")}


@pytest.mark.parametrize("command", [*COMMANDS, *SMALL_DATA])
def test_modules_and_descriptions(command):
    spec = importlib.util.find_spec(module_of(command))
    assert spec is not None and Path(spec.origin) == file_of(command)
    assert file_of(command).read_text().removeprefix("r").startswith(f'"""{describe(command)}\n')


def test_every_small_data_set_is_known():
    modules = {path.stem for path in FOLDER.glob("small_data/*.py") if "\ndef write(" in path.read_text()}
    assert modules == set(SMALL_DATA)
