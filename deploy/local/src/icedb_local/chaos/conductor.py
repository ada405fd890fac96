"""Begins faults as the plan says, lets them overlap, ends them, and looks whether metrics told of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_local.chaos.fault_plan import PlannedFault
from icedb_local.chaos.fault_records import InjectedFault
from icedb_local.chaos.injector import Effect, Injector
from icedb_local.chaos.metric_history import Scraper
from icedb_local.chaos.verdicts import find_cuts, judge_fault

POLL_MS: Final = 20
MAX_OVERLAPPING: Final = 4
"""But for those that wait to be met for longer than ``PATIENCE_MS``."""
GIVE_UP_MS: Final = 3_000
"""How long a fault waits for its target to be there."""
PATIENCE_MS: Final = 15_000
"""A fault of the proxy that no service has met yet lasts longer than was drawn, but not longer than this."""
SHOW_MS: Final = 60_000
"""The same for one that does not show yet: only metrics tell whether somebody has met it."""


@dataclass(slots=True)
class _Running:
    record: InjectedFault
    block: AbstractContextManager[Effect]
    effect: Effect


class Conductor:
    """Runs a plan. Used from one thread.

    Args:
        injector: Does it.
        scraper: Sees it.
        up: Whether a service answers now, so that it may be made to fail again.
        say: Told of each fault as it begins, for people and logs.
        clock: For times and waits.
        settle_ms: How long after its end a fault may still show in metrics.
        has_spark: Whether workers run their work as Spark tasks.
    """

    def __init__(
        self,
        injector: Injector,
        scraper: Scraper,
        *,
        up: Callable[[str], bool],
        say: Callable[[InjectedFault], None],
        clock: Clock,
        settle_ms: int,
        has_spark: bool = False,
    ) -> None:
        self.faults: list[InjectedFault] = []
        self._injector = injector
        self._scraper = scraper
        self._up = up
        self._say = say
        self._clock = clock
        self._settle_ms = settle_ms
        self._has_spark = has_spark
        self._running: list[_Running] = []

    @property
    def effect_count(self) -> int:
        """Faults that met somebody and have ended."""
        return sum(fault.has_effect for fault in self.faults)

    def run(self, plan: Iterator[PlannedFault], is_over: Callable[[], bool]) -> None:
        """Inject faults until it is over; none lasts when this returns, however it returns."""
        try:
            next_ms = self._clock.monotonic_ms()
            for planned in plan:
                if not self._wait_until(next_ms, planned, is_over):
                    if is_over():
                        break
                    self._end_due()
                    self._clock.sleep_ms(POLL_MS)
                    continue
                next_ms = max(next_ms + planned.gap_ms, self._clock.monotonic_ms())
                self._begin(planned)
        finally:
            self._end_all()

    def judge(self) -> None:
        """Look for the traces of all faults; called when the metrics of the last one are in, and nothing is late."""
        history, cuts = self._scraper.history, find_cuts(self.faults)
        for fault in self.faults:
            if fault.has_effect and fault.end_ms is not None:
                judge_fault(fault, history, settle_ms=self._settle_ms, cuts=cuts, has_spark=self._has_spark)

    def _is_taken(self, planned: PlannedFault) -> bool:
        """Whether a fault that waits to be met has what this one needs, for up to a minute."""
        now_ms = self._clock.monotonic_ms()
        return any(
            now_ms - one.record.begin_ms > PATIENCE_MS and one.record.planned.resources & planned.resources
            for one in self._running
        )

    def _wait_until(self, next_ms: int, planned: PlannedFault, is_over: Callable[[], bool]) -> bool:
        """Wait for the fault's turn, for room, and a while for its target; false: it is over, or no turn is near."""
        deadline_ms = max(next_ms, self._clock.monotonic_ms()) + GIVE_UP_MS
        while not is_over() and not self._is_taken(planned):
            self._end_due()
            now_ms = self._clock.monotonic_ms()
            young = sum(now_ms - one.record.begin_ms < PATIENCE_MS for one in self._running)
            is_free = young < MAX_OVERLAPPING and not any(
                one.record.planned.resources & planned.resources for one in self._running
            )
            if now_ms >= next_ms and is_free and (self._up(planned.target) or now_ms > deadline_ms):
                return True
            self._clock.sleep_ms(POLL_MS)
        return False

    def _begin(self, planned: PlannedFault) -> None:
        record = InjectedFault(planned, self._clock.monotonic_ms())
        self.faults.append(record)
        block = self._injector.inject(planned)
        try:
            effect = block.__enter__()
        except Unavailable as error:
            record.end_ms, record.trace = self._clock.monotonic_ms(), f"not there: {str(error)[:80]}"
            return
        self._running.append(_Running(record, block, effect))
        self._say(record)

    def _end_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for one in tuple(self._running):
            if self._is_due(one, now_ms):
                self._end(one)

    def _is_due(self, one: _Running, now_ms: int) -> bool:
        planned, age_ms = one.record.planned, now_ms - one.record.begin_ms
        patience_ms = SHOW_MS if planned.kind.only_metrics_tell else PATIENCE_MS
        return age_ms >= planned.duration_ms and (age_ms >= patience_ms or self._is_met(one, now_ms))

    def _is_met(self, one: _Running, now_ms: int) -> bool:
        """Whether a service has met a fault; but for the proxy's, only metrics know."""
        planned = one.record.planned
        if not planned.kind.only_metrics_tell:
            return one.effect.has_met_a_service
        traces = planned.kind.traces_of(planned.target)
        if not traces or not planned.duration_ms:
            return True
        history = self._scraper.history
        return any(history.shows(trace, begin_ms=one.record.begin_ms, end_ms=now_ms) for trace in traces)

    def _end_all(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for one in tuple(self._running):
            if not self._is_due(one, now_ms):
                one.effect.must_show = False  # cut off: nobody may have come by
            self._end(one)

    def _end(self, one: _Running) -> None:
        self._running.remove(one)
        try:
            one.block.__exit__(None, None, None)
        finally:
            one.record.end_ms = self._clock.monotonic_ms()
            one.record.count = one.effect.count
            one.record.hits = one.effect.hits
            one.record.must_show = one.effect.must_show
