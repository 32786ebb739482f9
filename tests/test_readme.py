"""The guides are true: commands parse, Python examples run or import, links and named files exist."""

import ast
import importlib.util
import inspect
import itertools
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch.testing import assert_close
from transformers import HfArgumentParser
from transformers.utils import logging

import tokenmixers
from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.configuration.configuration_synthesizer import AttentionComponent
from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES
from tokenmixers.run_scripts.base.commands import COMMANDS, TRAINING_COMMANDS, module_of
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


ROOT = Path(__file__).parents[1]
MODULES = "tokenmixers.run_scripts."

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "run_scripts/README.md",
    "modeling/README.md",
    "modeling/equations.md",
    "model_cards/README.md",
    "model_cards/papers.md",
    "model_cards/benchmarks/README.md",
    *(f"model_cards/embeddings/{name}.md" for name in ("README", "training", "comparisons", "finetuning")),
    *(f"model_cards/studies/{name}.md" for name in ("README", "inheritance", "method")),
    "tests/README.md",
    *(str(guide.relative_to(ROOT)) for guide in sorted((ROOT / "run_scripts" / "guides").glob("*.md"))),
]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.+?)^```", TEXTS[page], flags=re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.+?^```", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)


def shell_lines(page: str) -> list[list[str]]:
    """The words of every command in the blocks, with the values of variables that the page sets."""
    lines, variables = [], {}
    for line in "".join(blocks(page, "bash")).replace("\\\n", "").splitlines():
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        assignment = re.fullmatch(r'(\w+)="?([^"]*)"?', line)
        if assignment:
            variables[assignment[1]] = assignment[2]
        elif not line.startswith(("python -c", "    for ")):  # a program over two lines
            lines.append(shlex.split(line, comments=True))
    return [words for words in lines if words]


def called_command(words: list[str]) -> list[str] | None:
    """Name and arguments of the command of this package in a line of a shell, if there is one."""
    if words[0] == "tokenmixers" and not words[1].startswith("-"):
        return words[1:]
    for option, module in itertools.pairwise(words):
        if option == "-m" and module.startswith(MODULES) and module.count(".") == MODULES.count("."):
            return [module.rpartition(".")[2], *words[words.index(module) + 1 :]]
    return None


def commands_in_prose(page: str) -> list[list[str]]:
    """Name and arguments of the commands within sentences; without arguments, a name may be all that is meant."""
    found = re.findall(rf"`(?:tokenmixers |python -m {re.escape(MODULES)})(\w[^`]*)`", prose(page))
    calls = [shlex.split(" ".join(text.split())) for text in found]
    tools = [call for call in calls if "." in call[0]]  # modules in folders are no commands
    assert all(importlib.util.find_spec(f"{MODULES}{name}") for name, *_ in tools), tools
    return [call for call in calls if call not in tools]


def calls_of_make() -> list[list[str]]:
    """Name and arguments of every command that the quickstart runs, or tells its user to try next."""
    calls = []
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        line = line.replace("$(OUT)", "outputs/quickstart")
        told = re.match(r"\t@(?:echo ')? *(?:\$\(SCRIPT\)[. ]|\$\(VENV\)/bin/tokenmixers )(.+)", line)
        if told:
            name, *arguments = shlex.split(told[1].removesuffix("'") if "echo" in line else told[1])
            calls.append([name.rpartition(".")[2], *arguments])
    return calls


CALLS = calls_of_make()
for _page in PAGES:
    CALLS += [call for words in shell_lines(_page) if (call := called_command(words))]
    CALLS += [call for call in commands_in_prose(_page) if len(call) > 1]


def test_commands_are_found():
    names = {name for name, *_ in CALLS}
    assert names <= set(COMMANDS)
    assert {*TRAINING_COMMANDS, "launch", "push_to_hub", "convert_t5", "make_data", "benchmark_page"} <= names
    assert [name for name, *_ in calls_of_make()][-3:] == ["fill_mask", "run_mlm", "push_to_hub"]  # to try next
    assert ["--dry_run"] in [arguments[-1:] for name, *arguments in CALLS if name == "push_to_hub"]
    lines = [words for page in PAGES for words in shell_lines(page)]
    assert "torchrun" in {words[0] for words in lines}


