"""Which faults happen, in which order, to whom and for how long: drawn from a seed. Pure.

First every kind once, in an order that is drawn, too; then by weight, without end. The same seed gives the same faults;
when each of them meets which request is up to the machine.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from icedb_local.chaos.chaos_layout import LOCK_MASTERS
from icedb_local.chaos.fault_kinds import KINDS, FaultKind


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to come.

    Attributes:
        number: From 1.
        kind: What.
        target: To whom; empty where there is no choice.
        duration_ms: How long.
        gap_ms: From the beginning of the fault before to that of this one.
    """

    number: int
    kind: FaultKind
    target: str
    duration_ms: int
    gap_ms: int

    @property
    def resources(self) -> frozenset[str]:
        """What it takes: two faults with one in common do not overlap."""
        if self.kind.name.startswith("locks_"):
            return frozenset(LOCK_MASTERS)
        if self.kind.group == "disk":
            return frozenset({self.target})
        return frozenset({self.target or self.kind.name})


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan is made of.

    Attributes:
        gap_ms: Mean time from one fault to the next.
        longest_ms: No fault lasts longer.
        left_out: Programs that are not there.
    """

    gap_ms: int = 450
    longest_ms: int = 10_000
    left_out: Collection[str] = ()


def draw_faults(seed: int, shape: PlanShape) -> Iterator[PlannedFault]:
    """Yield faults for ever."""
    rng = np.random.default_rng(seed)
    weights = np.array([kind.weight for kind in KINDS], dtype=np.float64)
    first = [KINDS[place] for place in rng.permutation(len(KINDS))]
    number = 0
    while True:
        number += 1
        kind = first.pop() if first else KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))]
        targets = [target for target in kind.targets if target not in shape.left_out]
        duration_ms = int(rng.integers(kind.min_ms, kind.max_ms + 1))
        yield PlannedFault(
            number=number,
            kind=kind,
            target=targets[int(rng.integers(len(targets)))],
            duration_ms=min(duration_ms, shape.longest_ms),
            gap_ms=int(rng.integers(shape.gap_ms // 4, 2 * shape.gap_ms)),
        )
