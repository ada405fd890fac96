"""What both environments speak of: ours, and that of the peers. Imports the standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

OURS: Final = "icedb"
CORE_COUNT: Final = 2
MS: Final = 1000
_CENTILES: Final = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value of one turn, e.g. ``Figure("output_files", "files", 7)``."""

    metric: str
    unit: str
    value: float


def latency_figures(latencies_s: Sequence[float]) -> tuple[Figure, ...]:
    """Return median and 99th percentile; the latter is the slowest call where there are fewer than 100."""
    ordered = sorted(latencies_s)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * (_CENTILES - 1) // _CENTILES)]
    return Figure("p50", "ms", ordered[len(ordered) // 2] * MS), Figure("p99", "ms", p99 * MS)


class TakesTurns:
    """What a system need not do: most have nothing to make before a turn, or to let go of after the last one."""

    def prepare(self) -> None:
        """Make fresh inputs."""

    def close(self) -> None:
        """Let go of what is open."""