class _Read(Exception):  # noqa: N818 - ends a command after it has read its arguments
    pass


@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, *arguments in CALLS])
def test_commands_take_these_arguments(name, arguments, tmp_path, monkeypatch):
    def read(parser, args=None, **kwargs):
        raise _Read(parser.parse_known_args(args)[1])

    monkeypatch.setattr(HfArgumentParser, "parse_args_into_dataclasses", read)
    monkeypatch.setattr(logging, "set_verbosity_error", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("{}")  # stands for one of the reader's own
    if name == "launch":  # starts a process, after its own options
        start = next(index for index, word in enumerate(arguments) if word in TRAINING_COMMANDS)
        name, *arguments = arguments[start:]
    with pytest.raises((_Read, SystemExit)) as ended:
        importlib.import_module(module_of(name)).main(arguments)
    assert ended.value.args in (([],), (0,)), ended.value  # nothing unknown, or help


@pytest.mark.parametrize("page", PAGES)
def test_names_of_commands_and_targets_in_sentences_exist(page):
    assert {name for name, *_ in commands_in_prose(page)} <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1:] for words in map(tuple, shell_lines(page)) if words[0] == "make"}
    targets |= {tuple(text.split()) for text in re.findall(r"`make ([^`]+)`", prose(page))}
    for words in targets:
        target = next(word for word in words if "=" not in word)
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


#: Examples with these are skipped where they are not installed.
OPTIONAL_PACKAGES = ("sentence_transformers", "sklearn", "faiss", "model2vec", "mteb", "onnxruntime", "litserve")
PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]
PYTHON += [(path.name, path.read_text()) for path in sorted((ROOT / "model_cards" / "embeddings").glob("*.py"))]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page for page, _ in PYTHON])
def test_python_blocks_import_what_exists(page, code):
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names: dict = {}
    for node in imports:
        try:
            exec(compile(ast.Module([node], []), page, "exec"), names)
        except ImportError as error:
            if not str(error.name).startswith(OPTIONAL_PACKAGES):
                raise
            pytest.skip(f"{error.name} is not installed")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tokenmixers":
            assert hasattr(tokenmixers, node.attr)


