"""The commands of the pages can be given, from any folder: scripts exist, have the options, and find the recipes."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
from transformers import HfArgumentParser
from transformers.utils import logging


ROOT = Path(__file__).parents[1]
SCRIPTS = "tokenmixers.run_scripts."


def commands(text: str) -> list[list[str]]:
    """The words of the commands in fenced blocks, and of those within sentences that run a script."""
    blocks = "".join(re.findall(r"^```bash\n(.+?)^```", text, flags=re.DOTALL | re.MULTILINE)).replace("\\\n", "")
    variables, lines = {"run": f"python -m {SCRIPTS[:-1]}"}, []
    for line in blocks.splitlines():
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        assignment = re.fullmatch(r'(\w+)="(.*)"', line)
        if assignment:
            variables[assignment[1]] = assignment[2]
        else:
            lines.append(line)
    lines += [" ".join(inline.split()) for inline in re.findall(rf"`(python -m {re.escape(SCRIPTS)}[^`]+)`", text)]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def called_scripts(name: str) -> list[list[str]]:
    """Name and arguments of every script that the file runs."""
    calls = []
    for words in commands((ROOT / name).read_text(encoding="utf-8")):
        index = next((i for i, word in enumerate(words) if word.startswith(SCRIPTS) and words[i - 1] == "-m"), None)
        if index is not None:
            calls.append([words[index].removeprefix(SCRIPTS), *words[index + 1 :]])
    return calls


def calls_of_make() -> list[list[str]]:
    """Name and arguments of every script that the quickstart runs, or tells its user to try next."""
    calls = []
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        told = line.startswith("\t@echo '  $(SCRIPT).")
        if told or line.startswith("\t@$(SCRIPT)."):
            command = shlex.split(line)[1] if told else line
            calls.append(shlex.split(command.partition("$(SCRIPT).")[2].replace("$(OUT)", "outputs/quickstart")))
    return calls


CALLS = [*called_scripts("README.md"), *called_scripts("model_cards/README.md"), *calls_of_make()]


def test_commands_are_found():
    assert {"run_mlm", "run_glue", "push_to_hub", "convert_t5"} <= {script for script, *_ in CALLS}
    assert [script for script, *_ in calls_of_make()][-3:] == ["fill_mask", "run_mlm", "push_to_hub"]  # to try next
    assert ["--dry_run"] in [arguments[-1:] for script, *arguments in CALLS if script == "push_to_hub"]


class _Read(Exception):  # noqa: N818 - ends a script after it has read its arguments
    pass


@pytest.mark.parametrize(("script", "arguments"), [(script, arguments) for script, *arguments in CALLS])
def test_scripts_take_these_arguments(script, arguments, tmp_path, monkeypatch):
    def read(parser, args=None, **kwargs):
        raise _Read(parser.parse_known_args(args)[1])

    monkeypatch.setattr(HfArgumentParser, "parse_args_into_dataclasses", read)
    monkeypatch.setattr(logging, "set_verbosity_error", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("{}")  # which stands for one of the reader's own
    if script == "launch":  # starts a process, after its own options
        start = next(index for index, word in enumerate(arguments) if word.startswith("run_"))
        script, *arguments = arguments[start:]
    with pytest.raises((_Read, SystemExit)) as ended:
        importlib.import_module(SCRIPTS + script).main(arguments)
    assert ended.value.args in (([],), (0,)), ended.value  # nothing unknown, or help


@pytest.mark.parametrize(
    "target", sorted({words[1] for words in commands((ROOT / "README.md").read_text()) if words[0] == "make"})
)
def test_make_knows_the_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
