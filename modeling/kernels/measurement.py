"""Which of several equivalent computations is the fastest on this processor: measured once, then kept.

The answers are kept in the process and in a file in the cache folder of Hugging Face, so that all processes of a
machine compute alike. A processor, a version of PyTorch or a number of threads that is not in the file is measured.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from huggingface_hub import constants
from torch.utils._python_dispatch import _get_current_dispatch_mode


logger = logging.getLogger(__name__)

#: The alternative that others are compared with.
REFERENCE = "reference"
#: Share of the reference's time that another alternative may need at most.
WORTHWHILE = 0.85
#: Seconds for one comparison, the first call of each alternative aside.
TIME_LIMIT = 0.08
#: Seconds for all comparisons of a process. Later ones take the reference, and another process measures them.
SECONDS_IN_ALL = 1.0
#: Seconds to wait for another process that measures.
SECONDS_TO_WAIT = 10
#: Calls of each alternative, if the time allows.
MOST_CALLS = 15

#: What `measure` found in this process, by number of threads and name.
_CHOICES: dict[tuple[int, str], str] = {}
#: Seconds that each comparison of this process took.
_SPENT: list[float] = []


def cache_file() -> Path:
    """Where the choices are kept: `tokenmixers/kernels.json` in `HF_HOME`."""
    return Path(constants.HF_HOME) / "tokenmixers" / "kernels.json"


def measure(name: str, make_alternatives: Callable[[], Mapping[str, Callable[[], Any]]]) -> bool:
    """Whether an alternative is faster than the reference on this machine. From then on `choice` says which.

    Nothing is measured where tensors have no values, e.g. under `FakeTensorMode`: the answer is then no.

    Args:
        name: What is compared.
        make_alternatives: Called if it has to be measured; returns functions without arguments by name, the reference
            as `"reference"`.

    Returns:
        Whether another alternative needs at most 0.85 of the reference's time.
    """
    if _get_current_dispatch_mode() is not None:
        return False
    key = torch.get_num_threads(), name
    if key not in _CHOICES:
        entry = f"{machine()}; {name}"
        _CHOICES[key] = _kept_or_measured(entry, make_alternatives)
        logger.info("%s: %s", entry, _CHOICES[key])
    return _CHOICES[key] != REFERENCE


@torch.compiler.assume_constant_result
def choice(name: str) -> str:
    """The alternative that `measure` found with the number of threads in use, or the reference. Measures nothing."""
    return _CHOICES.get((torch.get_num_threads(), name), REFERENCE)


def machine() -> str:
    """Processor, instructions, PyTorch and threads: what decides which alternative is the fastest."""
    return "; ".join(
        [
            _processor(),
            torch.backends.cpu.get_cpu_capability(),
            f"torch {torch.__version__}",
            f"{torch.get_num_threads()} threads",
        ]
    )


@cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor() or platform.machine()
    fields = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in found.items()}
    return " ".join(values[name] for name in fields if name in values) or platform.machine()


def _kept_or_measured(key: str, make_alternatives: Callable[[], Mapping[str, Callable[[], Any]]]) -> str:
    """The choice in the file, or else a new one. One process measures at a time, and the others read what it found."""
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=SECONDS_TO_WAIT):
            kept = _read()
            if key not in kept and sum(_SPENT) >= SECONDS_IN_ALL:
                return REFERENCE
            if key not in kept:
                kept[key] = _measure(make_alternatives)
                temporary = path.with_suffix(".incomplete")
                temporary.write_text(json.dumps(kept, indent=2, sort_keys=True), encoding="utf-8")
                os.replace(temporary, path)
            return kept[key]
    except (OSError, NotImplementedError, Timeout) as error:
        # For example a home that is read-only, or has no locks: every process measures for itself.
        logger.info("%s is not used: %s", path, error)
        return _measure(make_alternatives)


def _read() -> dict[str, str]:
    try:
        choices = json.loads(cache_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("%s cannot be read and is measured anew: %s", cache_file(), error)
        return {}
    return choices if isinstance(choices, dict) else {}


def _measure(make_alternatives: Callable[[], Mapping[str, Callable[[], Any]]]) -> str:
    # Models are also built on the meta device, without gradients and under autocast.
    with (
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        start = time.perf_counter()
        found = _fastest_of(make_alternatives())
        _SPENT.append(time.perf_counter() - start)
        return found


def _fastest_of(alternatives: Mapping[str, Callable[[], Any]]) -> str:
    seconds: dict[str, list[float]] = {}
    for name, run in alternatives.items():
        try:
            run()  # the first call allocates and compiles
        except RuntimeError as error:
            if name == REFERENCE:
                raise
            logger.info("%s does not work here: %s", name, error)
        else:
            seconds[name] = []
    end = time.perf_counter() + TIME_LIMIT
    for call in range(MOST_CALLS):
        if call >= 2 and time.perf_counter() > end:
            break
        for name, times in seconds.items():
            start = time.perf_counter()
            alternatives[name]()
            times.append(time.perf_counter() - start)
    # The shortest times: other processes make single calls longer.
    shortest = {name: min(times) for name, times in seconds.items()}
    best = min(shortest, key=shortest.__getitem__)
    return best if shortest[best] <= WORTHWHILE * shortest[REFERENCE] else REFERENCE
