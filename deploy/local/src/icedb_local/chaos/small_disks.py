"""Scratch folders that can be filled: each worker has a small file system of its own, where this user may mount one.

Elsewhere the worker's processes are kept from writing files at all (RLIMIT_FSIZE), which the kernel answers with EFBIG
instead of ENOSPC.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import psutil

SIZE_MIB: Final = 48
CHUNK_BYTES: Final = 1024 * 1024
BALLAST: Final = "ballast"
CLONE_NEWNS: Final = 0x00020000  # linux/sched.h; os.unshare comes with Python 3.12


class SmallDisks:
    """The scratch folders of the workers; use as a context manager.

    Args:
        folders: By worker.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._mounted: list[Path] = []

    def __enter__(self) -> Self:
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        if not _has_own_mounts():
            return self
        for folder in self._folders.values():
            if _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "icedb-chaos", str(folder)):
                self._mounted.append(folder)
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._mounted:
            _run("umount", "--lazy", str(folder))
        self._mounted.clear()

    @property
    def how(self) -> str:
        """How disks get full here, in words."""
        is_real = len(self._mounted) == len(self._folders)
        return f"a file system of {SIZE_MIB} MiB for each worker (ENOSPC)" if is_real else "RLIMIT_FSIZE (EFBIG)"

    @contextlib.contextmanager
    def full(self, worker: str, processes: Sequence[psutil.Process]) -> Iterator[None]:
        """Keep a worker's disk full.

        Args:
            worker: Whose.
            processes: All its processes.
        """
        folder = self._folders[worker]
        if folder not in self._mounted:
            with _limited(processes):
                yield
            return
        ballast = folder / BALLAST
        try:
            _fill(ballast)
            yield
        finally:
            ballast.unlink(missing_ok=True)

    def last_use_ns(self, worker: str) -> int:
        """Return when something was last made or removed in a worker's folder."""
        return self._folders[worker].stat().st_mtime_ns


def _has_own_mounts() -> bool:
    """Give this process and those it starts a mount namespace: a run that is killed then leaves no mount behind."""
    return os.geteuid() == 0 and ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0 and _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (CHUNK_BYTES, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass


@contextlib.contextmanager
def _limited(processes: Sequence[psutil.Process]) -> Iterator[None]:
    before: list[tuple[psutil.Process, tuple[int, int]]] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            limits = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (0, limits[1]))
            before.append((process, limits))
    try:
        yield
    finally:
        for process, limits in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, limits)
