"""The command `tokenmixers`, in fresh processes, as its users start it."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tokenmixers
from tokenmixers.run_scripts import __main__ as command_line
from tokenmixers.run_scripts.base.commands import GROUPS, describe, docstring_of


def call(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess:
    command = ["-c", code] if code else ["-m", "tokenmixers.run_scripts"]
    return subprocess.run([sys.executable, *command, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_command_in_a_line_and_its_group(capsys):
    command_line.main(["--help"])
    shown = capsys.readouterr().out
    command_line.main([])
    assert capsys.readouterr().out == shown
    for title, commands in GROUPS.items():
        section = re.search(rf"^{title}:\n((?:  .+\n?)+)", shown, flags=re.MULTILINE)[1]
        listed = [line.split(maxsplit=1) for line in section.splitlines()]
        assert listed == [[name, describe(name)] for name in commands]
    assert max(map(len, shown.splitlines())) < 120


def test_help_is_there_at_once_and_imports_no_torch():
    code = (
        "import sys\n"
        "from tokenmixers.run_scripts.__main__ import main\n"  # as the installed command does
        "main()\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    start = time.perf_counter()
    process = call("--help", code=code)
    seconds = time.perf_counter() - start
    assert (process.returncode, process.stderr) == (0, "[]\n")
    assert "run_mlm" in process.stdout
    assert seconds < 5  # some tenths of a second on an idle machine; torch alone takes longer than a second


def test_version(capsys):
    command_line.main(["--version"])
    assert capsys.readouterr().out == f"tokenmixers {tokenmixers.__version__}\n"


def test_output_that_cannot_encode_a_text_has_escapes(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), "cp1252")  # redirected on Windows
    monkeypatch.setattr(sys, "stdout", output)
    command_line.main(["--version"])
    print("\u2603", flush=True)
    assert output.buffer.getvalue().split()[-1] == b"\\u2603"


def test_pyproject_installs_it():
    pyproject = (Path(tokenmixers.__file__).parent / "pyproject.toml").read_text()
    assert f'[project.scripts]\ntokenmixers = "{command_line.__name__}:main"\n' in pyproject


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run_mln", "error: tokenmixers has no command 'run_mln'. Did you mean run_mlm"),
        ("number_names", "error: tokenmixers has no command 'number_names'. Did you mean make_data number_names? See"),
        ("xyzzy", "error: tokenmixers has no command 'xyzzy'. See tokenmixers --help.\n"),
        ("--recipe", "error: tokenmixers has no command '--recipe'."),
    ],
)
def test_unknown_commands_are_named_with_close_matches(name, message, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main([name])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(message) and output.err.count("\n") == 1


def test_a_command_does_as_its_module_does(tmp_path, monkeypatch, capsys):
    words = ["make_data", "number_names", "--output_dir"]
    monkeypatch.setattr(sys, "argv", ["tokenmixers", *words, str(tmp_path / "ours")])
    command_line.main()
    shown = capsys.readouterr().out
    module = [sys.executable, "-m", f"tokenmixers.run_scripts.{words[0]}", *words[1:]]
    process = subprocess.run([*module, tmp_path / "theirs"], capture_output=True, text=True, check=True)
    assert process.stdout == shown
    files = sorted(os.listdir(tmp_path / "ours"))
    assert len(files) == 4 and files == sorted(os.listdir(tmp_path / "theirs"))
    assert all((tmp_path / "ours" / file).read_text() == (tmp_path / "theirs" / file).read_text() for file in files)


@pytest.mark.parametrize(
    ("command", "usage", "texts"),
    [
        ("run_mlm", "[recipe.yaml] [arguments]", ["tokenmixers run_mlm recipe.yaml --output_dir outputs/run"]),
        ("make_data", "NAME [arguments]", ["  number_names           Write pairs of lines for translation"]),
        ("study", "STUDY [arguments]", ["STUDY is the name of a study: ", "gates, "]),
    ],
)
def test_help_says_how_a_command_is_called(command, usage, texts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tokenmixers"])
    with pytest.raises(SystemExit):
        command_line.main([command, "--help"])
    shown = capsys.readouterr().out
    assert all(text in shown for text in (usage, docstring_of(command), *texts))
    # From Python 3.14 on argparse names a module that runs as `python -m` by itself, and that is pytest here.
    if sys.version_info < (3, 14):
        assert shown.startswith(f"usage: tokenmixers {command} {usage}")


#: What a command does -> what is left in a file.
WITHOUT_READER = {
    "print('a')": "",
    "print('a', flush=True)": "",
    "print('a' * 100_000)": "",
    "try:\n        print('a', flush=True)\n    except OSError:\n        os._exit(3)": "",
    "try:\n        print('a', flush=True)\n    finally:\n        file.write_text('cleaned up')": "cleaned up",
    "raise SystemExit(0 if print('a') else 1)": "",
}


@pytest.mark.parametrize("body", WITHOUT_READER)
def test_a_command_whose_reader_is_gone_ends_as_by_the_signal(body, tmp_path):
    code = (
        "import importlib, os, pathlib\n"
        "from tokenmixers.run_scripts.__main__ import main\n"
        f"file = pathlib.Path({str(tmp_path / 'file')!r})\n"
        "def command(name):\n"
        f"    {body}\n"
        "    return type('Module', (), {'main': staticmethod(lambda: None)})\n"
        "importlib.import_module = command\n"
        "main()"
    )
    process = without_reader("-c", code, "fill_mask")
    assert (process.returncode, process.stderr) == (-signal.SIGPIPE, b"")
    left = WITHOUT_READER[body]
    assert ((tmp_path / "file").read_text() if left else "") == left


def test_help_without_a_reader_is_quiet():
    process = without_reader("-m", "tokenmixers.run_scripts", "run_mlm", "--help")
    assert (process.returncode, process.stderr) == (-signal.SIGPIPE, b"")


def without_reader(*arguments: str) -> subprocess.CompletedProcess:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, *arguments]
        return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("run_mlm", " If it has saved a checkpoint, the same command continues"),
        ("study", " The same command goes on"),
        ("fill_mask", ""),
    ],
)
def test_an_interruption_is_a_sentence_and_ends_as_by_the_signal(command, hint):
    code = (
        # PyTorch's compiler, with which Python itself ends with status 1, takes seconds: once.
        f"import atexit, importlib, os, signal{', torch._dynamo' if command == 'run_mlm' else ''}\n"
        "from tokenmixers.run_scripts.__main__ import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background of a script ignores it
        "def command(name):\n"
        "    atexit.register(print, 'at exit')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"  # Ctrl-C
        "importlib.import_module = command\n"
        "main()"
    )
    process = call(command, code=code)
    assert process.returncode == -signal.SIGINT and process.stdout == "at exit\n"
    assert process.stderr.startswith(f"\n{command} was interrupted.{hint}") and process.stderr.count("\n") == 2
