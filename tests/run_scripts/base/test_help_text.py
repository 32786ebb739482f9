"""`--help` of the training commands is read from their source, and says what the parsed dataclasses say."""

import argparse
import dataclasses
import importlib
import re
import subprocess
import sys

import pytest
from transformers import HfArgumentParser

from tokenmixers.run_scripts.base.arguments import ModelArguments, parse_arguments
from tokenmixers.run_scripts.base.commands import TRAINING_COMMANDS, docstring_of, module_of
from tokenmixers.run_scripts.base.help_text import argument_classes, fields_of, help_text
from tokenmixers.run_scripts.training.hyperparameter_grid import GridArguments
from tokenmixers.run_scripts.training.run import Task


def task_of(command: str) -> type[Task]:
    """The task of a command: the first one that its module defines."""
    module = importlib.import_module(module_of(command))
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Task))
    return next(value for value in found if value.__module__ == module.__name__)


@pytest.mark.parametrize("command", TRAINING_COMMANDS)
def test_the_text_has_the_fields_of_the_dataclasses(command):
    task = task_of(command)
    kinds = [*task.arguments, GridArguments, ModelArguments, task.training_arguments]
    assert [name for _, name in argument_classes(command)] == [kind.__name__ for kind in kinds]
    *own, training = [(kind, fields_of(*place)) for kind, place in zip(kinds, argument_classes(command), strict=True)]
    for kind, found in (*own, training):
        known = {field.name: field for field in dataclasses.fields(kind)}
        names = [field["dest"] for field in found]
        assert names == list(known) or (kind is training[0] and {*names} <= {*known})
        for field in found:
            there = known[field["dest"]]
            help_there = there.metadata.get("help")
            assert field["help"] == (None if help_there is None else help_there.replace("%", "%%"))
            has_factory = there.default_factory is not dataclasses.MISSING
            default = there.default_factory() if has_factory else there.default
            assert field["default"] == (argparse.SUPPRESS if default in (None, []) else default)
            assert (field["nargs"] == "+") == ("list" in str(there.type))


def test_transformers_own_arguments_are_shown_when_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tokenmixers run_clm"])
    shown = {}
    for option in ("--help", "--help_all"):
        with pytest.raises(SystemExit) as ended:
            parse_arguments((ModelArguments, task_of("run_clm").training_arguments), [option])
        assert ended.value.code == 0
        shown[option] = capsys.readouterr().out
    assert docstring_of("run_clm") in shown["--help"] and "--help_all" in shown["--help"]
    options = {option: re.findall(r"^  --([\w-]+)", text, flags=re.MULTILINE) for option, text in shown.items()}
    assert len({*options["--help"]}) == len(options["--help"]) < 60
    assert options["--help"][0] == "dataset_name"
    assert "adam_beta1" not in options["--help"]
    everything = options["--help_all"]
    assert everything[: len(options["--help"])] == options["--help"]
    assert len({*everything}) == len(everything)
    parsed = {action.dest for action in HfArgumentParser(task_of("run_clm").training_arguments)._actions}
    assert parsed - {"help"} <= {*everything}


def test_help_imports_neither_torch_nor_the_command():
    code = "import sys\nfrom tokenmixers.run_scripts.__main__ import main\n"
    code += "try:\n    main(['run_glue', '--help'])\nexcept SystemExit:\n    pass\n"
    code += "print(sorted({'torch', 'transformers', 'datasets'} & {*sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.endswith("[]\n")
    assert help_text("run_glue") in shown
