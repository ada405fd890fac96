"""What became of each fault that was injected, and what was seen of it. Values and sums over them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from icedb_local.chaos.chaos_layout import WATCHERS_DOOR
from icedb_local.chaos.fault_plan import PlannedFault
from icedb_local.chaos.fault_proxy import FaultHits

Seen = Literal["seen", "unseen", "masked", "nothing_to_see"]
"""masked: every service that it met and that does not tell of it was down just then, which shows, or was killed before
it could be asked."""


@dataclass(slots=True)
class InjectedFault:
    """One fault.

    Attributes:
        planned: What was to happen.
        begin_ms: When it began, monotonic.
        end_ms: When it ended; ``None`` while it lasts.
        count: Processes or servers that it met; of a fault of the proxy: what ``hits`` says.
        hits: Requests that it met at the proxy; ``None``: it is no fault of the proxy.
        must_show: Whether metrics have to tell of it.
        seen: What metrics told.
        trace: Which trace was seen, in words.
        recovery_ms: From its end until a reader saw a batch that was sent after it.
    """

    planned: PlannedFault
    begin_ms: int
    end_ms: int | None = None
    count: int = 0
    hits: FaultHits | None = None
    must_show: bool = True
    seen: Seen = "nothing_to_see"
    trace: str = ""
    recovery_ms: int | None = None

    @property
    def has_effect(self) -> bool:
        """Whether it met anybody; else it does not count as a fault."""
        return self.met_count > 0

    @property
    def met_count(self) -> int:
        """Requests, processes or servers that it met."""
        return self.count if self.hits is None else self.hits.total

    @property
    def service_hits_ms(self) -> Mapping[str, Sequence[int]]:
        """When requests of each service met it, monotonic; not those of readers and producers."""
        times_ms = {} if self.hits is None else self.hits.times_ms
        return {door: tuple(each) for door, each in times_ms.items() if door != WATCHERS_DOOR and each}


@dataclass(frozen=True, slots=True)
class KindFigures:
    """The faults of one kind.

    Attributes:
        kind: Its name.
        group: What it meets.
        fault_count: Faults that met somebody.
        met_count: Requests, processes or servers that they met.
        idle_count: Faults that met nobody, and do not count.
        seen_count: How many were seen in metrics.
        unseen_count: How many were not and should have been.
        masked_count: How many were not, because whom they met was down or died with what it had counted.
        recovery_median_ms: From the end of a fault until a reader saw a batch that was sent after it.
        recovery_longest_ms: The same, the longest.
    """

    kind: str
    group: str
    fault_count: int
    met_count: int
    idle_count: int
    seen_count: int
    unseen_count: int
    masked_count: int
    recovery_median_ms: int | None
    recovery_longest_ms: int | None


def sum_kinds(faults: Sequence[InjectedFault]) -> tuple[KindFigures, ...]:
    """Return the figures of each kind that occurred, by group and name."""
    kinds = {fault.planned.kind.name: fault.planned.kind for fault in faults}
    return tuple(
        _sum_kind(name, kinds[name].group, [fault for fault in faults if fault.planned.kind.name == name])
        for name in sorted(kinds, key=lambda name: (kinds[name].group, name))
    )


def _sum_kind(name: str, group: str, faults: Iterable[InjectedFault]) -> KindFigures:
    every = list(faults)
    real = [fault for fault in every if fault.has_effect]
    recoveries = sorted(fault.recovery_ms for fault in real if fault.recovery_ms is not None)
    return KindFigures(
        kind=name,
        group=group,
        fault_count=len(real),
        met_count=sum(fault.met_count for fault in real),
        idle_count=len(every) - len(real),
        seen_count=sum(fault.seen == "seen" for fault in real),
        unseen_count=sum(fault.seen == "unseen" for fault in real),
        masked_count=sum(fault.seen == "masked" for fault in real),
        recovery_median_ms=recoveries[len(recoveries) // 2] if recoveries else None,
        recovery_longest_ms=recoveries[-1] if recoveries else None,
    )
