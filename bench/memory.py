"""Peak memory and processor time of a process and everything below it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import psutil

Role = Literal["process", "jvm", "workers"]
ROLES: Final[tuple[Role, ...]] = ("process", "jvm", "workers")
SAMPLE_S: Final = 0.02
LOOK_AROUND_SAMPLES: Final = 10
"""New children are looked for at every so many samples: that costs far more than reading one process's memory."""
MIB: Final = 1024 * 1024


@dataclass(slots=True)
class PeakMemory:
    """What was seen at most, MiB of resident memory.

    Attributes:
        total_mb: Sum over the process and its children at one moment. Pages that forked children share count for each.
        by_role_mb: ``process``: the root, ``jvm``: its Java, ``workers``: all others below it; each at its own peak.
    """

    total_mb: float = 0.0
    by_role_mb: dict[Role, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))

    def note(self, sample: Mapping[Role, float]) -> None:
        """Take one sample in."""
        self.total_mb = max(self.total_mb, sum(sample.values()))
        for role, size_mb in sample.items():
            self.by_role_mb[role] = max(self.by_role_mb[role], size_mb)


@contextmanager
def sampled_memory(pid: int) -> Iterator[PeakMemory]:
    """Sample a process and its children from another thread until the block ends."""
    peak = PeakMemory()
    ended = threading.Event()
    thread = threading.Thread(target=_sample, args=(pid, peak, ended), daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def read_cpu_s(pid: int) -> float:
    """Return the processor time that a process and its children have taken so far, of children that ended as well."""
    return sum(read_cpu_by_process(pid).values())


def read_cpu_by_process(pid: int) -> dict[int, float]:
    """Return the same for each of these processes, with what those of its children took that it has seen end."""
    return {process_id: cpu_s for _, process_id, cpu_s in _read_cpu(pid)}


def read_cpu_by_role(pid: int) -> dict[Role, float]:
    """Return the same for the process, for its JVM, and for all others below it."""
    found: dict[Role, float] = dict.fromkeys(ROLES, 0.0)
    for role, _, cpu_s in _read_cpu(pid):
        found[role] += cpu_s
    return found


def _read_cpu(pid: int) -> Iterator[tuple[Role, int, float]]:
    for role, process in _find_family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        yield role, process.pid, times.user + times.system + times.children_user + times.children_system


def _sample(pid: int, peak: PeakMemory, ended: threading.Event) -> None:
    family: list[tuple[Role, psutil.Process]] = []
    count = 0
    while True:
        if count % LOOK_AROUND_SAMPLES == 0:
            family = _find_family(pid)
        count += 1
        sample = dict.fromkeys(ROLES, 0.0)
        for role, process in family:
            try:
                sample[role] += process.memory_info().rss / MIB
            except psutil.NoSuchProcess:
                continue
        peak.note(sample)
        if ended.wait(SAMPLE_S):
            return


def _find_family(pid: int) -> list[tuple[Role, psutil.Process]]:
    try:
        root = psutil.Process(pid)
        children = root.children(recursive=True)
        return [("process", root), *(("jvm" if each.name() == "java" else "workers", each) for each in children)]
    except psutil.NoSuchProcess:
        return []