def test_the_code_that_loads_runs(tmp_path, monkeypatch):
    """The first example of the commands' guide, with a small checkpoint; test_pushed_models.py runs those of a Hub."""
    tokenizer = train_unigram_tokenizer(["Return an instance of the class.", "Name the item."] * 9, 40, 32)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 32}
    folder = tmp_path / "outputs" / "quickstart" / "gmlp"
    GMLPForMaskedLM(GMLPConfig(**sizes, vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(blocks("run_scripts/README.md", "python")[0], "README.md", "exec"), names)
    assert names["model"].config.num_labels == 3


@pytest.mark.slow
def test_finetuning_on_own_texts_in_python(tmp_path, monkeypatch):
    """The example of the commands' guide, on a file with a text that is longer than the model reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    Path("reviews.csv").write_text(f"text,label\n{'a long review ' * 200},good\nI did not like it.,bad\n")
    (code,) = (code for code in blocks("run_scripts/README.md", "python") if "reviews.csv" in code)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert sorted(map(len, names["reviews"]["input_ids"])) == [8, 256]
    assert names["reviews"]["label"][:] == [1, 0] and names["model"].config.id2label == {0: "bad", 1: "good"}
    assert (tmp_path / "outputs" / "trainer" / "checkpoint-3" / "model.safetensors").is_file()


def test_the_readme_can_be_read_in_minutes():
    """Few words, and few numbers on the first screen."""
    assert len(TEXTS["README.md"].split()) <= 800
    first_screen = "\n".join(TEXTS["README.md"].splitlines()[:60])
    assert len(re.findall(r"\d[\d.,]*", first_screen)) <= 25


def test_the_models_of_the_first_page_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(blocks("README.md", "python")[1], "README.md", "exec"), names)
    assert type(names["model"]).__name__ == "AMLPForMaskedLM"
    assert names["model"].config.vocab_size == len(names["tokenizer"])
    assert [*(tmp_path / "outputs" / "my-amlp").glob("checkpoint-*/model.safetensors")]


def test_the_code_of_the_first_page_prints_what_it_says(monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(ROOT)
    code = blocks("README.md", "python")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall("# (.+)", code)


#: Pages -> lines that they may have.
LINES = dict.fromkeys((page for page in PAGES if page.startswith("model_cards/embeddings/")), 150)
STUDIES = {"README": 270, "inheritance": 150, "method": 70}
LINES |= {"modeling/README.md": 205, "modeling/equations.md": 125, "model_cards/README.md": 150}
LINES |= {f"model_cards/studies/{page}.md": lines for page, lines in STUDIES.items()}
LINES |= {"run_scripts/guides/sentence_embeddings.md": 275, "run_scripts/guides/serving.md": 215}
#: The papers' own tables.
LARGE_TABLES = {"model_cards/papers.md"}


@pytest.mark.parametrize("page", PAGES)
def test_pages_and_their_tables_are_short(page):
    assert len(TEXTS[page].splitlines()) <= LINES.get(page, 420)
    for table in re.findall(r"(?:^\|.*\|\n)+", TEXTS[page], re.MULTILINE):
        head, _, *rows = table.splitlines()
        assert page in LARGE_TABLES or (head.count("|") <= 8 and len(rows) <= 15), head


def test_the_code_of_the_cards_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict = {}
    with torch.device("meta"):
        exec(compile("".join(blocks("model_cards/README.md", "python")), "model_cards", "exec"), names)
    assert names["model"].model.num_parameters() == 130_073_552


def test_the_token_mixer_of_the_guide_computes_what_it_says():
    names: dict = {}
    exec(compile("".join(blocks("modeling/README.md", "python")), "modeling", "exec"), names)
    model, ids = names["model"], torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])
    states = model(ids, attention_mask=torch.tensor([[1, 1, 1, 0, 0], [1] * 5]), output_hidden_states=True)
    assert len(states.hidden_states) == 3
    assert_close(states.last_hidden_state[0, :3], model(ids[:1, :3]).last_hidden_state[0])
    assert_close(states.last_hidden_state[1:], model(ids[1:]).last_hidden_state)
    mixed = names["MeanMixing"]()(torch.arange(6.0).view(1, 3, 2))
    assert_close(mixed, torch.tensor([[[2.0, 3.0]] * 3]))


def test_functions_of_the_public_api_are_named_with_the_arguments_that_they_need():
    (row,) = re.findall(r"`train_unigram_tokenizer\((.+?)\)`", TEXTS["modeling/README.md"])
    parameters = inspect.signature(train_unigram_tokenizer).parameters.values()
    assert row.split(", ") == [one.name for one in parameters if one.default is one.empty]


def test_the_page_of_equations_has_all_choices():
    names = {*get_args(AttentionComponent), *FEED_FORWARD_TYPES, *get_args(TokenMixer)}
    assert names <= set(re.findall(r"`(\w+)`", TEXTS["modeling/equations.md"]))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, or the lines of a module's classes and functions."""
    if page.suffix == ".py":
        nodes = ast.walk(ast.parse(page.read_text(encoding="utf-8")))
        return {f"L{node.lineno} {node.name}" for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    text = re.sub(r"^```.+?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for title, target in re.findall(r"([\w`]*)\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        if ".py#" in target:  # a line, where the class or function of the link's text begins
            target += f" {title.strip('`')}"
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


#: Of others, or written by a command.
FOREIGN_FILES = {"app.py", "classify_folders.py", "pytorch/tfmodel2torch.py"}
FOLDERS = ("configuration", "modeling", "run_scripts", "tests", "tokenization")
FILES = {path for folder in FOLDERS for ending in ("py", "yaml") for path in (ROOT / folder).rglob(f"*.{ending}")}


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_sentences_exist(page):
    names = {path.name for path in FILES}
    for name in re.findall(r"`([\w./-]+\.(?:py|yaml))`", prose(page)):
        if name in FOREIGN_FILES:
            continue
        if "kernels/" in name and not (ROOT / "modeling/kernels").is_dir():
            continue  # models run without that folder
        if "/" in name:
            assert {(ROOT / page).parent / name, ROOT / name} & FILES, name
        else:
            assert name in names


def test_every_command_is_in_the_guide_or_listed_by_help():
    assert "`tokenmixers --help`" in TEXTS["README.md"]
    for name in TRAINING_COMMANDS:
        assert f"`{name}`" in TEXTS["run_scripts/README.md"]
