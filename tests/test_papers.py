"""`model_cards/papers.md`: no row of a paper is missing, figures are theirs, commands make models of these sizes."""

import importlib
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    HfArgumentParser,
    PreTrainedConfig,
    PreTrainedModel,
    TrainingArguments,
)

from tokenmixers.run_scripts.base.arguments import ModelArguments, parse_arguments
from tokenmixers.run_scripts.base.commands import module_of
from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.training.model_loading import load_config


PAGE = (MODEL_CARDS / "papers.md").read_text(encoding="utf-8")
#: Table -> the names of its columns and its rows, the name of the row first; `null` where no second source is known.
FIGURES = json.loads(Path(__file__).with_name("paper_figures.json").read_text(encoding="utf-8"))
#: A collection of the papers' figures and their sources, where it is at hand.
COLLECTION = Path(__file__).parents[2] / "shared" / "papers.md"
#: NAME -> its recipe and options.
RECIPES = dict(re.findall(r"^([\w-]+): (\w+\.yaml.*)$", PAGE, flags=re.MULTILINE))
CLASSES = {
    "run_mlm": AutoModelForMaskedLM,
    "run_clm": AutoModelForCausalLM,
    "run_seq2seq": AutoModelForSeq2SeqLM,
    "run_span_corruption": AutoModelForSeq2SeqLM,
    "run_image_classification": AutoModelForImageClassification,
}


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a page as rows of cells, without the line under their heads."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:4] != "|---"]
        for table in found
    ]


def with_commands(table: list[list[str]], commands: list[str]) -> list[list[str]]:
    """A table with these commands as last cells, with the recipes of the page's list."""
    if table[0][-1] != "NAME":
        return table
    found = [[*table[0][:-1], "command"]]
    for *row, cell in table[1:]:
        name = cell.strip("`")
        lines = [f"`{line.replace('recipe.yaml', RECIPES.get(name, '')).replace('NAME', name)}`" for line in commands]
        has_command = cell.startswith("`") and (name in RECIPES or "recipe.yaml" not in commands[0])
        found.append([*row, "<br>".join(lines) if has_command else cell])
    return found


def sections() -> dict[str, list[list[str]]]:
    """Heading -> the first table below it, with the commands of the first block below it, or of the table before."""
    found, commands = {}, []
    for heading, text in re.findall(r"^### (.+)\n((?:(?!^##).*\n?)*)", PAGE, flags=re.MULTILINE):
        block = re.search(r"```bash\n(.+?)```", text, flags=re.DOTALL)
        commands = block[1].splitlines() if block else commands
        if "\n|" in text:
            found[heading] = with_commands(tables(text)[0], commands)
    return found


SECTIONS = sections()


def test_tables_are_not_wider_than_a_page():
    assert [line for line in PAGE.splitlines() if line.startswith("|") and len(line) > 120] == []


def section(name: str) -> list[list[str]]:
    (found,) = [table for heading, table in SECTIONS.items() if heading.startswith(name)]
    return found


_CELLS = [cell for table in SECTIONS.values() for row in table for cell in row]
COMMANDS = sorted(set(re.findall(r"`tokenmixers (run_[^`]+)`", "\n".join([PAGE, *_CELLS]))))


#: Command -> its arguments: reading them takes a tenth of a second.
_PARSED: dict[str, tuple] = {}


class _Types(Exception):  # noqa: N818 - ends a command that has said which arguments it takes
    pass


def arguments_of(command: str, kind: type, monkeypatch: pytest.MonkeyPatch):
    """The arguments of one kind that a command gives, read as the command itself would."""
    if command not in _PARSED:
        _PARSED[command] = _parsed(command, monkeypatch)
    return next(part for part in _PARSED[command] if isinstance(part, kind))


def _parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple:
    name, *arguments = shlex.split(command)

    def tell(parser, *args, **kwargs):
        raise _Types(parser.dataclass_types)

    with monkeypatch.context() as patch, pytest.raises(_Types) as told:
        patch.setattr(HfArgumentParser, "parse_args_into_dataclasses", tell)
        importlib.import_module(module_of(name)).main(arguments)
    return parse_arguments(told.value.args[0], arguments)


