"""The memory of a process that trains on a CPU."""

import ctypes
import os
import sys
from contextlib import suppress


#: Parameters of glibc's `mallopt` (malloc.h) and values that keep all freed memory.
M_TRIM_THRESHOLD, M_MMAP_MAX = (-1, -1), (-4, 0)


def keep_freed_memory() -> bool:
    """Let this process reuse the memory of freed tensors if the C library is glibc.

    By default, glibc returns large blocks to the kernel at once, and the kernel zeroes their pages when they are
    needed again, which takes a considerable part of a small model's training step. With this setting, the process
    keeps its peak memory, and more if batches have many lengths. It does nothing if an environment variable starts
    with `MALLOC_`.

    Returns:
        Whether anything was changed.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    with suppress(OSError, AttributeError):  # another C library, e.g. musl
        mallopt = ctypes.CDLL(None).mallopt
        return all([mallopt(*M_TRIM_THRESHOLD), mallopt(*M_MMAP_MAX)])
    return False
