"""Runs Python where this package cannot be imported, in forks of a process that has Transformers: see conftest.py.

The process reads requests from its input, one JSON object a line, with `code` and its `arguments`, and answers with
the `status` of the fork that ran it, its `output` and its `errors`.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers


def run(code: str, arguments: list[str], folder: Path) -> dict:
    """Fork, run, wait."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody to answer when Transformers asks for trust
            sys.stdout, sys.stderr = ((folder / name).open("w", buffering=1) for name in ("output", "errors"))
            sys.argv = ["-c", *arguments]
            exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return {"status": status, **{name: (folder / name).read_text() for name in ("output", "errors")}}


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests: the number of threads changes the rounding
    sys.modules["tokenmixers"] = None  # from here on nothing can import it
    for name in ("AutoModel", "Trainer", "pipeline"):
        getattr(transformers, name)  # is imported once, in seconds, instead of in every fork
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            print(json.dumps(run(**json.loads(line), folder=Path(folder))), flush=True)
