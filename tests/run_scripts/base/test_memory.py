"""Memory that a process keeps: counted in page faults, by the kernel."""

import os
import platform
import subprocess
import sys

import pytest


#: Takes and frees 32 MB ten times, and prints whether anything was changed, and the pages that the kernel had to give.
PROGRAM = """
import resource, sys
from tokenmixers.run_scripts.base.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
block = b"x" * 2**25
del block
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block = b"x" * 2**25
    del block
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str, **variables: str) -> tuple[bool, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    output = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True).stdout
    kept, pages = output.split()
    return kept == "True", int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the parameters are glibc's")
def test_freed_memory_is_used_again():
    kept, pages = faults("keep")
    assert kept
    _, without = faults("leave")
    assert pages < 100 < 10_000 < without


def test_what_the_user_has_set_stays():
    assert not faults("keep", MALLOC_ARENA_MAX="2")[0]
