"""Keeps the policy current: the access file is looked at when somebody asks, at most once a second.

No thread and no signal, so that it is the same in a server, in a worker's child and in a program that embeds one. A
new file counts as a whole or not at all: one that is wrong is logged and shown in a metric, and the policy before it
goes on.
"""

import threading
from pathlib import Path
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest

from icedb_service.access.access_file import read_access_file
from icedb_service.access.metrics import AccessMetrics
from icedb_service.access.policy import Policy
from icedb_service.logs import get_logger

LOOK_MS: Final = 1000
READ_ATTEMPTS: Final = 3

_Stamp = tuple[tuple[str, int, int, int] | str, ...]


class AccessSource:
    """The policy that holds now. Thread-safe.

    Args:
        path: The access file.
        clock: For ages, and for times in tokens.
        metrics: Where the file's state is shown.

    Raises:
        InvalidRequest: The file cannot be used.
    """

    def __init__(self, path: Path, *, clock: Clock, metrics: AccessMetrics | None = None) -> None:
        self._path = path
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._is_broken = False
        self._policy, self._stamp = self._load(None)
        self._looked_ms = clock.monotonic_ms()
        if metrics is not None:
            metrics.enforced.set(1)
            metrics.loaded.set(clock.now_ms() / 1000)
            metrics.broken.set_function(self._ask_whether_broken)

    def current(self) -> Policy:
        """Return the policy."""
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._policy

    def _look(self) -> None:
        self._looked_ms = self._clock.monotonic_ms()
        stamp = _stamp([self._path, *self._policy.files])
        if stamp == self._stamp:
            return
        try:
            self._policy, self._stamp = self._load(self._policy)
        except InvalidRequest as error:
            self._stamp, self._is_broken = stamp, True  # said once for each state of the file
            get_logger().error("access_file_broken", error=str(error), mitigation="the policy before it goes on")
            return
        self._is_broken = False
        if self._metrics is not None:
            self._metrics.loaded.set(self._clock.now_ms() / 1000)
        get_logger().info("access_file_loaded", path=str(self._path))

    def _load(self, before: Policy | None) -> tuple[Policy, _Stamp]:
        """Read the file and those that it names; again if one was written meanwhile."""
        for _ in range(READ_ATTEMPTS):
            first = _stamp([self._path])
            policy = Policy(
                read_access_file(self._path),
                folder=self._path.parent,
                clock=self._clock,
                fetched=before.fetched if before else None,
            )
            if first == _stamp([self._path]):
                return policy, _stamp([self._path, *policy.files])
        raise InvalidRequest(f"access file {self._path}: it changes while it is read")

    def _ask_whether_broken(self) -> float:
        self.current()
        return float(self._is_broken)


def _stamp(paths: list[Path]) -> _Stamp:
    found: list[tuple[str, int, int, int] | str] = []
    for path in paths:
        try:
            info = path.stat()
        except OSError as error:
            found.append(f"{path}: {error.strerror}")
        else:
            found.append((str(path), info.st_mtime_ns, info.st_size, info.st_ino))
    return tuple(found)
