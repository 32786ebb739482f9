"""Measure once which of several equivalent computations is fastest on this processor, and store the result.

Results are stored in the process and in a file in Hugging Face's cache folder, so that all processes of a machine
compute alike. There is one result per processor, PyTorch version and number of threads.
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

#: Name of the alternative that the others are compared with.
REFERENCE = "reference"
#: Maximum share of the reference's time that another alternative may take.
WORTHWHILE = 0.85
#: Seconds for one comparison, without the first call of each alternative.
TIME_LIMIT = 0.08
#: Seconds for all comparisons of a process. Later ones use the reference, and another process measures them.
SECONDS_IN_ALL = 1.0
#: Seconds to wait while another process measures.
SECONDS_TO_WAIT = 10
#: Number of calls of each alternative, if time allows.
MOST_CALLS = 15

#: Results of `measure` in this process, by number of threads and name.
_CHOICES: dict[tuple[int, str], str] = {}
#: Seconds that each comparison of this process took.
_SPENT: list[float] = []


def cache_file() -> Path:
    """File with the stored choices: `tokenmixers/kernels.json` in `HF_HOME`."""
    return Path(constants.HF_HOME) / "tokenmixers" / "kernels.json"


def measure(name: str, make_alternatives: Callable[[], Mapping[str, Callable[[], Any]]]) -> bool:
    """Whether an alternative is faster than the reference on this machine. `choice` then returns which.

    Without real tensors, e.g. under `FakeTensorMode`, nothing is measured and the result is `False`.

    Args:
        name: Name of the comparison.
        make_alternatives: Called if a measurement is needed; returns functions without arguments by name, with the
            reference as `"reference"`.

    Returns:
        Whether another alternative takes at most 0.85 of the reference's time.
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
    """The alternative that `measure` found for the current number of threads, or the reference. Does not measure."""
    return _CHOICES.get((torch.get_num_threads(), name), REFERENCE)


def machine() -> str:
    """Processor, instructions, PyTorch and threads, which determine the fastest alternative."""
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
    """The stored choice, or a new one. One process measures at a time, and the others read its result."""
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
        # E.g. a read-only file system, or one without locks: every process measures for itself.
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
    # The minimum, because other processes slow down single calls.
    shortest = {name: min(times) for name, times in seconds.items()}
    best = min(shortest, key=shortest.__getitem__)
    return best if shortest[best] <= WORTHWHILE * shortest[REFERENCE] else REFERENCE
