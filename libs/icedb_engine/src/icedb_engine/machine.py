"""How much memory and how many cores this process may use: those of the machine, or of its container, if fewer.

A container's limits are control groups of Linux (version 2, and 1 where it is still used): those of the process's own
group and of all groups around it hold. Where there are none, or they cannot be read, the machine's figures count.
"""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_GROUPS: Final = "sys/fs/cgroup"


def find_memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use. ``root`` is the file system's; another one in tests."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (
        int(text)
        for folder in _group_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdecimal()
    )
    return min([machine_bytes, *filter(None, limits)])


def find_core_count(root: Path = _ROOT) -> int:
    """Return how many cores this process may use at once, at least 1. ``root`` as of :func:`find_memory_bytes`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders(root, "cpu"):
        told = (
            _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        )
        with suppress(ValueError, ZeroDivisionError):  # "max", or no limit: -1
            quota, period = map(int, told.split())
            cores = min(cores, math.ceil(quota / period)) if quota > 0 else cores
    return max(1, cores)


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that bound this process by a controller, outermost first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / _GROUPS / (controller if controllers else "")
        inner = Path(path.lstrip("/"))
        yield from (top / each for each in (*reversed(inner.parents), inner) if ".." not in each.parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