def config_of(command: str, monkeypatch: pytest.MonkeyPatch) -> PreTrainedConfig | None:
    """The configuration that a command trains from scratch; `None` if it finetunes."""
    arguments = arguments_of(command, ModelArguments, monkeypatch)
    if arguments.model_name_or_path is not None or command.startswith("run_qa"):
        return None
    config = load_config(arguments)
    if command.startswith("run_image_classification"):
        config.num_labels = 1000
    return config


def model_of(command: str, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    with torch.device("meta"):
        return CLASSES[command.split()[0]].from_config(config_of(command, monkeypatch))


@pytest.mark.parametrize("name", FIGURES)
def test_every_row_and_figure_of_a_paper_is_there(name):
    head, *rows = section(name)
    columns = FIGURES[name]["columns"]
    assert head[1 : len(columns) + 1] == columns
    expected = [["?" if value is None else value for value in row] for row in FIGURES[name]["rows"]]
    assert [row[: len(columns) + 1] for row in rows] == expected


@pytest.mark.parametrize("name", FIGURES)
def test_every_row_has_a_command_or_says_why_not(name):
    for row in section(name)[1:]:
        assert row[-1], row[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_make_models(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = config_of(command, monkeypatch)
    if config is not None:
        config.validate()


def test_commands_that_differ_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folders = {command: arguments_of(command, TrainingArguments, monkeypatch).output_dir for command in COMMANDS}
    found = Counter(folders.values())
    assert [command for command, folder in folders.items() if found[folder] > 1] == []


def test_finetuning_starts_from_folders_that_commands_write(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    written = {arguments_of(command, TrainingArguments, monkeypatch).output_dir for command in COMMANDS}
    starts = {arguments_of(command, ModelArguments, monkeypatch).model_name_or_path for command in COMMANDS}
    assert len(starts) > 10
    assert starts - {None, "PRETRAINED"} <= written


SIZED = [
    (heading, row[0], dict(zip(table[0], row, strict=True)))
    for heading, table in SECTIONS.items()
    for row in table[1:]
    if any(name.startswith("ours") for name in table[0]) and "`tokenmixers" in row[-1]
]


@pytest.mark.parametrize(("heading", "row", "cells"), SIZED, ids=[f"{h.split(':')[0]}-{r}" for h, r, _ in SIZED])
def test_our_sizes_are_those_of_the_commands(heading, row, cells, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = model_of(re.search(r"`tokenmixers (run_[^`]+)`", cells["command"])[1], monkeypatch)
    assert cells["ours: parameters (M)"] == f"{model.num_parameters() / 1e6:.1f}"
    flops = cells.get("ours: FLOPs (B)")
    if flops:
        text = heading.startswith("gMLP, Table 5")
        body = model.base_model if text else model
        found = body.forward_flops(1, 512) if text else body.forward_flops()
        assert flops == f"{found / 1e9:.1f}"


def test_the_eight_feed_forwards_have_as_many_parameters(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for row in section("GLU, Table 1")[1:]:
        command = re.search(r"`tokenmixers (run_[^`]+)`", row[-1])[1]
        assert model_of(command, monkeypatch).num_parameters() == 222_903_552


def test_configurations_that_are_named_exist():
    names = set(re.findall(r"--config_name ([\w-]+)", "\n".join(COMMANDS)))
    for name in names | set(re.findall(r"`(synthesizer-[\w-]+)`", PAGE)):
        AutoConfig.from_pretrained(MODEL_CARDS / name)


@pytest.mark.skipif(not COLLECTION.is_file(), reason="the collection of the papers' figures is not at hand")
def test_figures_are_those_of_the_collection():
    """The numbers of every row of ours stand in one line of the collection that has a source."""
    text = COLLECTION.read_text(encoding="utf-8").replace("**", "")
    sourced = [line for line in text.splitlines() if not re.search(r"\| M[^|]*\|$", line)]

    def numbers(text):
        return Counter(re.findall(r"\d+(?:[.,]\d+)*", text))

    lines = [numbers(line) for line in sourced]
    for name, table in FIGURES.items():
        for row, *values in table["rows"]:
            wanted = numbers(" ".join(value for value in values if value not in (None, "-", "none")))

            if name != "GLU, Table 4":
                assert any(wanted <= line for line in lines), (name, row)
            else:
                assert values[0] in text, (name, row)
