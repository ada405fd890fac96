"""What both environments speak of: ours, and that of the peers. Imports the standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

OURS: Final = "icedb"
EMBEDDED: Final = f"{OURS}, embedded"
"""Our library in the caller's process, where a case has ours as a call to a service."""
CORE_COUNT: Final = 2
MS: Final = 1000
_CENTILES: Final = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value of one turn, e.g. ``Figure("output_files", "files", 7)``."""

    metric: str
    unit: str
    value: float


def latency_figures(latencies_s: Sequence[float], *, tail: int = 99) -> tuple[Figure, ...]:
    """Return the median and a percentile of the tail; of few calls the latter is the slowest."""
    ordered = sorted(latencies_s)
    found = ordered[min(len(ordered) - 1, len(ordered) * tail // _CENTILES)]
    return Figure("p50", "ms", ordered[len(ordered) // 2] * MS), Figure(f"p{tail}", "ms", found * MS)


class TakesTurns:
    """What a system need not do: most have nothing to make before a turn, or to let go of after the last one."""

    def prepare(self) -> None:
        """Make fresh inputs."""

    def close(self) -> None:
        """Let go of what is open."""
