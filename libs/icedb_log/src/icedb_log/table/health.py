"""How a table is, in one word and with reasons: what people look at first. Pure.

Says nothing that the figures of :mod:`icedb_log.table.status` do not; the alerts of ``deploy/prometheus`` ring for the
same things.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.errors import HaltError, IceDBError
from icedb_log.table.status import TableStatus
from icedb_log.units import MINUTE_MS

LATE_MS: Final = 15 * MINUTE_MS
"""What waits for longer is late: merges, staged batches, views."""
VERY_LATE_MS: Final = 60 * MINUTE_MS

HealthLevel = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a table is.

    Attributes:
        level: ``ok``; ``warn``: look at it soon; ``bad``: look now.
        word: The worst there is to say, for a narrow column.
        reasons: All there is to say, the worst first; empty for ``ok``.
    """

    level: HealthLevel
    word: str
    reasons: tuple[str, ...] = ()


def find_health(state: TableStatus | IceDBError) -> Health:
    """Return how a table is, given its figures, or why they could not be read."""
    if isinstance(state, IceDBError):
        is_halted = isinstance(state, HaltError)
        return Health("bad" if is_halted else "warn", "halted" if is_halted else "unread", (str(state),))
    found = sorted((*_find_stops(state), *_find_late(state), *_find_view(state)), key=lambda each: each[0] != "bad")
    if not found:
        return Health("ok", "ok")
    return Health(found[0][0], found[0][1], tuple(reason for _, _, reason in found))


_Found = tuple[HealthLevel, str, str]


def _find_stops(state: TableStatus) -> Iterator[_Found]:
    if state.halted:
        yield "bad", "halted", state.halted
    if state.lost_commits:
        yield "bad", "lost", f"commits are lost ({len(state.lost_commits)}): `icedb fsck {state.config.name}`"
    if state.pressure.level == "stop":
        yield "bad", "stop", f"batches are refused: {state.pressure.reason}"
    if state.pressure.level == "slow":
        yield "warn", "slow", f"flushes come less often: {state.pressure.reason}"


def _find_late(state: TableStatus) -> Iterator[_Found]:
    waits = (
        ("lagging", "merges wait", state.merge_lag_ms),
        ("waiting", "staged batches wait", state.staged_lag_ms),
        ("behind", "the view is behind its source", 0 if state.view is None else state.view.lag_ms),
    )
    for word, what, waits_ms in waits:
        if waits_ms > LATE_MS:
            yield "bad" if waits_ms > VERY_LATE_MS else "warn", word, f"{what}: for {waits_ms // MINUTE_MS} min now"
    if state.quarantined_batches:
        yield "warn", "quarant.", f"batches in quarantine wait for a person: {state.quarantined_batches}"


def _find_view(state: TableStatus) -> Iterator[_Found]:
    view = state.view
    if view is not None and view.state not in ("active", "pending"):
        yield "warn", view.state, f"this view of {view.source} is {view.state}: it is not fed"
    if view is not None and view.refused_commits:
        yield "warn", "refused", f"commits of {view.source} that this view cannot take: {view.refused_commits}"
