"""What this process may use and what it takes, as far as the system says."""

from __future__ import annotations

import os
import resource
import sys


def cores() -> int:
    """How many the process may use; where the system does not say, how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resident_bytes() -> int:
    """Memory of the process that is in use; where the system does not say, the most that was."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
