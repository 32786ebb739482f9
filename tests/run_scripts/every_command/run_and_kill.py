"""Runs commands in forks of the test's process, and kills them at an operation on files.

A request has `script` and `arguments`, the `folder` whose operations count, the `tokenizer` that takes the place of
one that a run trains, and `at`, the number of the operation at which the child kills itself. The answer has the
`status` (`killed` or the exit status), the `operations` before the end, the `output`, and of a run that is not killed
the `states`: for each operation a hash of what was on the disk before it.

Every operation is a point in time: what Python has not yet written to a file is lost, and files that libraries write
at once are also left half written.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import safetensors.torch
import torch
import transformers
from transformers import AutoTokenizer

from tokenmixers.run_scripts.training import model_loading
from tokenmixers.run_scripts.training import run as training_run


COUNTED = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


class KillAt:
    """Counts the operations in a folder that change something, and kills this process at one of them."""

    def __init__(self, folder: str, at: int | None, record: Path):
        self.folder, self.at, self.record = os.path.realpath(folder), at, record
        self.operations: list[str] = []
        self.states: list[str] = []

    def count(self, name: str, path: object, directory: int | None = None) -> None:
        """Count an operation on a path; die if it is the one."""
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return
        if isinstance(directory, int) and directory >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
        path = os.path.abspath(path)
        if not self.watches(path):
            return
        self.operations.append(f"{name} {os.path.relpath(path, self.folder)}")
        if self.at is None:
            self.states.append(self.state())
        if len(self.operations) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def state(self) -> str:
        digest = hashlib.blake2b()
        for path in sorted(Path(self.folder).rglob("*")):
            digest.update(f"{path.relative_to(self.folder)}\0".encode())
            digest.update(path.read_bytes() if path.is_file() else b"folder")
        return digest.hexdigest()

    def watches(self, path: str | os.PathLike) -> bool:
        """Whether a path is the folder or lies in it: a temporary file elsewhere is not cut off."""
        return (os.path.abspath(path) + "/").startswith(self.folder + "/")

    def hook(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = (
                any(letter in mode for letter in "wax+")
                if isinstance(mode, str)
                else flags & (os.O_WRONLY | os.O_RDWR)
            )
            if writes:
                self.count("open", path)
        elif event in COUNTED:
            path, directory = arguments[0], arguments[-1]
            if event == "os.rename":
                path, directory = arguments[1], arguments[3]
            self.count(event, path, directory if event != "os.truncate" else None)

    def writes_at_once(self, function: Callable, argument: int) -> Callable:
        """Wrap a function that writes a file without Python: it counts before, half way, and at the end."""

        def wrapped(*arguments, **options):
            path = arguments[argument]
            if not isinstance(path, str | os.PathLike):
                return function(*arguments, **options)
            self.count("write", os.fspath(path))
            result = function(*arguments, **options)
            if len(self.operations) + 1 == self.at and self.watches(path):
                os.truncate(path, os.path.getsize(path) // 2)
            self.count("half of", os.fspath(path))
            return result

        return wrapped

    def install(self) -> None:
        safetensors.torch.serialize_file = self.writes_at_once(safetensors.torch.serialize_file, 1)
        torch.save = self.writes_at_once(torch.save, 1)
        save = transformers.PreTrainedTokenizerFast._save_pretrained

        def save_tokenizer(tokenizer, save_directory, *arguments, **options):
            files = save(tokenizer, save_directory, *arguments, **options)
            path = os.path.join(save_directory, "tokenizer.json")
            if len(self.operations) + 1 == self.at and self.watches(path):
                os.truncate(path, os.path.getsize(path) // 2)
            self.count("half of", path)
            return files

        transformers.PreTrainedTokenizerFast._save_pretrained = save_tokenizer
        sys.addaudithook(self.hook)


def child(request: dict, record: Path) -> None:
    # Training a tokenizer twice gives two of them: all runs that train one get this.
    model_loading.train_unigram_tokenizer = lambda *_, **__: AutoTokenizer.from_pretrained(request["tokenizer"])
    training_run.plot_history = lambda history, path: path.write_bytes(b"")  # drawing takes longer than all else
    killer = KillAt(request["folder"], request.get("at"), record)
    killer.install()
    module = import_module(f"tokenmixers.run_scripts.{request['script']}")
    try:
        module.main(request["arguments"])
    finally:
        record.write_text(json.dumps({"operations": killer.operations, "states": killer.states}))


def run(request: dict, folder: Path) -> dict:
    record, log = folder / "operations.json", folder / "output.txt"
    record.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        sys.stdout = sys.stderr = log.open("w", buffering=1)
        status = 3
        try:
            child(request, record)
            status = 0
        except SystemExit as error:
            print(error, file=sys.stderr, flush=True)
            status = 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return {
        "status": "killed" if status == -signal.SIGKILL else status,
        **(json.loads(record.read_text()) if record.is_file() else {}),
        "output": log.read_text(errors="replace")[-3000:],
    }
