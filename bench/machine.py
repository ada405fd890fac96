"""The machine that a benchmark runs on: what it is, and how busy others keep it."""

import os
import platform
from dataclasses import dataclass
from time import sleep
from typing import Final

import psutil

from bench.memory import read_cpu_s

LOOK_S: Final = 0.3
BUSY_SHARE: Final = 0.25
"""Share of all cores that others may take before a result is marked: more changes times by as much."""
LOAD_PER_CORE: Final = 0.5
"""Load average of the last minute, by cores, that a run may begin at before its results are marked."""


@dataclass(frozen=True, slots=True)
class Load:
    """What others did while a workload was measured.

    Attributes:
        average: Load average of the minute before the whole run began.
        core_count: Cores of the machine.
        busy_share: Share of all cores that processes of others took, looked at before each round of turns; the mean.
    """

    average: float
    core_count: int
    busy_share: float

    @property
    def is_high(self) -> bool:
        """Whether it may have changed the result."""
        return self.average > LOAD_PER_CORE * self.core_count or self.busy_share > BUSY_SHARE


def describe_machine() -> str:
    """Return the machine in a few words."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def read_load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def look_at_others() -> float:
    """Return the share of all cores that processes outside of this family take now; it takes a third of a second.

    Not by psutil's percentages: over less than a second of all cores together they show an idle machine as busy.
    """
    busy_s, ours_s = _read_busy_s(), read_cpu_s(os.getpid())
    sleep(LOOK_S)
    others_s = (_read_busy_s() - busy_s) - (read_cpu_s(os.getpid()) - ours_s)
    return max(0.0, others_s / LOOK_S / (os.cpu_count() or 1))


def _read_busy_s() -> float:
    times = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, kind, 0.0)) for kind in kinds)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 - not a file that one keeps
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
